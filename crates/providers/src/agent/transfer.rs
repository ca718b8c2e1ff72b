//! File contents on their way into a box and out of it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use guest_protocol::{FILE_HEADER, REQUEST_HEADER, ReadFile, WriteFile};
use http::{Method, Request};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, fault};
use super::request::{SHORT_WAIT, late, succeed, uri, whole, within};
use super::wire::{file_info, from_header, to_header};
use crate::{ByteStream, Error, FileContent, Result};

/// The longest time in which an agent may neither take nor give a byte.
const STALL_MAX: Duration = Duration::from_secs(60);
/// The most bytes of a file that says it has none, as those of `/proc` do.
const UNSIZED_BYTES_MAX: u64 = 16 * 1024 * 1024;

const READ: &str = "read a file";
const WRITE: &str = "write a file";

/// Begins to read a file.
pub(super) async fn read(connection: &Arc<Connection>, request: ReadFile) -> Result<FileContent> {
    let permit = connection.stream_permit()?;
    let header = to_header(&request).ok_or_else(|| Error::failed(READ, "the request fits no header"))?;
    let message = Request::builder()
        .method(Method::GET)
        .uri(uri("/file"))
        .header(REQUEST_HEADER, header)
        .body(whole(Bytes::new()))
        .map_err(|error| Error::failed(READ, error))?;
    let response =
        within(READ, SHORT_WAIT, async { succeed(READ, connection.send(READ, message).await?).await }).await?;
    let described = response.headers().get(FILE_HEADER).and_then(from_header);
    let info = file_info(READ, described.ok_or_else(|| Error::failed(READ, "the agent did not describe the file"))?)?;
    let held = if info.size == 0 { UNSIZED_BYTES_MAX } else { info.size.saturating_sub(request.offset) };
    let content = Content {
        body: response.into_body(),
        left: request.length.map_or(held, |length| length.min(held)),
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

/// What is left of a file that is being read.
struct Content {
    body: Incoming,
    left: u64,
    _permit: OwnedSemaphorePermit,
    _connection: Arc<Connection>,
}

impl Content {
    /// The next piece. A file that grew meanwhile ends where it ended when it was opened.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        while self.left > 0 {
            let frame = tokio::time::timeout(STALL_MAX, self.body.frame()).await.map_err(|_| late(READ))?;
            let Some(frame) = frame else { return Ok(None) };
            let Ok(mut piece) = frame.map_err(|error| fault(READ, error))?.into_data() else { continue };
            if piece.is_empty() {
                continue;
            }
            piece.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= piece.len() as u64;
            return Ok(Some(piece));
        }
        Ok(None)
    }
}

/// Writes a file.
pub(super) async fn write(connection: &Connection, request: &WriteFile, content: ByteStream) -> Result<()> {
    let header = to_header(request).ok_or_else(|| Error::failed(WRITE, "the request fits no header"))?;
    let progress = Arc::new(Progress::default());
    let stop = CancellationToken::new();
    // Whatever ends the request, nobody waits for the content any more.
    let _stop = stop.clone().drop_guard();
    let watched = Watched { content, progress: Arc::clone(&progress) }.take_until(stop.cancelled_owned());
    let message = Request::builder()
        .method(Method::PUT)
        .uri(uri("/file"))
        .header(REQUEST_HEADER, header)
        .body(StreamBody::new(watched).boxed_unsync())
        .map_err(|error| Error::failed(WRITE, error))?;
    let answer = async {
        let response = connection.send(WRITE, message).await?;
        within(WRITE, SHORT_WAIT, succeed(WRITE, response)).await
    };
    let answer = tokio::select! {
        answer = answer => answer.map(|_| ()),
        () = progress.stalled() => Err(late(WRITE)),
    };
    // Why the content failed says more than that the request was cut off.
    match progress.fault.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(fault) => Err(fault),
        None => answer,
    }
}

/// How far the sending of a content is.
#[derive(Default)]
struct Progress {
    pieces: AtomicU64,
    /// It is the content that is late, not the agent.
    awaits_content: AtomicBool,
    fault: Mutex<Option<Error>>,
}

impl Progress {
    /// Ends when the agent has taken nothing for [`STALL_MAX`] although there was something.
    async fn stalled(&self) {
        loop {
            let before = self.pieces.load(Ordering::Relaxed);
            tokio::time::sleep(STALL_MAX).await;
            if before == self.pieces.load(Ordering::Relaxed) && !self.awaits_content.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// A content that notes its progress.
struct Watched {
    content: ByteStream,
    progress: Arc<Progress>,
}

impl Stream for Watched {
    type Item = io::Result<Frame<Bytes>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.content.as_mut().poll_next(context);
        self.progress.awaits_content.store(polled.is_pending(), Ordering::Relaxed);
        self.progress.pieces.fetch_add(1, Ordering::Relaxed);
        polled.map(|item| {
            item.map(|piece| {
                piece.map(Frame::data).map_err(|fault| {
                    *self.progress.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
                    io::Error::other("the content failed")
                })
            })
        })
    }
}
