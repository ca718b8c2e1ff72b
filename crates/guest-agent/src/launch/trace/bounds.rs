//! Limits of a box that the kernel does not enforce.

use std::collections::{HashSet, VecDeque};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use guest_protocol::{Bounds, Note};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::process::{Pid, Signal, kill_process};

use crate::exec::processes::resident_kb;

/// Interval of checks. A process that fills 1 GiB per second gets 150 MiB past the limit.
const PERIOD: Duration = Duration::from_millis(150);
/// Minimum interval between counts of the files.
const DISK_PERIOD: Duration = Duration::from_secs(1);
/// Counting takes at most one part in this many of the time.
const DISK_SHARE: u32 = 10;
/// Maximum number of entries counted, so that counting ends.
const ENTRIES_MAX: usize = 2_000_000;
/// Maximum number of directories that wait to be counted; they are held open.
const OPEN_MAX: usize = 4096;
/// Unit of `st_blocks`, in bytes.
const BLOCK_BYTES: u64 = 512;
const MIB: u64 = 1024 * 1024;

/// Limits of a box, and its last measurements.
pub(super) struct Watch {
    bounds: Bounds,
    /// True if the kernel enforces the limit on processes.
    has_own_id: bool,
    /// File with the count of kills by the memory limit.
    count: File,
    kills: u64,
    notes: File,
    root: OwnedFd,
    /// Size of the files at the start, in bytes.
    base: Option<u64>,
    next_disk: Instant,
}

impl Watch {
    pub(super) fn new(bounds: Bounds, has_own_id: bool, count: OwnedFd, notes: OwnedFd, root: OwnedFd) -> Watch {
        let base = (bounds.disk_mb > 0).then(|| bounds.base_bytes.unwrap_or_else(|| usage(&root)));
        let count = File::from(count);
        let notes = File::from(notes);
        let next_disk = Instant::now();
        Watch { bounds, has_own_id, count, kills: 0, notes, root, base, next_disk }
    }

    /// Checks all limits once and returns the time until the next check; `None` if there is no
    /// limit.
    pub(super) fn look(&mut self, proot: i32) -> Option<Duration> {
        let Bounds { memory_mb, pids, .. } = self.bounds;
        let pids = if self.has_own_id { 0 } else { pids };
        if memory_mb > 0 || pids > 0 {
            let processes = below(proot);
            self.check_memory(proot, &processes, memory_mb);
            self.check_processes(&processes, pids);
        }
        self.check_disk();
        (memory_mb > 0 || pids > 0 || self.base.is_some()).then_some(PERIOD)
    }

    fn check_memory(&mut self, proot: i32, processes: &[i32], limit_mb: u32) {
        if limit_mb == 0 {
            return;
        }
        let sizes: Vec<(u64, i32)> = processes.iter().map(|pid| (resident_kb(*pid).unwrap_or(0), *pid)).collect();
        let total_kb = sizes.iter().map(|(size, _)| size).sum::<u64>() + resident_kb(proot).unwrap_or(0);
        // The first is the agent, without which there is no box.
        let largest = sizes.iter().skip(1).max();
        let (Some((size_kb, pid)), true) = (largest, total_kb > u64::from(limit_mb) * 1024) else { return };
        // The count first, so that a process that sees the end sees the reason.
        self.kills += 1;
        let text = format!("oom_kill {}\n", self.kills);
        if rustix::io::pwrite(&self.count, text.as_bytes(), 0).is_err() {
            self.note("cannot write the count of memory kills".to_owned(), false);
        }
        send(*pid);
        self.note(
            format!(
                "the box uses {} MiB, more than its limit of {limit_mb}: killed its largest process, {pid} with {} MiB",
                total_kb / 1024,
                size_kb / 1024
            ),
            false,
        );
    }

    fn check_processes(&mut self, processes: &[i32], limit: u32) {
        if limit == 0 {
            return;
        }
        let count: usize = processes.iter().map(|pid| threads(*pid)).sum();
        if count > limit as usize {
            self.note(
                format!("the box has {count} processes, more than its limit of {limit}: killed its commands"),
                true,
            );
        }
    }

    fn check_disk(&mut self) {
        let Some(base) = self.base else { return };
        let begun = Instant::now();
        if begun < self.next_disk {
            return;
        }
        let taken = usage(&self.root).saturating_sub(base) / MIB;
        let limit = self.bounds.disk_mb;
        self.next_disk = Instant::now() + DISK_PERIOD.max(begun.elapsed() * DISK_SHARE);
        if taken > u64::from(limit) {
            let text = format!(
                "the files of the box use {taken} MiB, more than its limit of {limit}: killed its commands; delete \
                 some of its files"
            );
            self.note(text, true);
        }
    }

    fn note(&mut self, text: String, end_commands: bool) {
        let Ok(mut line) = serde_json::to_vec(&Note { text: format!("tidebox: {text}"), end_commands }) else { return };
        line.push(b'\n');
        // A full pipe has more notes than needed; a short one is written whole or not at all.
        let _ = self.notes.write(&line);
    }
}

/// Returns the processes below one; below PRoot the agent is the first.
pub(super) fn below(root: i32) -> Vec<i32> {
    let mut found = children(root);
    let mut seen: HashSet<i32> = found.iter().copied().collect();
    let mut at = 0;
    while let Some(pid) = found.get(at).copied() {
        at += 1;
        found.extend(children(pid).into_iter().filter(|child| seen.insert(*child)));
    }
    found
}

fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    texts
        .flat_map(|text| text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn threads(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

fn send(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // A process that has just ended needs no signal.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Returns the bytes that a tree takes while the box changes it. No link is followed, and
/// unreadable entries are not counted.
fn usage(root: &OwnedFd) -> u64 {
    let mut bytes = 0u64;
    let mut entries = 0usize;
    let Ok(root) = root.try_clone() else { return 0 };
    let mut waiting = VecDeque::from([root]);
    while let Some(dir) = waiting.pop_back() {
        let Ok(list) = Dir::read_from(&dir) else { continue };
        for entry in list.flatten() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            entries += 1;
            if entries > ENTRIES_MAX {
                return bytes;
            }
            let Ok(stat) = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            // Each name of a file has its part.
            let names = if is_dir { 1 } else { stat.st_nlink.max(1) };
            bytes = bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK_BYTES / names);
            if is_dir && waiting.len() < OPEN_MAX {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                waiting.extend(openat(dir.as_fd(), name, flags, Mode::empty()));
            }
        }
    }
    bytes
}
