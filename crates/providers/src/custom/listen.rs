//! Ports of a remote sandbox that a caller listens on.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use client::{Client, PortListener};
use futures_util::{StreamExt, stream};
use guest_protocol::LISTEN_CONNECTIONS_MAX;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::boxes::Known;
use super::fault::fault;
use super::guest::CustomGuest;
use super::ports::{Output, kept, output};
use super::remote::Remote;
use crate::{ByteStream, Error, PortConnection, PortConnections, Result};

const LISTEN: &str = "listen on a port of a box";
const ACCEPT: &str = "accept a connection to a port with a listener";
/// Connections that may wait, or be given up, at once.
const CONNECTIONS_MAX: usize = LISTEN_CONNECTIONS_MAX;

/// Listens on a port; see [`crate::Guest::listen`].
pub(super) async fn listen(guest: &CustomGuest, port: u16) -> Result<PortConnections> {
    let client = guest.writing()?;
    let listener = guest.ask(LISTEN, client.listen_port(guest.sandbox(), port)).await?;
    let (given_up, to_refuse) = mpsc::channel(CONNECTIONS_MAX);
    let far = Far { remote: Arc::clone(&guest.remote), known: guest.known.clone(), client, port, given_up };
    let (sender, connections) = mpsc::channel(CONNECTIONS_MAX);
    let mut task = JoinSet::new();
    task.spawn(pass_on(listener, Arc::new(far), to_refuse, sender));
    let listening = Listening { connections, _task: task };
    let connections = stream::unfold(listening, |mut listening| async move {
        let connection = listening.connections.recv().await?;
        Some((connection, listening))
    });
    Ok(connections.boxed())
}

/// A port that is listened on.
struct Listening {
    connections: mpsc::Receiver<Result<Box<dyn PortConnection>>>,
    /// Task that announces connections and refuses those that were given up, whether or not the former are
    /// read.
    _task: JoinSet<()>,
}

async fn pass_on(
    mut listener: PortListener,
    far: Arc<Far>,
    mut to_refuse: mpsc::Receiver<u64>,
    to: mpsc::Sender<Result<Box<dyn PortConnection>>>,
) {
    loop {
        tokio::select! {
            number = listener.next() => match number {
                // Without room it is refused: that is more than there may be at once.
                Ok(number) => drop(to.try_send(Ok(Box::new(Waiting { number, far: Some(Arc::clone(&far)) })))),
                Err(error) => {
                    let _ = to.send(Err(far.broken(error).await)).await;
                    return;
                }
            },
            Some(number) = to_refuse.recv() => {
                // A service that is gone shows with the next connection.
                let _ = listener.refuse(number).await;
            }
        }
    }
}

/// The port at the other service.
struct Far {
    remote: Arc<Remote>,
    known: Known,
    client: Client,
    port: u16,
    given_up: mpsc::Sender<u64>,
}

impl Far {
    async fn broken(&self, error: client::Error) -> Error {
        if matches!(error, client::Error::Cut { .. })
            && let Ok(false) = self.remote.still_runs(&self.known).await
        {
            return Error::Gone;
        }
        fault(LISTEN, None, error)
    }
}

/// A connection that waits.
struct Waiting {
    number: u64,
    /// Taken once it is accepted.
    far: Option<Arc<Far>>,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(far) = self.far.take() {
            let _ = far.given_up.try_send(self.number);
        }
    }
}

#[async_trait]
impl PortConnection for Waiting {
    async fn accept(mut self: Box<Self>, input: ByteStream) -> Result<ByteStream> {
        let far = self.far.take().ok_or(Error::Gone)?;
        let (input, failure) = kept(input);
        let taken = far.client.accept_port(&far.known.remote, far.port, self.number, input);
        let stream = match tokio::time::timeout(far.remote.timeout, taken).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if error.is_code("not_found") => {
                return Err(Error::NotFound("the connection is no longer waiting".to_owned()));
            }
            Ok(Err(error)) => return Err(far.broken(error).await),
            Err(_) => return Err(Error::failed(ACCEPT, "the other service does not answer")),
        };
        let remote = Arc::clone(&far.remote);
        let known = far.known.clone();
        Ok(output(Output { remote, known, stream, failure }))
    }
}
