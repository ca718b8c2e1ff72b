//! Transfers of file contents into a box and out of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use guest_protocol::{FILE_HEADER, REQUEST_HEADER, ReadFile, WriteFile};
use http::Method;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use super::connection::{Connection, Incoming, Outgoing, request};
use super::request::{SHORT_WAIT, succeed, within};
use super::wire::{file_info, from_header, to_header};
use crate::{ByteStream, Error, FileContent, Result};

/// The longest time without a byte in either direction.
const STALL_MAX: Duration = Duration::from_secs(60);
/// The most bytes of a file whose stated size is 0, such as those of `/proc`.
const UNSIZED_BYTES_MAX: u64 = 16 * 1024 * 1024;

const READ: &str = "read a file";
const WRITE: &str = "write a file";

/// Builds the head of a request whose body is file content.
fn head(action: &'static str, method: Method, details: &impl Serialize) -> Result<http::Request<()>> {
    let mut message = request(action, method, "/file")?;
    let header = to_header(details).ok_or_else(|| Error::failed(action, "the request fits no header"))?;
    message.headers_mut().insert(REQUEST_HEADER, header);
    Ok(message)
}

/// Opens a file for reading.
pub(super) async fn read(connection: &Arc<Connection>, details: ReadFile) -> Result<FileContent> {
    let permit = connection.read_permit(SHORT_WAIT).await?;
    let message = head(READ, Method::GET, &details)?;
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
        incoming: response.into_body(),
        left: details.length.map_or(held, |length| length.min(held)),
        _permit: permit,
        _connection: Arc::clone(connection),
    };
    let bytes = stream::unfold(Some(content), |content| async move {
        let mut content = content?;
        match content.next().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(content))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(FileContent { info, bytes: bytes.boxed() })
}

/// Rest of a file that is being read.
struct Content {
    incoming: Incoming,
    left: u64,
    _permit: OwnedSemaphorePermit,
    _connection: Arc<Connection>,
}

impl Content {
    /// Returns the next piece. A file that grew meanwhile ends at the size it had when it was
    /// opened.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.left == 0 {
            return Ok(None);
        }
        let Some(mut piece) = within(READ, STALL_MAX, self.incoming.piece(READ)).await? else { return Ok(None) };
        piece.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= piece.len() as u64;
        Ok(Some(piece))
    }
}

/// Writes a file. An early end resets the stream, and an agent discards content whose end it has
/// not seen.
pub(super) async fn write(connection: &Connection, details: &WriteFile, content: ByteStream) -> Result<()> {
    let message = head(WRITE, Method::PUT, details)?;
    let (mut answer, mut outgoing) = within(WRITE, SHORT_WAIT, connection.begin(WRITE, message)).await?;
    let response = tokio::select! {
        biased;
        response = &mut answer => response?,
        sent = send(&mut outgoing, content) => {
            sent?;
            within(WRITE, STALL_MAX, answer).await?
        }
    };
    within(WRITE, SHORT_WAIT, succeed(WRITE, response)).await.map(|_| ())
}

/// Sends the content at the speed of the agent. There is no limit on the wait for `content`
/// itself.
async fn send(outgoing: &mut Outgoing, mut content: ByteStream) -> Result<()> {
    while let Some(piece) = content.next().await {
        let mut piece = piece?;
        while !piece.is_empty() {
            if !within(WRITE, STALL_MAX, outgoing.put_some(&mut piece)).await? {
                return Ok(());
            }
        }
    }
    outgoing.put(Bytes::new(), true)
}
