//! Log of a build, of which clients ask for what is new.

use domain::Timestamp;

/// Most bytes of a log, with what each entry takes besides its text.
const BYTES_MAX: usize = 256 * 1024;
/// Bytes that an entry takes besides its text.
const ENTRY_BYTES: usize = 64;
/// Most bytes that remain for entries of the build itself when its commands have filled the log.
const RESERVED_BYTES: usize = 32 * 1024;
/// Longest text of an entry, in bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// Importance of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Output of a command.
    Debug,
    /// Progress of the build.
    Info,
    /// Failure of the build.
    Error,
}

/// Entry of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    pub at: Timestamp,
    pub level: LogLevel,
    pub message: String,
}

/// Log of a build, with a bound. What a client has read keeps its position, so the end is left out and not the begin.
#[derive(Debug, Default)]
pub(super) struct BuildLog {
    entries: Vec<LogEntry>,
    bytes: usize,
    is_cut: bool,
}

impl BuildLog {
    /// Adds an entry, if there is room for it.
    pub(super) fn add(&mut self, at: Timestamp, level: LogLevel, message: &str) {
        let max = if level == LogLevel::Debug { BYTES_MAX - RESERVED_BYTES } else { BYTES_MAX };
        let message = &message[..message.floor_char_boundary(TEXT_BYTES_MAX)];
        let bytes = self.bytes + ENTRY_BYTES + message.len();
        if bytes <= max {
            self.bytes = bytes;
            self.entries.push(LogEntry { at, level, message: message.to_owned() });
        } else if !self.is_cut {
            self.is_cut = true;
            let message = "further output is left out".to_owned();
            self.entries.push(LogEntry { at, level: LogLevel::Info, message });
        }
    }

    /// Returns entries from a position on, at most `limit`.
    pub(super) fn from(&self, position: usize, limit: usize) -> Vec<LogEntry> {
        self.entries.iter().skip(position).take(limit).cloned().collect()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_log_is_read_in_parts_and_ends_with_nothing() {
        let mut log = BuildLog::default();
        for n in 0..5 {
            log.add(Timestamp::UNIX_EPOCH, LogLevel::Info, &n.to_string());
        }
        let texts = |from, limit| log.from(from, limit).into_iter().map(|entry| entry.message).collect::<String>();
        assert_eq!(
            (texts(0, 2), texts(2, 100), texts(5, 100), texts(99, 100)),
            ("01".into(), "234".into(), "".into(), "".into())
        );
    }

    #[test]
    fn output_is_bounded_and_leaves_room_for_what_the_build_says() {
        let mut log = BuildLog::default();
        let line = "\u{e4}".repeat(TEXT_BYTES_MAX);
        for _ in 0..1000 {
            log.add(Timestamp::UNIX_EPOCH, LogLevel::Debug, &line);
        }
        log.add(Timestamp::UNIX_EPOCH, LogLevel::Error, "it failed");
        let entries = log.from(0, usize::MAX);
        let bytes: usize = entries.iter().map(|entry| entry.message.len() + ENTRY_BYTES).sum();
        assert!(bytes <= BYTES_MAX, "{bytes}");
        let last: Vec<_> = entries.iter().rev().take(2).map(|entry| entry.message.as_str()).collect();
        assert_eq!(last, ["it failed", "further output is left out"]);
        assert_eq!(entries[0].message.len(), TEXT_BYTES_MAX);
    }
}
