//! Output of the process of a machine: the messages of its guest kernel, and of Firecracker.
//!
//! It goes to FIFOs that the process itself holds open, so that a guest which writes without end fills
//! a pipe of the kernel, and neither waits nor takes anything of the host.

use std::fs::File;
use std::io::{ErrorKind, Read as _};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::work_dir::{LOG, WorkDir};
use crate::Error;
use crate::local::fault::not_made;

/// Most bytes that are read of a FIFO: what the kernel keeps of one.
const BYTES_MAX: u64 = 64 * 1024;
/// Number of lines of each that explain a failure.
const LINES: usize = 4;
/// Most characters of a line that are shown.
const LINE_CHARS_MAX: usize = 300;

/// Ends of the FIFOs on the side of the server.
#[derive(Debug)]
pub(super) struct Console(Vec<File>);

impl Console {
    /// Opens the FIFOs of a machine that is about to start: what it writes is kept while they are open,
    /// also when it has ended.
    pub(super) fn open(room: &WorkDir) -> std::io::Result<Console> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let paths = [room.file(LOG), room.console()];
        let opened = paths.iter().map(|path| Ok(File::from(openat(CWD, path, flags, Mode::empty())?)));
        opened.collect::<std::io::Result<_>>().map(Console)
    }

    /// Returns the error of a machine that could not be started, with its last words for the log.
    pub(super) fn ended(&self, cause: &dyn std::fmt::Display) -> Error {
        let words = self.last_words();
        if words.is_empty() { not_made(cause.to_string()) } else { not_made(format!("{cause}; its console: {words}")) }
    }

    /// Returns the last lines that the machine has written, for the log.
    pub(super) fn last_words(&self) -> String {
        let mut words = Vec::new();
        for fifo in &self.0 {
            let mut bytes = Vec::new();
            match fifo.take(BYTES_MAX).read_to_end(&mut bytes) {
                Ok(_) => {}
                // All that is there has been read.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => continue,
            }
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<String> = text.lines().map(shown).filter(|line| !line.is_empty()).collect();
            words.extend_from_slice(&lines[lines.len().saturating_sub(LINES)..]);
        }
        words.join("; ")
    }
}

/// Returns a line without what moves a terminal, and not too long.
fn shown(line: &str) -> String {
    line.chars().filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod test {
    use std::io::Write as _;

    use super::*;
    use crate::local::folder::BoxFolder;

    #[test]
    fn the_last_lines_are_shown_without_what_moves_a_terminal_and_a_full_fifo_loses_the_rest() {
        let temp = tempfile::tempdir().unwrap();
        let room = WorkDir::new(&BoxFolder::at(temp.path().to_owned()), None);
        room.make(None).unwrap();
        let console = Console::open(&room).unwrap();
        assert_eq!(console.last_words(), "");
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut guest = File::from(openat(CWD, room.console(), flags, Mode::empty()).unwrap());
        guest.write_all(b"one\ntwo\n\x1b[31mthree\r\nfour\n\nfive").unwrap();
        assert_eq!(console.last_words(), "two; [31mthree; four; five");
        let mut written = 0;
        let full = loop {
            match guest.write(&[b'x'; 1000]) {
                Ok(count) => written += count,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        assert!(written <= 64 * 1024);
        assert_eq!(console.last_words().chars().count(), LINE_CHARS_MAX);
        drop(guest);
        assert_eq!(console.last_words(), "");
    }
}
