//! Return of heap memory to the kernel after bursts, since a box lives long and is mostly idle.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;

/// Idle time before a trim: requests mostly come in groups, and trimming costs some hundred
/// microseconds.
const QUIET: Duration = Duration::from_millis(500);

/// Free memory at the end of the heap that is kept between two trims, in bytes: buffers of a download
/// would otherwise be given back and fetched again, page by page, with each piece.
const KEPT_BYTES: i32 = 4 * 1024 * 1024;
/// Largest allocation that is taken from the heap, in bytes: larger ones are mapped anew each time.
const HEAP_ALLOCATION_BYTES: i32 = 1024 * 1024;

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

/// Keeps some free memory until the agent is idle.
#[expect(unsafe_code, reason = "the C library has no safe interface for this")]
pub(crate) fn keep_while_busy() {
    // SAFETY: takes numbers; a value that the library does not know changes nothing.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, HEAP_ALLOCATION_BYTES);
        // One heap for all threads: what each keeps for itself would never be given back.
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

#[expect(unsafe_code, reason = "the C library has no safe interface for this")]
fn trim() {
    // SAFETY: takes no pointer and may be called at any time.
    unsafe { libc::malloc_trim(0) };
}
