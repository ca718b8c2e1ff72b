//! Ports of a box: the list of them, and connections to them.

use std::sync::Arc;
use std::time::Duration;

use domain::{Limits, Timestamp};
use providers::{ByteStream, Guest, ListeningPort};

use crate::control::error::{Result, above};
use crate::control::service::Control;
use crate::operation_metrics::Operation;
use store::clock;

/// Time for which a permit for a preview is valid where a request leaves it out.
const PREVIEW_TTL: Duration = Duration::from_secs(3600);

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
        self.connect_as(Operation::Connect, id, port, input).await
    }

    /// Connects to a port in a sandbox for one request of a preview, as [`Control::connect`].
    ///
    /// # Errors
    /// As [`Guest::connect`].
    pub async fn connect_preview(&self, id: &str, port: u16, input: ByteStream) -> Result<ByteStream> {
        self.connect_as(Operation::Preview, id, port, input).await
    }

    async fn connect_as(&self, operation: Operation, id: &str, port: u16, input: ByteStream) -> Result<ByteStream> {
        let using = self.pauses.in_use.begin(id, operation);
        let connect = |guest: Arc<dyn Guest>| async move { guest.connect(port, input).await };
        let (_, output) = self.inside(operation, id, connect).await?;
        Ok(using.until_the_end(output))
    }

    /// Returns the time at which a permit for a preview expires that is valid for `ttl`, at most for
    /// the longest lifetime of a sandbox, and until `end`.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::control::Error::NotFound) for a sandbox that is not there,
    /// [`Error::LimitReached`](crate::control::Error::LimitReached) above the maximum.
    pub async fn preview_expiry(&self, id: &str, ttl: Option<Duration>, end: Option<Timestamp>) -> Result<Timestamp> {
        let sandbox = self.sandbox(id).await?;
        let limits = Limits { ttl_default: PREVIEW_TTL, ..self.limits_of(sandbox.owner.as_ref()).await? };
        let ttl = limits.ttl(ttl).map_err(|error| above("ttl", error))?;
        let expires_at = clock::after(self.now(), ttl);
        let expires_at = end.map_or(expires_at, |end| end.min(expires_at));
        // A permit knows whole seconds.
        Ok(clock::from_ms(expires_at.as_second().saturating_mul(1000)))
    }
}
