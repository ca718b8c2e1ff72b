//! Ports of a box that a caller listens on.

use std::sync::Arc;

use providers::{ByteStream, Guest};

use super::reverse_ports::{Listener, Taken, Waiting};
use crate::control::error::{Error, Result};
use crate::control::service::Control;
use crate::operation_metrics::Operation;

impl Control {
    /// Listens on a port in a sandbox for the caller; see [`Guest::listen`].
    ///
    /// # Errors
    /// As [`Guest::listen`], and [`Error::NotSupported`] where the operator has switched it off.
    pub async fn listen(&self, id: &str, port: u16) -> Result<Listener> {
        if !self.policy.allows_reverse {
            return Err(Error::NotSupported(
                "this server does not let programs in a sandbox connect to its callers (`ports.reverse`)".to_owned(),
            ));
        }
        let using = self.pauses.in_use.begin(id, Operation::Listen);
        let listen = |guest: Arc<dyn Guest>| async move { guest.listen(port).await };
        let (sandbox, connections) = self.inside(Operation::Listen, id, listen).await?;
        Ok(Listener::new(using.until_the_end(connections), Arc::clone(&self.announced), sandbox.id, port))
    }

    /// Takes a connection to a port that is listened on, with `input` as what the caller sends.
    ///
    /// # Errors
    /// [`Error::NoFile`] if it does not wait.
    pub async fn take_connection(&self, id: &str, port: u16, number: u64, input: ByteStream) -> Result<Taken> {
        let using = self.pauses.in_use.begin(id, Operation::Connect);
        let sandbox = self.usable(id).await?;
        let waiting = self.announced.take(number, &sandbox.id, port).ok_or_else(|| {
            Error::NoFile(format!(
                "connection {number} to port {port} is not waiting: it was already accepted, was not accepted in time, \
                 or the listener has closed"
            ))
        })?;
        let Waiting { connection, ended, .. } = waiting;
        let output = connection.accept(input).await.map_err(|error| self.guest_error(&sandbox, error))?;
        Ok(Taken { output: using.until_the_end(output), ended })
    }
}
