//! Flow control of an answer that is sent piece by piece. Bytes handed out count until the
//! client has taken them, and no more are handed out than may be held.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, stream};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::budget::Reservation;

/// Memory that every answer has for bytes in transit, so that it can end: a piece of the
/// smallest size, with every byte escaped.
pub const OUTFLOW_BYTES: usize = 24 * 1024;
/// Smallest piece, in bytes before it is encoded.
pub const PIECE_BYTES_MIN: usize = 4 * 1024;

/// Sending end of an answer.
pub struct Outflow {
    way: Arc<Way>,
}

/// Bytes in transit to the client.
struct Way {
    state: Mutex<State>,
    taken: Notify,
}

struct State {
    reservation: Reservation,
    /// Part of the reservation that the producer of the answer holds itself, in bytes.
    kept: usize,
    /// Bytes handed out and not taken yet.
    out: usize,
}

/// Piece in transit.
struct Piece<B> {
    bytes: B,
    counted: usize,
    way: Arc<Way>,
}

impl Way {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No panic can leave the state inconsistent.
        self.state.lock()
    }
}

impl State {
    fn room(&self) -> usize {
        self.reservation.bytes().saturating_sub(self.kept + self.out)
    }

    /// Releases what a burst reserved.
    fn settle(&mut self) {
        self.reservation.shrink_to(self.kept + self.out.max(OUTFLOW_BYTES));
    }
}

impl Outflow {
    /// Returns the flow control of an answer that may hold `reservation`, of which its producer
    /// holds `kept` bytes.
    pub fn new(reservation: Reservation, kept: usize) -> Self {
        let state = Mutex::new(State { reservation, kept, out: 0 });
        Self { way: Arc::new(Way { state, taken: Notify::new() }) }
    }

    /// Waits until a piece can be handed out, and returns its largest size: `wanted` bytes if
    /// the caller may hold them, else what is free, but at least `least`.
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

    /// Hands out a piece that counts as `counted` bytes.
    pub fn hand_out<B: AsRef<[u8]> + Send + 'static>(&self, bytes: B, counted: usize) -> Bytes {
        self.way.lock().out += counted;
        Bytes::from_owner(Piece { bytes, counted, way: Arc::clone(&self.way) })
    }

    /// Sets the number of bytes that the producer holds.
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

/// Streams bytes at the speed of the client. What is behind them holds `kept` bytes of the reservation.
pub fn flowing<E: Send + 'static>(
    bytes: BoxStream<'static, Result<Bytes, E>>,
    held: Reservation,
    kept: usize,
) -> impl Stream<Item = Result<Bytes, E>> {
    let outflow = Outflow::new(held, kept);
    stream::unfold((bytes, outflow, Bytes::new()), |(mut bytes, outflow, mut piece)| async move {
        if piece.is_empty() {
            piece = match bytes.next().await? {
                Ok(piece) => piece,
                Err(error) => return Some((Err(error), (bytes, outflow, Bytes::new()))),
            };
        }
        let room = outflow.room(PIECE_BYTES_MIN, piece.len()).await;
        let part = piece.split_to(room.min(piece.len()));
        let counted = part.len();
        Some((Ok(outflow.hand_out(part, counted)), (bytes, outflow, piece)))
    })
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
        let used = || budget.stats().used_bytes as usize;
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
