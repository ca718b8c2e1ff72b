//! Connections between a process of a box and a caller or a host.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use guest_protocol::REQUEST_HEADER;
use http::Method;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use super::connection::{Connection, Incoming, Outgoing, request};
use super::request::{SHORT_WAIT, succeed, within};
use super::wire::to_header;
use crate::{ByteStream, Error, Result};

/// The longest time for which a process of the box may take no byte of what is sent. Between two
/// bytes a connection may be silent for as long as both sides want.
const STALL_MAX: Duration = Duration::from_secs(300);

/// Opens a connection by `path`. `question` says which.
pub(super) async fn open(
    action: &'static str,
    connection: &Arc<Connection>,
    path: &'static str,
    question: &impl Serialize,
    permit: OwnedSemaphorePermit,
    input: ByteStream,
) -> Result<ByteStream> {
    let mut message = request(action, Method::POST, path)?;
    let header = to_header(question).ok_or_else(|| Error::failed(action, "the request does not fit into a header"))?;
    message.headers_mut().insert(REQUEST_HEADER, header);
    let answer = async {
        let (answer, outgoing) = connection.begin(action, message).await?;
        Ok((succeed(action, answer.await?).await?.into_body(), outgoing))
    };
    let (incoming, outgoing) = within(action, SHORT_WAIT, answer).await?;
    let mut sender = JoinSet::new();
    sender.spawn(send(action, outgoing, input));
    let open =
        Open { action, incoming, has_ended: false, sender, _permit: permit, _connection: Arc::clone(connection) };
    let output = stream::unfold(Some(open), |open| async move {
        let mut open = open?;
        match open.next().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(open))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(output.boxed())
}

/// An open connection. Dropping it resets the stream, and with it the connection in the box.
struct Open {
    action: &'static str,
    incoming: Incoming,
    /// True once the process sends no more.
    has_ended: bool,
    /// Task that sends the input.
    sender: JoinSet<Result<()>>,
    _permit: OwnedSemaphorePermit,
    _connection: Arc<Connection>,
}

impl Open {
    /// Returns the next bytes of the process; an empty piece, once, when it sends no more; `None` once
    /// both directions have ended.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        while !self.has_ended {
            tokio::select! {
                piece = self.incoming.piece(self.action) => match piece? {
                    Some(piece) => return Ok(Some(piece)),
                    None if self.incoming.is_reset() => {
                        return Err(Error::Conflict("the process has reset the connection".to_owned()));
                    }
                    None => {
                        self.has_ended = true;
                        return Ok(Some(Bytes::new()));
                    }
                },
                Some(sent) = self.sender.join_next() => sent.map_err(|error| Error::failed(self.action, error))??,
            }
        }
        while let Some(sent) = self.sender.join_next().await {
            sent.map_err(|error| Error::failed(self.action, error))??;
        }
        Ok(None)
    }
}

/// Sends the input at the speed of the process, and then its end.
async fn send(action: &'static str, mut outgoing: Outgoing, mut input: ByteStream) -> Result<()> {
    while let Some(piece) = input.next().await {
        let mut piece = piece?;
        while !piece.is_empty() {
            if !within(action, STALL_MAX, outgoing.put_some(&mut piece)).await? {
                return Ok(());
            }
        }
    }
    outgoing.put(Bytes::new(), true)
}
