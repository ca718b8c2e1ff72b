//! Watchers: watches whose changes are kept until the caller takes them. Each has a thread, as a watch
//! that is streamed.
//!
//! A caller that has gone says nothing, so a watcher that nobody asks for a while ends, and a new one takes the place of
//! the one that was asked the longest ago.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use guest_protocol::{WATCHER_BYTES_MAX, WATCHER_ROWS_MAX, WatchFiles, WatchRow, Watcher};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::as_user::Actor;
use super::long_work::{Left, spawn};
use super::watch::{EVENTS_BYTES, Sink, Watching};
use crate::failure::{Result, exhausted, internal, not_found};

/// Maximum number of watchers of a box.
const WATCHERS_MAX: usize = 16;
/// Time without a question after which a watcher ends.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// Watchers of the box, by number.
#[derive(Debug)]
pub(crate) struct Watchers {
    last: Cell<u64>,
    by_number: RefCell<HashMap<u64, Handle>>,
    idle_max: Duration,
}

impl Default for Watchers {
    fn default() -> Self {
        Self { last: Cell::default(), by_number: RefCell::default(), idle_max: IDLE_MAX }
    }
}

/// Way to the thread of a watcher. Dropping it ends the thread.
#[derive(Debug)]
struct Handle {
    /// `None` once the thread is to end.
    takers: Option<Sender<Taker>>,
    wake: Arc<OwnedFd>,
    /// Time of the last question, or of the beginning.
    asked: Cell<Instant>,
}

/// Answer to one who takes the changes.
type Taker = oneshot::Sender<Vec<WatchRow>>;

impl Drop for Handle {
    fn drop(&mut self) {
        // Before the thread wakes up, so that it sees that no one is left.
        self.takers = None;
        wake(&self.wake);
    }
}

fn wake(fd: &OwnedFd) {
    // A counter that is full has woken the thread already.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

impl Watchers {
    /// Begins to watch.
    ///
    /// # Errors
    /// As for a watch.
    pub(crate) async fn add(&self, actor: Actor, request: WatchFiles) -> Result<Watcher> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags).map_err(|errno| exhausted(format!("the sandbox cannot watch more: {errno}")))?;
        let fd = Arc::new(fd);
        let (takers, taken) = channel();
        let (begun, has_begun) = oneshot::channel();
        let thread = Thread { wake: Arc::clone(&fd), taken, kept: Kept::default(), idle_max: self.idle_max };
        spawn(move || thread.run(&actor, &request, begun))?;
        has_begun.await.unwrap_or_else(|_| Err(internal("the watch was cancelled")))?;
        let watcher = self.last.get() + 1;
        self.last.set(watcher);
        self.make_room();
        let handle = Handle { takers: Some(takers), wake: fd, asked: Cell::new(Instant::now()) };
        self.by_number.borrow_mut().insert(watcher, handle);
        Ok(Watcher { watcher })
    }

    /// Ends the watchers that nobody asks, and the one that was asked the longest ago if there is no place left.
    fn make_room(&self) {
        let mut watchers = self.by_number.borrow_mut();
        watchers.retain(|_, handle| handle.asked.get().elapsed() < self.idle_max);
        while watchers.len() >= WATCHERS_MAX {
            let oldest = watchers.iter().min_by_key(|(number, handle)| (handle.asked.get(), **number));
            let Some(oldest) = oldest.map(|(number, _)| *number) else { return };
            watchers.remove(&oldest);
        }
    }

    /// Returns all changes up to this moment that were not taken before.
    ///
    /// # Errors
    /// Not found if there is no such watcher.
    pub(crate) async fn take(&self, Watcher { watcher }: Watcher) -> Result<Vec<WatchRow>> {
        let rows = {
            let watchers = self.by_number.borrow();
            let handle = watchers.get(&watcher).filter(|handle| handle.asked.get().elapsed() < self.idle_max);
            let handle = handle.ok_or_else(|| missing(watcher))?;
            handle.asked.set(Instant::now());
            let (taker, rows) = oneshot::channel();
            let takers = handle.takers.as_ref().ok_or_else(|| missing(watcher))?;
            takers.send(taker).map_err(|_| missing(watcher))?;
            wake(&handle.wake);
            rows
        };
        // It may end at this moment.
        rows.await.map_err(|_| missing(watcher))
    }

    /// Ends a watcher.
    ///
    /// # Errors
    /// Not found if there is no such watcher.
    pub(crate) fn remove(&self, Watcher { watcher }: Watcher) -> Result<()> {
        self.by_number.borrow_mut().remove(&watcher).map(drop).ok_or_else(|| missing(watcher))
    }
}

fn missing(watcher: u64) -> guest_protocol::Failure {
    not_found(format!("there is no watcher {watcher}; one that nobody asks ends after a while"))
}

/// Changes that were not taken yet.
#[derive(Debug, Default)]
struct Kept {
    rows: Vec<WatchRow>,
    bytes: usize,
}

