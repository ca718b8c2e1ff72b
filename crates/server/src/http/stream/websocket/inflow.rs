//! Memory accounting for incomplete incoming WebSocket messages.

use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::budget::Reservation;
use crate::http::stream::paced_read::{Rule, Ruled};

/// Copies of a byte that waits: in the frame, and in the message assembled from frames.
const COPIES: usize = 2;

/// Counter of the bytes since the last complete message.
#[derive(Debug, Clone)]
pub struct Counter(Arc<Mutex<Count>>);

#[derive(Debug)]
struct Count {
    /// Memory of the longest message so far: buffers keep their size.
    held: Reservation,
    /// Bytes of a message that are not counted.
    free: usize,
    came: usize,
}

impl Counter {
    fn lock(&self) -> MutexGuard<'_, Count> {
        // No panic can leave the count inconsistent.
        self.0.lock()
    }

    /// Restarts the count, after a complete message.
    pub(super) fn restart(&self) {
        self.lock().came = 0;
    }

    /// Stops counting and releases the memory: later bytes are not kept.
    pub(super) fn stop(&self) {
        let mut count = self.lock();
        count.free = usize::MAX;
        count.held.shrink_to(0);
    }
}

impl Counter {
    /// Wraps `stream` so that bytes of a message beyond `free` are counted in `held`.
    pub(super) fn around<S>(stream: S, held: Reservation, free: usize) -> (Ruled<S, Self>, Self) {
        let counter = Self(Arc::new(Mutex::new(Count { held, free, came: 0 })));
        (Ruled::new(stream, counter.clone()), counter)
    }
}

impl Rule for Counter {
    /// Fails with [`io::ErrorKind::OutOfMemory`] when the caller may hold no more.
    fn came(&mut self, bytes: usize) -> io::Result<()> {
        let mut count = self.lock();
        count.came += bytes;
        let missing = (count.came.saturating_sub(count.free) * COPIES).saturating_sub(count.held.bytes());
        count.held.grow(missing).map_err(|spent| io::Error::new(io::ErrorKind::OutOfMemory, spent))
    }
}

#[cfg(test)]
mod test {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::budget::{Budget, Caller};

    #[tokio::test]
    async fn half_a_message_counts_and_one_too_large_to_hold_ends_the_stream() {
        let budget = Budget::new(30_000);
        let account = budget.account(Caller::Address(None), None);
        let bytes = vec![0; 20_000];
        let (mut inflow, counter) =
            Counter::around(tokio::io::join(&bytes[..], tokio::io::sink()), account.nothing(), 1000);
        inflow.read_exact(&mut [0; 1000]).await.unwrap();
        assert_eq!(budget.stats().used_bytes, 0);
        inflow.read_exact(&mut [0; 5000]).await.unwrap();
        assert_eq!(budget.stats().used_bytes, 10_000);
        counter.restart();
        inflow.read_exact(&mut [0; 6000]).await.unwrap();
        assert_eq!(budget.stats().used_bytes, 10_000);
        let error = inflow.read_exact(&mut [0; 8000]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        drop((inflow, counter));
        assert_eq!(budget.stats().used_bytes, 0);
    }
}
