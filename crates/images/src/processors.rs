//! CPU-heavy work: at a low priority, on few threads at a time, which take turns.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::{self, Thread};

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

/// Niceness of a thread with such work, so that threads that answer requests go first.
const NICENESS: i32 = 10;
/// Bytes after which a thread gives its turn to a waiting one.
const TURN_BYTES: u64 = 256 * 1024;

/// Turns at the processors of this machine, for all stores of this process.
static TURNS: LazyLock<Turns> = LazyLock::new(|| {
    let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // One image takes two threads: one reads while the other writes.
    Turns { line: Mutex::new(Line { free: processors.max(2), waiting: VecDeque::new() }) }
});

#[derive(Debug)]
struct Turns {
    line: Mutex<Line>,
}

#[derive(Debug)]
struct Line {
    free: usize,
    /// Waiting threads, in order of arrival.
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    thread: Thread,
    is_next: Arc<AtomicBool>,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock()
    }

    fn take(&self) {
        let is_next = {
            let mut line = self.lock();
            if line.free > 0 {
                line.free -= 1;
                return;
            }
            let is_next = Arc::new(AtomicBool::new(false));
            line.waiting.push_back(Waiting { thread: thread::current(), is_next: Arc::clone(&is_next) });
            is_next
        };
        while !is_next.load(Ordering::Acquire) {
            thread::park();
        }
    }

    fn give(&self) {
        let mut line = self.lock();
        match line.waiting.pop_front() {
            // The turn passes directly to the next thread, so that no newcomer overtakes it.
            Some(next) => {
                next.is_next.store(true, Ordering::Release);
                next.thread.unpark();
            }
            None => line.free += 1,
        }
    }

    fn has_waiting(&self) -> bool {
        !self.lock().waiting.is_empty()
    }
}

/// Turn of the current thread, released on drop.
#[derive(Debug)]
pub(super) struct Turn {
    /// Marker that makes the type not `Send`: a turn belongs to one thread.
    _not_send: PhantomData<*const ()>,
}

impl Turn {
    /// Waits for a turn. Blocks.
    pub(super) fn take() -> Turn {
        TURNS.take();
        Turn { _not_send: PhantomData }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURNS.give();
    }
}

/// Byte counter that gives a thread's turn to a waiting one after every [`TURN_BYTES`].
#[derive(Debug, Default)]
pub(super) struct Pace {
    bytes: u64,
}

impl Pace {
    /// Counts processed bytes, and gives up the turn if it is due and others wait.
    pub(super) fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if self.bytes < TURN_BYTES {
            return;
        }
        self.bytes = 0;
        if TURNS.has_waiting() {
            TURNS.give();
            TURNS.take();
        }
    }
}

/// Reader for a thread that has a turn. Reads fail once `stop` is cancelled.
#[derive(Debug)]
pub(super) struct Paced<'a, R> {
    input: R,
    pace: Pace,
    stop: &'a CancellationToken,
}

impl<'a, R: Read> Paced<'a, R> {
    pub(super) fn new(input: R, stop: &'a CancellationToken) -> Self {
        Paced { input, pace: Pace::default(), stop }
    }
}

impl<R: Read> Read for Paced<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_cancelled() {
            return Err(io::Error::other("nothing waits for it anymore"));
        }
        let got = self.input.read(buffer)?;
        self.pace.count(got);
        Ok(got)
    }
}

/// Runs CPU-heavy work on its own thread, since a thread of a pool would keep the low priority.
/// The work runs to its end even if its caller has gone.
pub(super) async fn work<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (send, receive) = tokio::sync::oneshot::channel();
    thread::Builder::new().name("images".to_owned()).spawn(move || {
        be_nice();
        let _ = send.send(work());
    })?;
    receive.await.map_err(|_| io::Error::other("its thread panicked"))
}

/// Lowers the priority of this thread, and of those that it starts.
fn be_nice() {
    // Linux counts niceness by thread, and a process may not lower its niceness.
    let own = rustix::process::getpriority_process(None).unwrap_or(0);
    if own < NICENESS {
        let _ = rustix::process::setpriority_process(None, NICENESS);
    }
}

#[cfg(test)]
mod test {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn no_more_threads_work_at_once_than_there_are_turns() {
        let turns = Turns { line: Mutex::new(Line { free: 2, waiting: VecDeque::new() }) };
        let (busy, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        turns.take();
                        most.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        thread::yield_now();
                        busy.fetch_sub(1, Ordering::SeqCst);
                        turns.give();
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(most.into_inner() <= 2);
        assert_eq!((done.into_inner(), turns.lock().free), (1000, 2));
    }

    #[tokio::test]
    async fn work_is_done_at_a_low_priority_that_its_own_threads_have_too() {
        let own = || rustix::process::getpriority_process(None).unwrap();
        let both = work(move || (own(), thread::spawn(own).join().unwrap())).await.unwrap();
        let least = own().max(NICENESS);
        assert_eq!(both, (least, least));
    }
}