impl Sink for Kept {
    fn row(&mut self, row: WatchRow) -> Result<(), Left> {
        if self.rows.last() == Some(&WatchRow::Overflow) {
            return Ok(());
        }
        let len = match &row {
            WatchRow::Change(change) => change.path.len(),
            WatchRow::Overflow => 0,
        };
        if self.rows.len() >= WATCHER_ROWS_MAX || self.bytes + len > WATCHER_BYTES_MAX {
            self.rows.push(WatchRow::Overflow);
        } else {
            self.bytes += len;
            self.rows.push(row);
        }
        Ok(())
    }
}

impl Kept {
    fn take(&mut self) -> Vec<WatchRow> {
        self.bytes = 0;
        std::mem::take(&mut self.rows)
    }
}

/// Thread of a watcher.
struct Thread {
    wake: Arc<OwnedFd>,
    taken: Receiver<Taker>,
    kept: Kept,
    /// Time without a question after which it ends.
    idle_max: Duration,
}

impl Thread {
    fn run(mut self, actor: &Actor, request: &WatchFiles, begun: oneshot::Sender<Result<()>>) {
        let done = actor.at_once(|| {
            let watching = match Watching::of(request) {
                Ok(watching) => watching,
                Err(failure) => return Ok(Some((begun, failure))),
            };
            // One who has left needs no watcher, and has no handle of it.
            if begun.send(Ok(())).is_ok() {
                self.follow(watching);
            }
            Ok(None)
        });
        if let Ok(Some((begun, failure))) = done {
            let _ = begun.send(Err(failure));
        }
    }

    /// Keeps changes until the handle is dropped, or nobody has asked for long.
    fn follow(&mut self, mut watching: Watching) {
        let mut buffer = [const { MaybeUninit::uninit() }; EVENTS_BYTES];
        let mut is_there = true;
        let mut asked = Instant::now();
        loop {
            let left = self.idle_max.saturating_sub(asked.elapsed());
            let Ok(left) = Timespec::try_from(left) else { return };
            {
                let mut fds = vec![PollFd::new(&*self.wake, PollFlags::IN)];
                if is_there {
                    fds.push(PollFd::new(&watching.fd, PollFlags::IN));
                }
                if !matches!(poll(&mut fds, Some(&left)), Ok(_) | Err(Errno::INTR)) {
                    return;
                }
            }
            let mut count = [0; size_of::<u64>()];
            let _ = rustix::io::read(&*self.wake, &mut count);
            // Asked before the kernel is: what it has by now is in every answer.
            let mut takers = Vec::new();
            let is_left = loop {
                match self.taken.try_recv() {
                    Ok(taker) => takers.push(taker),
                    Err(TryRecvError::Empty) => break false,
                    Err(TryRecvError::Disconnected) => break true,
                }
            };
            if !takers.is_empty() {
                asked = Instant::now();
            }
            if is_left || asked.elapsed() >= self.idle_max {
                return;
            }
            while is_there {
                let seen = watching.read(&mut buffer);
                if seen.is_empty() {
                    break;
                }
                is_there = watching.report(seen, &mut self.kept) == Ok(true);
            }
            for taker in takers {
                // Changes are for one taker alone; one that has left gets none.
                if !taker.is_closed() {
                    let _ = taker.send(self.kept.take());
                }
            }
        }
    }
}

#[cfg(test)]
mod test {
    use guest_protocol::FailureKind;

    use super::*;

    async fn add(watchers: &Watchers, dir: &std::path::Path) -> Watcher {
        let request = WatchFiles { path: dir.to_str().unwrap().to_owned(), recursive: false };
        watchers.add(Actor::own(), request).await.unwrap()
    }

    async fn is_there(watchers: &Watchers, watcher: Watcher) -> bool {
        match watchers.take(watcher).await {
            Ok(_) => true,
            Err(failure) => {
                assert_eq!(failure.kind, FailureKind::NotFound, "{failure:?}");
                false
            }
        }
    }

    #[tokio::test]
    async fn a_new_watcher_takes_the_place_of_the_one_that_was_asked_the_longest_ago() {
        let dir = tempfile::tempdir().unwrap();
        let watchers = Watchers::default();
        let mut all = Vec::new();
        for _ in 0..WATCHERS_MAX {
            all.push(add(&watchers, dir.path()).await);
        }
        assert!(is_there(&watchers, all[0]).await);
        all.push(add(&watchers, dir.path()).await);
        for (at, watcher) in all.into_iter().enumerate() {
            assert_eq!(is_there(&watchers, watcher).await, at != 1, "{at}");
        }
    }

    #[tokio::test]
    async fn a_watcher_that_nobody_asks_ends() {
        let dir = tempfile::tempdir().unwrap();
        let watchers = Watchers { idle_max: Duration::from_millis(50), ..Watchers::default() };
        let watcher = add(&watchers, dir.path()).await;
        let gone = watchers.by_number.borrow()[&watcher.watcher].takers.clone().unwrap();
        // Its thread has the other end of this channel. Longer than the bound, because each question renews it.
        while gone.send(oneshot::channel().0).is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert!(!is_there(&watchers, watcher).await);
        add(&watchers, dir.path()).await;
        assert_eq!(watchers.by_number.borrow().len(), 1, "it is forgotten");
    }
}
