//! Resources that boxes use: counted by their control groups, and for the rest by `/proc`.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use super::cgroup;
use super::folder::BoxFolder;
use super::process::number;
use crate::BoxStats;

/// Measures boxes or slots, in the order of their folders. The processes of the host are looked at
/// once for all of them, and only if a control group is missing.
pub(crate) fn measure(folders: &[BoxFolder]) -> Vec<BoxStats> {
    let mut all: Vec<BoxStats> = folders.iter().map(group_stats).collect();
    let mut table = None;
    for (stats, folder) in all.iter_mut().zip(folders) {
        if stats.cpu.is_some() && stats.memory_bytes.is_some() && stats.processes.is_some() {
            continue;
        }
        let Some((pid, started)) = folder.pid() else { continue };
        let table = table.get_or_insert_with(Table::read);
        let Some(counted) = table.count(pid, started) else { continue };
        stats.cpu = stats.cpu.or(Some(counted.cpu));
        stats.processes = stats.processes.or(Some(counted.threads));
        stats.memory_bytes = stats.memory_bytes.or_else(|| Some(counted.pids.iter().map(|pid| resident(*pid)).sum()));
    }
    all
}

/// Returns what the control groups of a box count.
fn group_stats(folder: &BoxFolder) -> BoxStats {
    folder.read().map(|record| cgroup::stats(&record.cgroups)).unwrap_or_default()
}

/// Processes of the host at one moment.
struct Table {
    processes: HashMap<u32, Process>,
    children: HashMap<u32, Vec<u32>>,
}

/// A process as the kernel shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    parent: u32,
    /// Processor time of the process, and of those of its children that it has waited for.
    ticks: u64,
    threads: u64,
    /// Start, in clock ticks since boot.
    started: u64,
}

/// Sums over a process and its descendants.
struct Counted {
    cpu: Duration,
    threads: u64,
    pids: Vec<u32>,
}

impl Table {
    fn read() -> Table {
        let mut table = Table { processes: HashMap::new(), children: HashMap::new() };
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Some(process) = fs::read(entry.path().join("stat")).ok().and_then(|stat| parse(&stat)) else {
                continue;
            };
            table.children.entry(process.parent).or_default().push(pid);
            table.processes.insert(pid, process);
        }
        table
    }

    /// Counts the process that `started` then, and its descendants; `None` if it has ended.
    fn count(&mut self, first: u32, started: u64) -> Option<Counted> {
        self.processes.get(&first).filter(|process| process.started == started)?;
        let mut ticks = 0_u64;
        let mut threads = 0_u64;
        let mut pids = vec![first];
        let mut next = 0;
        while let Some(pid) = pids.get(next).copied() {
            next += 1;
            let Some(process) = self.processes.get(&pid) else { continue };
            ticks = ticks.saturating_add(process.ticks);
            threads = threads.saturating_add(process.threads);
            // Taken out, so that reused numbers make no cycle.
            pids.extend(self.children.remove(&pid).unwrap_or_default());
        }
        let second = rustix::param::clock_ticks_per_second().max(1);
        let cpu = Duration::from_micros(ticks.saturating_mul(1_000_000) / second);
        Some(Counted { cpu, threads, pids })
    }
}

/// Parses `pid (name) state parent …`; the name may contain anything.
fn parse(stat: &[u8]) -> Option<Process> {
    let after = stat.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&str> = std::str::from_utf8(&stat[after + 1..]).ok()?.split_ascii_whitespace().collect();
    // The kernel shows the times of children as signed numbers.
    let ticks = (11..15).map(|index| number(&fields, index).unwrap_or(0)).fold(0, u64::saturating_add);
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        ticks,
        threads: number(&fields, 17)?,
        started: number(&fields, 19)?,
    })
}

/// Returns the anonymous and shared resident memory of a process in bytes, as the box's own limit
/// counts it; 0 once it has ended.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let values = status.lines().filter_map(|line| {
        let value = line.strip_prefix("RssAnon:").or_else(|| line.strip_prefix("RssShmem:"))?;
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    values.sum::<u64>().saturating_mul(1024)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_name_that_looks_like_fields_does_not_confuse() {
        let stat = b"42 (a) S 1 (b) ) R 7 6 1 0 -1 4194304 1 2 3 4 50 60 7 8 20 0 3 0 99 1 1";
        assert_eq!(parse(stat), Some(Process { parent: 7, ticks: 125, threads: 3, started: 99 }));
        assert_eq!(parse(b"42 (a"), None);
    }

    #[test]
    fn a_loop_of_parents_ends_and_another_process_of_the_same_number_is_not_counted() {
        let process = |parent| Process { parent, ticks: 100, threads: 2, started: 5 };
        let table = || Table {
            processes: HashMap::from([(2, process(3)), (3, process(2)), (4, process(1))]),
            children: HashMap::from([(2, vec![3]), (3, vec![2]), (1, vec![4])]),
        };
        let counted = table().count(2, 5).unwrap();
        assert_eq!(counted.pids.first(), Some(&2));
        assert!(counted.pids.len() <= 3 && counted.threads >= 4 && counted.cpu > Duration::ZERO);
        assert!(table().count(2, 6).is_none() && table().count(9, 5).is_none());
    }

    #[test]
    fn the_time_of_a_child_that_has_ended_is_counted() {
        let own = std::process::id();
        let started = parse(&fs::read("/proc/self/stat").unwrap()).unwrap().started;
        let before = Table::read().count(own, started).unwrap();
        let script = "x=0; while [ $x -lt 200000 ]; do x=$((x+1)); done";
        assert!(std::process::Command::new("/bin/sh").args(["-c", script]).status().unwrap().success());
        let after = Table::read().count(own, started).unwrap();
        assert!(after.cpu > before.cpu, "{:?} {:?}", before.cpu, after.cpu);
    }

    /// A process of its own, because other tests take and free memory of this one.
    #[test]
    fn memory_that_a_process_holds_is_counted() {
        use std::io::{BufRead, BufReader};
        let script = "import sys; held = bytearray(64 << 20); print('ready', flush=True); sys.stdin.readline()";
        let mut holder = std::process::Command::new("python3")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let held = resident(holder.id());
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert!(line == "ready\n" && (64 << 20..96 << 20).contains(&held), "{line} {held}");
    }
}
