//! Sizes of reads from a connection. hyper keeps a buffer as large as the largest read so far
//! for the life of the connection, so reads are small until a larger buffer is taken from the
//! memory that requests share.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::budget::{Account, Reservation};
use crate::http::stream::paced_read::{Rule, Ruled};

/// Size of an uncounted read: less than hyper's first buffer, which grows when it is filled.
const SMALL_BYTES: usize = 8 * 1024 - 1;
/// Largest head of a request, in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Memory counted for a connection that reads without a bound: the buffer, and the one before
/// it, from which a body is still taken.
const LARGE_BYTES: usize = 2 * HEAD_BYTES_MAX;
/// Memory that the address must still have left to take a larger buffer for a body. A body can do
/// without it, because it is then read in small pieces.
const SPARE_BYTES: usize = 8 * 1024 * 1024;
/// Bytes of a body after which larger reads are worth their memory.
const LONG_BYTES: usize = 256 * 1024;

/// Bytes of a connection with many requests that are read before the requests get a turn: what
/// came in small frames is in as many pieces until they have taken it.
const TURN_BYTES: usize = 32 * 1024;

/// Phase of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Phase(Arc<AtomicU8>);

/// Kind of input that a connection reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// Head of a request, which is held as a whole.
    Head,
    /// Between the head of a request and its answer.
    Body,
    /// Frames of many requests.
    Frames,
}

impl Phase {
    /// Records whether a request is being handled: from its complete head until its answer is
    /// ready.
    pub(super) fn set(&self, is_in_request: bool) {
        self.store(if is_in_request { Reads::Body } else { Reads::Head });
    }

    /// Records that requests come side by side from now on.
    pub(super) fn multiplex(&self) {
        self.store(Reads::Frames);
    }

    fn store(&self, reads: Reads) {
        self.0.store(reads as u8, Ordering::Relaxed);
    }

    fn load(&self) -> Reads {
        match self.0.load(Ordering::Relaxed) {
            0 => Reads::Head,
            1 => Reads::Body,
            _ => Reads::Frames,
        }
    }
}

/// Read rule of a connection that takes memory for its larger reads.
#[derive(Debug)]
pub(super) struct Intake {
    phase: Phase,
    last: Reads,
    /// Bytes read since the phase began, or since many requests had a turn.
    came: usize,
    held: Reservation,
}

impl Intake {
    /// Wraps `stream` so that larger reads take memory from `account`. The returned phase
    /// distinguishes heads from bodies.
    pub(super) fn around<S>(stream: S, account: &Account) -> (Ruled<S, Self>, Phase) {
        let phase = Phase::default();
        let held = account.nothing();
        (Ruled::new(stream, Self { phase: phase.clone(), last: Reads::Head, came: 0, held }), phase)
    }
}

impl Rule for Intake {
    fn at_once(&mut self) -> io::Result<usize> {
        let reads = self.phase.load();
        if std::mem::replace(&mut self.last, reads) != reads {
            self.came = 0;
        }
        if reads == Reads::Frames {
            // The buffer is as large as a frame or two.
            let left = TURN_BYTES.saturating_sub(self.came);
            if left == 0 {
                self.came = 0;
            }
            return Ok(left);
        }
        let needed = if reads == Reads::Head { SMALL_BYTES } else { LONG_BYTES };
        if self.held.bytes() == 0 && self.came >= needed {
            if reads == Reads::Head {
                // It is held as a whole.
                let taken = self.held.grow(LARGE_BYTES);
                taken.map_err(|spent| io::Error::new(io::ErrorKind::OutOfMemory, spent))?;
            } else if self.held.account().has_room(SPARE_BYTES) {
                let _ = self.held.grow(LARGE_BYTES);
            }
            self.came = 0;
        }
        Ok(if self.held.bytes() == 0 { SMALL_BYTES } else { usize::MAX })
    }

