//! Paths as text. Only the kernel resolves them.

use guest_protocol::path_fault;

use crate::failure::{Result, invalid};

/// Refuses a path that no box can have.
pub(super) fn check(path: &str) -> Result<&str> {
    path_fault(path).map_or(Ok(path), |fault| Err(invalid(fault)))
}

/// Returns `path` without `.`, `..` and doubled slashes.
pub(super) fn normal(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Returns the last component of a normal path.
pub(super) fn name_of(normal: &str) -> &str {
    normal.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("/")
}

/// Returns the directory of a path, with a slash at its end, and the name in it.
///
/// # Errors
/// Invalid for a path whose last component can only be a directory.
pub(super) fn split(path: &str) -> Result<(&str, &str)> {
    let trimmed = path.trim_end_matches('/');
    let (dir, name) = trimmed.split_at(trimmed.rfind('/').map_or(0, |slash| slash + 1));
    match name {
        "" => Err(invalid("/ itself cannot be removed, replaced or moved")),
        "." | ".." => Err(invalid(format!("{path}: the last part of the path must be a name"))),
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
            assert_eq!(normal(path), expected);
            assert_eq!(name_of(expected), name);
        }
    }

    #[test]
    fn a_path_is_split_before_its_name() {
        assert_eq!(split("/a/b//").unwrap(), ("/a/", "b"));
        assert_eq!(split("/a").unwrap(), ("/", "a"));
        for path in ["/", "//", "/a/..", "/a/.", "/a/./"] {
            assert!(split(path).is_err(), "{path}");
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for path in ["", "a", "./a", "/a\0b", &format!("/{}", "x".repeat(PATH_BYTES_MAX))] {
            assert!(check(path).is_err(), "{path}");
        }
    }
}
