//! Memory for what has to be remembered of trees, which may have any number of names.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::tree::Unfit;

/// Bytes that may still be taken.
#[derive(Debug)]
pub(crate) struct Memory(AtomicUsize);

impl Memory {
    pub(crate) fn new(bytes: usize) -> Memory {
        Memory(AtomicUsize::new(bytes))
    }

    /// Returns an empty share.
    pub(crate) fn share(&self) -> Share<'_> {
        Share { of: self, bytes: 0 }
    }
}

/// Bytes that are taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Share<'m> {
    of: &'m Memory,
    bytes: usize,
}

impl Share<'_> {
    /// Takes more bytes.
    ///
    /// # Errors
    /// [`Unfit::TooManyNames`] if there are not as many.
    pub(crate) fn grow(&mut self, bytes: usize) -> io::Result<()> {
        let take = |left: usize| left.checked_sub(bytes);
        self.of.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).map_err(|_| Unfit::TooManyNames)?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.of.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}
