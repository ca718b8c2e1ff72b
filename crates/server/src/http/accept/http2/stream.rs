//! One request over HTTP/2, and its answer.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http_body::Body as _;
use jiff::fmt::rfc2822::DateTimePrinter;

use super::received::{Answered, Received};
use crate::budget::{Caller, Reservation, Spent};
use crate::hop_by_hop::remove_hop_by_hop;
use crate::http::accept::idle::UnderWay;
use crate::http::accept::service::{HEADERS_MAX, Origin, Service};
use crate::http::accept::write_timeout::WRITE_STALL_MAX;
use crate::http::body;
use crate::http::error::{ApiError, Refusal, malformed};
use crate::http::peer;
use crate::http::request_memory::SMALL_BYTES;

/// Bytes of a body that a client may send ahead of their reader.
pub(super) const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Bytes of an answer that wait to be written.
pub(super) const SEND_BUFFER_BYTES: usize = 32 * 1024;
/// Memory of a request beside the first of its connection: its task, and what of its answer waits
/// to be written.
const REQUEST_BYTES: usize = 16 * 1024 + SEND_BUFFER_BYTES;
/// Bytes that each header counts beside its name and value, as the client counts them.
const HEADER_BYTES: usize = 32;
/// Memory that a connection takes without asking: that of one request, as a connection of HTTP/1.1
/// does. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Room(Arc<()>);

/// Memory of a request, held until the last of its answer is written.
#[derive(Debug)]
struct Held {
    _reservation: Reservation,
    _room: Option<Room>,
}

/// Piece of an answer on its way.
struct Piece {
    bytes: Bytes,
    _held: Arc<Option<Held>>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Parts that are needed to answer a request.
pub(super) struct Answering {
    pub(super) from: Origin,
    pub(super) service: Arc<Service>,
    pub(super) under_way: UnderWay,
    pub(super) room: Room,
}

/// Outcome of a wait during which the client may take its request back.
enum Waited<T> {
    Done(T),
    TakenBack,
}

impl Answering {
    /// Answers the request. Returns whether the client took it back before its answer began.
    pub(super) async fn run(
        self,
        request: Request<Received>,
        mut respond: SendResponse<Bytes>,
        guard: Answered,
    ) -> bool {
        let mut expects = request.headers().contains_key(header::EXPECT);
        let is_head = request.method() == Method::HEAD;
        let Self { from, service, under_way, room } = self;
        // Apart, so that a stream of events does not keep the memory of its handler.
        let mut answering = Box::pin(body::refusing(service.respond(from, request, room)));
        let answered = poll_fn(|context| {
            if let Poll::Ready(response) = answering.as_mut().poll(context) {
                return Poll::Ready(Waited::Done(response));
            }
            if expects && guard.is_wanted(context) {
                expects = false;
                let mut proceed = Response::new(());
                *proceed.status_mut() = StatusCode::CONTINUE;
                // A client that does not wait for it needs none.
                let _ = respond.send_informational(proceed);
            }
            respond.poll_reset(context).map(|_| Waited::TakenBack)
        });
        let Waited::Done((response, held)) = answered.await else { return true };
        drop(answering);
        let (mut head, body) = response.map(|body| under_way.answer(body, false)).into_parts();
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            respond.send_reset(Reason::HTTP_1_1_REQUIRED);
            return false;
        }
        let is_bodiless = is_head || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        // HTTP/2 has none of them.
        remove_hop_by_hop(&mut head.headers);
        if let (Some(length), false) = (body.size_hint().exact(), is_bodiless) {
            head.headers.entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
        }
        let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&service.control.now());
        if let Some(date) = date.ok().and_then(|date| HeaderValue::try_from(date).ok()) {
            head.headers.entry(header::DATE).or_insert(date);
        }
        let is_end = is_bodiless || body.is_end_stream();
        let mut response = Response::new(());
        (*response.status_mut(), *response.headers_mut()) = (head.status, head.headers);
        // An error is that of a stream that is closed already.
        if let (Ok(stream), false) = (respond.send_response(response, is_end), is_end) {
            send(body, stream, Arc::new(held)).await;
        }
        false
    }
}

impl Service {
    /// Answers a request once it has its memory.
    async fn respond(&self, from: Origin, request: Request<Received>, room: Room) -> (Response<Body>, Option<Held>) {
        let (mut head, body) = request.into_parts();
        let held = fit(&mut head).and_then(|head_bytes| Ok(self.hold(from, &head, head_bytes, &body, room)?));
        match held {
            Ok(held) => (self.answer(from, Request::from_parts(head, body)).await, Some(held)),
            Err(refused) => (self.sites.refuse(refused), None),
        }
    }

