//! Hands memory of a control group back to the system, in a process of its own: a write to the
//! kernel's file for it lasts until all is done, and only the end of its thread stops it before.
//!
//! `reclaim v1|v2 <group>` writes once. It ends when the write has, or when its stdin does: its
//! caller has waited long enough, or has gone. The exit code is 0, or the number of the kernel's
//! refusal. A group that gives less than was asked for is no refusal.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread;

use rustix::io::Errno;

/// Exit code where a refusal has no number.
const UNKNOWN: u8 = 255;

/// Runs the mode; `args` are the arguments after its name.
pub(crate) fn run(mut args: impl Iterator<Item = String>) -> ExitCode {
    let version = args.next();
    let group = args.next().map(PathBuf::from);
    let outcome = match (version.as_deref(), group) {
        (Some("v1"), Some(group)) => until_stdin_ends(move || write_once(&group.join("memory.force_empty"), "0")),
        (Some("v2"), Some(group)) => reclaim(group),
        _ => return ExitCode::FAILURE,
    };
    outcome.map_or_else(|error| ExitCode::from(code(&error)), |()| ExitCode::SUCCESS)
}

/// Returns the exit code that tells the error.
fn code(error: &io::Error) -> u8 {
    error.raw_os_error().and_then(|errno| u8::try_from(errno).ok()).unwrap_or(UNKNOWN)
}

/// Reclaims all memory of a group of version 2.
fn reclaim(group: PathBuf) -> io::Result<()> {
    let held = number(&group.join("memory.current"))?;
    let _swap = SwapRoom::make(&group, held);
    until_stdin_ends(move || write_once(&group.join("memory.reclaim"), &held.to_string()))
}

/// Permission for the anonymous memory of a group to go to swap, which it may not otherwise. What
/// has gone there comes back when it is used.
struct SwapRoom {
    file: PathBuf,
    before: String,
}

impl SwapRoom {
    /// Makes room for `more` bytes; `None` where swap is not counted or has no limit here.
    fn make(group: &Path, more: u64) -> Option<SwapRoom> {
        let file = group.join("memory.swap.max");
        let before = fs::read_to_string(&file).ok()?.trim().to_owned();
        let limit: u64 = before.parse().ok()?;
        let room = number(&group.join("memory.swap.current")).ok()?.saturating_add(more);
        (room > limit).then_some(())?;
        fs::write(&file, room.to_string()).ok()?;
        Some(SwapRoom { file, before })
    }
}

impl Drop for SwapRoom {
    fn drop(&mut self) {
        // A group that is gone needs no limit.
        let _ = fs::write(&self.file, &self.before);
    }
}

fn number(file: &Path) -> io::Result<u64> {
    fs::read_to_string(file)?.trim().parse().map_err(io::Error::other)
}

/// Writes with one call: a part of it is not written again.
fn write_once(file: &Path, text: &str) -> io::Result<()> {
    match OpenOptions::new().write(true).open(file)?.write(text.as_bytes()) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => Ok(()),
        written => written.map(drop),
    }
}

/// Runs `work` on a thread of its own, until it has ended or stdin has. The end of the process then
/// ends the thread.
fn until_stdin_ends(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let (ended, first) = channel();
    let done = ended.clone();
    thread::spawn(move || done.send(work()));
    thread::spawn(move || {
        let closed = io::stdin().read_to_end(&mut Vec::new());
        ended.send(closed.map(drop))
    });
    first.recv().map_err(io::Error::other)?
}

#[cfg(test)]
mod test {
    use super::*;

    fn group(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(file, text)| fs::write(dir.path().join(file), text).unwrap());
        dir
    }

    #[test]
    fn a_group_may_use_swap_while_its_memory_goes_there_and_not_after() {
        let dir = group(&[("memory.swap.max", "0\n"), ("memory.swap.current", "70\n")]);
        let limit = || fs::read_to_string(dir.path().join("memory.swap.max")).unwrap();
        let room = SwapRoom::make(dir.path(), 1000).unwrap();
        assert_eq!(limit(), "1070");
        drop(room);
        assert_eq!(limit(), "0");
    }

    #[test]
    fn a_limit_of_swap_that_is_none_or_wide_enough_stays() {
        for limit in ["max\n", "5000\n"] {
            let dir = group(&[("memory.swap.max", limit), ("memory.swap.current", "0\n")]);
            assert!(SwapRoom::make(dir.path(), 1000).is_none());
            assert_eq!(fs::read_to_string(dir.path().join("memory.swap.max")).unwrap(), limit);
        }
        assert!(SwapRoom::make(group(&[]).path(), 1000).is_none(), "a kernel without swap");
    }

    #[test]
    fn a_group_that_is_gone_is_a_refusal() {
        let dir = group(&[]);
        let gone = write_once(&dir.path().join("memory.reclaim"), "1").unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        assert!(reclaim(dir.path().to_owned()).is_err());
    }
}
