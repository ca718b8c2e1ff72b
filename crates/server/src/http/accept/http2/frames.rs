//! Frames that ask for nothing and carry nothing, such as PRIORITY, `WINDOW_UPDATE`, PING, SETTINGS and unknown types:
//! each costs the server time, so they are bounded like requests that are taken back.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// Length of the client's preface, before its first frame, in bytes. RFC 9113 §3.4.
const PREFACE_BYTES: usize = 24;
/// Length of the head of a frame, in bytes. RFC 9113 §4.1.
const HEAD_BYTES: usize = 9;
/// Types of frames that are bounded by what they carry.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// Most of the other frames at once.
const BURST_MAX: u64 = 10_000;
/// Most of the other frames in a second, for as long as nothing else happens.
const PER_SECOND: u64 = 1_000;
/// Further ones for each request: its windows, its priority, its end.
const PER_REQUEST: u64 = 8;
/// Bytes of answers that give a client reason for one more, to open the window for others.
const BYTES_EACH: u64 = 1024;

/// Sign that a client has sent too many frames.
#[derive(Debug, Clone, Default)]
pub(super) struct Excess(Arc<AtomicBool>);

impl Excess {
    pub(super) fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Connection whose frames are counted.
#[derive(Debug)]
pub(super) struct Counted<S> {
    stream: S,
    reader: Reader,
    allowance: Allowance,
    excess: Excess,
}

/// Reader of the heads of frames.
#[derive(Debug)]
struct Reader {
    /// Bytes to come before the next head.
    skipped: usize,
    head: [u8; HEAD_BYTES],
    /// Bytes of the head that have come.
    came: usize,
}

/// Frames that a client may still send.
#[derive(Debug)]
struct Allowance {
    left: u64,
    /// Time up to which the rate has been added.
    since: Instant,
    /// Bytes of answers that have not given another one yet.
    bytes: u64,
}

impl<S> Counted<S> {
    pub(super) fn new(stream: S) -> (Self, Excess) {
        let reader = Reader { skipped: PREFACE_BYTES, head: [0; HEAD_BYTES], came: 0 };
        let allowance = Allowance { left: BURST_MAX, since: Instant::now(), bytes: 0 };
        let excess = Excess::default();
        (Self { stream, reader, allowance, excess: excess.clone() }, excess)
    }

    fn count(&mut self, bytes: &[u8]) {
        let allowance = &mut self.allowance;
        let mut is_within = true;
        self.reader.read(bytes, |kind| match kind {
            DATA | CONTINUATION => {}
            HEADERS => allowance.add(PER_REQUEST),
            _ => is_within &= allowance.take(),
        });
        if !is_within {
            self.excess.0.store(true, Ordering::Relaxed);
        }
    }
}

impl Reader {
    /// Reads what has come, and calls `each` with the types of the frames that begin in it.
    fn read(&mut self, mut bytes: &[u8], mut each: impl FnMut(u8)) {
        while !bytes.is_empty() {
            let skipped = self.skipped.min(bytes.len());
            self.skipped -= skipped;
            bytes = &bytes[skipped..];
            let count = (HEAD_BYTES - self.came).min(bytes.len());
            self.head[self.came..self.came + count].copy_from_slice(&bytes[..count]);
            self.came += count;
            bytes = &bytes[count..];
            if self.came == HEAD_BYTES {
                let [a, b, c, kind, ..] = self.head;
                self.skipped = u32::from_be_bytes([0, a, b, c]) as usize;
                self.came = 0;
                each(kind);
            }
        }
    }
}

impl Allowance {
    fn add(&mut self, frames: u64) {
        self.left = self.left.saturating_add(frames).min(BURST_MAX);
    }

    /// Takes one; returns false if none is left.
    fn take(&mut self) -> bool {
        if self.left == 0 {
            let passed = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.since = Instant::now();
            self.add(passed.saturating_mul(PER_SECOND) / 1000);
        }
        let is_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_left
    }

    fn wrote(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.add(self.bytes / BYTES_EACH);
        self.bytes %= BYTES_EACH;
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.count(&buffer.filled()[before..]);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = polled {
            self.allowance.wrote(count);
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        if let Poll::Ready(Ok(count)) = polled {
            self.allowance.wrote(count);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use super::*;

    const PRIORITY: &[u8] = &[0, 0, 5, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0];

    fn counted() -> (Counted<tokio::io::Empty>, Excess) {
        let (mut counted, excess) = Counted::new(tokio::io::empty());
        counted.count(&[b'x'; PREFACE_BYTES]);
        (counted, excess)
    }

    #[tokio::test(start_paused = true)]
    async fn frames_that_carry_nothing_have_a_rate() {
        let (mut counted, excess) = counted();
        for _ in 0..BURST_MAX {
            counted.count(PRIORITY);
        }
        assert!(!excess.is_there());
        tokio::time::advance(Duration::from_secs(2)).await;
        for _ in 0..2 * PER_SECOND {
            counted.count(PRIORITY);
        }
        assert!(!excess.is_there());
        counted.count(PRIORITY);
        assert!(excess.is_there());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_answers_may_open_the_window_for_them_without_end() {
        let (mut counted, excess) = counted();
        for _ in 0..3 * BURST_MAX {
            counted.count(PRIORITY);
            counted.allowance.wrote(2048);
        }
        for _ in 0..3 * BURST_MAX {
            counted.count(&[0, 0, 1, HEADERS, 0, 0, 0, 0, 1, 0]);
            counted.count(PRIORITY);
        }
        assert!(!excess.is_there());
    }

    #[tokio::test(start_paused = true)]
    async fn frames_are_known_however_they_are_cut() {
        let frames = [&[0, 0, 3, DATA, 0, 0, 0, 0, 1, 2, 2, 2][..], PRIORITY, &[0, 0, 0, 6, 0, 0, 0, 0, 0]].concat();
        for size in 1..frames.len() {
            let mut reader = Reader { skipped: 0, head: [0; HEAD_BYTES], came: 0 };
            let mut kinds = Vec::new();
            frames.chunks(size).for_each(|piece| reader.read(piece, |kind| kinds.push(kind)));
            assert_eq!(kinds, [DATA, 2, 6], "{size}");
        }
    }
}
