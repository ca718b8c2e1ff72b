//! Every process below us: who is ours, who must go.
//!
//! Each command runs below a reaper of its own (see [`super::exec`]), which
//! adopts whatever the command leaves behind. So our own children are reapers
//! and nothing else: a process that comes to us was orphaned because somebody
//! killed a reaper, and is killed with all below it.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

/// Looks at the process table before what is below somebody is killed anyway.
/// A stopped process cannot fork, so each look finds fewer new ones.
const STOP_PASSES_MAX: usize = 200;
/// Rounds of killing what is still there; each is a millisecond apart.
const KILL_ROUNDS_MAX: usize = 5_000;
/// The status line of a process is shorter.
const STAT_BYTES_MAX: usize = 4096;

/// A process in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    parent: i32,
    is_zombie: bool,
}

/// The reapers that are alive.
pub(crate) struct Children {
    reapers: RefCell<HashSet<Pid>>,
}

impl Children {
    /// Starts to wait for children as they end.
    pub(crate) fn watch() -> std::io::Result<Rc<Self>> {
        let children = Rc::new(Self { reapers: RefCell::default() });
        let mut ended = signal(SignalKind::child())?;
        let watched = Rc::clone(&children);
        tokio::task::spawn_local(async move {
            while ended.recv().await.is_some() {
                if watched.reap() {
                    watched.end_strangers().await;
                }
            }
        });
        Ok(children)
    }

    /// A reaper has been made.
    pub(crate) fn add(&self, reaper: Pid) {
        self.reapers.borrow_mut().insert(reaper);
    }

    /// How many reapers are alive: commands that run, or have left children.
    pub(crate) fn running(&self) -> usize {
        self.reapers.borrow().len()
    }

    /// Collects whatever has ended; whether a reaper did not end by itself.
    fn reap(&self) -> bool {
        let mut was_killed = false;
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let is_reaper = self.reapers.borrow_mut().remove(&pid);
            was_killed |= is_reaper && status.exit_status() != Some(0);
        }
        was_killed
    }

    /// Kills children that are no reapers, with all below them.
    async fn end_strangers(&self) {
        for _ in 0..KILL_ROUNDS_MAX {
            let us = getpid();
            let is_reaper = |pid: Pid| self.reapers.borrow().contains(&pid);
            let table = table();
            let strangers: Vec<Pid> = table
                .iter()
                .filter(|process| process.parent == us.as_raw_nonzero().get() && !is_reaper(process.pid))
                .filter(|process| !process.is_zombie)
                .map(|process| process.pid)
                .collect();
            if strangers.is_empty() {
                return;
            }
            for stranger in strangers {
                stop_below(stranger).await;
                for process in below(stranger, &self::table()) {
                    let _ = kill_process(process, Signal::KILL);
                }
                let _ = kill_process(stranger, Signal::KILL);
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// Ends everything below every reaper.
    pub(crate) async fn kill_everything(&self) {
        let reapers: Vec<Pid> = self.reapers.borrow().iter().copied().collect();
        for reaper in reapers {
            self.kill_tree(reaper).await;
        }
    }

    /// Ends everything below a reaper, whatever it does about it: a stopped
    /// process cannot fork, so all are stopped before the first is killed. The
    /// reaper itself ends when it has no child left.
    pub(crate) async fn kill_tree(&self, reaper: Pid) {
        stop_below(reaper).await;
        for _ in 0..KILL_ROUNDS_MAX {
            if !self.reapers.borrow().contains(&reaper) {
                return;
            }
            let left = below(reaper, &table());
            for pid in &left {
                let _ = kill_process(*pid, Signal::KILL);
            }
            if left.is_empty() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

async fn stop_below(root: Pid) {
    let mut stopped = HashSet::new();
    let _ = kill_process(root, Signal::CONT);
    for _ in 0..STOP_PASSES_MAX {
        let new: Vec<Pid> = below(root, &table()).into_iter().filter(|pid| !stopped.contains(pid)).collect();
        if new.is_empty() {
            return;
        }
        for pid in new {
            let _ = kill_process(pid, Signal::STOP);
            stopped.insert(pid);
        }
        tokio::task::yield_now().await;
    }
}

/// Everything below `root`, dead ones left out.
fn below(root: Pid, table: &[Process]) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in table {
        children.entry(process.parent).or_default().push(process);
    }
    let (mut found, mut waiting) = (Vec::new(), vec![root.as_raw_nonzero().get()]);
    while let Some(parent) = waiting.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            waiting.push(child.pid.as_raw_nonzero().get());
            if !child.is_zombie {
                found.push(child.pid);
            }
        }
    }
    found
}

/// The process table, as `/proc` shows it.
pub(crate) fn table() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
            let stat = std::fs::read(entry.path().join("stat")).ok()?;
            parse_stat(pid, &stat[..stat.len().min(STAT_BYTES_MAX)])
        })
        .collect()
}

/// `pid (name) state parent …`; the name may hold anything, parentheses too.
fn parse_stat(pid: Pid, stat: &[u8]) -> Option<Process> {
    let rest = &stat[stat.iter().rposition(|b| *b == b')')? + 1..];
    let mut fields = std::str::from_utf8(rest).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Process { pid, parent, is_zombie: matches!(state, "Z" | "X") })
}

#[cfg(test)]
mod test {
    use super::*;

    fn pid(n: i32) -> Pid {
        Pid::from_raw(n).unwrap()
    }

    #[test]
    fn a_hostile_name_does_not_hide_a_process() {
        let parsed = parse_stat(pid(7), b"7 (a) Z 1 (b) S 42 7 7 0 -1").unwrap();
        assert_eq!(parsed, Process { pid: pid(7), parent: 42, is_zombie: false });
        assert_eq!(parse_stat(pid(7), b"7 (a"), None);
    }

    #[test]
    fn everything_below_is_found_and_nothing_else() {
        let process = |n, parent, is_zombie| Process { pid: pid(n), parent, is_zombie };
        let table = [
            process(2, 1, false),
            process(3, 2, false),
            process(4, 3, true),
            process(5, 4, false),
            process(6, 1, false),
        ];
        let mut found = below(pid(2), &table);
        found.sort_by_key(|pid| pid.as_raw_nonzero());
        assert_eq!(found, [pid(3), pid(5)]);
    }
}
