//! Standing still of a box below a tracer, for as long as the server copies its files.
//!
//! The tracer is stopped first. Then each thread is sent the signal that stops: the kernel holds it until
//! its tracer has decided about the signal, and that one cannot. Neither a blocked signal nor a second
//! thread is a way around it, and what is made meanwhile waits for the tracer from its birth on. When the
//! server closes its end, or ends itself, everything goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use guest_protocol::{HALTED, Halt};
use rustix::process::{Signal, getpid};

use crate::end_box::{Process, known, members, processes, send};
use crate::launch::{become_user, read_order};

/// Longest wait for the threads to stand still.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Interval between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Looks in a row at which nothing moves: a clone in progress shows at the next one.
const CALM_LOOKS: u32 = 3;
/// Time after which a thread that sleeps in the kernel counts as still: it waits for a child, and stops
/// before it gets back to its program.
const ASLEEP: Duration = Duration::from_millis(200);

/// Runs the halt mode.
pub(crate) fn run() -> ExitCode {
    let stdin = std::io::stdin();
    let Ok(order) = read_order::<Halt>(stdin.as_fd()) else { return ExitCode::FAILURE };
    if order.id.is_some_and(|id| id == 0 || become_user(id).is_err()) {
        return ExitCode::FAILURE;
    }
    let own = getpid().as_raw_nonzero().get();
    let known = known(&order.roots);
    // The first watches over the tracers, and changes no file.
    let (watcher, tracers) = known.split_at(known.len().min(1));
    tracers.iter().for_each(|pid| send(*pid, Signal::STOP));
    let mut stopped = BTreeSet::new();
    let is_still =
        !tracers.is_empty() && stop(|all| of_box(all, order.id, own, watcher, tracers), tracers, &mut stopped);
    if is_still && std::io::stdout().write_all(HALTED).and_then(|()| std::io::stdout().flush()).is_ok() {
        let mut byte = [0];
        // Nothing is sent: this is the end of the server, or of its copy.
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(stdin.as_fd(), &mut byte));
    }
    // First the signal that takes back the other, while no tracer can pass that one on.
    let pids: BTreeSet<i32> = stopped.iter().map(|(pid, _)| *pid).collect();
    pids.iter().chain(tracers).for_each(|pid| send(*pid, Signal::CONT));
    if is_still { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the processes of the box: those of its user or, without one, below the tracers.
fn of_box(all: &BTreeMap<i32, Process>, id: Option<u32>, own: i32, watcher: &[i32], tracers: &[i32]) -> BTreeSet<i32> {
    let mut found = match id {
        Some(id) => all.iter().filter(|(_, process)| process.uid == id).map(|(pid, _)| *pid).collect(),
        None => members(all, tracers),
    };
    found.retain(|pid| *pid != own && !watcher.contains(pid) && !tracers.contains(pid));
    found
}

/// Stops all threads of the box, and notes those that were sent the signal. Returns whether all stand
/// still.
fn stop(
    of_box: impl Fn(&BTreeMap<i32, Process>) -> BTreeSet<i32>,
    tracers: &[i32],
    stopped: &mut BTreeSet<(i32, i32)>,
) -> bool {
    let begun = Instant::now();
    let mut calm = 0;
    loop {
        let mut is_calm = tracers.iter().flat_map(|pid| threads(*pid)).all(|(_, state)| matches!(state, 'T' | 'Z'));
        for pid in of_box(&processes()) {
            for (thread, state) in threads(pid) {
                let is_still = match state {
                    't' | 'T' | 'Z' | 'X' => true,
                    'D' => begun.elapsed() > ASLEEP,
                    _ => false,
                };
                if !is_still {
                    is_calm = false;
                    if stopped.insert((pid, thread)) {
                        stop_thread(pid, thread);
                    }
                }
            }
        }
        calm = if is_calm { calm + 1 } else { 0 };
        if calm >= CALM_LOOKS {
            return true;
        }
        if begun.elapsed() > WAIT_MAX {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Returns the threads of a process with their states, as letters of `proc(5)`.
fn threads(pid: i32) -> Vec<(i32, char)> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let threads = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    threads.filter_map(|thread| Some((thread, state(pid, thread)?))).collect()
}

fn state(pid: i32, thread: i32) -> Option<char> {
    let stat = fs::read(format!("/proc/{pid}/task/{thread}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(end + 2).copied().map(char::from)
}

#[expect(unsafe_code, reason = "no library sends a signal to one thread of another process")]
fn stop_thread(pid: i32, thread: i32) {
    // SAFETY: takes no pointer. A thread that has ended needs no signal.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, libc::SIGSTOP) };
}
