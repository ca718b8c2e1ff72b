//! Ports of a remote sandbox: the list of them, and connections to them.

use std::sync::Arc;

use client::PortStream;
use futures_util::{StreamExt, stream};
use guest_protocol::PORTS_MAX;
use parking_lot::Mutex;

use super::boxes::Known;
use super::fault::{fault, words};
use super::guest::CustomGuest;
use super::remote::Remote;
use crate::{ByteStream, Error, ListeningPort, Result};

const LIST: &str = "list the ports of a box";
const CONNECT: &str = "connect to a port";

/// Lists the ports; see [`crate::Guest::ports`].
pub(super) async fn list(guest: &CustomGuest) -> Result<Vec<ListeningPort>> {
    let ports = guest.ask(LIST, guest.remote.client.ports(guest.sandbox())).await?;
    if ports.len() > PORTS_MAX {
        return Err(Error::failed(LIST, "the other service gave more ports than there may be"));
    }
    let mut ports = ports.into_iter().map(listening).collect::<Result<Vec<_>>>()?;
    ports.sort_by_key(|port| (port.port, port.address));
    Ok(ports)
}

fn listening(port: api::ListeningPort) -> Result<ListeningPort> {
    let api::ListeningPort { port, address, pid, process } = port;
    let address = address.parse().map_err(|error| Error::failed(LIST, error))?;
    Ok(ListeningPort { port, address, pid, process: process.map(|name| words(&name)) })
}

/// Connects to a port; see [`crate::Guest::connect`].
pub(super) async fn connect(guest: &CustomGuest, port: u16, input: ByteStream) -> Result<ByteStream> {
    let failure = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&failure);
    let input = input.map(move |piece| {
        piece.map_err(|error| {
            *kept.lock() = Some(error);
            std::io::Error::other("the input failed")
        })
    });
    let client = guest.writing()?;
    let stream = match guest.ask(CONNECT, client.connect_port(guest.sandbox(), port, input)).await {
        Err(Error::Gone) => return Err(missing(guest, port).await),
        opened => opened?,
    };
    let output = Output { remote: Arc::clone(&guest.remote), known: guest.known.clone(), stream, failure };
    Ok(stream::unfold(Some(output), |output| async move {
        let mut output = output?;
        match output.stream.next().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(output))),
            Ok(None) => None,
            Err(error) => Some((Err(output.broken(error).await), None)),
        }
    })
    .boxed())
}

/// Returns the error for "not found", which the API uses for the port and for the sandbox.
async fn missing(guest: &CustomGuest, port: u16) -> Error {
    match guest.remote.still_runs(&guest.known).await {
        Ok(true) => Error::NotFound(format!("nothing listens on port {port} in the sandbox")),
        Ok(false) => Error::Gone,
        Err(error) => error,
    }
}

/// A connection, and what is needed to say why it broke.
struct Output {
    remote: Arc<Remote>,
    known: Known,
    stream: PortStream,
    /// Error of the input.
    failure: Arc<Mutex<Option<Error>>>,
}

impl Output {
    async fn broken(&self, error: client::Error) -> Error {
        if let Some(failure) = self.failure.lock().take() {
            return failure;
        }
        if matches!(error, client::Error::Cut { .. })
            && let Ok(false) = self.remote.still_runs(&self.known).await
        {
            return Error::Gone;
        }
        fault(CONNECT, None, error)
    }
}
