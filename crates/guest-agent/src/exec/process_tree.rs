//! Process trees: finding all descendants of a process, and ending them.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

use super::processes::{Process, Processes, children_now};
use super::reapers::Reaper;
use super::spawn::stop_all_others;
use crate::agent::Agent;
use crate::ptrace::TracerHandle;

/// Rounds of stopping after which a tree that still moves is stopped together with all else in the
/// box.
const STOP_ROUNDS_MAX: usize = 32;
/// Quick passes in each round. A process that forks and ends at once lives for a tenth of a
/// millisecond, and one pass takes less than that.
const STOP_PASSES: usize = 16;
/// Longest wait for the kernel to end a tree. A process that does not end in this time (it hangs in
/// a device, say) is left to the end of the box.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// Interval between checks for processes that still live.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Interval between these checks while a tracer ends the processes.
const LOOK_AGAIN_TRACED: Duration = Duration::from_millis(2);

/// A process tree to end.
#[derive(Debug, Clone)]
pub(crate) enum ProcessTree {
    /// All processes below a reaper, and then the reaper.
    Command(Rc<Reaper>),
    /// Children of the agent that are not reapers, and everything below them: the reaper that they
    /// belonged to was killed.
    Orphans,
}

impl ProcessTree {
    /// Stops the visible part of the tree process by process as it is found, since processes may be
    /// gone by the time that all of `/proc` is read.
    fn stop_quickly(&self, agent: &Agent) {
        let mut pending = match self {
            ProcessTree::Command(reaper) if reaper.is_gone() => return,
            ProcessTree::Command(reaper) => children_now(reaper.pid),
            ProcessTree::Orphans => {
                children_now(agent.pid).into_iter().filter(|pid| !agent.reapers.contains(*pid)).collect()
            }
        };
        pending.iter().for_each(|pid| send(*pid, Signal::STOP));
        let mut seen = HashSet::new();
        while let Some(pid) = pending.pop() {
            if seen.insert(pid) {
                let children = children_now(pid);
                children.iter().for_each(|pid| send(*pid, Signal::STOP));
                pending.extend(children);
            }
        }
    }

    fn members(&self, agent: &Agent, processes: &Processes) -> Vec<Process> {
        match self {
            // The pid of a reaper that has been reaped may mean another process.
            ProcessTree::Command(reaper) if reaper.is_gone() => Vec::new(),
            ProcessTree::Command(reaper) => processes.descendants(&[reaper.pid]).collect(),
            ProcessTree::Orphans => {
                let children = processes.children_of(agent.pid);
                let own: Vec<Process> = children.filter(|child| !agent.reapers.contains(child.pid)).copied().collect();
                let roots: Vec<i32> = own.iter().map(|process| process.pid).collect();
                // The roots themselves are members too.
                processes.descendants(&roots).chain(own).collect()
            }
        }
    }
}

/// Ends `tree`, even if it resists.
///
/// First everything is stopped, round by round until nothing new appears, since a stopped process
/// starts none. Then everything is killed. The reaper stays until the end, so that no process
/// leaves the tree.
pub(crate) async fn kill(agent: &Agent, tree: &ProcessTree) {
    if let Some(ties) = &agent.ties {
        return ask_to_end(agent, ties, tree).await;
    }
    let mut others = Vec::new();
    if !stop(agent, tree).await && agent.pid == 1 {
        others = stop_all(agent, tree);
    }
    let started = Instant::now();
    while started.elapsed() < KILL_WAIT {
        let mut members = tree.members(agent, &Processes::read());
        members.retain(Process::lives);
        if members.is_empty() {
            break;
        }
        for process in members {
            send(process.pid, Signal::KILL);
        }
        for pid in others.drain(..) {
            send(pid, Signal::CONT);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    for pid in others {
        send(pid, Signal::CONT);
    }
    if let ProcessTree::Command(reaper) = tree
        && !reaper.is_gone()
    {
        send(reaper.pid, Signal::KILL);
    }
    if let ProcessTree::Command(_) = tree
        && !ProcessTree::Orphans.members(agent, &Processes::read()).is_empty()
    {
        // Without subreapers, as in gVisor, some of its descendants may be children of the agent, and
        // it cannot be seen which.
        agent.reapers.strangers.notify_one();
    }
}

/// Ends `tree`: asks the tracer mode, and waits until it has.
async fn ask_to_end(agent: &Agent, ties: &TracerHandle, tree: &ProcessTree) {
    let begun = Instant::now();
    let mut asked = Vec::new();
    while begun.elapsed() < KILL_WAIT {
        let roots: Vec<i32> = match tree {
            ProcessTree::Command(reaper) if reaper.is_gone() => return,
            ProcessTree::Command(reaper) => vec![reaper.pid],
            ProcessTree::Orphans => {
                let children = children_now(agent.pid);
                children.into_iter().filter(|pid| !agent.reapers.contains(*pid)).collect()
            }
        };
        if roots.is_empty() {
            return;
        }
        for root in roots.into_iter().filter(|root| !asked.contains(root)).collect::<Vec<_>>() {
            // While the FIFO is full, the request is repeated.
            if ties.ask_to_end(root).is_ok() {
                asked.push(root);
            }
        }
        tokio::time::sleep(LOOK_AGAIN_TRACED).await;
    }
}

/// Stops the members of `tree`. Returns whether all of them rest.
async fn stop(agent: &Agent, tree: &ProcessTree) -> bool {
    let mut known = HashSet::new();
    for _ in 0..STOP_ROUNDS_MAX {
        for _ in 0..STOP_PASSES {
            tree.stop_quickly(agent);
        }
        let members = tree.members(agent, &Processes::read());
        let mut calm = true;
        for process in members.iter().filter(|process| process.lives()) {
            let is_new = known.insert(process.pid);
            if is_new || !process.rests() {
                calm = false;
                send(process.pid, Signal::STOP);
            }
        }
        if calm {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

/// Stops every process of the box in one step that no fork escapes. Returns those that are not in
/// `tree` and were not stopped before.
fn stop_all(agent: &Agent, tree: &ProcessTree) -> Vec<i32> {
    // Not those that wait in the kernel: a reaper does so while its command starts.
    let stopped: HashSet<i32> = {
        let before = Processes::read();
        before.all().filter(|process| process.is_stopped()).map(|process| process.pid).collect()
    };
    stop_all_others();
    let now = Processes::read();
    let members: HashSet<i32> = tree.members(agent, &now).into_iter().map(|process| process.pid).collect();
    let all = now.all().map(|process| process.pid).filter(|pid| *pid != agent.pid);
    all.filter(|pid| !members.contains(pid) && !stopped.contains(pid)).collect()
}

fn send(pid: i32, signal: Signal) {
    // Process 1 and the agent are in no tree; a process that has ended needs no signal.
    if let Some(pid) = Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 1) {
        let _ = kill_process(pid, signal);
    }
}
