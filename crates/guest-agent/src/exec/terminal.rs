//! Terminals of commands: pairs of ends, of which the command gets one.

use std::os::fd::{AsFd, OwnedFd};

use guest_protocol::{Failure, TerminalSize};
use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Winsize, tcgetattr, tcsetattr, tcsetwinsize,
};

use crate::failure::{Result, exhausted, not_supported, reason};
use crate::users::Ids;

/// Path of the device that creates terminals.
const MULTIPLEXER: &str = "/dev/ptmx";
/// Major and minor number of that device. The box may have put another file there.
const MULTIPLEXER_DEVICE: (u32, u32) = (5, 2);
/// Character that ends typed text unless the terminal has another one set: Ctrl-D.
const END_KEY: u8 = 4;

/// Opens a terminal: the agent's end, and the command's, which belongs to its user.
///
/// # Errors
/// Not supported where the box has no terminals; exhausted where none is left.
pub(super) fn open(size: TerminalSize, ids: Option<&Ids>) -> Result<(OwnedFd, OwnedFd)> {
    let pair = pair().map_err(refused)?;
    set_size(&pair.0, size).map_err(refused)?;
    // No command is refused for lack of a convenience.
    if let Ok(mut modes) = tcgetattr(&pair.1) {
        // So that a character of several bytes is deleted as one.
        modes.input_modes |= InputModes::IUTF8;
        let _ = tcsetattr(&pair.1, OptionalActions::Now, &modes);
    }
    if let Some(ids) = ids {
        // So that the command can open it by its name, too.
        let _ = rustix::fs::fchown(&pair.1, Some(rustix::fs::Uid::from_raw(ids.uid)), None);
    }
    Ok(pair)
}

fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    // These flags neither wait nor make a file that the box has put there the controlling terminal.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let ours = rustix::fs::open(MULTIPLEXER, flags, Mode::empty())?;
    let found = fstat(&ours)?;
    let is_multiplexer = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
        && (major(found.st_rdev), minor(found.st_rdev)) == MULTIPLEXER_DEVICE;
    if !is_multiplexer {
        return Err(Errno::NODEV);
    }
    unlockpt(&ours)?;
    // gVisor has no such call, and its terminals do not support the controls used here: they are
    // refused as a whole.
    let theirs = ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    // Never in the place of a standard stream.
    Ok((rustix::io::fcntl_dupfd_cloexec(&ours, 3)?, rustix::io::fcntl_dupfd_cloexec(&theirs, 3)?))
}

fn refused(errno: Errno) -> Failure {
    match errno {
        Errno::NOSPC | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => {
            exhausted("the sandbox has no terminals left; end a command that uses one")
        }
        errno => not_supported(format!(
            "this sandbox has no terminals ({MULTIPLEXER}: {}); leave out `tty`",
            if errno == Errno::NODEV { "not the expected device".to_owned() } else { reason(errno) }
        )),
    }
}

/// Sets the size of a terminal; the kernel signals the foreground processes.
pub(super) fn set_size(terminal: impl AsFd, size: TerminalSize) -> Result<(), Errno> {
    tcsetwinsize(terminal, Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 })
}

/// Returns the keys that end typed input of a terminal.
pub(super) fn end_keys(terminal: impl AsFd, within_line: bool) -> Vec<u8> {
    let modes = tcgetattr(terminal).ok();
    let key = modes.as_ref().map_or(END_KEY, |modes| modes.special_codes[SpecialCodeIndex::VEOF]);
    let in_lines = modes.is_none_or(|modes| modes.local_modes.contains(LocalModes::ICANON));
    vec![key; if in_lines && within_line { 2 } else { 1 }]
}
