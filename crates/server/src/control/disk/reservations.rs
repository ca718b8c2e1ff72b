//! Reservations of disk space for what is being written.

use parking_lot::Mutex;

/// Bytes of disk space for what is being written.
#[derive(Debug, Default)]
pub(in crate::control) struct Reservations(Mutex<u64>);

/// Reservation of disk space; released on drop.
#[derive(Debug)]
pub(in crate::control) struct Reservation<'a> {
    of: &'a Reservations,
    bytes: u64,
}

impl Reservations {
    /// Reservations `bytes` of what is free, unless too much of it is promised already.
    pub(in crate::control) fn reserve(&self, bytes: u64, free: u64) -> Option<Reservation<'_>> {
        let mut sum = self.0.lock();
        let with_these = sum.checked_add(bytes).filter(|sum| *sum <= free)?;
        *sum = with_these;
        Some(Reservation { of: self, bytes })
    }

    /// Returns the number of reserved bytes.
    pub(in crate::control) fn sum(&self) -> u64 {
        *self.0.lock()
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        *self.of.0.lock() -= self.bytes;
    }
}