    /// Takes the memory of a request: what connections of HTTP/1.1 are free to hold is free for one
    /// request of a connection at a time.
    fn hold(&self, from: Origin, head: &Parts, head_bytes: usize, body: &Received, room: Room) -> Result<Held, Spent> {
        let address = self.proxies.caller(from.address, from.is_tls, &head.headers).address.map(peer::caller);

        let window = u64::from(STREAM_WINDOW_BYTES);
        let ahead = body.size_hint().exact().unwrap_or(window).min(window);
        let mut bytes = beyond_small(head_bytes) + beyond_small(usize::try_from(ahead).unwrap_or(usize::MAX));
        // The connection itself and this request share it.
        let is_first = Arc::strong_count(&room.0) <= 2;
        if !is_first {
            bytes += REQUEST_BYTES;
        }
        let reservation = self.memory.account(Caller::Address(address), address).reserve(bytes)?;
        Ok(Held { _reservation: reservation, _room: is_first.then_some(room) })
    }
}

/// Returns the bytes that are charged for: none for a small head or body.
fn beyond_small(bytes: usize) -> usize {
    if bytes > SMALL_BYTES { bytes } else { 0 }
}

/// Gives a head the form that it has over HTTP/1.1, and returns its size in bytes.
///
/// # Errors
/// If it has two hosts, or too many headers.
fn fit(head: &mut Parts) -> Result<usize, ApiError> {
    if let Some(authority) = head.uri.authority().map(|authority| authority.as_str().to_owned()) {
        // A host that differs could be taken for the one by a proxy, and for the other here.
        let mut hosts = head.headers.get_all(header::HOST).iter();
        if hosts.any(|host| !host.as_bytes().eq_ignore_ascii_case(authority.as_bytes())) {
            return Err(malformed("the header `Host` must be the same as `:authority`, or be left out"));
        }
        let host = HeaderValue::try_from(authority).map_err(|_| malformed("`:authority` is not a host"))?;
        head.headers.insert(header::HOST, host);
    }
    if let (Some(target), true) = (head.uri.path_and_query(), head.method != Method::CONNECT) {
        head.uri = Uri::from(target.clone());
    }
    join_cookies(&mut head.headers);
    if head.headers.len() > HEADERS_MAX {
        return Err(Refusal::TooManyHeaders(HEADERS_MAX).into());
    }
    let sizes = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER_BYTES);
    Ok(sizes.sum::<usize>() + head.uri.path().len() + head.uri.query().map_or(0, str::len))
}

/// Joins cookies, which a client may send in a header each. RFC 9113 §8.2.3.
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, joined);
    }
}

/// Sends a body as far as the client has opened its window, and no further: what it has not asked
/// for stays with its source. A client that opens none for [`WRITE_STALL_MAX`] is cut off.
async fn send<B>(body: B, mut stream: SendStream<Bytes>, held: Arc<Option<Held>>)
where
    B: http_body::Body<Data = Bytes>,
{
    let mut body = std::pin::pin!(body);
    loop {
        let next = poll_fn(|context| match body.as_mut().poll_frame(context) {
            Poll::Ready(frame) => Poll::Ready(Waited::Done(frame)),
            Poll::Pending => stream.poll_reset(context).map(|_| Waited::TakenBack),
        });
        let Waited::Done(frame) = next.await else { return };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(_)) => return stream.send_reset(Reason::INTERNAL_ERROR),
            None => {
                let _ = stream.send_data(Bytes::new(), true);
                return;
            }
        };
        let bytes = match frame.into_data() {
            Ok(bytes) => bytes,
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    let _ = stream.send_trailers(trailers);
                }
                return;
            }
        };
        let is_last = body.is_end_stream();
        if bytes.is_empty() && !is_last {
            continue;
        }
        let bytes = Bytes::from_owner(Piece { bytes, _held: Arc::clone(&held) });
        if !write(bytes, is_last, &mut stream).await || is_last {
            return;
        }
    }
}

