//! Memory budget of all answers together, so that requests alone cannot end a small box.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use std::cell::Cell;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::failure::{Result, exhausted, internal, invalid};

/// Divisor of a box's memory for answers. Nearly all of the memory is for commands.
const SHARE_OF_MEMORY: usize = 8;
/// Minimum of the budget: enough for a directory of ten thousand entries, in the smallest box and
/// where the memory of the box is not known.
const BYTES_MIN: usize = 2 * 1024 * 1024;
/// Maximum of the budget: about the size of the largest single answer, a search that found and
/// visited the maximum number of paths and directories.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of an answer that need no turn. The maximum number of file operations at once take no more
/// than [`BYTES_MIN`] in this way.
const UNCOUNTED_BYTES: usize = 16 * 1024;
/// Largest thing that is held in memory whole, in bytes, in a box that has room for it.
const WHOLE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest wait for other answers to end.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Minimum growth of a list, in bytes.
const STEP_BYTES: usize = 4096;
/// Divisor of a list's length for its growth, so that it is not copied too often.
const STEP_PART: usize = 4;

/// Budget of all answers, and the bytes left of it.
#[derive(Debug)]
pub(crate) struct Budget {
    whole: usize,
    left: Cell<usize>,
    freed: Notify,
    /// Turn to gather a large answer, one at a time: two that each wait for the other's bytes would
    /// wait for ever.
    turns: Arc<Semaphore>,
}

/// Bytes of one answer; returned to the budget when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Rc<Budget>,
    bytes: usize,
    turn: Option<OwnedSemaphorePermit>,
}

impl Budget {
    /// Makes the budget of a box with `memory_mb` mebibytes of memory; 0 if that is not known.
    pub(crate) fn of(memory_mb: u32) -> Rc<Budget> {
        let memory = usize::try_from(memory_mb).unwrap_or(usize::MAX).saturating_mul(1024 * 1024);
        let whole = (memory / SHARE_OF_MEMORY).clamp(BYTES_MIN, BYTES_MAX);
        let turns = Arc::new(Semaphore::new(1));
        Rc::new(Budget { whole, left: Cell::new(whole), freed: Notify::new(), turns })
    }

    /// Returns the size of the pieces of a file, at most `most`, when up to `count` pieces wait to
    /// be sent.
    pub(crate) fn piece_bytes(&self, count: usize, most: usize) -> usize {
        (self.whole / count.max(1)).min(most)
    }

    /// Returns the largest size of a thing that is held in memory whole, such as a file to change.
    pub(crate) fn whole_bytes(&self) -> usize {
        self.whole.min(WHOLE_BYTES_MAX)
    }

    /// Begins an answer without any bytes.
    pub(crate) fn share(self: &Rc<Budget>) -> Share {
        Share { budget: Rc::clone(self), bytes: 0, turn: None }
    }
}

fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(UNCOUNTED_BYTES)
}

impl Share {
    /// Takes `bytes` more, and waits for other answers to end if too few are left.
    ///
    /// # Errors
    /// Invalid if an answer may never be so large, exhausted if other answers do not end within 10
    /// seconds.
    pub(crate) async fn take(&mut self, bytes: usize) -> Result<()> {
        let wanted = self.bytes.saturating_add(bytes);
        let more = counted(wanted) - counted(self.bytes);
        let budget = Rc::clone(&self.budget);
        if counted(wanted) > budget.whole {
            return Err(invalid(format!(
                "the response would need more than the {} MiB of memory that the sandbox has for responses; ask for \
                 less, run `ls` or `find` in the sandbox, or give it more memory_mb",
                budget.whole >> 20
            )));
        }
        if more > 0 {
            let deadline = Instant::now() + WAIT_MAX;
            if self.turn.is_none() {
                let turn = timeout_at(deadline, Arc::clone(&budget.turns).acquire_owned()).await;
                self.turn = Some(turn.map_err(|_| crowded())?.map_err(|error| internal(error.to_string()))?);
            }
            while budget.left.get() < more {
                timeout_at(deadline, budget.freed.notified()).await.map_err(|_| crowded())?;
            }
            budget.left.set(budget.left.get() - more);
        }
        self.bytes = wanted;
        Ok(())
    }

    /// Makes room for `more` values in `list`.
    ///
    /// # Errors
    /// As [`Share::take`].
    pub(crate) async fn room<T>(&mut self, list: &mut Vec<T>, more: usize) -> Result<()> {
        if list.capacity() - list.len() >= more {
            return Ok(());
        }
        let step = more.max(list.len() / STEP_PART).max(STEP_BYTES / size_of::<T>().max(1));
        let grown = list.len() + step - list.capacity();
        self.take(grown.saturating_mul(size_of::<T>())).await?;
        list.reserve_exact(step);
        Ok(())
    }

    /// Lets another answer be gathered while this one is sent.
    pub(crate) fn gathered(&mut self) {
        self.turn = None;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.left.set(self.budget.left.get() + counted(self.bytes));
        // Only the answer that has the turn waits for this.
        self.budget.freed.notify_one();
    }
}

fn crowded() -> guest_protocol::Failure {
    exhausted("other responses use all the memory that this sandbox has for responses; try again when they are done")
}

#[cfg(test)]
mod test {
    use guest_protocol::FailureKind;

    use super::*;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(work)
    }

    #[test]
    fn a_budget_is_a_share_of_the_memory_between_its_bounds() {
        let whole = |memory_mb| Budget::of(memory_mb).whole >> 20;
        assert_eq!([0, 16, 64, 256, 512, 16_777_216, u32::MAX].map(whole), [2, 2, 8, 32, 64, 64, 64]);
        assert_eq!(Budget::of(64).piece_bytes(128, 256 * 1024), 64 * 1024);
        assert_eq!(Budget::of(4096).piece_bytes(128, 256 * 1024), 256 * 1024);
    }

    #[test]
    fn an_answer_waits_for_others_and_is_refused_when_they_do_not_end() {
        block_on(async {
            let budget = Budget::of(64);
            let mut first = budget.share();
            first.take(budget.whole).await.expect("there is room");
            first.gathered();
            let mut second = budget.share();
            assert_eq!(second.take(budget.whole).await.unwrap_err().kind, FailureKind::Exhausted);
            let (waited, ()) = tokio::join!(second.take(budget.whole), async { drop(first) });
            waited.expect("the first has ended");
            drop(second);
            assert_eq!(budget.left.get(), budget.whole);
        });
    }

    #[test]
    fn an_answer_that_can_never_fit_is_refused_at_once() {
        block_on(async {
            let begun = Instant::now();
            let mut share = Budget::of(64).share();
            let refused = share.take(9 * 1024 * 1024).await.unwrap_err();
            assert_eq!((refused.kind, begun.elapsed()), (FailureKind::Invalid, Duration::ZERO));
            assert!(refused.message.contains("8 MiB"), "{refused:?}");
        });
    }

    #[test]
    fn a_small_answer_waits_for_nothing() {
        block_on(async {
            let budget = Budget::of(64);
            let mut large = budget.share();
            large.take(budget.whole).await.expect("there is room");
            let begun = Instant::now();
            budget.share().take(UNCOUNTED_BYTES).await.expect("it counts for nothing");
            assert_eq!(begun.elapsed(), Duration::ZERO);
        });
    }
}
