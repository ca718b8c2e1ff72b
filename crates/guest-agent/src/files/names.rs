//! Texts of paths and times, as manifests have them.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use rustix::fs::Stat;

/// Characters that are encoded beside all that is not ASCII: those that a line of JSON would escape, and
/// the percent sign itself.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%').add(b'"').add(b'\\');

/// Encodes a path, which need not be UTF-8.
pub(super) fn encoded(path: &[u8]) -> String {
    percent_encode(path, ENCODED).to_string()
}

/// Decodes a path. A percent sign without two digits is itself.
pub(super) fn decoded(path: &str) -> Vec<u8> {
    percent_decode_str(path).collect()
}

/// Returns the time of a file's last change as decimal seconds.
pub(super) fn time(stat: &Stat) -> String {
    let seconds = stat.st_mtime;
    let nanoseconds = stat.st_mtime_nsec;
    if seconds < 0 && nanoseconds > 0 {
        // The kernel's nanoseconds count up, those of a negative number down.
        return format!("-{}.{:09}", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanoseconds);
    }
    format!("{seconds}.{nanoseconds:09}")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_path_of_any_bytes_is_the_same_after_its_encoding() {
        for path in [&b"a/b c"[..], b"100%", b"%41", b"\xff\n\"\\\x1b", "\u{e9}".as_bytes(), b""] {
            let text = encoded(path);
            assert!(text.is_ascii() && !text.contains(['"', '\\', '\n']), "{text}");
            assert_eq!(decoded(&text), path);
        }
    }
}
