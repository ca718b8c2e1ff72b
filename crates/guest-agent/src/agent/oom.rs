//! How often the memory limit has killed in this box.

use std::cell::Cell;
use std::os::fd::OwnedFd;

/// The two formats (`memory.oom_control` of cgroup v1, `memory.events` of v2)
/// are a few short lines.
const FILE_BYTES_MAX: usize = 1024;

/// Counts kills by the control group and by our own watchdog.
pub(crate) struct OomCounter {
    events: Option<OwnedFd>,
    own: Cell<u64>,
}

impl OomCounter {
    pub(crate) fn new(events: Option<OwnedFd>) -> Self {
        Self { events, own: Cell::new(0) }
    }

    /// Our watchdog has killed.
    pub(crate) fn add_own(&self) {
        self.own.set(self.own.get() + 1);
    }

    /// All kills so far.
    pub(crate) fn count(&self) -> u64 {
        self.own.get() + self.events.as_ref().and_then(read).unwrap_or(0)
    }
}

fn read(file: &OwnedFd) -> Option<u64> {
    let mut text = [0u8; FILE_BYTES_MAX];
    let n = rustix::io::pread(file, &mut text, 0).ok()?;
    parse(std::str::from_utf8(&text[..n]).ok()?)
}

fn parse(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod test {
    use super::parse;

    #[test]
    fn both_formats_of_the_kernel_are_read() {
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), Some(3));
        assert_eq!(parse("low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(parse(""), None);
    }
}
