//! One request to a program, over a connection of its own.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::tunnel::Tunnel;
use crate::budget::Reservation;
use crate::hop_by_hop::Trailed;
use crate::http::accept::body_timeout::Stalled;
use crate::http::body::drain;
use crate::http::error::{ApiError, Refusal, malformed};

/// Memory held by every request for as long as it is under way: the buffer for what the program
/// sends, and the one for what it is sent. Further bytes are counted while there are any.
pub const EXCHANGE_BYTES: usize = 2 * BUFFER_BYTES;
/// Largest buffer of one direction, and largest head of an answer, in bytes.
const BUFFER_BYTES: usize = 32 * 1024;
/// Longest wait for the head of an answer after the whole request was sent. Between two pieces of its
/// body a program may take as long as it likes.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(600);

/// Longest wait of the head of an answer for the first piece of its body. One that comes later is passed on by itself.
const FIRST_PIECE_WAIT: Duration = Duration::from_millis(20);

/// Connection that a task reads and writes; dropping it resets it.
pub type Driver = JoinSet<()>;

/// Sends a request and returns the head of the answer. The answer's body needs the driver. On `tasks`,
/// what the program does not take of the request is read on.
///
/// # Errors
/// [`Refusal::BadAnswer`], [`Refusal::NoAnswer`], or [`Refusal::Busy`] if there is no memory for it.
pub async fn exchange(
    tunnel: Tunnel,
    request: Request,
    tasks: &TaskTracker,
) -> Result<(Response<Incoming>, Driver), ApiError> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(BUFFER_BYTES);
    let (mut sender, connection) = builder.handshake(TokioIo::new(tunnel)).await.map_err(refusal)?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection of a preview broke");
        }
    });
    let sent = CancellationToken::new();
    let guard = sent.clone().drop_guard();
    let request = request.map(|body| Sent { body, tasks: tasks.clone(), _guard: guard });
    let late = async {
        sent.cancelled().await;
        tokio::time::sleep(ANSWER_WAIT_MAX).await;
    };
    tokio::select! {
        answer = sender.send_request(request) => Ok((answer.map_err(refusal)?, driver)),
        () = late => Err(Refusal::NoAnswer.into()),
    }
}

fn refusal(error: hyper::Error) -> ApiError {
    tracing::debug!(%error, "a program did not answer with HTTP");
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::OutOfMemory) {
            return Refusal::Busy.into();
        }
        if error.is::<Stalled>() {
            return Refusal::Stalled.into();
        }
        cause = error.source();
    }
    if error.is_user() {
        return malformed("the body was cut off, or its chunks are malformed; send the complete body");
    }
    Refusal::BadAnswer.into()
}

/// Body of a request. A program may answer before its end and take no more: then it is read on for a
/// while, since a server that stops reading resets the connection, and the answer is lost with it.
struct Sent {
    body: Body,
    tasks: TaskTracker,
    /// Dropped once the whole body was sent, or is not sent any more.
    _guard: DropGuard,
}

impl Drop for Sent {
    fn drop(&mut self) {
        if !self.body.is_end_stream() {
            let body = std::mem::take(&mut self.body);
            self.tasks.spawn(async move { drain(&mut body.into_data_stream()).await });
        }
    }
}

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the answer for the client, whose body holds the connection and its memory. The first piece is waited for, so
/// that an answer which breaks right there can still become a refusal.
///
/// # Errors
/// [`Refusal::BadAnswer`], or [`Refusal::Busy`] if there is no memory for it.
pub async fn answer(response: Response<Incoming>, driver: Driver, held: Reservation) -> Result<Response, ApiError> {
    let (head, mut body) = response.into_parts();
    let first = match timeout(FIRST_PIECE_WAIT, body.frame()).await {
        Ok(Some(piece)) => Some(piece.map_err(refusal)?),
        Ok(None) | Err(_) => None,
    };
    let body = Trailed::new(Answer { first, body, _driver: driver, _held: held }, |_| {});
    Ok(Response::from_parts(head, Body::new(body)))
}

/// Body of an answer, passed on as it comes. Its size is not told, so that it is not taken for one
/// that is in memory; the client reads it in the header.
struct Answer {
    /// Piece that has come before the head was passed on.
    first: Option<Frame<Bytes>>,
    body: Incoming,
    _driver: Driver,
    _held: Reservation,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => Pin::new(&mut self.body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.body.is_end_stream()
    }
}

#[cfg(test)]
mod test {
    use axum::http::StatusCode;
    use futures_util::{StreamExt, stream};
    use tokio::time::Instant;

    use super::*;
    use crate::budget::{Budget, Caller};
    use crate::http::stream::port_stream::{PortStream, input};

    /// Sends a request to a program that answers with `bytes`, one at a time, and then says nothing.
    async fn answered(bytes: &'static [u8], every: Duration) -> Result<StatusCode, ApiError> {
        let account = Budget::new(1 << 24).account(Caller::Address(None), None);
        let pieces = stream::iter(bytes.chunks(1)).then(move |byte| async move {
            tokio::time::sleep(every).await;
            Ok(Bytes::from_static(byte))
        });
        let from = PortStream::new(pieces.chain(stream::pending()).boxed(), &account);
        let (to, sent) = input();
        let tunnel = Tunnel::new(from, to, account);
        let request = Request::builder().uri("/").header("host", "h").body(Body::empty()).unwrap();
        let (drain, tasks) = (sent.for_each(|_| async {}), TaskTracker::new());
        tokio::select! {
            answer = exchange(tunnel, request, &tasks) => answer.map(|(response, _)| response.status()),
            () = drain => panic!("the connection has ended"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_trickles_its_answer_has_a_bounded_time() {
        let answer = b"HTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(answered(answer, Duration::from_secs(1)).await.unwrap(), StatusCode::NO_CONTENT);
        let began = Instant::now();
        let late = answered(answer, Duration::from_secs(60)).await;
        assert!(matches!(late, Err(ApiError::Request(Refusal::NoAnswer))), "{late:?}");
        assert!(began.elapsed() < ANSWER_WAIT_MAX + Duration::from_secs(60));
    }
}
