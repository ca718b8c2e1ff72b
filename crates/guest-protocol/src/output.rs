//! Output of background processes, as it is kept in a box.

mod ring;
mod room;

use std::time::Duration;

pub use ring::{Read, Ring};
pub use room::{Held, Room};

/// Number of ended processes that are remembered for any time; the one that ended first is forgotten first.
pub const PROCESSES_ENDED_MIN: usize = 64;
/// Maximum number of ended processes that are remembered, within [`ENDED_KEPT`] of their end.
pub const PROCESSES_ENDED_MAX: usize = 512;
/// Time for which an ended process is remembered beyond [`PROCESSES_ENDED_MIN`], so that a caller who comes
/// late learns of the end.
pub const ENDED_KEPT: Duration = Duration::from_secs(60);
/// Output that is kept of a process, in bytes.
const RING_BYTES: usize = 1024 * 1024;
/// Output that is kept of a process that waits for its readers, in bytes: half of it is what they have
/// been sent, and may have lost with their connection.
const LOSSLESS_RING_BYTES: usize = 4 * 1024 * 1024;
/// Bytes after which a process that waits for no reader pauses: one that writes without end must not
/// take the time of all others.
pub const BURST_BYTES: usize = 1024 * 1024;
/// Length of that pause.
pub const BURST_PAUSE: Duration = Duration::from_millis(10);

/// Readers that a process waits for instead of losing its oldest output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// None.
    Free,
    /// The fastest one, and the first.
    Fastest,
    /// Each one while there are any, and the first for [`FIRST_READER_WAIT`](crate::FIRST_READER_WAIT).
    Slowest,
}

impl Pace {
    /// Returns the pace that a request for a process asks for; see [`StartProcess`](crate::StartProcess).
    #[must_use]
    pub fn of(is_lossless: bool, is_paced: bool) -> Pace {
        match (is_lossless, is_paced) {
            (_, true) => Pace::Slowest,
            (true, false) => Pace::Fastest,
            (false, false) => Pace::Free,
        }
    }

    /// Returns the output that is kept of the process, in bytes.
    #[must_use]
    pub fn ring_bytes(self) -> usize {
        if self == Pace::Free { RING_BYTES } else { LOSSLESS_RING_BYTES }
    }
}
