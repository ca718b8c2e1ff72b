//! Resource use of this process, from the kernel and the allocator.

use std::time::Duration;

use domain::Timestamp;
use rustix::process::{Resource, getrlimit};

/// Version of this release of Tidebox.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Memory held by the allocator, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// In use by the program.
    pub allocated: u64,
    /// Heap in memory, in use or free.
    pub active: u64,
    /// In memory, with what is free and not given back yet.
    pub resident: u64,
}

/// Resource use as the kernel reports it; `None` for what it does not report.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    pub resident_bytes: Option<u64>,
    /// Bytes of address space.
    pub virtual_bytes: Option<u64>,
    /// Time on a processor, its own and the kernel's for it.
    pub cpu: Option<Duration>,
    pub open_fds: Option<u64>,
    /// The most descriptors that may be open; `None` for no limit.
    pub max_fds: Option<u64>,
    pub threads: Option<u64>,
}

/// Start of this process, and its allocator.
#[derive(Debug)]
pub struct Process {
    /// Time at which it began to serve.
    pub started_at: Timestamp,
    memory: fn() -> Memory,
    log_lines_lost: fn() -> u64,
}

impl Process {
    /// Takes the time at which the process began, and the functions that ask its allocator and its log.
    #[must_use]
    pub fn start(started_at: Timestamp, memory: fn() -> Memory, log_lines_lost: fn() -> u64) -> Self {
        Self { started_at, memory, log_lines_lost }
    }

    /// Returns the number of lines that the log has left out since the start.
    #[must_use]
    pub fn log_lines_lost(&self) -> u64 {
        (self.log_lines_lost)()
    }

    /// Returns what the allocator holds now.
    #[must_use]
    pub fn memory(&self) -> Memory {
        (self.memory)()
    }

    /// Returns what the kernel reports now. Reads a few small files of `/proc`, which takes
    /// microseconds.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let stat = std::fs::read_to_string("/proc/self/stat").ok();
        let mut usage = stat.as_deref().and_then(parse).unwrap_or_default();
        usage.open_fds = std::fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count() as u64);
        usage.max_fds = getrlimit(Resource::Nofile).current;
        usage
    }
}

/// Parses `/proc/<pid>/stat`, described at
/// <https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html>.
fn parse(stat: &str) -> Option<Usage> {
    // The name before it may hold spaces and brackets; the third field is the first after it.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let ticks = field(&fields, 14)? + field(&fields, 15)?;
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    let cpu = Duration::from_millis(ticks.saturating_mul(1000) / ticks_per_second);
    Some(Usage {
        resident_bytes: field(&fields, 24).map(|pages| pages.saturating_mul(rustix::param::page_size() as u64)),
        virtual_bytes: field(&fields, 23),
        cpu: Some(cpu),
        threads: field(&fields, 20),
        ..Usage::default()
    })
}

/// Returns the field that the manual page counts as `number`; `fields` begin with the third.
fn field(fields: &[&str], number: usize) -> Option<u64> {
    fields.get(number - 3).and_then(|text| text.parse().ok())
}

/// Go's name of this operating system.
pub const GOOS: &str = "linux";

/// Returns Go's name of this architecture: <https://go.dev/doc/install/source#environment>.
#[must_use]
pub fn goarch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_mislead() {
        let stat =
            "7 (a) b) (c) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 9 0 100 4096000 25 18446744073709551615 1";
        let usage = parse(stat).unwrap();
        assert_eq!((usage.virtual_bytes, usage.threads), (Some(4_096_000), Some(9)));
        assert_eq!(usage.resident_bytes, Some(25 * rustix::param::page_size() as u64));
        let second = Duration::from_secs(1) / rustix::param::clock_ticks_per_second() as u32;
        assert_eq!(usage.cpu.unwrap(), second * 200);
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn this_process_is_seen_as_it_is() {
        let process = Process::start(Timestamp::UNIX_EPOCH, Memory::default, || 0);
        let before = process.usage();
        let _file = std::fs::File::open("/proc/self/stat").unwrap();
        assert!(before.resident_bytes.unwrap() > 1 << 20 && before.threads.unwrap() >= 1, "{before:?}");
        assert!(before.open_fds.unwrap() >= 3 && before.open_fds < before.max_fds.or(Some(u64::MAX)), "{before:?}");
    }
}
