//! The size of the box as its programs see it, and what they use of it.
//!
//! The launcher has put files over `/proc/meminfo` and `/proc/stat`. Nothing tells the agent that a
//! program is about to read them, so they show the box as it was when a command began or got input, and
//! at times while it runs.

pub(crate) mod renewal;

use std::cell::Cell;
use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use guest_protocol::SizeFiles;
use tokio::sync::Notify;

use crate::descriptor::take;

/// Age of the files at which they are renewed when the box is used.
const AGE: Duration = Duration::from_secs(1);
/// Ticks of `/proc/stat` in a second, which the kernel never changes for programs.
const TICKS: u64 = 100;
/// Microseconds in a tick.
const TICK_US: u64 = 1_000_000 / TICKS;

/// Memory that a box uses, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MemoryUse {
    /// All that counts to the limit.
    used: u64,
    /// Pages of files, with those of tmpfs.
    cached: u64,
    /// Pages of files that the kernel gives up first.
    inactive_file: u64,
    /// Pages of tmpfs and shared memory.
    shared: u64,
}

/// Processor time that a box has used, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CpuUse {
    user: u64,
    system: u64,
    /// Time since the box began.
    elapsed: u64,
}

/// Files that show the size of the box.
#[derive(Debug)]
pub(crate) struct Size {
    meminfo: OwnedFd,
    stat: OwnedFd,
    files: SizeFiles,
    started: Instant,
    renewed: Cell<Instant>,
    last_used: Cell<Instant>,
    /// Notified when a command begins or gets input.
    used: Notify,
}

impl Size {
    /// Takes the descriptors of the files.
    pub(crate) fn take(files: &SizeFiles) -> std::io::Result<Size> {
        let now = Instant::now();
        let meminfo = take(files.meminfo_fd)?;
        let stat = take(files.stat_fd)?;
        Ok(Size {
            meminfo,
            stat,
            files: files.clone(),
            started: now,
            renewed: Cell::new(now),
            last_used: Cell::new(now),
            used: Notify::new(),
        })
    }

    /// Returns the processors that the box sees.
    pub(crate) fn processors(&self) -> &[u32] {
        &self.files.processors
    }

    /// Renews the files for a command that begins or gets input, and while it runs.
    pub(crate) fn use_now(&self) {
        self.last_used.set(Instant::now());
        self.renew_if_old();
        self.used.notify_one();
    }

    /// Writes the files unless they have just been written.
    fn renew_if_old(&self) {
        if self.renewed.get().elapsed() >= AGE {
            self.renew();
        }
    }

    fn renew(&self) {
        let SizeFiles { memory_mb, processors, kernel_started, .. } = &self.files;
        self.renewed.set(Instant::now());
        let elapsed = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        // The texts always have the same length. A box without room for them keeps the old ones.
        let _ = rustix::io::pwrite(&self.meminfo, meminfo(*memory_mb, memory_use()).as_bytes(), 0);
        let _ = rustix::io::pwrite(&self.stat, stat(processors, *kernel_started, cpu_use(elapsed)).as_bytes(), 0);
    }
}

/// Returns variables that tell runtimes the limit on memory where they find no control group that does;
/// none for 0. Java has a variable as well, but answers each start with a line on stderr.
pub(crate) fn variables(soft_memory_mb: u32) -> Vec<(&'static str, String)> {
    if soft_memory_mb == 0 {
        return Vec::new();
    }
    // What lies outside of a heap needs room too.
    let heap_mb = soft_memory_mb / 4 * 3;
    vec![
        ("GOMEMLIMIT", format!("{heap_mb}MiB")),
        ("NODE_OPTIONS", format!("--max-old-space-size={heap_mb}")),
        ("DOTNET_GCHeapHardLimit", format!("{:x}", u64::from(heap_mb) << 20)),
    ]
}

/// Reads what the box's own control group counts, in either version; `None` without one.
fn memory_use() -> Option<MemoryUse> {
    let version_2 =
        ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", ["file ", "inactive_file ", "shmem "]);
    let version_1 = (
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        ["total_cache ", "total_inactive_file ", "total_shmem "],
    );
    [version_2, version_1].into_iter().find_map(|(now, detail, names)| {
        let used = std::fs::read_to_string(now).ok()?.trim().parse().ok()?;
        let detail = std::fs::read_to_string(detail).unwrap_or_default();
        let [cached, inactive_file, shared] = names.map(|name| number(&detail, name));
        Some(MemoryUse { used, cached, inactive_file, shared })
    })
}

fn cpu_use(elapsed: u64) -> Option<CpuUse> {
    if let Ok(detail) = std::fs::read_to_string("/sys/fs/cgroup/cpu.stat") {
        return Some(CpuUse { user: number(&detail, "user_usec "), system: number(&detail, "system_usec "), elapsed });
    }
    let places = ["cpuacct", "cpu,cpuacct"].map(|place| format!("/sys/fs/cgroup/{place}/cpuacct.stat"));
    let detail = places.iter().find_map(|place| std::fs::read_to_string(place).ok())?;
    let [user, system] = ["user ", "system "].map(|name| number(&detail, name).saturating_mul(TICK_US));
    Some(CpuUse { user, system, elapsed })
}

