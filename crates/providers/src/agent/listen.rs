//! Ports of a box that a caller listens on.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use guest_protocol::{LISTEN_CONNECTIONS_MAX, LISTEN_ROW_BYTES_MAX, Listen, ListenAccept, ListenRefuse, ListenRow};
use tokio::sync::OwnedSemaphorePermit;

use super::connection::Connection;
use super::lines::Lines;
use super::link;
use super::numbers::{Number, Numbers};
use super::ports::check_port;
use super::request::SHORT_WAIT;
use crate::{ByteStream, Error, PortConnection, PortConnections, Result};

const LISTEN: &str = "listen on a port of a box";
const ACCEPT: &str = "accept a connection to a port with a listener";
const REFUSE: &str = "refuse a connection to a port with a listener";

/// Begins to listen.
pub(super) async fn listen(connection: &Arc<Connection>, port: u16) -> Result<PortConnections> {
    check_port(port)?;
    let lines = Lines::of(LISTEN, connection, "/listen", &Listen { port }, LISTEN_ROW_BYTES_MAX).await?;
    let refuser = Arc::clone(connection);
    let numbers = Numbers::new(LISTEN_CONNECTIONS_MAX, move |id| {
        let connection = Arc::clone(&refuser);
        // Without it the process waits until the port is no longer listened on.
        async move { drop(connection.order(REFUSE, "/listen/refuse", &ListenRefuse { id }, SHORT_WAIT).await) }
    });
    let listener = Listener { lines, numbers, connection: Arc::clone(connection) };
    let connections = stream::unfold(Some(listener), |listener| async move {
        let mut listener = listener?;
        match listener.next().await {
            Ok(Some(connection)) => Some((Ok(connection), Some(listener))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(connections.boxed())
}

/// Connections that an agent lists.
struct Listener {
    lines: Lines,
    numbers: Numbers,
    connection: Arc<Connection>,
}

impl Listener {
    async fn next(&mut self) -> Result<Option<Box<dyn PortConnection>>> {
        // Each connection holds one until it ends, so an agent that lists more is not read on.
        let permit = self.connection.listen_permit().await?;
        let Some(line) = self.lines.next().await? else { return Ok(None) };
        let ListenRow { id } = serde_json::from_slice(&line).map_err(|error| Error::failed(LISTEN, error))?;
        let number = self.numbers.take(id);
        let number = number.ok_or_else(|| Error::failed(LISTEN, "the agent listed a connection twice"))?;
        Ok(Some(Box::new(Waiting { number, permit, connection: Arc::clone(&self.connection) })))
    }
}

/// A connection that waits.
struct Waiting {
    number: Number,
    permit: OwnedSemaphorePermit,
    connection: Arc<Connection>,
}

#[async_trait]
impl PortConnection for Waiting {
    async fn accept(self: Box<Self>, input: ByteStream) -> Result<ByteStream> {
        let Waiting { number, permit, connection } = *self;
        // Its reader is a caller, as that of a command.
        let place = connection.command_permit()?;
        let accept = ListenAccept { id: number.answered() };
        let output = link::open(ACCEPT, &connection, "/listen/accept", &accept, place, input).await?;
        // The place among the listed ones is held to the end.
        Ok(output
            .map(move |piece| {
                let _held = &permit;
                piece
            })
            .boxed())
    }
}
