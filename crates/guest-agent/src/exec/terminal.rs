//! Terminals of commands: a pair of ends, of which the command gets one.

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

/// Where the kernel gives terminals out,
const MULTIPLEXER: &str = "/dev/ptmx";
/// and its number. The box may have put something else there.
const MULTIPLEXER_DEVICE: (u32, u32) = (5, 2);
/// What ends a text that is typed, unless the terminal was told otherwise: Ctrl-D.
const END_KEY: u8 = 4;

/// A new terminal: our end, and the command's, which belongs to its user.
///
/// # Errors
/// Not supported where the box has no terminals; exhausted where it has no more.
pub(super) fn open(size: TerminalSize, ids: Option<&Ids>) -> Result<(OwnedFd, OwnedFd)> {
    let pair = pair().map_err(refused)?;
    set_size(&pair.0, size).map_err(refused)?;
    // For what is only a comfort, no command is refused.
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
    // Whatever the box has put there, opening it neither waits nor makes it ours.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let ours = rustix::fs::open(MULTIPLEXER, flags, Mode::empty())?;
    let found = fstat(&ours)?;
    let is_multiplexer = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
        && (major(found.st_rdev), minor(found.st_rdev)) == MULTIPLEXER_DEVICE;
    if !is_multiplexer {
        return Err(Errno::NODEV);
    }
    unlockpt(&ours)?;
    // gVisor has no such call, and its terminals control nothing that it is asked for here:
    // they are refused as a whole.
    let theirs = ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    // Never in the place of a standard stream.
    Ok((rustix::io::fcntl_dupfd_cloexec(&ours, 3)?, rustix::io::fcntl_dupfd_cloexec(&theirs, 3)?))
}

fn refused(errno: Errno) -> Failure {
    match errno {
        Errno::NOSPC | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => {
            exhausted("the box has no terminal left; end a command that has one")
        }
        errno => not_supported(format!(
            "this box has no terminals ({MULTIPLEXER}: {}); leave out `tty`",
            if errno == Errno::NODEV { "not what it should be".to_owned() } else { reason(errno) }
        )),
    }
}

/// Gives a terminal another size; who is in its foreground is told by the kernel.
pub(super) fn set_size(terminal: impl AsFd, size: TerminalSize) -> Result<(), Errno> {
    tcsetwinsize(terminal, Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 })
}

/// The keys that end what is typed into a terminal.
pub(super) fn end_keys(terminal: impl AsFd, within_line: bool) -> Vec<u8> {
    let modes = tcgetattr(terminal).ok();
    let key = modes.as_ref().map_or(END_KEY, |modes| modes.special_codes[SpecialCodeIndex::VEOF]);
    let in_lines = modes.is_none_or(|modes| modes.local_modes.contains(LocalModes::ICANON));
    vec![key; if in_lines && within_line { 2 } else { 1 }]
}
