//! The Connect protocol as E2B's SDKs speak it: JSON, in unary calls and in streams of envelopes in one
//! direction. <https://connectrpc.com/docs/protocol>
//!
//! No library fits: those that there are generate types and handlers from protobuf, while both SDKs use the JSON codec
//! alone; and none breaks a connection off in the middle of a stream, which is how a client learns that its sandbox is
//! gone.
//!
//! - An error of a unary call is its answer, with the status of its code.
//! - An error of a stream is its last envelope, under status 200, also where nothing came before it: clients read no
//!   body of another status.
//! - A stream whose sandbox is gone ends without its last envelope and without the end of the body.

mod envelope;

use std::future::pending;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use providers::STREAM_BYTES_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::envelope::{END, MESSAGE, envelope};
use crate::http::body;
use crate::http::error::{ApiError, Refusal, Result, RpcCode, rpc};
use crate::http::request_memory::{Meter, WAIT_MAX};
use crate::http::stream::flow_control::{OUTFLOW_BYTES, flowing};
use crate::http::strict_json::is_json;

pub use self::envelope::{Incoming, MESSAGE_BYTES_MAX};

/// Content type of streams.
const STREAM_TYPE: &str = "application/connect+json";
/// Interval of keepalive messages where a call names none.
const KEEP_ALIVE: Duration = Duration::from_secs(90);
/// Longest interval of keepalive messages that a call may name, in seconds.
const KEEP_ALIVE_MAX_S: u64 = 3600;
/// Most digits of `Connect-Timeout-Ms`, by the protocol.
const TIMEOUT_DIGITS_MAX: usize = 10;

/// Circumstances of a call, from its headers.
#[derive(Debug, Clone)]
pub struct Call {
    /// Deadline, from `Connect-Timeout-Ms`; `None` for none.
    pub deadline: Option<Instant>,
    /// Interval of keepalive messages, from `Keepalive-Ping-Interval`.
    pub keep_alive: Duration,
    pub meter: Meter,
    /// Cancelled when the server stops.
    pub stop: CancellationToken,
}

impl Call {
    /// Reads the headers of a call.
    ///
    /// # Errors
    /// `invalid_argument` for a malformed deadline.
    pub fn of(request: &Request, stop: &CancellationToken) -> Result<Self> {
        let keep_alive = text(request.headers(), "keepalive-ping-interval").and_then(|text| text.parse().ok());
        Ok(Self {
            deadline: deadline(request.headers())?,
            keep_alive: keep_alive
                .filter(|seconds| (1..=KEEP_ALIVE_MAX_S).contains(seconds))
                .map_or(KEEP_ALIVE, Duration::from_secs),
            meter: Meter::on(request)?,
            stop: stop.clone(),
        })
    }

    /// Returns the time left until the deadline; `None` without one.
    pub fn timeout(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }
}

/// End of a stream before its time.
#[derive(Debug)]
pub enum Cut {
    /// Error, which the last envelope tells.
    Error(ApiError),
    /// The sandbox has gone, or stands still: the connection breaks off.
    Gone,
}

impl<E: Into<ApiError>> From<E> for Cut {
    fn from(error: E) -> Self {
        Cut::Error(error.into())
    }
}

/// Messages of a stream of the server.
pub type Messages<M> = BoxStream<'static, Result<M, Cut>>;

/// Answers a unary call: reads its message, and acts within its deadline.
pub async fn unary<T, R, F>(request: Request, act: impl FnOnce(T) -> F) -> Response
where
    T: DeserializeOwned + Send + 'static,
    R: Serialize,
    F: Future<Output = Result<R>>,
{
    metered(request, |message, _| act(message)).await
}

/// Answers a unary call as [`unary`] does; `act` may hold memory with the meter until it is answered.
pub async fn metered<T, R, F>(request: Request, act: impl FnOnce(T, Meter) -> F) -> Response
where
    T: DeserializeOwned + Send + 'static,
    R: Serialize,
    F: Future<Output = Result<R>>,
{
    match unary_answer(request, act).await {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => refused(&error),
    }
}

