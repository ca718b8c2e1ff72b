//! Checks on data sent to an agent and received from it.

use std::time::Duration;

use domain::Timestamp;
use guest_protocol::{Account, Failure, FailureKind, OWNER_BYTES_MAX, PATH_BYTES_MAX, path_fault};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::guest::MODE_MAX;
use crate::{Error, FileInfo, Result};

/// Characters that are encoded when JSON goes into a header: all but printable ASCII (the encoder
/// always encodes non-ASCII bytes), and the sign of the encoding itself.
const HEADER_SET: &AsciiSet = &CONTROLS.add(b'%');
/// The longest text of an agent that is passed on to a caller, in characters.
const MESSAGE_CHARS_MAX: usize = 1024;

/// Refuses text that is no path in any box, before the box is asked.
pub(crate) fn check_path(path: &str) -> Result<()> {
    path_fault(path).map_or(Ok(()), |fault| Err(Error::Invalid(fault)))
}

/// Refuses numbers that are no permission bits.
pub(crate) fn check_mode(mode: u32) -> Result<()> {
    if mode <= MODE_MAX { Ok(()) } else { Err(Error::Invalid("the mode must be at most 7777 (octal)".to_owned())) }
}

/// Converts an agent's description of a file, or fails if no such file can exist.
pub(super) fn file_info(action: &'static str, info: guest_protocol::FileInfo) -> Result<FileInfo> {
    // The box's code may set any modification time, so one out of range is no fault of the agent.
    let modified = Timestamp::from_millisecond(info.modified_ms).unwrap_or(if info.modified_ms < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    });
    let info = FileInfo {
        name: info.name,
        path: info.path,
        size: info.size,
        is_dir: info.is_dir,
        is_symlink: info.is_symlink,
        target: info.target,
        modified,
        mode: info.mode,
        owner: Some(info.owner).filter(|owner| is_owner(owner)),
        group: Some(info.group).filter(|group| is_owner(group)),
    };
    if info.can_be() { Ok(info) } else { Err(Error::failed(action, "the agent described an invalid file")) }
}

/// Returns whether a text can be the name or the number of an owner.
fn is_owner(text: &str) -> bool {
    (1..=OWNER_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control)
}

/// Checks an agent's description of an account.
pub(super) fn account(action: &'static str, account: Account) -> Result<Account> {
    let is_named = !account.name.is_empty() && account.name.len() <= PATH_BYTES_MAX;
    let is_plain = !account.name.contains(char::is_control) && path_fault(&account.home).is_none();
    if is_named && is_plain {
        return Ok(account);
    }
    Err(Error::Invalid(format!("the sandbox cannot {action}: its /etc/passwd has no usable name or home for it")))
}

/// Encodes `value` as JSON for a header.
pub(super) fn to_header(value: &impl Serialize) -> Option<http::HeaderValue> {
    let json = serde_json::to_string(value).ok()?;
    let encoded = utf8_percent_encode(&json, HEADER_SET).to_string();
    http::HeaderValue::try_from(encoded).ok()
}

/// Decodes a value that [`to_header`] encoded.
pub(super) fn from_header<T: DeserializeOwned>(value: &http::HeaderValue) -> Option<T> {
    let json = percent_decode_str(value.to_str().ok()?).decode_utf8().ok()?;
    serde_json::from_str(&json).ok()
}

/// Converts a failure in the box to the caller's error.
pub(super) fn failure(action: &'static str, failure: Failure) -> Error {
    let message = printable(&failure.message);
    match failure.kind {
        FailureKind::Invalid => Error::Invalid(message),
        FailureKind::NotFound => Error::NotFound(message),
        FailureKind::NoSpace => Error::NoSpace,
        FailureKind::Exhausted => Error::Exhausted(message),
        FailureKind::Conflict => Error::Conflict(message),
        FailureKind::NotSupported => Error::NotSupported(message),
        FailureKind::Internal => Error::failed(action, message),
    }
}

/// Shortens a text of an agent and replaces its control characters, which a terminal would
/// interpret.
pub(super) fn printable(text: &str) -> String {
    text.chars().take(MESSAGE_CHARS_MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns whole milliseconds, at most `u64::MAX`.
pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod test {
    use super::*;

    fn info(path: &str, name: &str, mode: u32, modified_ms: i64) -> guest_protocol::FileInfo {
        guest_protocol::FileInfo {
            name: name.to_owned(),
            path: path.to_owned(),
            size: 1,
            is_dir: false,
            is_symlink: false,
            target: None,
            modified_ms,
            mode,
            owner: "root".to_owned(),
            group: String::new(),
        }
    }

    #[test]
    fn what_can_be_no_path_is_refused() {
        let long = format!("/{}", "a".repeat(PATH_BYTES_MAX));
        for path in ["", "a", "./a", "/a\0b", &long] {
            assert!(matches!(check_path(path), Err(Error::Invalid(_))), "{path:?}");
        }
        assert!(check_path(&long[..PATH_BYTES_MAX]).is_ok());
    }

    #[test]
    fn any_path_survives_a_header() {
        for path in ["/a b", "/100%", "/%41", "/ünï\u{1}\n\r\t\"\\", "/\u{7f}"] {
            let header = to_header(&path).unwrap();
            assert!(header.as_bytes().iter().all(|b| (b' '..=b'~').contains(b)), "{header:?}");
            assert_eq!(from_header::<String>(&header).as_deref(), Some(path));
        }
        assert_eq!(from_header::<String>(&http::HeaderValue::from_static("%ff")), None);
    }

    #[test]
    fn a_file_that_cannot_be_is_refused() {
        for bad in [
            info("/a", "a", 0o10000, 0),
            info("a", "a", 0, 0),
            info("/a", "", 0, 0),
            info("/a", "../a", 0, 0),
            info("/a\0", "a", 0, 0),
            info("/a", "/", 0, 0),
        ] {
            assert!(file_info("look", bad.clone()).is_err(), "{bad:?}");
        }
        assert!(file_info("look", info("/", "/", 0o755, 0)).is_ok());
    }

    #[test]
    fn a_time_out_of_range_is_lowered() {
        assert_eq!(file_info("look", info("/a", "a", 0, i64::MAX)).unwrap().modified, Timestamp::MAX);
        assert_eq!(file_info("look", info("/a", "a", 0, i64::MIN)).unwrap().modified, Timestamp::MIN);
    }
}
