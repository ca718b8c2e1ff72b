//! An answer that is sent piece by piece: what has been handed out counts until
//! the client has taken it, and no more is handed out than may be held.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::budget::Reservation;

/// What an answer may always have on its way, so that it can end: a piece of the
/// smallest size, escaped in full.
pub const OUTFLOW_BYTES: usize = 24 * 1024;
/// The smallest piece, in bytes before it is encoded.
pub const PIECE_BYTES_MIN: usize = 4 * 1024;

/// The end of an answer at which it is made.
pub struct Outflow {
    way: Arc<Way>,
}

/// What is on its way to the client.
struct Way {
    state: Mutex<State>,
    taken: Notify,
}

struct State {
    reservation: Reservation,
    /// What the maker of the answer holds of the reservation by itself.
    kept: usize,
    /// What has been handed out.
    out: usize,
}

/// A piece on its way.
struct Piece<B> {
    bytes: B,
    counted: usize,
    way: Arc<Way>,
}

impl Way {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each statement leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn room(&self) -> usize {
        self.reservation.bytes().saturating_sub(self.kept + self.out)
    }

    /// Gives back what a burst took.
    fn settle(&mut self) {
        self.reservation.shrink_to(self.kept + self.out.max(OUTFLOW_BYTES));
    }
}

impl Outflow {
    /// An answer that may hold what is reserved, of which its maker holds `kept`.
    pub fn new(reservation: Reservation, kept: usize) -> Self {
        let state = Mutex::new(State { reservation, kept, out: 0 });
        Self { way: Arc::new(Way { state, taken: Notify::new() }) }
    }

    /// Waits until a piece can be handed out, and returns how large it may be:
    /// `wanted` bytes where the caller may hold as many, else what there is, but
    /// `least` at least.
    pub async fn room(&self, least: usize, wanted: usize) -> usize {
        loop {
            let taken = self.way.taken.notified();
            {
                let mut state = self.way.lock();
                let missing = wanted.saturating_sub(state.room());
                if missing == 0 || state.reservation.grow(missing).is_ok() {
                    return wanted;
                }
                if state.room() >= least || state.out == 0 {
                    return state.room().max(least);
                }
            }
            taken.await;
        }
    }

    /// Hands out a piece that holds `counted` bytes.
    pub fn hand_out<B: AsRef<[u8]> + Send + 'static>(&self, bytes: B, counted: usize) -> Bytes {
        self.way.lock().out += counted;
        Bytes::from_owner(Piece { bytes, counted, way: Arc::clone(&self.way) })
    }

    /// Says how much the maker holds by now.
    pub fn keep(&self, bytes: usize) {
        self.way.lock().kept = bytes;
    }
}

impl Drop for Outflow {
    fn drop(&mut self) {
        let mut state = self.way.lock();
        state.kept = 0;
        let out = state.out;
        state.reservation.shrink_to(out);
    }
}

impl<B> Drop for Piece<B> {
    fn drop(&mut self) {
        let mut state = self.way.lock();
        state.out -= self.counted;
        if state.out == 0 {
            state.settle();
        }
        drop(state);
        self.way.taken.notify_one();
    }
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Piece<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

#[cfg(test)]
mod test {
    use futures_util::FutureExt;

    use super::*;
    use crate::budget::{Budget, Caller};

    const MIB: usize = 1 << 20;

    #[tokio::test]
    async fn what_is_not_taken_counts_and_holds_up_what_follows() {
        let budget = Budget::new(MIB as u64);
        let account = budget.account(Caller::Address(None), None);
        let used = || budget.figures().used_bytes as usize;
        let outflow = Outflow::new(account.reserve(OUTFLOW_BYTES + 1000).unwrap(), 1000);
        assert_eq!(outflow.room(PIECE_BYTES_MIN, 100_000).await, 100_000);
        let first = outflow.hand_out(vec![0; 100_000], 100_000);
        assert_eq!(used(), 101_000);
        let rest = account.reserve(2 * MIB / 3 - 101_000).unwrap();
        assert!(outflow.room(PIECE_BYTES_MIN, 100_000).now_or_never().is_none());
        let (room, ()) = tokio::join!(outflow.room(PIECE_BYTES_MIN, 200_000), async { drop(first) });
        assert_eq!(room, OUTFLOW_BYTES, "what a burst took is given back");
        drop(rest);
        let last = outflow.hand_out(vec![0; 500], 500);
        drop(outflow);
        assert_eq!(used(), 500, "only what is on its way counts after the end");
        drop(last);
        assert_eq!(used(), 0);
    }

    #[tokio::test]
    async fn an_answer_goes_on_while_everything_is_spent() {
        let budget = Budget::new(MIB as u64);
        let account = budget.account(Caller::Address(None), None);
        let outflow = Outflow::new(account.nothing(), 0);
        let _rest: Vec<_> = std::iter::from_fn(|| account.reserve(1000).ok()).collect();
        assert_eq!(outflow.room(PIECE_BYTES_MIN, MIB).await, PIECE_BYTES_MIN);
    }
}
