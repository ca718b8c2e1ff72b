//! Transfers of file contents into a box and out of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use guest_protocol::{Archive, FILE_HEADER, PathOnly, REQUEST_HEADER, ReadFile, Unpacked, WriteFile};
use http::Method;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use super::connection::{Connection, Incoming, Outgoing, request};
use super::request::{DESCRIPTION_BYTES_MAX, SHORT_WAIT, collect, succeed, within};
use super::wire::{file_info, from_header, to_header};
use crate::{ByteStream, Error, FileContent, Result};

/// The longest time without a byte in either direction.
const STALL_MAX: Duration = Duration::from_secs(60);
/// The most bytes of a file whose stated size is 0, such as those of `/proc`.
const UNSIZED_BYTES_MAX: u64 = 16 * 1024 * 1024;

const READ: &str = "read a file";
const WRITE: &str = "write a file";

/// Builds the head of a request that is described in a header.
fn head(
    action: &'static str,
    method: Method,
    path: &'static str,
    details: &impl Serialize,
) -> Result<http::Request<()>> {
    let mut message = request(action, method, path)?;
    let header = to_header(details).ok_or_else(|| Error::failed(action, "the request does not fit into a header"))?;
    message.headers_mut().insert(REQUEST_HEADER, header);
    Ok(message)
}

/// Opens a file for reading.
pub(super) async fn read(connection: &Arc<Connection>, details: ReadFile) -> Result<FileContent> {
    let permit = connection.read_permit(SHORT_WAIT).await?;
    let message = head(READ, Method::GET, "/file", &details)?;
    let answer = async {
        let (answer, mut outgoing) = connection.begin(READ, message).await?;
        outgoing.put(Bytes::new(), true)?;
        succeed(READ, answer.await?).await
    };
    let response = within(READ, SHORT_WAIT, answer).await?;
    let described = response.headers().get(FILE_HEADER).and_then(from_header);
    let info = file_info(READ, described.ok_or_else(|| Error::failed(READ, "the agent did not describe the file"))?)?;
    let held = if info.size == 0 { UNSIZED_BYTES_MAX } else { info.size.saturating_sub(details.offset) };
    let content = Content {
        action: READ,
        incoming: response.into_body(),
        left: details.length.map_or(held, |length| length.min(held)),
        _permit: permit,
        _connection: Arc::clone(connection),
    };
    Ok(FileContent { info, bytes: content.stream() })
}

/// Rest of a file that is being read.
struct Content {
    action: &'static str,
    incoming: Incoming,
    left: u64,
    _permit: OwnedSemaphorePermit,
    _connection: Arc<Connection>,
}

impl Content {
    fn stream(self) -> ByteStream {
        let bytes = stream::unfold(Some(self), |content| async move {
            let mut content = content?;
            match content.next().await {
                Ok(Some(piece)) => Some((Ok(piece), Some(content))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        });
        bytes.boxed()
    }

    /// Returns the next piece. A file that grew meanwhile ends at the size it had when it was
    /// opened.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.left == 0 {
            return Ok(None);
        }
        let Some(mut piece) = within(self.action, STALL_MAX, self.incoming.piece(self.action)).await? else {
            return Ok(None);
        };
        piece.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= piece.len() as u64;
        Ok(Some(piece))
    }
}

/// Writes a file. An early end resets the stream, and an agent discards content whose end it has
/// not seen.
pub(super) async fn write(connection: &Connection, details: &WriteFile, content: ByteStream) -> Result<()> {
    let message = head(WRITE, Method::PUT, "/file", details)?;
    let response = put(WRITE, connection, message, content).await?;
    within(WRITE, SHORT_WAIT, succeed(WRITE, response)).await.map(|_| ())
}

/// Opens an archive of a directory. What it holds has no bound: it is passed on as it comes.
pub(super) async fn archive(connection: &Arc<Connection>, details: &Archive) -> Result<ByteStream> {
    const ACTION: &str = "pack a directory";
    let permit = connection.read_permit(SHORT_WAIT).await?;
    let message = head(ACTION, Method::GET, "/archive", details)?;
    let answer = async {
        let (answer, mut outgoing) = connection.begin(ACTION, message).await?;
        outgoing.put(Bytes::new(), true)?;
        succeed(ACTION, answer.await?).await
    };
    let incoming = within(ACTION, SHORT_WAIT, answer).await?.into_body();
    Ok(passed_on(ACTION, connection, incoming, permit))
}

/// Returns the bytes of an answer as they come, without a bound.
pub(super) fn passed_on(
    action: &'static str,
    connection: &Arc<Connection>,
    incoming: Incoming,
    permit: OwnedSemaphorePermit,
) -> ByteStream {
    Content { action, incoming, left: u64::MAX, _permit: permit, _connection: Arc::clone(connection) }.stream()
}

/// Unpacks an archive below a directory.
pub(super) async fn unpack(connection: &Connection, details: &PathOnly, content: ByteStream) -> Result<Unpacked> {
    const ACTION: &str = "unpack an archive";
    let message = head(ACTION, Method::PUT, "/archive", details)?;
    let response = put(ACTION, connection, message, content).await?;
    let answer = async {
        let body = collect(ACTION, succeed(ACTION, response).await?.into_body(), DESCRIPTION_BYTES_MAX).await?;
        serde_json::from_slice(&body).map_err(|error| Error::failed(ACTION, error))
    };
    within(ACTION, SHORT_WAIT, answer).await
}

/// Sends a body, and returns the answer, which may come before the end of the body.
async fn put(
    action: &'static str,
    connection: &Connection,
    message: http::Request<()>,
    content: ByteStream,
) -> Result<http::Response<Incoming>> {
    let (mut answer, mut outgoing) = within(action, SHORT_WAIT, connection.begin(action, message)).await?;
    tokio::select! {
        biased;
        response = &mut answer => response,
        sent = send(action, &mut outgoing, content) => {
            sent?;
            within(action, STALL_MAX, answer).await
        }
    }
}

/// Sends the content at the speed of the agent. There is no limit on the wait for `content`
/// itself.
async fn send(action: &'static str, outgoing: &mut Outgoing, mut content: ByteStream) -> Result<()> {
    while let Some(piece) = content.next().await {
        let mut piece = piece?;
        while !piece.is_empty() {
            if !within(action, STALL_MAX, outgoing.put_some(&mut piece)).await? {
                return Ok(());
            }
        }
    }
    outgoing.put(Bytes::new(), true)
}