    fn came(&mut self, bytes: usize) -> io::Result<()> {
        self.came += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use domain::OwnerId;
    use futures_util::FutureExt;
    use tokio::io::{AsyncRead, AsyncReadExt};

    use super::*;
    use crate::budget::{Budget, Caller};

    async fn read<S: AsyncRead + Unpin>(intake: &mut Ruled<S, Intake>) -> io::Result<usize> {
        intake.read(&mut vec![0; 100_000]).await
    }

    #[tokio::test]
    async fn a_long_body_is_read_in_larger_pieces_where_there_is_memory_for_it() {
        let bytes = vec![0; 1 << 20];
        for total in [64 << 20, SPARE_BYTES as u64] {
            let budget = Budget::new(total);
            let account = budget.account(Caller::Address(None), None);
            let (mut intake, phase) = Intake::around(tokio::io::join(&bytes[..], tokio::io::sink()), &account);
            phase.set(true);
            let (mut came, mut reads) = (0, Vec::new());
            while came < bytes.len() {
                reads.push(read(&mut intake).await.unwrap());
                came += reads[reads.len() - 1];
            }
            let is_larger = total > SPARE_BYTES as u64;
            assert_eq!(reads[0], SMALL_BYTES);
            assert_eq!(reads.contains(&100_000), is_larger);
            assert_eq!(budget.stats().used_bytes, if is_larger { LARGE_BYTES as u64 } else { 0 });
            drop(intake);
            assert_eq!(budget.stats().used_bytes, 0);
        }
    }

    #[tokio::test]
    async fn the_buffers_of_bodies_leave_room_for_another_owner_at_the_address() {
        let budget = Budget::new(64 << 20);
        let [greedy, honest] = ["greedy", "honest"].map(|name| OwnerId::parse(name).unwrap());
        let greedy = budget.account(Caller::Owner(&greedy), None);
        let held: Vec<_> = std::iter::from_fn(|| greedy.reserve(1 << 20).ok()).collect();
        let of_connections = budget.account(Caller::Address(None), None);
        let bytes = vec![0; 1 << 20];
        let mut intakes = Vec::new();
        for _ in 0..200 {
            let (mut intake, phase) = Intake::around(tokio::io::join(&bytes[..], tokio::io::sink()), &of_connections);
            phase.set(true);
            for _ in 0..40 {
                read(&mut intake).await.unwrap();
            }
            intakes.push(intake);
        }
        assert!(!held.is_empty() && greedy.reserve(1 << 20).is_err());
        budget.account(Caller::Owner(&honest), None).reserve(4 << 20).unwrap();
    }

    #[tokio::test]
    async fn a_long_head_is_read_only_where_there_is_memory_for_it() {
        let bytes = vec![0; 64 * 1024];
        let budget = Budget::new(LARGE_BYTES as u64);
        let account = budget.account(Caller::Address(None), None);
        let (mut intake, phase) = Intake::around(tokio::io::join(&bytes[..], tokio::io::sink()), &account);
        assert_eq!(read(&mut intake).await.unwrap(), SMALL_BYTES);
        assert_eq!(read(&mut intake).await.unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        phase.set(true);
        assert_eq!(read(&mut intake).await.unwrap(), SMALL_BYTES, "what follows a head is a body");
    }

    #[tokio::test]
    async fn requests_side_by_side_get_a_turn_between_reads() {
        let bytes = vec![0; 1 << 20];
        let budget = Budget::new(1 << 24);
        let account = budget.account(Caller::Address(None), None);
        let (mut intake, phase) = Intake::around(tokio::io::join(&bytes[..], tokio::io::sink()), &account);
        phase.multiplex();
        let (mut came, mut turns) = (0, 0);
        while came < bytes.len() {
            match read(&mut intake).now_or_never() {
                Some(read) => came += read.unwrap(),
                None => turns += 1,
            }
        }
        assert_eq!(turns, (1 << 20) / TURN_BYTES - 1);
        assert_eq!(budget.stats().used_bytes, 0);
    }
}
