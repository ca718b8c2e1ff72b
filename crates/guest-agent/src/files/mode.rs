//! Permission bits.

use crate::failure::{Result, invalid};

/// Maximum of the permission bits.
pub(super) const MODE_MAX: u32 = 0o7777;

pub(super) fn check_mode(mode: u32) -> Result<()> {
    if mode <= MODE_MAX { Ok(()) } else { Err(invalid("the mode must be at most 7777 (octal)")) }
}
