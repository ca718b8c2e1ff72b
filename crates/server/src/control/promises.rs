//! Disk space that is promised to what is being written, so that it is promised once.

use parking_lot::Mutex;

/// Bytes of disk space for what is being written.
#[derive(Debug, Default)]
pub(super) struct Promises(Mutex<u64>);

/// Disk space that nothing else is promised until this is dropped.
#[derive(Debug)]
pub(super) struct Promise<'a> {
    of: &'a Promises,
    bytes: u64,
}

impl Promises {
    /// Promises `bytes` of what is free, unless too much of it is promised already.
    pub(super) fn make(&self, bytes: u64, free: u64) -> Option<Promise<'_>> {
        let mut sum = self.0.lock();
        let with_these = sum.checked_add(bytes).filter(|sum| *sum <= free)?;
        *sum = with_these;
        Some(Promise { of: self, bytes })
    }

    /// Returns the sum of what is promised.
    pub(super) fn sum(&self) -> u64 {
        *self.0.lock()
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        *self.of.0.lock() -= self.bytes;
    }
}
