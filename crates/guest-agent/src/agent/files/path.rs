//! Paths of requests.

use guest_protocol::PATH_BYTES_MAX;

use crate::agent::failure::{Result, invalid};

/// The path as the box's kernel gets it: checked, and without `.`, `..` and `//`.
///
/// `..` takes back the part of the text before it, as browsers and `cd` do it,
/// also where that part is a link. Wherever it leads, it is inside the box.
pub(crate) fn checked(path: &str) -> Result<String> {
    if path.is_empty() {
        return Err(invalid("the path is empty"));
    }
    if !path.starts_with('/') {
        return Err(invalid(format!("the path `{path}` is not absolute; it must start with `/`")));
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(invalid(format!("the path is longer than {PATH_BYTES_MAX} bytes")));
    }
    if path.contains('\0') {
        return Err(invalid("the path holds a NUL"));
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Ok(format!("/{}", parts.join("/")))
}

#[cfg(test)]
mod test {
    use super::checked;

    #[test]
    fn paths_come_out_plain() {
        for (path, plain) in [
            ("/", "/"),
            ("//a/./b//", "/a/b"),
            ("/a/../b", "/b"),
            ("/../../etc", "/etc"),
            ("/..", "/"),
            ("/a/..b/...", "/a/..b/..."),
        ] {
            assert_eq!(checked(path).unwrap(), plain, "{path}");
        }
    }

    #[test]
    fn what_is_no_absolute_path_is_told() {
        for (path, words) in [("", "empty"), ("a", "absolute"), ("./a", "absolute"), ("/a\0b", "NUL")] {
            assert!(checked(path).unwrap_err().message.contains(words), "{path}");
        }
        assert!(checked(&format!("/{}", "x".repeat(4096))).is_err());
        assert!(checked(&format!("/{}", "x".repeat(4095))).is_ok());
    }
}
