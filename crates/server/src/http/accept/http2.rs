//! A connection that speaks HTTP/2: requests side by side, each with the bounds of one over
//! HTTP/1.1.
//!
//! The streams are those of `h2`, not of hyper, which bounds neither the time for which a client
//! opens no window nor the pieces that small frames are kept in.

mod frames;
mod received;
mod stream;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{Request, header};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use h2::server::{Builder, Connection, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use self::frames::{Counted, Excess};
use self::received::received;
use self::stream::{Answering, Room, SEND_BUFFER_BYTES, STREAM_WINDOW_BYTES};
use super::idle::Turn;
use super::intake::HEAD_BYTES_MAX;
use super::service::{HEAD_TIMEOUT, Origin, Service};
use super::write_timeout::WRITE_STALL_MAX;

/// Most requests of one connection at once; further ones are refused, to be sent again.
const STREAMS_MAX: u32 = 128;
/// Window of the connection: that of all its requests, so that a body that is not read holds up
/// no other one. Each request takes memory for its own.
const CONNECTION_WINDOW_BYTES: u32 = STREAMS_MAX * STREAM_WINDOW_BYTES;
/// Bound on small frames of bodies that no request has taken yet, as `h2` counts them: some sixteen
/// thousand. All are taken after each turn of the reader.
const SMALL_FRAMES_MAX: usize = 4 * 1024 * 1024;
/// Most streams of one connection that break the protocol or the bound on requests.
const FAULTS_MAX: usize = 256;
/// Requests of one connection that a client may take back before they are answered. Beyond it, no
/// more than half of all may be.
const RESETS_MAX: usize = 128;
/// Interval between signs of life that a client is asked for.
const PING_EVERY: Duration = Duration::from_secs(60);

/// Answers the requests of one connection. Once `stop` is cancelled, those under way are finished.
/// Ends between two requests when the place is needed for another connection.
pub(super) async fn converse<S>(stream: S, from: Origin, turn: Turn, service: Arc<Service>, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (stream, excess) = Counted::new(stream);
    let handshake = Builder::new()
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .data_frame_budget(SMALL_FRAMES_MAX)
        .max_local_error_reset_streams(Some(FAULTS_MAX))
        .handshake(stream);
    let connection = tokio::select! {
        connection = tokio::time::timeout(HEAD_TIMEOUT, handshake) => connection,
        () = turn.asked_to_leave() => return,
        () = stop.cancelled() => return,
    };
    let Ok(Ok(mut connection)) = connection else { return };
    let alive = match connection.ping_pong() {
        Some(pings) => until_dead(pings).boxed(),
        None => return,
    };
    let mut conversation = Conversation {
        connection,
        answering: JoinSet::new(),
        arriving: FuturesUnordered::new(),
        count: 0,
        resets: 0,
        excess,
        alive,
        quiet: None,
        is_leaving: false,
    };
    let room = Room::default();
    loop {
        let event = tokio::select! {
            // Polled first, so that a request that has arrived counts as under way before the
            // connection can be asked to leave.
            biased;
            event = poll_fn(|context| conversation.poll(context)) => event,
            () = turn.asked_to_leave() => Event::Quiet,
            () = stop.cancelled(), if !conversation.is_leaving => {
                conversation.is_leaving = true;
                conversation.connection.graceful_shutdown();
                continue;
            }
        };
        match event {
            Event::Request(asked) => {
                let answering =
                    Answering { from, service: Arc::clone(&service), under_way: turn.begin(), room: room.clone() };
                conversation.begin(answering, *asked);
            }
            Event::Quiet => return conversation.leave(Reason::NO_ERROR).await,
            Event::Abuse => {
                tracing::debug!(from = ?from.address, "a client sends too many resets or frames; disconnecting it");
                return conversation.leave(Reason::ENHANCE_YOUR_CALM).await;
            }
            // Errors of a client that breaks the protocol or hangs up are ignored.
            Event::End => return,
        }
    }
}

/// Waits until the client gives no sign of life for as long as it may leave an answer unread.
async fn until_dead(mut pings: PingPong) {
    loop {
        tokio::time::sleep(PING_EVERY).await;
        if !matches!(tokio::time::timeout(WRITE_STALL_MAX, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
}

enum Event {
    Request(Box<(Request<RecvStream>, SendResponse<Bytes>)>),
    /// No request is under way, and none came for as long as the connection waits.
    Quiet,
    /// The client has taken back too many requests, or sent too many frames that ask for nothing.
    Abuse,
    End,
}

/// Connection with its requests. Dropping it ends them.
struct Conversation<S> {
    connection: Connection<S, Bytes>,
    /// Requests under way. Each returns whether the client took it back before its answer.
    answering: JoinSet<bool>,
    /// Bodies that have not come whole. They are taken here, where frames are read, so that no more
    /// are read than were taken.
    arriving: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Number of requests so far.
    count: usize,
    /// Number of those that were taken back.
    resets: usize,
    /// Sign that the client has sent too many frames that ask for nothing.
    excess: Excess,
    /// Future that ends once the client is taken for dead.
    alive: BoxFuture<'static, ()>,
    /// Wait for the next request.
    quiet: Option<Pin<Box<Sleep>>>,
    /// True if no request is waited for.
    is_leaving: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Conversation<S> {
    /// Starts a task that answers a request.
    fn begin(&mut self, answering: Answering, (request, respond): (Request<RecvStream>, SendResponse<Bytes>)) {
        let (head, stream) = request.into_parts();
        let length = head.headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()).and_then(|length| length.parse().ok());
        let (body, arriving, guard) = received(stream, length);
        self.arriving.extend(arriving.map(|arriving| arriving.run().boxed()));
        self.answering.spawn(answering.run(Request::from_parts(head, body), respond, guard));
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if let Poll::Ready(accepted) = self.connection.poll_accept(context) {
            let Some(Ok(asked)) = accepted else { return Poll::Ready(Event::End) };
            self.count += 1;
            return Poll::Ready(Event::Request(Box::new(asked)));
        }
        while let Poll::Ready(Some(())) = self.arriving.poll_next_unpin(context) {}
        while let Poll::Ready(Some(ended)) = self.answering.poll_join_next(context) {
            self.resets += usize::from(ended.unwrap_or(false));
        }
        if self.excess.is_there() || self.resets > RESETS_MAX.max(self.count / 2) {
            return Poll::Ready(Event::Abuse);
        }
        // An answer that is complete may wait to be written.
        if self.answering.is_empty() && !self.connection.has_streams() {
            let quiet = self.quiet.get_or_insert_with(|| Box::pin(tokio::time::sleep(HEAD_TIMEOUT)));
            if self.is_leaving || quiet.as_mut().poll(context).is_ready() {
                return Poll::Ready(Event::Quiet);
            }
        } else {
            self.quiet = None;
        }
        self.alive.as_mut().poll(context).map(|()| Event::End)
    }

    /// Tells the client that the connection ends, as far as it takes that at once. It knows by this
    /// which requests were not looked at.
    async fn leave(mut self, reason: Reason) {
        self.connection.abrupt_shutdown(reason);
        poll_fn(|context| {
            let _ = self.connection.poll_closed(context);
            Poll::Ready(())
        })
        .await;
    }
}

#[cfg(test)]
mod test {
    use tokio::io::AsyncWriteExt;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_answers_no_ping_is_taken_for_dead() {
        let (mut theirs, ours) = tokio::io::duplex(1 << 16);
        // The preface and settings, and nothing more.
        theirs.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut connection: Connection<_, Bytes> = Builder::new().handshake(ours).await.unwrap();
        let pings = connection.ping_pong().unwrap();
        let start = Instant::now();
        tokio::select! {
            () = until_dead(pings) => {}
            _ = connection.accept() => panic!("it asks for nothing"),
        }
        assert!(start.elapsed() >= PING_EVERY + WRITE_STALL_MAX);
    }
}
