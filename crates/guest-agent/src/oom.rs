//! Count of kills by the memory limit.

use std::os::fd::OwnedFd;

/// Size of the buffer: `/proc/vmstat` of a machine has some 4 KiB, the files of control groups far less.
const FILE_BYTES_MAX: usize = 16 * 1024;

/// Returns the number of kills by the memory limit in the box; 0 without a file that counts them.
pub(crate) fn kills(events: Option<&OwnedFd>) -> u64 {
    let mut buffer = [0; FILE_BYTES_MAX];
    let read = events.and_then(|fd| rustix::io::pread(fd, &mut buffer[..], 0).ok());
    read.and_then(|len| buffer.get(..len)).map_or(0, parse)
}

/// Parses the line `oom_kill <count>`, which both versions of control groups and the whole kernel have.
fn parse(text: &[u8]) -> u64 {
    let lines = text.split(|byte| *byte == b'\n');
    let count = lines.filter_map(|line| line.strip_prefix(b"oom_kill ")).next();
    count.and_then(|digits| std::str::from_utf8(digits).ok()?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod test {
    use super::parse;

    #[test]
    fn both_versions_of_control_groups_are_read() {
        assert_eq!(parse(b"oom_kill_disable 0\nunder_oom 1\noom_kill 7\n"), 7);
        assert_eq!(parse(b"low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"), 2);
        assert_eq!(parse(b""), 0);
        assert_eq!(parse(b"oom_kill x"), 0);
    }
}
