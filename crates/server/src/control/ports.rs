//! Ports of a box: the list of them, and connections to them.

use std::sync::Arc;

use providers::{ByteStream, Guest, ListeningPort};

use super::error::Result;
use super::service::Control;
use crate::operation_metrics::Operation;

impl Control {
    /// Returns the ports that processes of a sandbox listen on; see [`Guest::ports`].
    ///
    /// # Errors
    /// As [`Guest::ports`].
    pub async fn ports(&self, id: &str) -> Result<Vec<ListeningPort>> {
        let ports = |guest: Arc<dyn Guest>| async move { guest.ports().await };
        self.inside(Operation::Ports, id, ports).await.map(|(_, ports)| ports)
    }

    /// Connects to a port in a sandbox; see [`Guest::connect`]. Only the opening is counted.
    ///
    /// # Errors
    /// As [`Guest::connect`]. [`Control::cut`] has the error of a connection that breaks later.
    pub async fn connect(&self, id: &str, port: u16, input: ByteStream) -> Result<ByteStream> {
        let connect = |guest: Arc<dyn Guest>| async move { guest.connect(port, input).await };
        self.inside(Operation::Connect, id, connect).await.map(|(_, output)| output)
    }
}