/// Returns the number of the line that begins with `name`; 0 without one.
fn number(text: &str, name: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
}

/// Returns the text of `/proc/meminfo`, whose length depends on nothing.
pub(crate) fn meminfo(memory_mb: u32, usage: Option<MemoryUse>) -> String {
    let total = u64::from(memory_mb) * 1024;
    let MemoryUse { used, cached, inactive_file, shared } = usage.unwrap_or_default();
    let [used, cached, inactive_file, shared] = [used, cached, inactive_file, shared].map(|bytes| bytes / 1024);
    let free = total.saturating_sub(used);
    let anonymous = used.saturating_sub(cached);
    let rows = [
        ("MemTotal", total),
        ("MemFree", free),
        // What can be had without another process's loss.
        ("MemAvailable", (free + cached.saturating_sub(shared)).min(total)),
        ("Buffers", 0),
        ("Cached", cached),
        ("SwapCached", 0),
        ("Active", used.saturating_sub(inactive_file)),
        ("Inactive", inactive_file),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", anonymous),
        ("Mapped", 0),
        ("Shmem", shared),
        ("Slab", 0),
        ("SReclaimable", 0),
        ("SUnreclaim", 0),
    ];
    let mut text = String::new();
    for (name, kb) in rows {
        // To a string this cannot fail.
        let _ = writeln!(text, "{:<15} {kb:>12} kB", format!("{name}:"));
    }
    text
}

/// Returns the text of `/proc/stat`, whose length depends on the processors alone.
pub(crate) fn stat(processors: &[u32], kernel_started: u64, usage: Option<CpuUse>) -> String {
    let CpuUse { user, system, elapsed } = usage.unwrap_or_default();
    let count = u64::try_from(processors.len()).unwrap_or(1).max(1);
    let [user, system, elapsed] = [user / TICK_US, system / TICK_US, elapsed / TICK_US];
    let idle = (elapsed * count).saturating_sub(user + system);
    let mut text = String::new();
    stat_row(&mut text, "cpu ", [user, system, idle]);
    for number in processors {
        // The group does not tell on which processor the time was used.
        stat_row(&mut text, &format!("cpu{number}"), [user / count, system / count, idle / count]);
    }
    let _ = write!(
        text,
        "intr 0\nctxt 0\nbtime {kernel_started}\nprocesses 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0\n"
    );
    text
}

fn stat_row(text: &mut String, name: &str, [user, system, idle]: [u64; 3]) {
    // To a string this cannot fail.
    let _ = writeln!(text, "{name} {user:>14} 0 {system:>14} {idle:>14} 0 0 0 0 0 0");
}

/// Returns the text of `/proc/cpuinfo`: `common` for each of the processors.
pub(crate) fn cpuinfo(common: &str, processors: &[u32]) -> String {
    let mut text = String::new();
    for number in processors {
        let _ = writeln!(text, "processor\t: {number}\n{}\n", common.trim_end());
    }
    text
}

/// Returns processors as the kernel lists them in `/sys`: `0,4-6`.
pub(crate) fn list(processors: &[u32]) -> String {
    let runs = processors.chunk_by(|one, next| one.checked_add(1) == Some(*next)).filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn files_keep_their_length() {
        let used = MemoryUse { used: 700 << 20, cached: 300 << 20, inactive_file: 100 << 20, shared: 50 << 20 };
        let text = meminfo(1024, Some(used));
        assert_eq!(text.len(), meminfo(16_777_216, None).len());
        for line in [
            "MemTotal:            1048576 kB",
            "MemFree:              331776 kB",
            "MemAvailable:         587776 kB",
            "Cached:               307200 kB",
            "Shmem:                 51200 kB",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} in {text}");
        }
        let used = CpuUse { user: 3_000_000, system: 1_000_000, elapsed: 10_000_000 };
        let text = stat(&[2, 3], 77, Some(used));
        assert_eq!(text.len(), stat(&[2, 3], 77, None).len());
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().take(5).collect()).collect();
        assert_eq!(rows[0], ["cpu", "300", "0", "100", "1600"]);
        assert_eq!(rows[2], ["cpu3", "150", "0", "50", "800"]);
        assert!(text.contains("\nbtime 77\n"));
    }

    #[test]
    fn runtimes_are_told_a_limit_that_no_group_holds() {
        let told = [
            ("GOMEMLIMIT", "384MiB"),
            ("NODE_OPTIONS", "--max-old-space-size=384"),
            ("DOTNET_GCHeapHardLimit", "18000000"),
        ];
        assert_eq!(variables(512), told.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(variables(0), []);
    }

    #[test]
    fn processors_are_listed_as_the_kernel_lists_them() {
        assert_eq!([list(&[0, 4, 5, 6, 9]), list(&[7]), list(&[])], ["0,4-6,9", "7", ""]);
        assert_eq!(
            cpuinfo("model name\t: x\n", &[1, 3]),
            "processor\t: 1\nmodel name\t: x\n\nprocessor\t: 3\nmodel name\t: x\n\n"
        );
    }
}
