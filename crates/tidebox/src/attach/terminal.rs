//! The terminal of this process, as long as a program in a sandbox has it.

use std::io::IsTerminal as _;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::failure::{Failure, Result};
use crate::output::stdout;

/// Ends what a full-screen program may have begun: its own screen (in the way that leaves the cursor where
/// it is), a hidden cursor, reports of the mouse and of the focus, marked pasting, other keys, colours.
const CALM: &[u8] =
    b"\x1b[?1047l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>\x1b[m";

/// The terminal in raw mode: each key is passed on as it is. Dropping it restores the mode.
#[derive(Debug)]
pub struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Puts the terminal of stdin into raw mode.
    pub fn begin() -> Result<RawTerminal> {
        let before = tcgetattr(std::io::stdin()).map_err(unusable)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Drain, &raw).map_err(unusable)?;
        Ok(RawTerminal { before })
    }

    /// Ends what the program has begun, for one that cannot do so itself any more.
    pub fn calm(&self) {
        if std::io::stdout().is_terminal() {
            // Without a reader there is nothing to calm.
            let _ = stdout(CALM);
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // If the terminal is gone, so is its mode.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.before);
    }
}

fn unusable(errno: Errno) -> Failure {
    Failure::io("the terminal cannot be used", &errno.into())
}

/// Returns the columns and rows of the terminal, if there is one and it knows them.
pub fn size() -> Option<(u16, u16)> {
    size_of(std::io::stdout()).or_else(|| size_of(std::io::stdin()))
}

fn size_of(terminal: impl AsFd) -> Option<(u16, u16)> {
    let size = tcgetwinsize(terminal).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}
