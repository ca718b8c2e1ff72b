//! Process trees: finding all descendants of a process, and ending them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

use super::reapers::Reaper;
use super::spawn::stop_all_others;
use crate::ptrace;
use crate::serve::Agent;

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

/// A process as the kernel shows it.
#[derive(Debug, Clone, Copy)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    state: u8,
    threads: u32,
}

impl Process {
    /// Returns whether the process runs. One whose first thread has ended shows as a zombie while
    /// others run.
    fn lives(&self) -> bool {
        !matches!(self.state, b'Z' | b'X') || self.threads > 1
    }

    /// Returns whether it is stopped, or can start nothing before it is.
    fn rests(&self) -> bool {
        matches!(self.state, b'T' | b't' | b'D') || !self.lives()
    }
}

/// All processes of the box at one time.
#[derive(Debug)]
pub(crate) struct Processes {
    children: HashMap<i32, Vec<Process>>,
}

impl Processes {
    /// Reads `/proc`. A process that comes or goes meanwhile may be missing.
    pub(crate) fn read() -> Processes {
        let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        for process in pids.filter_map(|pid| parse_stat(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)) {
            children.entry(process.parent).or_default().push(process);
        }
        Processes { children }
    }

    /// Returns the living processes below `roots`, without the roots.
    pub(crate) fn below(&self, roots: &[i32]) -> Vec<i32> {
        self.descendants(roots).filter(Process::lives).map(|process| process.pid).collect()
    }

    fn descendants(&self, roots: &[i32]) -> impl Iterator<Item = Process> {
        let mut seen: HashSet<i32> = roots.iter().copied().collect();
        let mut found: Vec<Process> = Vec::new();
        let mut pending = roots.to_vec();
        while let Some(pid) = pending.pop() {
            for process in self.children.get(&pid).into_iter().flatten() {
                // Pids may be reused while `/proc` is read.
                if seen.insert(process.pid) {
                    found.push(*process);
                    pending.push(process.pid);
                }
            }
        }
        found.into_iter()
    }

    fn all(&self) -> impl Iterator<Item = &Process> {
        self.children.values().flatten()
    }

    /// Returns whether a living process below `root` is in the process group `group`.
    pub(crate) fn has_group_below(&self, root: i32, group: i32) -> bool {
        self.descendants(&[root]).any(|process| process.group == group && process.lives())
    }

    fn children_of(&self, pid: i32) -> impl Iterator<Item = i32> {
        self.children.get(&pid).into_iter().flatten().map(|process| process.pid)
    }
}

/// Parses `pid (name) state parent group … threads …`; the name may contain anything.
fn parse_stat(pid: i32, stat: &[u8]) -> Option<Process> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let threads = fields.nth(14)?.parse().ok()?;
    Some(Process { pid, parent, group, state, threads })
}

/// Returns the anonymous and shared resident memory of a process, in KiB.
pub(crate) fn resident_kb(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let values = status.lines().filter_map(|line| {
        let value = line.strip_prefix("RssAnon:").or_else(|| line.strip_prefix("RssShmem:"))?;
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    Some(values.sum())
}

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
                let roots: Vec<i32> = children.filter(|pid| !agent.reapers.contains(*pid)).collect();
                // The roots themselves are members too.
                let own = processes.children.get(&agent.pid).into_iter().flatten();
                let own = own.filter(|process| roots.contains(&process.pid)).copied();
                processes.descendants(&roots).chain(own).collect()
            }
        }
    }
}

/// Returns the children of a process at this moment, if the kernel lists them.
pub(crate) fn children_now(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    texts
        .flat_map(|text| text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Ends `tree`, even if it resists.
///
/// First everything is stopped, round by round until nothing new appears, since a stopped process
/// starts none. Then everything is killed. The reaper stays until the end, so that no process
/// leaves the tree.
pub(crate) async fn kill(agent: &Agent, tree: &ProcessTree) {
    if let Some(ties) = &agent.ties {
        return ptrace::kill(agent, ties, tree).await;
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
/// `tree` and ran before.
fn stop_all(agent: &Agent, tree: &ProcessTree) -> Vec<i32> {
    let rested: HashSet<i32> = {
        let before = Processes::read();
        before.all().filter(|process| process.rests()).map(|process| process.pid).collect()
    };
    stop_all_others();
    let now = Processes::read();
    let members: HashSet<i32> = tree.members(agent, &now).into_iter().map(|process| process.pid).collect();
    let all = now.all().map(|process| process.pid).filter(|pid| *pid != agent.pid);
    all.filter(|pid| !members.contains(pid) && !rested.contains(pid)).collect()
}

fn send(pid: i32, signal: Signal) {
    // Process 1 and the agent are in no tree; a process that has ended needs no signal.
    if let Some(pid) = Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 1) {
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_name_that_looks_like_fields_does_not_confuse() {
        let stat = b"42 (a) S 1 (b) ) R 7 6 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 99 1 1";
        let process = parse_stat(42, stat).unwrap();
        assert_eq!((process.pid, process.parent, process.group), (42, 7, 6));
        assert_eq!((process.state, process.threads), (b'R', 3));
    }

    #[test]
    fn a_loop_of_parents_ends() {
        let process = |pid, parent| Process { pid, parent, group: 1, state: b'S', threads: 1 };
        let children = HashMap::from([(1, vec![process(2, 1)]), (2, vec![process(3, 2)]), (3, vec![process(2, 3)])]);
        assert_eq!(Processes { children }.below(&[1]), [2, 3]);
    }
}
