//! Requests of the agent that it cannot carry out from inside: ending a tree that does not hold
//! still.

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use guest_protocol::EndTree;
use rustix::process::{Pid, Signal, kill_process};

use super::bounds::below;

/// Maximum size of incomplete input, in bytes. A line is far shorter; longer input comes from the
/// box itself and is discarded.
const BYTES_MAX: usize = 4096;
/// Longest wait for `PRoot` to stop, which it does as soon as it returns from the kernel.
const STOP_WAIT: Duration = Duration::from_millis(200);
const STOP_LOOK: Duration = Duration::from_micros(100);
/// Rounds in a row without a new process: a clone in progress shows in the next round.
const CALM_ROUNDS: u32 = 2;
/// Maximum number of rounds, never reached: a tree cannot grow while `PRoot` is stopped.
const ROUNDS_MAX: u32 = 64;

/// Input that is not a whole line yet.
#[derive(Debug, Default)]
pub(super) struct Requests {
    begun: Vec<u8>,
}

impl Requests {
    /// Reads the requests that have come and carries them out.
    pub(super) fn serve(&mut self, from: &OwnedFd, proot: Pid) {
        let mut piece = [0; BYTES_MAX];
        let Ok(read) = rustix::io::read(from, &mut piece) else { return };
        self.begun.extend_from_slice(&piece[..read]);
        while let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.begun.drain(..=end).collect();
            if let Ok(EndTree { root }) = serde_json::from_slice(&line) {
                end_tree(proot, root);
            }
        }
        if self.begun.len() > BYTES_MAX {
            self.begun.clear();
        }
    }
}

/// Ends `root` and all below it, if it is a process of the box and not the agent.
///
/// While the tracer is stopped, its tracees get no further than to their next system call, so
/// nothing new can start.
fn end_tree(proot: Pid, root: i32) {
    let number = proot.as_raw_nonzero().get();
    if below(number).iter().skip(1).all(|pid| *pid != root) {
        return;
    }
    // If `PRoot` has ended, the supervising loop notices it.
    let _ = kill_process(proot, Signal::STOP);
    let begun = Instant::now();
    while !is_stopped(number) && begun.elapsed() < STOP_WAIT {
        std::thread::sleep(STOP_LOOK);
    }
    let mut killed = HashSet::new();
    let mut calm = 0;
    for _ in 0..ROUNDS_MAX {
        let new: Vec<i32> = below(root).into_iter().filter(|pid| killed.insert(*pid)).collect();
        new.iter().for_each(|pid| kill(*pid));
        calm = if new.is_empty() { calm + 1 } else { 0 };
        if calm >= CALM_ROUNDS {
            break;
        }
    }
    kill(root);
    let _ = kill_process(proot, Signal::CONT);
}

fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // A process that has just ended needs no signal.
        let _ = kill_process(pid, Signal::KILL);
    }
}

fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().next());
    matches!(state, None | Some("T" | "Z" | "X"))
}
