//! Ports of a remote sandbox: the list of them, and connections to them.

use std::sync::Arc;

use client::PortStream;
use futures_util::{Stream, StreamExt, stream};
use guest_protocol::PORTS_MAX;
use parking_lot::Mutex;

use super::boxes::Known;
use super::fault::fault;
use super::guest::CustomGuest;
use super::remote::Remote;
use crate::service::words::words;
use crate::{ByteStream, Error, ListeningPort, Result};

const LIST: &str = "list the ports of a box";
const CONNECT: &str = "connect to a port";

/// Lists the ports; see [`crate::Guest::ports`].
pub(super) async fn list(guest: &CustomGuest) -> Result<Vec<ListeningPort>> {
    let ports = guest.ask(LIST, guest.remote.client.ports(guest.sandbox())).await?;
    if ports.len() > PORTS_MAX {
        return Err(Error::failed(LIST, "the other service returned more ports than allowed"));
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
    let (input, failure) = kept(input);
    let client = guest.writing()?;
    let stream = match guest.ask(CONNECT, client.connect_port(guest.sandbox(), port, input)).await {
        Err(Error::Gone) => return Err(missing(guest, port).await),
        opened => opened?,
    };
    let remote = Arc::clone(&guest.remote);
    let known = guest.known.clone();
    Ok(output(Output { remote, known, stream, failure }))
}

/// Error of an input, once there is one.
pub(super) type Failure = Arc<Mutex<Option<Error>>>;

/// Converts the input for the client, and keeps its error.
pub(super) fn kept(input: ByteStream) -> (impl Stream<Item = std::io::Result<bytes::Bytes>> + Send + 'static, Failure) {
    let failure = Failure::default();
    let kept = Arc::clone(&failure);
    let input = input.map(move |piece| {
        piece.map_err(|error| {
            *kept.lock() = Some(error);
            std::io::Error::other("the input failed")
        })
    });
    (input, failure)
}

/// Returns the bytes of a connection.
pub(super) fn output(output: Output) -> ByteStream {
    stream::unfold(Some(output), |output| async move {
        let mut output = output?;
        match output.stream.next().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(output))),
            Ok(None) => None,
            Err(error) => Some((Err(output.broken(error).await), None)),
        }
    })
    .boxed()
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
pub(super) struct Output {
    pub(super) remote: Arc<Remote>,
    pub(super) known: Known,
    pub(super) stream: PortStream,
    pub(super) failure: Failure,
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
