//! What a connection reads at once. The reader above keeps a buffer as large as
//! the largest read so far, for as long as the connection lives; so reads are
//! small until a larger buffer is taken from the memory that requests share.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::connection::HEAD_BYTES_MAX;
use crate::budget::{Account, Reservation};
use crate::http::ruled::{Rule, Ruled};

/// What every connection reads at once: less than the first buffer of the reader
/// above, which grows when it is filled.
const SMALL_BYTES: usize = 8 * 1024 - 1;
/// What a connection holds that reads as much as it can: the buffer, and the one
/// before it, from which a body is still taken.
const LARGE_BYTES: usize = 2 * HEAD_BYTES_MAX;
/// After so much of a body larger reads are worth their memory.
const LONG_BYTES: usize = 256 * 1024;

/// Whether a connection is between the head of a request and its answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Phase(Arc<AtomicBool>);

impl Phase {
    /// Notes that the head of a request is whole, or that its answer is made.
    pub(super) fn set(&self, is_in_request: bool) {
        self.0.store(is_in_request, Ordering::Relaxed);
    }
}

/// The rule of a connection that takes what its reads need.
#[derive(Debug)]
pub(super) struct Intake {
    phase: Phase,
    was_in_request: bool,
    /// What came since the phase began.
    came: usize,
    held: Reservation,
}

impl Intake {
    /// Takes memory by `account` for what is read of `stream`; the phase tells heads
    /// from bodies.
    pub(super) fn around<S>(stream: S, account: &Account) -> (Ruled<S, Self>, Phase) {
        let phase = Phase::default();
        let held = account.nothing();
        (Ruled::new(stream, Self { phase: phase.clone(), was_in_request: false, came: 0, held }), phase)
    }
}

impl Rule for Intake {
    fn at_once(&mut self) -> io::Result<usize> {
        let is_in_request = self.phase.0.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.was_in_request, is_in_request) != is_in_request {
            self.came = 0;
        }
        let needed = if is_in_request { LONG_BYTES } else { SMALL_BYTES };
        if self.held.bytes() == 0 && self.came >= needed {
            let taken = self.held.grow(LARGE_BYTES);
            // A body goes on in small pieces. A head is held as a whole.
            if let (Err(spent), false) = (taken, is_in_request) {
                return Err(io::Error::new(io::ErrorKind::OutOfMemory, spent));
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
    use tokio::io::{AsyncRead, AsyncReadExt};

    use super::*;
    use crate::budget::{Budget, Caller};

    async fn read<S: AsyncRead + Unpin>(intake: &mut Ruled<S, Intake>) -> io::Result<usize> {
        intake.read(&mut vec![0; 100_000]).await
    }

    #[tokio::test]
    async fn a_long_body_is_read_in_larger_pieces_where_there_is_memory_for_it() {
        let bytes = vec![0; 1 << 20];
        for total in [1 << 20, LARGE_BYTES as u64] {
            let budget = Budget::new(total);
            let account = budget.account(Caller::Address(None), None);
            let (mut intake, phase) = Intake::around(tokio::io::join(&bytes[..], tokio::io::sink()), &account);
            phase.set(true);
            let (mut came, mut reads) = (0, Vec::new());
            while came < bytes.len() {
                reads.push(read(&mut intake).await.unwrap());
                came += reads[reads.len() - 1];
            }
            let is_larger = total > LARGE_BYTES as u64;
            assert_eq!(reads[0], SMALL_BYTES);
            assert_eq!(reads.contains(&100_000), is_larger);
            assert_eq!(budget.figures().used_bytes, if is_larger { LARGE_BYTES as u64 } else { 0 });
            drop(intake);
            assert_eq!(budget.figures().used_bytes, 0);
        }
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
}
