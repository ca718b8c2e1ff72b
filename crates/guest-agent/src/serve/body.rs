//! Bodies of answers.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use guest_protocol::{FAILURE_TRAILER, RESET_TRAILER};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::mpsc;

use super::headers::to_header;
use super::rows;
use crate::failure::Result;
use crate::files::long_work::Pieces;
use crate::files::read::Content;
use crate::memory::Active;
use crate::{egress, link, listeners, ports};

/// Body of an answer.
#[derive(Debug)]
pub(crate) enum Answer {
    Whole(Option<Bytes>),
    /// Frames of a command.
    Frames(mpsc::Receiver<Bytes>, #[expect(dead_code, reason = "counts as long as it lives")] Active),
    /// A JSON array that takes more than one piece.
    Rows(rows::Body),
    /// Content of a file.
    File(Content, #[expect(dead_code, reason = "counts as long as it lives")] Active),
    /// Outcome of file work on a thread of its own.
    Work(Pieces, #[expect(dead_code, reason = "counts as long as it lives")] Active),
    /// Changes of files, which come for as long as they are watched.
    Watch(Pieces),
    /// Bytes from a port.
    Port(link::Output, #[expect(dead_code, reason = "counts as long as it lives")] Active),
    /// Bytes of a connection out of the box.
    Egress(egress::Output, #[expect(dead_code, reason = "counts as long as it lives")] Active),
    /// Connections that processes ask for.
    Asked(egress::Rows),
    /// Connections to a port that a caller listens on.
    Incoming(listeners::Rows),
    /// Changes of ports.
    Changes(ports::Changes),
}

impl From<rows::Json> for Answer {
    fn from(json: rows::Json) -> Answer {
        match json {
            rows::Json::Whole(bytes) => Answer::Whole(bytes),
            rows::Json::Pieces(body) => Answer::Rows(body),
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        let piece = match self.get_mut() {
            Answer::Whole(bytes) => bytes.take().map(Ok),
            Answer::Frames(frames, _) => ready!(frames.poll_recv(cx)).map(Ok),
            Answer::Rows(rows) => ready!(rows.poll_piece(cx)),
            Answer::File(content, _) => ready!(content.poll_piece(cx)),
            Answer::Watch(pieces) | Answer::Work(pieces, _) => {
                return Poll::Ready(of_work(ready!(pieces.poll_piece(cx))));
            }
            Answer::Port(output, _) => return Poll::Ready(of_connection(ready!(output.poll_piece(cx)))),
            Answer::Egress(output, _) => return Poll::Ready(of_connection(ready!(output.poll_piece(cx)))),
            Answer::Asked(rows) => ready!(rows.poll_piece(cx)).map(Ok),
            Answer::Incoming(rows) => ready!(rows.poll_piece(cx)).map(Ok),
            Answer::Changes(changes) => ready!(changes.poll_piece(cx)).map(Ok),
        };
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Answer::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(0)))
            }
            Answer::Frames(..)
            | Answer::Rows(_)
            | Answer::File(..)
            | Answer::Work(..)
            | Answer::Watch(_)
            | Answer::Port(..)
            | Answer::Egress(..)
            | Answer::Asked(_)
            | Answer::Incoming(_)
            | Answer::Changes(_) => SizeHint::default(),
        }
    }
}

/// Returns the frame for what came of a connection. A failure is a frame, too: as an error of the body
/// it would take away what is still to be sent.
fn of_connection(piece: Option<std::io::Result<Bytes>>) -> Option<std::io::Result<Frame<Bytes>>> {
    piece.map(|piece| Ok(piece.map_or_else(|_| reset_trailer(), Frame::data)))
}

fn reset_trailer() -> Frame<Bytes> {
    let trailer = (HeaderName::from_static(RESET_TRAILER), HeaderValue::from_static("1"));
    Frame::trailers(HeaderMap::from_iter([trailer]))
}

/// Returns the frame for what came of file work.
fn of_work(piece: Option<Result<Bytes>>) -> Option<std::io::Result<Frame<Bytes>>> {
    piece.map(|piece| match piece {
        Ok(bytes) => Ok(Frame::data(bytes)),
        Err(failure) => match to_header(&failure) {
            Ok(value) => Ok(Frame::trailers(HeaderMap::from_iter([(HeaderName::from_static(FAILURE_TRAILER), value)]))),
            Err(failure) => Err(std::io::Error::other(failure.message)),
        },
    })
}
