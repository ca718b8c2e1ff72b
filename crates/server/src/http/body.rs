//! Request bodies: their bounds, and refusals that reach the client. A server that stops
//! reading resets the connection, and the answer is lost with it.

use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use http_body::{Body as _, Frame, SizeHint};
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, Semaphore};

use super::accept::body_timeout::Stalled;
use super::error::{ApiError, Refusal, malformed};
use super::request_memory::{Meter, SMALL_BYTES, WAIT_MAX};
use super::strict_json::parse;
use crate::budget::{Account, Reservation, Spent};

/// Longest time for which a refused body is read on.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1);
/// Most bytes that are read on of a refused body.
const DRAIN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Memory counted for each JSON value besides its text, in bytes. The worst body that a route takes,
/// a spawn with many commands that have one variable each, holds 126.
const ELEMENT_BYTES: usize = 128;
/// Number of values up to which none are counted, in bodies of at most [`SMALL_BYTES`].
const FEW_ELEMENTS: usize = 64;

/// Body that keeps a value until it was passed on or given up.
#[derive(Debug)]
pub struct Keeping<T> {
    body: Body,
    _kept: T,
}

impl<T> Keeping<T> {
    pub fn new(body: Body, kept: T) -> Self {
        Self { body, _kept: kept }
    }
}

impl<T: Unpin> http_body::Body for Keeping<T> {
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

/// Body in memory, which counts against the budget while it is held.
#[derive(Debug)]
pub struct Collected {
    bytes: BytesMut,
    held: Reservation,
}

impl Deref for Collected {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Collected {
    /// Parses the body as a JSON object, which the request then holds in its place. The values
    /// may take many times the memory of the text if they are many and tiny.
    pub async fn parse<T: DeserializeOwned + Send + 'static>(self, meter: &Meter) -> Result<T, ApiError> {
        let Self { bytes, mut held } = self;
        let is_large = bytes.len() > PARSED_AT_ONCE_BYTES;
        let (bytes, elements) = aside(is_large, move || {
            let elements = elements(&bytes);
            (bytes, elements)
        })
        .await?;
        let mut more = bytes.len() + elements.saturating_mul(ELEMENT_BYTES);
        if bytes.len() <= SMALL_BYTES && elements <= FEW_ELEMENTS {
            more = 0;
        }
        let before = held.bytes();
        held.grow_within(more, WAIT_MAX).await?;
        let value = aside(is_large, move || parse(&bytes)).await??;
        held.shrink_to(held.bytes() - before);
        meter.keep(held);
        Ok(value)
    }
}

/// Largest text, in bytes, that is parsed on the threads that serve requests: it takes a few
/// milliseconds. Longer ones would hold up all other requests.
const PARSED_AT_ONCE_BYTES: usize = 256 * 1024;
/// Limit of large texts that are parsed at a time: small requests need processor time too.
static LARGE: Semaphore = Semaphore::const_new(2);

/// Runs `work`, on a blocking thread if it is long.
async fn aside<T: Send + 'static>(is_long: bool, work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    if !is_long {
        return Ok(work());
    }
    let turn = LARGE.acquire().await.map_err(|_| Refusal::Internal)?;
    let worked = tokio::task::spawn_blocking(move || {
        let done = work();
        drop(turn);
        done
    });
    worked.await.map_err(|_| Refusal::Internal.into())
}

