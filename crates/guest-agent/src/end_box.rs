//! Ending of a box that has no pid namespace, however its processes try to escape.
//!
//! A box with an id of its own consists of all processes with that id, and one signal reaches all
//! of them. Of any other box the tracer is stopped first: a process below it gets no further than
//! to its next system call, so nothing new can start. Then all descendants and tracees of the roots
//! of the box are killed, and the roots last.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use guest_protocol::Sweep;
use rustix::process::{Pid, Signal, WaitOptions, getpid, getuid, kill_process, wait};

use crate::launch::{become_user, read_order, start_time};

/// Longest wait for the kernel to end the processes; one that takes longer hangs in a device.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Interval between checks for processes that still live.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Rounds in a row without a new process before the tracer is killed too: a clone in progress shows
/// in the next round.
const CALM_ROUNDS: u32 = 2;

/// Runs the sweep mode.
pub(crate) fn run() -> ExitCode {
    let Ok(order) = read_order::<Sweep>(std::io::stdin().as_fd()) else { return ExitCode::FAILURE };
    let roots = known(&order.roots);
    let ended = match order.id {
        Some(id) => become_user(id).is_ok() && end_user(id),
        None => end_below(&roots),
    };
    if ended { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the pids of the roots that are still alive: one that belongs to another process by now is not
/// the box's.
pub(crate) fn known(roots: &[(u32, u64)]) -> Vec<i32> {
    let known = roots.iter().filter_map(|(pid, started)| {
        let pid = Pid::from_raw(i32::try_from(*pid).ok()?)?;
        (start_time(pid).ok()? == *started).then_some(pid.as_raw_nonzero().get())
    });
    known.collect()
}

/// Ends all processes with the id of this process, which only the box has, except this process.
/// Returns whether all have ended.
pub(crate) fn end_user(id: u32) -> bool {
    // Checked again, since the signal reaches every process of this user.
    if id == 0 || getuid().as_raw() != id {
        return false;
    }
    let begun = Instant::now();
    let own = getpid().as_raw_nonzero().get();
    loop {
        kill_all_of_mine();
        reap();
        if !processes().iter().any(|(pid, process)| *pid != own && process.uid == id && process.lives) {
            return true;
        }
        if begun.elapsed() > WAIT_MAX {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Ends all descendants and tracees of `roots`, and the roots, except this process. Returns whether
/// all have ended.
pub(crate) fn end_below(roots: &[i32]) -> bool {
    let begun = Instant::now();
    let own = getpid().as_raw_nonzero().get();
    let others: Vec<i32> = roots.iter().copied().filter(|pid| *pid != own).collect();
    others.iter().for_each(|pid| send(*pid, Signal::STOP));
    let mut killed = BTreeSet::new();
    let mut calm = 0;
    loop {
        reap();
        let now = processes();
        let mut all = members(&now, roots);
        // Processes that have lost their parent meanwhile are still known.
        all.extend(killed.iter().filter(|pid| now.get(*pid).is_some_and(|process| process.lives)));
        all.remove(&own);
        let is_new = all.iter().any(|pid| !killed.contains(pid));
        calm = if is_new { 0 } else { calm + 1 };
        for pid in &all {
            send(*pid, Signal::KILL);
        }
        killed.extend(all.iter().copied());
        if calm >= CALM_ROUNDS {
            others.iter().for_each(|pid| send(*pid, Signal::KILL));
            let left = all.iter().chain(&others).any(|pid| now.get(pid).is_some_and(|process| process.lives));
            if !left {
                return true;
            }
        }
        if begun.elapsed() > WAIT_MAX {
            others.iter().for_each(|pid| send(*pid, Signal::KILL));
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// A process as the kernel shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    parent: i32,
    tracer: i32,
    pub(crate) uid: u32,
    lives: bool,
}

pub(crate) fn processes() -> BTreeMap<i32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, parse(&fs::read(format!("/proc/{pid}/status")).ok()?)?))).collect()
}

fn parse(status: &[u8]) -> Option<Process> {
    // The name on the first line may contain anything but an end of line.
    let text = String::from_utf8_lossy(status);
    let threads: u32 = first_word(&text, "Threads:")?.parse().ok()?;
    Some(Process {
        parent: first_word(&text, "PPid:")?.parse().ok()?,
        tracer: first_word(&text, "TracerPid:")?.parse().ok()?,
        uid: first_word(&text, "Uid:")?.parse().ok()?,
        lives: !matches!(first_word(&text, "State:")?, "Z" | "X") || threads > 1,
    })
}

/// Returns the first word of the line that begins with `name`, behind the name of the process.
fn first_word<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().skip(1).find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().next()
}

/// Returns the living processes below or traced by `roots`, without the roots.
pub(crate) fn members(all: &BTreeMap<i32, Process>, roots: &[i32]) -> BTreeSet<i32> {
    let mut found: BTreeSet<i32> = roots.iter().copied().collect();
    loop {
        let before = found.len();
        let more = all.iter().filter(|(_, p)| found.contains(&p.parent) || found.contains(&p.tracer));
        let more: Vec<i32> = more.map(|(pid, _)| *pid).collect();
        found.extend(more);
        if found.len() == before {
            break;
        }
    }
    found.retain(|pid| !roots.contains(pid) && all.get(pid).is_some_and(|process| process.lives));
    found
}

fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG | WaitOptions::from_bits_retain(libc::__WALL as u32)) {}
}

pub(crate) fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 1) {
        // A process that has ended needs no signal.
        let _ = kill_process(pid, signal);
    }
}

#[expect(unsafe_code, reason = "no library can signal every process")]
fn kill_all_of_mine() {
    // SAFETY: takes no pointer. The caller has made sure whose processes these are.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_name_cannot_pretend_to_be_a_field() {
        let status = b"Name:\tPPid: 9\nState:\tS (sleeping)\nPPid:\t7\nTracerPid:\t5\nUid:\t3\t3\t3\t3\nThreads:\t1\n";
        assert_eq!(parse(status), Some(Process { parent: 7, tracer: 5, uid: 3, lives: true }));
    }

    #[test]
    fn children_of_children_and_tracees_of_tracees_are_members() {
        let process = |parent, tracer, lives| Process { parent, tracer, uid: 1, lives };
        let all = BTreeMap::from([
            (2, process(1, 0, true)),
            (3, process(2, 0, true)),
            (4, process(1, 3, true)),
            (5, process(4, 0, true)),
            (6, process(4, 0, false)),
            (7, process(1, 0, true)),
        ]);
        assert_eq!(members(&all, &[2]), BTreeSet::from([3, 4, 5]));
    }
}
