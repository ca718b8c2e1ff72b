//! Files for output that does not fit the memory.

use std::fs::File;
use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Directories for it, by preference: the second one may be in memory itself.
const DIRECTORIES: [&str; 2] = ["/var/tmp", "/tmp"];

/// Opens a file of the box that ends with its descriptor.
pub(super) fn nameless_file() -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let mut fault = Errno::NOENT;
    for directory in DIRECTORIES {
        match rustix::fs::open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
            // Never in the place of a standard stream.
            Ok(file) => return Ok(rustix::io::fcntl_dupfd_cloexec(&file, 3)?.into()),
            Err(errno) => fault = errno,
        }
    }
    Err(fault.into())
}
