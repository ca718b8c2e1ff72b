//! Processes of the box, as the kernel shows them.

use std::collections::{HashMap, HashSet};
use std::fs;

/// A process as the kernel shows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process {
    pub(super) pid: i32,
    parent: i32,
    group: i32,
    state: u8,
    threads: u32,
}

impl Process {
    /// Returns whether the process runs. One whose first thread has ended shows as a zombie while
    /// others run.
    pub(super) fn lives(&self) -> bool {
        !matches!(self.state, b'Z' | b'X') || self.threads > 1
    }

    /// Returns whether it is stopped, by a signal or a tracer.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't') || !self.lives()
    }

    /// Returns whether it is stopped, or can start nothing before it is.
    pub(super) fn rests(&self) -> bool {
        self.is_stopped() || self.state == b'D'
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

    pub(super) fn descendants(&self, roots: &[i32]) -> impl Iterator<Item = Process> {
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

    /// Returns the ids of all processes.
    pub(crate) fn pids(&self) -> Vec<i32> {
        self.all().map(|process| process.pid).collect()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Process> {
        self.children.values().flatten()
    }

    /// Returns whether a living process below `root` is in the process group `group`.
    pub(crate) fn has_group_below(&self, root: i32, group: i32) -> bool {
        self.descendants(&[root]).any(|process| process.group == group && process.lives())
    }

    pub(super) fn children_of(&self, pid: i32) -> impl Iterator<Item = &Process> {
        self.children.get(&pid).into_iter().flatten()
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

/// Returns the children of a process at this moment, if the kernel lists them.
pub(super) fn children_now(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    texts
        .flat_map(|text| text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
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
    fn a_process_that_waits_in_the_kernel_rests_and_is_not_stopped() {
        let rest = |state| {
            let process = Process { pid: 2, parent: 1, group: 1, state, threads: 1 };
            (process.rests(), process.is_stopped())
        };
        assert_eq!(
            b"TtZXDSR".map(rest),
            [(true, true), (true, true), (true, true), (true, true), (true, false), (false, false), (false, false),]
        );
    }

    #[test]
    fn a_loop_of_parents_ends() {
        let process = |pid, parent| Process { pid, parent, group: 1, state: b'S', threads: 1 };
        let children = HashMap::from([(1, vec![process(2, 1)]), (2, vec![process(3, 2)]), (3, vec![process(2, 3)])]);
        assert_eq!(Processes { children }.below(&[1]), [2, 3]);
    }
}
