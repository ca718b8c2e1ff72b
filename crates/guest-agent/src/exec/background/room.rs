//! Memory for the output and the screens of all processes together, so that they cannot take that of
//! the processes themselves.

use std::cell::Cell;
use std::rc::Rc;

/// Divisor of a box's memory for output.
const SHARE_OF_MEMORY: usize = 16;
/// Minimum, also where the memory of the box is not known, in bytes.
const BYTES_MIN: usize = 1024 * 1024;
/// Maximum, in bytes.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes that are left.
#[derive(Debug)]
pub(crate) struct Room {
    left: Cell<usize>,
}

/// Bytes of one holder; given back when dropped.
#[derive(Debug)]
pub(super) struct Held {
    room: Rc<Room>,
    bytes: usize,
}

impl Room {
    /// Makes the room in a box with `memory_mb` mebibytes of memory; 0 if that is not known.
    pub(crate) fn of(memory_mb: u32) -> Rc<Room> {
        let memory = usize::try_from(memory_mb).unwrap_or(usize::MAX).saturating_mul(1024 * 1024);
        Room::of_bytes((memory / SHARE_OF_MEMORY).clamp(BYTES_MIN, BYTES_MAX))
    }

    pub(super) fn of_bytes(bytes: usize) -> Rc<Room> {
        Rc::new(Room { left: Cell::new(bytes) })
    }

    /// Returns a holder of nothing.
    pub(super) fn nothing(self: &Rc<Room>) -> Held {
        Held { room: Rc::clone(self), bytes: 0 }
    }
}

impl Held {
    /// Returns the number of bytes that are held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds `bytes` from now on. Returns `false`, and changes nothing, if they are not there.
    pub(super) fn resize_to(&mut self, bytes: usize) -> bool {
        let Some(left) = (self.room.left.get() + self.bytes).checked_sub(bytes) else { return false };
        self.room.left.set(left);
        self.bytes = bytes;
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.resize_to(0);
    }
}