/// Returns an upper bound for the number of values in a JSON text: one more than it has commas,
/// colons and opening brackets outside strings.
fn elements(json: &[u8]) -> usize {
    let mut count = 1;
    let mut rest = json;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        match byte {
            b',' | b':' | b'[' | b'{' => count += 1,
            b'"' => {
                while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
                    let is_end = rest[at] == b'"';
                    rest = rest.get(at + 2 - usize::from(is_end)..).unwrap_or_default();
                    if is_end {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    count
}

/// Reads the whole body, of at most `max` bytes.
pub async fn collect(body: Body, max: usize, account: &Account) -> Result<Collected, ApiError> {
    let announced = body.size_hint();
    let mut stream = body.into_data_stream();
    if announced.lower() > max as u64 {
        drain(&mut stream).await;
        return Err(Refusal::TooLarge(max as u64).into());
    }
    let expected = announced.exact().map_or(max, |exact| usize::try_from(exact).unwrap_or(max));
    let mut collected = Collected { bytes: BytesMut::new(), held: account.nothing() };
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| {
            if is_stalled(&error) { Refusal::Stalled.into() } else { malformed("the body was cut off") }
        })?;
        if collected.len() + piece.len() > max {
            drain(&mut stream).await;
            return Err(Refusal::TooLarge(max as u64).into());
        }
        if let Err(spent) = collected.take_in(&piece, expected).await {
            drop((collected, piece));
            drain(&mut stream).await;
            return Err(spent.into());
        }
    }
    Ok(collected)
}

impl Collected {
    /// Appends a piece. Memory is reserved before it is allocated, and in proportion to what
    /// has arrived: a client that announces much and sends slowly holds little.
    async fn take_in(&mut self, piece: &[u8], expected: usize) -> Result<(), Spent> {
        let len = self.bytes.len() + piece.len();
        if len > self.bytes.capacity() {
            let capacity = len.max((2 * self.bytes.capacity()).min(expected)).max(SMALL_BYTES.min(expected));
            if capacity > SMALL_BYTES {
                self.held.grow_within(capacity - self.held.bytes(), WAIT_MAX).await?;
            }
            let mut bytes = BytesMut::with_capacity(capacity);
            bytes.extend_from_slice(&self.bytes);
            self.bytes = bytes;
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

/// Returns whether a body broke off because the client stopped sending.
fn is_stalled(error: &axum::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.is::<Stalled>() {
            return true;
        }
        cause = error.source();
    }
    false
}

tokio::task_local! {
    /// Set for a request whose client sees the answer without having sent its body.
    static REFUSABLE: ();
}

/// Runs `answering`, in which [`drain`] does nothing: over HTTP/2 the rest of a body is refused by
/// itself, and the answer goes through.
pub fn refusing<F: Future>(answering: F) -> impl Future<Output = F::Output> {
    REFUSABLE.scope((), answering)
}

/// Reads on for at most [`DRAIN_TIME_MAX`] and [`DRAIN_BYTES_MAX`], so that a client that only
/// writes gets to see the answer.
pub async fn drain(stream: &mut (impl Stream<Item = Result<Bytes, axum::Error>> + Unpin)) {
    if REFUSABLE.try_with(|()| ()).is_ok() {
        return;
    }
    let read = async {
        let mut left = DRAIN_BYTES_MAX;
        while let Some(Ok(piece)) = stream.next().await {
            left = left.saturating_sub(piece.len());
            if left == 0 {
                return;
            }
        }
    };
    // After a timeout the client may not see the answer. Nothing more is done about it.
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, read).await;
}

/// Memory reserved for a body that is passed on: what a box that does not read it leaves in the
/// connection to its agent.
const UPLOAD_BYTES: u64 = 1024 * 1024 + 64 * 1024;

/// Body that is passed on as it arrives.
#[derive(Clone)]
pub struct Upload {
    stream: Arc<Mutex<BodyDataStream>>,
    left: Arc<AtomicU64>,
    max: u64,
    is_too_large: Arc<AtomicBool>,
    is_stalled: Arc<AtomicBool>,
}

impl Upload {
    /// Takes a body of at most `max` bytes. The request holds memory for the part in transit.
    ///
    /// # Errors
    /// [`Refusal::Busy`] if the caller may not hold that much.
    pub async fn begin(body: Body, max: u64, meter: &Meter) -> Result<Self, ApiError> {
        let is_too_large = body.size_hint().lower() > max;
        let announced = body.size_hint().exact().unwrap_or(UPLOAD_BYTES);
        meter.hold(usize::try_from(announced.min(UPLOAD_BYTES)).unwrap_or(usize::MAX)).await?;
        Ok(Self {
            stream: Arc::new(Mutex::new(body.into_data_stream())),
            left: Arc::new(AtomicU64::new(max)),
            max,
            is_too_large: Arc::new(AtomicBool::new(is_too_large)),
            is_stalled: Arc::default(),
        })
    }

    /// Refuses a body whose announced size is too large.
    pub async fn check_announced(&self) -> Result<(), ApiError> {
        if self.is_too_large.load(Ordering::Relaxed) { Err(self.refuse(None).await) } else { Ok(()) }
    }

    /// Returns the body as a stream. It fails when the body exceeds the bound or the client
    /// goes away, so that a part is never taken for the whole; `invalid` makes the error.
    pub fn bytes<E: Send + 'static>(&self, invalid: fn(String) -> E) -> BoxStream<'static, Result<Bytes, E>> {
        let upload = self.clone();
        futures_util::stream::unfold(upload, move |upload| async move {
            let piece = upload.stream.lock().await.next().await?;
            let piece = match piece {
                Ok(piece) => upload.count(piece),
                Err(error) => {
                    upload.is_stalled.fetch_or(is_stalled(&error), Ordering::Relaxed);
                    Err("the upload was cut off")
                }
            };
            Some((piece.map_err(|text| invalid(text.to_owned())), upload))
        })
        .boxed()
    }

    fn count(&self, piece: Bytes) -> Result<Bytes, &'static str> {
        let left = self.left.load(Ordering::Relaxed);
        match left.checked_sub(piece.len() as u64) {
            Some(left) => {
                self.left.store(left, Ordering::Relaxed);
                Ok(piece)
            }
            None => {
                self.is_too_large.store(true, Ordering::Relaxed);
                Err("the upload is too large")
            }
        }
    }

    /// Drains the body and returns the error to answer with: that the upload stalled or is too
    /// large if so, else `error`.
    pub async fn refuse(&self, error: Option<ApiError>) -> ApiError {
        drain(&mut *self.stream.lock().await).await;
        if self.is_stalled.load(Ordering::Relaxed) {
            return Refusal::Stalled.into();
        }
        match error {
            Some(error) if !self.is_too_large.load(Ordering::Relaxed) => error,
            Some(_) | None => Refusal::TooLarge(self.max).into(),
        }
    }
}

#[cfg(test)]
mod test {
    use std::sync::Arc;

    use futures_util::future::{Either, select};

    use super::*;
    use crate::budget::{Budget, Caller};

    const MIB: usize = 1 << 20;

    fn account(total: usize) -> (Arc<Budget>, Account) {
        let budget = Budget::new(total as u64);
        let account = budget.account(Caller::Address(None), None);
        (budget, account)
    }

    fn body(bytes: usize) -> Body {
        let piece = Bytes::from(vec![b' '; 1024]);
        let pieces: Vec<_> = (0..bytes / 1024).map(|_| Ok::<_, std::io::Error>(piece.clone())).collect();
        Body::from_stream(futures_util::stream::iter(pieces))
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_share_what_there_is_and_small_ones_need_nothing() {
        let (budget, account) = account(6 * MIB);
        let used = || budget.stats().used_bytes as usize;
        let first = collect(body(3 * MIB), 8 * MIB, &account).await.unwrap();
        assert_eq!(first.len(), 3 * MIB);
        assert!((3 * MIB..=4 * MIB).contains(&used()), "{}", used());
        let before = used();
        let refused = collect(body(3 * MIB), 8 * MIB, &account).await.unwrap_err();
        assert_eq!(refused.code(), "unavailable");
        assert_eq!(used(), before, "what is refused counts no more");
        collect(body(SMALL_BYTES), 8 * MIB, &account).await.unwrap();
        let waiting = collect(body(3 * MIB), 8 * MIB, &account);
        let leaving = async {
            tokio::time::sleep(WAIT_MAX / 2).await;
            drop(first);
        };
        let (waited, ()) = tokio::join!(waiting, leaving);
        drop(waited.unwrap());
        assert_eq!(used(), 0);
    }

    #[tokio::test]
    async fn a_body_counts_what_it_takes_and_no_more_than_it_announces() {
        let (budget, account) = account(64 * MIB);
        for size in [0, 1, SMALL_BYTES, SMALL_BYTES + 1, 100_000, MIB] {
            let collected = collect(Body::from(vec![b' '; size]), MIB, &account).await.unwrap();
            let counted = if size > SMALL_BYTES { size } else { 0 };
            assert_eq!((collected.len(), budget.stats().used_bytes as usize), (size, counted));
        }
        assert_eq!(budget.stats().used_bytes, 0);
    }

    #[tokio::test]
    async fn a_text_of_many_tiny_values_counts_as_what_it_becomes() {
        let (budget, account) = account(64 * MIB);
        let text = format!("{{\"a\":[\"\"{}]}}", ",\"\"".repeat(100_000));
        let meter = Meter::new(account.clone());
        let collected = collect(Body::from(text.clone()), MIB, &account).await.unwrap();
        let value: serde_json::Value = collected.parse(&meter).await.unwrap();
        assert_eq!(value["a"].as_array().unwrap().len(), 100_001);
        let used = budget.stats().used_bytes as usize;
        assert!((100_000 * ELEMENT_BYTES..16 * MIB).contains(&used), "{used}");
        drop(meter);
        assert_eq!(budget.stats().used_bytes, 0);
    }

    /// The runtime of this test has one thread, which must go on serving meanwhile.
    #[tokio::test]
    async fn a_large_text_is_parsed_beside_the_requests() {
        let (_budget, account) = account(256 * MIB);
        let meter = Meter::new(account.clone());
        let text = format!("{{\"a\":\"{}\"}}", "\\u0001".repeat(MIB));
        let collected = collect(Body::from(text), 64 * MIB, &account).await.unwrap();
        let parsing = std::pin::pin!(collected.parse::<serde_json::Value>(&meter));
        let others = std::pin::pin!(async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        });
        // The parsing is polled first, and must yield before it ends.
        let Either::Right(((), parsing)) = select(parsing, others).await else { panic!("all others waited") };
        assert_eq!(parsing.await.unwrap()["a"].as_str().unwrap().len(), MIB);
    }

    #[test]
    fn values_are_counted_outside_strings_only() {
        for (text, count) in [
            ("", 1),
            ("{}", 2),
            (r#"{"a":1,"b":[2,3]}"#, 7),
            (r#"{"a":",,,[[[:::"}"#, 3),
            (r#"{"a":"\",,\\","b":""}"#, 5),
            (r#""\"#, 1),
            ("[[[[", 5),
        ] {
            assert_eq!(elements(text.as_bytes()), count, "{text}");
        }
    }
}
