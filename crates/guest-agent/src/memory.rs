//! Return of heap memory to the kernel after bursts, since a box lives long and is mostly idle.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;

/// Idle time before a trim: requests mostly come in groups, and trimming costs some hundred
/// microseconds.
const QUIET: Duration = Duration::from_millis(500);

/// Count of the requests in progress.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    running: Cell<usize>,
    begun: Cell<u64>,
    idle: Notify,
}

/// A request in progress.
#[derive(Debug)]
pub(crate) struct Active(Rc<Activity>);

impl Activity {
    /// Counts a request, which ends when the answer is dropped.
    pub(crate) fn begin(self: &Rc<Self>) -> Active {
        self.running.set(self.running.get() + 1);
        self.begun.set(self.begun.get() + 1);
        Active(Rc::clone(self))
    }

    /// Returns free heap memory to the kernel after each idle period.
    pub(crate) async fn trim_when_idle(self: Rc<Self>) {
        loop {
            self.idle.notified().await;
            let before = self.begun.get();
            tokio::time::sleep(QUIET).await;
            if self.running.get() == 0 && self.begun.get() == before {
                trim();
            } else if self.running.get() == 0 {
                self.idle.notify_one();
            }
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let left = self.0.running.get() - 1;
        self.0.running.set(left);
        if left == 0 {
            self.0.idle.notify_one();
        }
    }
}

#[expect(unsafe_code, reason = "the C library has no safe interface for this")]
fn trim() {
    // SAFETY: takes no pointer and may be called at any time.
    unsafe { libc::malloc_trim(0) };
}
