//! Errors that name the step of a provider's work.

use std::io;

use crate::{Error, disk};

const MAKE: &str = "make a box";

/// Converts the failure of a step in making a box.
pub(crate) fn not_made(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::failed(MAKE, source)
}

/// Converts the failure to write something of a box that is being made.
pub(crate) fn not_written(error: io::Error) -> Error {
    disk::refused(MAKE, error)
}

/// Converts the failure of a step in removing a box.
pub(crate) fn not_removed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::failed("remove a box", source)
}

/// Converts the failure of a step in setting a provider up.
pub(crate) fn not_opened(error: io::Error) -> Error {
    Error::failed("open the data folder", error)
}