async fn unary_answer<T, R, F>(request: Request, act: impl FnOnce(T, Meter) -> F) -> Result<R>
where
    T: DeserializeOwned + Send + 'static,
    F: Future<Output = Result<R>>,
{
    check_encoding(request.headers(), "content-encoding")?;
    if !is_json(request.headers()) {
        return Err(Refusal::MediaType.into());
    }
    let deadline = deadline(request.headers())?;
    let meter = Meter::on(&request)?;
    let bytes = body::collect(request.into_body(), MESSAGE_BYTES_MAX, meter.account()).await?;
    let message = bytes.parse(&meter).await?;
    let acting = act(message, meter);
    tokio::select! {
        answer = acting => answer,
        () = reached(deadline) => Err(too_late()),
    }
}

/// Answers a call with a stream of messages. `ping` is sent when nothing else was for the interval of the call, but
/// never first.
pub async fn server_stream<T, M, F>(
    request: Request,
    stop: &CancellationToken,
    ping: impl Serialize,
    open: impl FnOnce(T, Call) -> F,
) -> Response
where
    T: DeserializeOwned + Send + 'static,
    M: Serialize + Send + 'static,
    F: Future<Output = Result<Messages<M>>>,
{
    let opened = async {
        check_stream(request.headers())?;
        let call = Call::of(&request, stop)?;
        let mut incoming = Incoming::of(request.into_body(), &call.meter);
        let message = incoming.only().await?;
        drop(incoming);
        let held = call.meter.account().reserve_within(STREAM_BYTES_MAX + OUTFLOW_BYTES, WAIT_MAX).await?;
        let messages = tokio::select! {
            messages = open(message, call.clone()) => messages?,
            () = reached(call.deadline) => return Err(too_late()),
        };
        Ok((call, messages, held))
    };
    match opened.await {
        Ok((call, messages, held)) => {
            let outgoing = Outgoing { messages, call, ping: message(&ping), has_begun: false, is_over: false };
            streaming(Body::from_stream(flowing(outgoing.bytes().boxed(), held, STREAM_BYTES_MAX)))
        }
        Err(error) => streaming(Body::from(end(Some(&error)))),
    }
}

/// Answers a call that sends a stream of messages: `act` takes each as it arrives, until the body ends. If its sandbox
/// goes, the connection breaks off.
pub async fn client_stream<T, R, F>(
    request: Request,
    stop: &CancellationToken,
    act: impl FnOnce(Incoming<T>, Call) -> F,
) -> Response
where
    T: DeserializeOwned + Send + 'static,
    R: Serialize,
    F: Future<Output = Result<R, Cut>>,
{
    let answered = async {
        check_stream(request.headers())?;
        let call = Call::of(&request, stop)?;
        let incoming = Incoming::of(request.into_body(), &call.meter);
        tokio::select! {
            answer = act(incoming, call.clone()) => answer,
            () = reached(call.deadline) => Err(too_late().into()),
            () = call.stop.cancelled() => Err(stopping().into()),
        }
    };
    streaming(match answered.await {
        Ok(answer) => Body::from([message(&answer), end(None)].concat()),
        Err(Cut::Error(error)) => Body::from(end(Some(&error))),
        Err(Cut::Gone) => Body::from_stream(stream::once(async { Err::<Bytes, _>(Broken) })),
    })
}

/// Answers a call of a method that is not offered.
pub async fn unimplemented(request: Request) -> Response {
    let error = rpc(RpcCode::Unimplemented, format!("there is no method `{}`", request.uri().path()));
    if is_stream(request.headers()) { streaming(Body::from(end(Some(&error)))) } else { refused(&error) }
}

/// Messages that are on their way to the client.
struct Outgoing<M> {
    messages: Messages<M>,
    call: Call,
    /// Envelope of a keepalive message.
    ping: Bytes,
    has_begun: bool,
    is_over: bool,
}

