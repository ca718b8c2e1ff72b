//! Memory for what has to be remembered of trees, which may have any number of names.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::tree::Unfit;

/// Memory that each of several writers may take at once, in bytes. For more, a writer waits for its turn.
pub const SMALL_BYTES: usize = 16 * 1024 * 1024;
/// Longest wait for the turn: what is written stands still meanwhile.
const TURN_WAIT: Duration = Duration::from_secs(60);

static IS_TAKEN: Mutex<bool> = Mutex::new(false);
static GIVEN_BACK: Condvar = Condvar::new();

/// Turn to take much memory, which one writer of the process has at a time, so that all of them together
/// take little more than one may. Ends when it is dropped.
#[derive(Debug)]
pub struct LargeTurn(());

impl LargeTurn {
    /// Waits for the turn. Blocks.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if others have it for too long.
    pub fn wait() -> io::Result<LargeTurn> {
        let taken = IS_TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = GIVEN_BACK.wait_timeout_while(taken, TURN_WAIT, |taken| *taken);
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *taken {
            return Err(ErrorKind::TimedOut.into());
        }
        *taken = true;
        Ok(LargeTurn(()))
    }
}

impl Drop for LargeTurn {
    fn drop(&mut self) {
        *IS_TAKEN.lock().unwrap_or_else(PoisonError::into_inner) = false;
        GIVEN_BACK.notify_one();
    }
}

/// Bytes that may still be taken.
#[derive(Debug)]
pub(crate) struct Memory {
    left: AtomicUsize,
    most: usize,
    turn: Mutex<Option<LargeTurn>>,
}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Memory {
        Memory { left: AtomicUsize::new(bytes), most: bytes, turn: Mutex::new(None) }
    }

    /// Waits for the turn to take much, unless it is here already.
    fn take_turn(&self) -> io::Result<()> {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if turn.is_none() {
            *turn = Some(LargeTurn::wait()?);
        }
        Ok(())
    }

    /// Returns an empty share.
    pub(crate) fn share(&self) -> Share<'_> {
        Share { of: self, bytes: 0 }
    }
}

/// Bytes that are taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Share<'m> {
    of: &'m Memory,
    bytes: usize,
}

impl Share<'_> {
    /// Takes more bytes.
    ///
    /// # Errors
    /// [`Unfit::TooManyNames`] if there are not as many, [`ErrorKind::TimedOut`] if the turn to take much does
    /// not come.
    pub(crate) fn grow(&mut self, bytes: usize) -> io::Result<()> {
        let left = self
            .of
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes))
            .map_err(|_| Unfit::TooManyNames)?;
        self.bytes += bytes;
        if self.of.most - left + bytes > SMALL_BYTES { self.of.take_turn() } else { Ok(()) }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.of.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn one_at_a_time_takes_much_and_others_wait_for_it() {
        let other = Memory::new(4 * SMALL_BYTES);
        std::thread::scope(|scope| {
            let one = Memory::new(4 * SMALL_BYTES);
            let (mut share, mut little) = (one.share(), other.share());
            share.grow(2 * SMALL_BYTES).unwrap();
            little.grow(SMALL_BYTES).unwrap();
            drop(little);
            let waiting = scope.spawn(|| other.share().grow(2 * SMALL_BYTES));
            let begun = std::time::Instant::now();
            while !waiting.is_finished() && begun.elapsed() < Duration::from_millis(100) {
                std::thread::yield_now();
            }
            assert!(!waiting.is_finished(), "both have it");
            drop(share);
            drop(one);
            waiting.join().unwrap().unwrap();
        });
    }
}
