//! State of the sandbox of a box, as this process knows it.

use std::sync::Arc;
use std::time::Duration;

use guest_protocol::output::Room;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::envd::Envd;
use crate::kept_processes::{Now, Processes};
use crate::service::boxes::AT_ONCE;

/// Memory of this server for the output of one box's background processes, in bytes.
const OUTPUT_BYTES: usize = 32 * 1024 * 1024;

/// The sandbox of a box.
pub(super) struct FarBox {
    /// Id at the service.
    pub(super) sandbox: String,
    pub(super) envd: Envd,
    /// Limit on concurrent requests about it.
    pub(super) permits: Semaphore,
    pub(super) processes: Arc<Processes>,
    /// Cancelled when the box has ended.
    pub(super) dead: CancellationToken,
    /// Notified when it was resumed.
    pub(super) resumed: Notify,
    /// Time at which the service ends it, as this process has asked for.
    deadline: Mutex<Option<Instant>>,
}

/// A box as it is remembered.
pub(super) type Known = Arc<FarBox>;

impl FarBox {
    /// Makes what is known of a sandbox. Its processes are kept by `keepers`.
    pub(super) fn new(sandbox: String, envd: Envd, now: Now, keepers: TaskTracker) -> FarBox {
        let dead = CancellationToken::new();
        // Numbers of processes begin with the time, so that those of an earlier run of this server are not used again.
        let last = u64::try_from(now().as_millisecond()).unwrap_or_default();
        let processes = Processes::new(Room::of_bytes(OUTPUT_BYTES), now, last, dead.clone(), keepers);
        FarBox {
            sandbox,
            envd,
            permits: Semaphore::new(AT_ONCE),
            processes: Arc::new(processes),
            dead,
            resumed: Notify::new(),
            deadline: Mutex::default(),
        }
    }

    /// Notes that the service ends the sandbox after this time.
    pub(super) fn ends_after(&self, after: Duration) {
        self.deadline.lock().replace(Instant::now() + after);
    }

    /// Returns the time until the service ends it; `None` if this process has not asked for one.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.deadline.lock().map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }
}

impl Drop for FarBox {
    fn drop(&mut self) {
        self.dead.cancel();
    }
}
