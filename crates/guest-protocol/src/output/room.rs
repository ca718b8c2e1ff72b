//! Memory for the output and the screens of all processes together, so that they cannot take that of
//! the processes themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Divisor of a box's memory for output.
const SHARE_OF_MEMORY: usize = 16;
/// Minimum, also where the memory of the box is not known, in bytes.
const BYTES_MIN: usize = 1024 * 1024;
/// Maximum, in bytes.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes that are left.
#[derive(Debug)]
pub struct Room {
    left: AtomicUsize,
}

/// Bytes of one holder; given back when dropped.
#[derive(Debug)]
pub struct Held {
    room: Arc<Room>,
    bytes: usize,
}

impl Room {
    /// Makes the room in a box with `memory_mb` mebibytes of memory; 0 if that is not known.
    #[must_use]
    pub fn of(memory_mb: u32) -> Arc<Room> {
        let memory = usize::try_from(memory_mb).unwrap_or(usize::MAX).saturating_mul(1024 * 1024);
        Room::of_bytes((memory / SHARE_OF_MEMORY).clamp(BYTES_MIN, BYTES_MAX))
    }

    /// Makes a room of this many bytes.
    #[must_use]
    pub fn of_bytes(bytes: usize) -> Arc<Room> {
        Arc::new(Room { left: AtomicUsize::new(bytes) })
    }

    /// Returns a holder of nothing.
    #[must_use]
    pub fn nothing(self: &Arc<Room>) -> Held {
        Held { room: Arc::clone(self), bytes: 0 }
    }
}

impl Held {
    /// Returns the number of bytes that are held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds `bytes` from now on. Returns `false`, and changes nothing, if they are not there.
    pub fn resize_to(&mut self, bytes: usize) -> bool {
        let is_there = self
            .room
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| (left + self.bytes).checked_sub(bytes))
            .is_ok();
        if is_there {
            self.bytes = bytes;
        }
        is_there
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.resize_to(0);
    }
}
