//! Paths as the API has them and as the kernel takes them. Only the kernel resolves them.

use std::fmt;

use guest_protocol::file_text::{escaped, unescaped};
use guest_protocol::path_fault;

use crate::failure::{Result, invalid};

/// A path of the box: any bytes but NUL. It is shown as the API has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RawPath(Vec<u8>);

impl RawPath {
    /// Returns the path as the kernel takes it.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for RawPath {
    fn from(path: &[u8]) -> Self {
        Self(path.to_owned())
    }
}

impl fmt::Display for RawPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escaped(&self.0))
    }
}

/// Returns the path that the text of a request means.
///
/// # Errors
/// Invalid for a path that no box can have.
pub(super) fn check(text: &str) -> Result<RawPath> {
    path_fault(text).map_or_else(|| Ok(RawPath(unescaped(text))), |fault| Err(invalid(fault)))
}

/// Returns `path` without `.`, `..` and doubled slashes.
pub(super) fn normal(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    [b"/", parts.join(&b'/').as_slice()].concat()
}

/// Returns the last component of a normal path.
pub(super) fn name_of(normal: &[u8]) -> &[u8] {
    normal.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty()).unwrap_or(b"/")
}

/// Returns the path without slashes at its end.
pub(super) fn trimmed(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    path.get(..end).unwrap_or_default()
}

/// Returns the directory of a path, with a slash at its end, and the name in it.
///
/// # Errors
/// Invalid for a path whose last component can only be a directory.
pub(super) fn split(path: &[u8]) -> Result<(&[u8], &[u8])> {
    let whole = trimmed(path);
    let slash = whole.iter().rposition(|byte| *byte == b'/');
    let (dir, name) = whole.split_at(slash.map_or(0, |slash| slash + 1));
    match name {
        b"" => Err(invalid("/ itself cannot be removed, replaced or moved")),
        b"." | b".." => Err(invalid(format!("{}: the last part of the path must be a name", escaped(path)))),
        name => Ok((dir, name)),
    }
}

#[cfg(test)]
mod test {
    use guest_protocol::PATH_BYTES_MAX;

    use super::*;

    #[test]
    fn paths_are_normal_without_dots_and_doubled_slashes() {
        for (path, expected, name) in [
            ("/", "/", "/"),
            ("//a//b/", "/a/b", "b"),
            ("/a/./b/../c", "/a/c", "c"),
            ("/../..", "/", "/"),
            ("/a/..", "/", "/"),
        ] {
            assert_eq!(normal(path.as_bytes()), expected.as_bytes());
            assert_eq!(name_of(expected.as_bytes()), name.as_bytes());
        }
    }

    #[test]
    fn a_path_is_split_before_its_name() {
        assert_eq!(split(b"/a/b//").unwrap(), (&b"/a/"[..], &b"b"[..]));
        assert_eq!(split(b"/a").unwrap(), (&b"/"[..], &b"a"[..]));
        for path in ["/", "//", "/a/..", "/a/.", "/a/./"] {
            assert!(split(path.as_bytes()).is_err(), "{path}");
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for path in ["", "a", "./a", "/a\0b", &format!("/{}", "x".repeat(PATH_BYTES_MAX))] {
            assert!(check(path).is_err(), "{path}");
        }
    }
}