/// Error of a body that breaks off.
#[derive(Debug, thiserror::Error)]
#[error("the sandbox is gone")]
struct Broken;

impl<M: Serialize + Send + 'static> Outgoing<M> {
    fn bytes(self) -> impl Stream<Item = Result<Bytes, Broken>> {
        stream::unfold(self, |mut outgoing| async move {
            let next = outgoing.next().await?;
            Some((next, outgoing))
        })
    }

    async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        if self.is_over {
            return None;
        }
        let next = tokio::select! {
            biased;
            () = reached(self.call.deadline) => Some(Err(too_late().into())),
            () = self.call.stop.cancelled() => Some(Err(stopping().into())),
            next = self.messages.next() => next,
            () = tokio::time::sleep(self.call.keep_alive), if self.has_begun => return Some(Ok(self.ping.clone())),
        };
        self.has_begun = true;
        self.is_over = !matches!(next, Some(Ok(_)));
        Some(match next {
            Some(Ok(next)) => Ok(message(&next)),
            Some(Err(Cut::Error(error))) => Ok(end(Some(&error))),
            Some(Err(Cut::Gone)) => Err(Broken),
            None => Ok(end(None)),
        })
    }
}

/// Returns the envelope of a message.
fn message(content: &impl Serialize) -> Bytes {
    envelope(MESSAGE, &serde_json::to_vec(content).unwrap_or_default())
}

/// Returns the last envelope of a stream.
fn end(error: Option<&ApiError>) -> Bytes {
    let end = error.map_or_else(|| json!({}), |error| json!({"error": described(error)}));
    envelope(END, end.to_string().as_bytes())
}

fn described(error: &ApiError) -> serde_json::Value {
    error.log();
    json!({"code": error.rpc_code().0.name(), "message": error.message()})
}

/// Returns the answer to a unary call that is refused.
fn refused(error: &ApiError) -> Response {
    (error.rpc_code().1, Json(described(error))).into_response()
}

fn streaming(body: Body) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static(STREAM_TYPE))], body).into_response()
}

fn is_stream(headers: &HeaderMap) -> bool {
    let essence = text(headers, "content-type").and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case(STREAM_TYPE))
}

/// Checks that the body of a call is a stream of plain envelopes.
fn check_stream(headers: &HeaderMap) -> Result<()> {
    check_encoding(headers, "content-encoding")?;
    check_encoding(headers, "connect-content-encoding")?;
    if is_stream(headers) {
        return Ok(());
    }
    Err(rpc(RpcCode::InvalidArgument, format!("send the call with `Content-Type: {STREAM_TYPE}`")))
}

fn check_encoding(headers: &HeaderMap, name: &str) -> Result<()> {
    match text(headers, name) {
        None | Some("" | "identity") => Ok(()),
        Some(other) => Err(rpc(
            RpcCode::Unimplemented,
            format!("the encoding `{other}` is not supported; send messages without one (`identity`)"),
        )),
    }
}

fn deadline(headers: &HeaderMap) -> Result<Option<Instant>> {
    let Some(text) = text(headers, "connect-timeout-ms") else { return Ok(None) };
    let is_number = (1..=TIMEOUT_DIGITS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let milliseconds = text.parse().ok().filter(|_| is_number).ok_or_else(|| {
        rpc(RpcCode::InvalidArgument, "`Connect-Timeout-Ms` must be a whole number of at most 10 digits")
    })?;
    Ok(Some(Instant::now() + Duration::from_millis(milliseconds)))
}

/// Waits until a deadline; for ever without one.
async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => pending().await,
    }
}

fn too_late() -> ApiError {
    rpc(RpcCode::DeadlineExceeded, "the deadline of `Connect-Timeout-Ms` has passed")
}

fn stopping() -> ApiError {
    rpc(RpcCode::Unavailable, "the server is stopping")
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default().trim())
}

#[cfg(test)]
mod test;