/// Writes bytes as the client opens its window. Returns whether it took them.
async fn write(mut bytes: Bytes, is_last: bool, stream: &mut SendStream<Bytes>) -> bool {
    while stream.capacity() < bytes.len() {
        stream.reserve_capacity(bytes.len().min(SEND_BUFFER_BYTES));
        if stream.capacity() == 0 {
            let opened = tokio::time::timeout(WRITE_STALL_MAX, poll_fn(|context| stream.poll_capacity(context)));
            match opened.await {
                Ok(Some(Ok(_))) => {}
                Ok(_) => return false,
                Err(_) => {
                    stream.send_reset(Reason::CANCEL);
                    return false;
                }
            }
        }
        let count = stream.capacity().min(bytes.len());
        if count == bytes.len() {
            break;
        }
        if count > 0 && stream.send_data(bytes.split_to(count), false).is_err() {
            return false;
        }
    }
    stream.send_data(bytes, is_last).is_ok()
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use h2::client::Builder;
    use tokio::task::JoinSet;
    use tokio::time::Instant;

    use super::*;

    /// Sends a body of `bytes` to a client whose window is 1,000 bytes, and which opens it by `step` as
    /// often as `every` has passed. Returns what came, with the reason for which it was cut off, and the
    /// time that it took.
    async fn sent(bytes: usize, step: usize, every: Duration) -> (usize, Option<Reason>, Duration) {
        let (theirs, ours) = tokio::io::duplex(1 << 16);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connection = h2::server::handshake(ours).await.unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            let stream = respond.send_response(Response::new(()), false).unwrap();
            let sending = send(Body::from(vec![0; bytes]), stream, Arc::new(None));
            let driving = async { while connection.accept().await.is_some() {} };
            tokio::join!(sending, driving);
        });
        let (mut sender, connection) =
            Builder::new().initial_window_size(1000).handshake::<_, Bytes>(theirs).await.unwrap();
        tasks.spawn(async move {
            let _ = connection.await;
        });
        let request = Request::builder().uri("http://localhost/").body(()).unwrap();
        let mut body = sender.send_request(request, true).unwrap().0.await.unwrap().into_body();
        let (start, mut came) = (Instant::now(), 0);
        let mut untaken = 0;
        loop {
            while untaken >= step && step > 0 {
                tokio::time::sleep(every).await;
                body.flow_control().release_capacity(step).unwrap();
                untaken -= step;
            }
            match body.data().await {
                Some(Ok(bytes)) => (came, untaken) = (came + bytes.len(), untaken + bytes.len()),
                Some(Err(error)) => return (came, error.reason(), start.elapsed()),
                None => return (came, None, start.elapsed()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_opens_no_window_is_cut_off() {
        let (came, reason, took) = sent(100_000, 0, Duration::ZERO).await;
        assert_eq!((came, reason), (1000, Some(Reason::CANCEL)));
        assert!((WRITE_STALL_MAX..2 * WRITE_STALL_MAX).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_gets_all() {
        let every = WRITE_STALL_MAX - Duration::from_secs(1);
        let (came, reason, took) = sent(10_000, 1000, every).await;
        assert_eq!((came, reason), (10_000, None));
        assert!(took > 8 * every, "{took:?}");
    }

    fn head(uri: &str, lines: &[(&str, &str)]) -> Parts {
        let request =
            lines.iter().fold(Request::builder().uri(uri), |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_head_gets_the_form_that_it_has_over_http_1() {
        let mut fitted = head("https://a.example:1/p?q", &[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2; c")]);
        fit(&mut fitted).unwrap();
        assert_eq!(fitted.uri, "/p?q");
        assert_eq!(
            (&fitted.headers["host"], &fitted.headers["cookie"]),
            (&"a.example:1".parse().unwrap(), &"a=1; b=2; c".parse().unwrap())
        );
        assert_eq!(fitted.headers.len(), 3);
        let mut same = head("https://a.example/", &[("host", "A.Example")]);
        fit(&mut same).unwrap();
        assert_eq!(same.headers.get_all("host").iter().count(), 1);
        for other in [&[("host", "b.example")][..], &[("host", "a.example"), ("host", "b.example")]] {
            assert!(fit(&mut head("https://a.example/", other)).is_err(), "{other:?}");
        }
    }

    #[test]
    fn a_head_has_a_bounded_number_of_headers_and_counts_with_its_size() {
        let names: Vec<String> = (0..HEADERS_MAX).map(|at| format!("x-{at}")).collect();
        let mut lines: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
        assert!(fit(&mut head("/", &lines)).unwrap() > HEADERS_MAX * HEADER_BYTES);
        lines.push(("y", "1"));
        let refused = fit(&mut head("/", &lines)).unwrap_err();
        assert!(matches!(refused, ApiError::Request(Refusal::TooManyHeaders(HEADERS_MAX))), "{refused:?}");
    }
}
