//! Request bodies, bounded, and refused so that the client sees it: a server
//! that stops reading resets the connection, and the answer is lost with it.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http_body::Body as _;
use providers::ByteStream;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

use super::Stalled;
use super::error::{ApiError, Refusal, malformed};

/// A refused body is read on for so long,
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1);
/// or for so many bytes.
const DRAIN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What every body may take of memory without asking, in bytes,
const SMALL_BYTES: usize = 1024 * 1024;
/// and what all the larger ones may take together beyond it, in units of as much.
const LARGE_UNITS: usize = 256;
/// How long a body may wait for others to be done.
const LARGE_WAIT_MAX: Duration = Duration::from_secs(10);

static LARGE: Semaphore = Semaphore::const_new(LARGE_UNITS);

/// A body in memory, which counts for as long as it is held.
#[derive(Debug)]
pub struct Collected {
    bytes: Bytes,
    _counted: Option<SemaphorePermit<'static>>,
}

impl Deref for Collected {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The whole body, at most `max` bytes.
pub async fn collect(body: Body, max: usize) -> Result<Collected, ApiError> {
    collect_within(body, max, &LARGE).await
}

async fn collect_within(body: Body, max: usize, large: &'static Semaphore) -> Result<Collected, ApiError> {
    let announced = body.size_hint().lower();
    let mut stream = body.into_data_stream();
    if announced > max as u64 {
        drain(&mut stream).await;
        return Err(Refusal::TooLarge(max as u64).into());
    }
    let mut held = BytesMut::new();
    let mut counted: Option<SemaphorePermit<'static>> = None;
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| {
            if is_stalled(&error) { Refusal::Stalled.into() } else { malformed("the body was cut off") }
        })?;
        if held.len() + piece.len() > max {
            drain(&mut stream).await;
            return Err(Refusal::TooLarge(max as u64).into());
        }
        let units = (held.len() + piece.len()).div_ceil(SMALL_BYTES).saturating_sub(1);
        let missing = units.saturating_sub(counted.as_ref().map_or(0, SemaphorePermit::num_permits));
        if missing > 0 {
            // Only what has come counts: who sends slowly holds up nobody.
            let more = large.acquire_many(u32::try_from(missing).unwrap_or(u32::MAX));
            let Ok(Ok(more)) = tokio::time::timeout(LARGE_WAIT_MAX, more).await else {
                drain(&mut stream).await;
                return Err(Refusal::Busy.into());
            };
            match &mut counted {
                Some(counted) => counted.merge(more),
                None => counted = Some(more),
            }
        }
        held.extend_from_slice(&piece);
    }
    Ok(Collected { bytes: held.freeze(), _counted: counted })
}

/// Whether a body broke off because nothing came any more.
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

/// Reads on for a moment, so that a client that only writes comes to see the answer.
pub async fn drain(stream: &mut (impl Stream<Item = Result<Bytes, axum::Error>> + Unpin)) {
    let read = async {
        let mut left = DRAIN_BYTES_MAX;
        while let Some(Ok(piece)) = stream.next().await {
            left = left.saturating_sub(piece.len());
            if left == 0 {
                return;
            }
        }
    };
    // Running out of time only means that the client may not see the answer.
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, read).await;
}

/// A body that is passed on as it comes.
#[derive(Clone)]
pub struct Upload {
    stream: Arc<Mutex<BodyDataStream>>,
    left: Arc<AtomicU64>,
    max: u64,
    is_too_large: Arc<AtomicBool>,
    is_stalled: Arc<AtomicBool>,
}

impl Upload {
    /// Takes a body of at most `max` bytes.
    pub fn new(body: Body, max: u64) -> Self {
        let is_too_large = body.size_hint().lower() > max;
        Self {
            stream: Arc::new(Mutex::new(body.into_data_stream())),
            left: Arc::new(AtomicU64::new(max)),
            max,
            is_too_large: Arc::new(AtomicBool::new(is_too_large)),
            is_stalled: Arc::default(),
        }
    }

    /// Refuses at once what has been announced as too large.
    pub async fn check_announced(&self) -> Result<(), ApiError> {
        if self.is_too_large.load(Ordering::Relaxed) { Err(self.refuse(None).await) } else { Ok(()) }
    }

    /// The bytes. The stream fails when there are too many of them or the
    /// client goes away, so that nothing half is taken for whole.
    pub fn bytes(&self) -> ByteStream {
        let upload = self.clone();
        futures_util::stream::unfold(upload, |upload| async move {
            let piece = upload.stream.lock().await.next().await?;
            let piece = match piece {
                Ok(piece) => upload.count(piece),
                Err(error) => {
                    upload.is_stalled.fetch_or(is_stalled(&error), Ordering::Relaxed);
                    Err(providers::Error::Invalid("the upload was cut off".to_owned()))
                }
            };
            Some((piece, upload))
        })
        .boxed()
    }

    fn count(&self, piece: Bytes) -> providers::Result<Bytes> {
        let left = self.left.load(Ordering::Relaxed);
        match left.checked_sub(piece.len() as u64) {
            Some(left) => {
                self.left.store(left, Ordering::Relaxed);
                Ok(piece)
            }
            None => {
                self.is_too_large.store(true, Ordering::Relaxed);
                Err(providers::Error::Invalid("the upload is too large".to_owned()))
            }
        }
    }

    /// Reads on for a moment and gives the error to answer with: that the upload
    /// came to a halt or is too large if it is so, else `error`.
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
    use super::*;

    fn body(mebibytes: usize) -> Body {
        let piece = Bytes::from(vec![0; SMALL_BYTES / 4]);
        let pieces: Vec<_> = (0..mebibytes * 4).map(|_| Ok::<_, std::io::Error>(piece.clone())).collect();
        Body::from_stream(futures_util::stream::iter(pieces))
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_share_what_there_is_and_small_ones_need_nothing() {
        let large: &'static Semaphore = Box::leak(Box::new(Semaphore::new(3)));
        let first = collect_within(body(3), 8 * SMALL_BYTES, large).await.unwrap();
        assert_eq!((first.len(), large.available_permits()), (3 * SMALL_BYTES, 1));
        let refused = collect_within(body(3), 8 * SMALL_BYTES, large).await.unwrap_err();
        assert_eq!(refused.body().1.code, "unavailable");
        assert_eq!(large.available_permits(), 1, "what is refused counts no more");
        collect_within(body(1), 8 * SMALL_BYTES, large).await.unwrap();
        let waiting = collect_within(body(4), 8 * SMALL_BYTES, large);
        let leaving = async {
            tokio::time::sleep(LARGE_WAIT_MAX / 2).await;
            drop(first);
        };
        let (waited, ()) = tokio::join!(waiting, leaving);
        drop(waited.unwrap());
        assert_eq!(large.available_permits(), 3);
    }
}
