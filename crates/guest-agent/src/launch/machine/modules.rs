//! Modules of the kernel that come with the initial files.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

use rustix::io::Errno;

use crate::launch::refused::{At, Refused};

/// Directory of the modules. Its file `order` has their names, a line each; a kernel that has
/// everything built in comes without the directory.
pub(super) const MODULES: &str = "/modules";

/// Loads the modules in their order.
pub(super) fn load() -> Result<(), Refused> {
    let order = match fs::read_to_string(format!("{MODULES}/order")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        order => order.at("read the list of modules")?,
    };
    for name in order.lines() {
        let file = File::open(format!("{MODULES}/{name}")).at(&format!("open the module {name}"))?;
        match load_one(&file) {
            // One may be for a feature that this processor lacks, beside another that needs none.
            Ok(()) | Err(Errno::EXIST | Errno::NODEV) => {}
            Err(errno) => return Err(errno).at(&format!("load the module {name}")),
        }
    }
    Ok(())
}

fn load_one(file: &File) -> Result<(), Errno> {
    const NO_PARAMETERS: &CStr = c"";
    #[expect(unsafe_code, reason = "no library in use offers finit_module")]
    // SAFETY: the kernel reads the parameters, a C string.
    let answer = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), NO_PARAMETERS.as_ptr(), 0) };
    if answer < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(())
}
