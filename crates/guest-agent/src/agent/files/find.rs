//! Looking for files: directories and patterns.

use std::collections::BTreeSet;

use guest_protocol::{FileInfo, GLOB_RESULTS_MAX, Glob, PathOnly};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;

use super::{ENTRIES_PER_TURN, checked, described, info};
use crate::agent::failure::{Result, invalid, refused};

/// Entries of one directory that are listed: their description takes some 200
/// bytes each.
const LIST_MAX: usize = 200_000;
/// Entries that one search looks at.
const VISITED_MAX: usize = 1_000_000;
/// File systems of the kernel: endless, and nobody means them with `/**`.
const KERNEL_DIRS: [&str; 3] = ["/proc", "/sys", "/dev"];

/// The entries of a directory, by name.
pub(crate) async fn list(request: &PathOnly) -> Result<Vec<FileInfo>> {
    let path = checked(&request.path)?;
    let mut found = Vec::new();
    let mut entries = read_dir(&path)?;
    while let Some(entry) = entries.read() {
        let entry = entry.map_err(|errno| refused(&path, errno))?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let dir = entries.fd().map_err(|errno| refused(&path, errno))?;
        // Gone meanwhile, most likely.
        let Ok(stat) = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        found.push(described(&below(&path, &name.to_string_lossy()), &stat));
        if found.len() > LIST_MAX {
            return Err(invalid(format!("{path} has more than {LIST_MAX} entries; look for some of them with glob")));
        }
        if found.len().is_multiple_of(ENTRIES_PER_TURN) {
            tokio::task::yield_now().await;
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn read_dir(path: &str) -> Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match openat(CWD, path, flags, Mode::empty()).and_then(Dir::new) {
        Err(Errno::NOTDIR) => Err(invalid(format!("{path} is not a directory"))),
        dir => dir.map_err(|errno| refused(path, errno)),
    }
}

fn below(dir: &str, name: &str) -> String {
    if dir == "/" { format!("/{name}") } else { format!("{dir}/{name}") }
}

/// The paths that match a pattern, sorted.
pub(crate) async fn glob(request: &Glob) -> Result<Vec<String>> {
    let pattern = &request.pattern;
    let base = base(pattern)?;
    let mut found = BTreeSet::new();
    let mut add = |path: String| {
        found.insert(path);
        if found.len() > GLOB_RESULTS_MAX {
            return Err(invalid(format!("the pattern has more than {GLOB_RESULTS_MAX} results; make it narrower")));
        }
        Ok(())
    };
    if fast_glob::glob_match(pattern, &base) && info(&base).is_ok() {
        add(base.clone())?;
    }
    let depth_max =
        if pattern.contains("**") || pattern.contains('{') { usize::MAX } else { pattern.matches('/').count() };
    let (mut waiting, mut visited) = (vec![base], 0usize);
    while let Some(dir) = waiting.pop() {
        // One that cannot be looked into has nothing for us.
        let Ok(mut entries) = read_dir(&dir) else { continue };
        while let Some(entry) = entries.read() {
            let Ok(entry) = entry else { break };
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") {
                continue;
            }
            visited += 1;
            if visited > VISITED_MAX {
                return Err(invalid(format!(
                    "the pattern makes us look at more than {VISITED_MAX} files; start it with a longer path"
                )));
            }
            if visited.is_multiple_of(ENTRIES_PER_TURN) {
                tokio::task::yield_now().await;
            }
            let path = below(&dir, name);
            let is_deeper = path.matches('/').count() < depth_max && !KERNEL_DIRS.contains(&path.as_str());
            if is_deeper && is_dir(&entries, &entry) {
                waiting.push(path.clone());
            }
            if fast_glob::glob_match(pattern, &path) {
                add(path)?;
            }
        }
    }
    Ok(found.into_iter().collect())
}

fn is_dir(entries: &Dir, entry: &rustix::fs::DirEntry) -> bool {
    let kind = entry.file_type();
    if kind != FileType::Unknown {
        return kind == FileType::Directory;
    }
    entries
        .fd()
        .and_then(|dir| statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW))
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// The directory below which every match lies: the parts before the first with
/// a sign that means something.
fn base(pattern: &str) -> Result<String> {
    if !pattern.starts_with('/') {
        return Err(invalid(format!("the pattern `{pattern}` is not absolute; it must start with `/`")));
    }
    let literal = match pattern.find(['*', '?', '[', '{', '\\', '!']) {
        Some(sign) => &pattern[..pattern[..sign].rfind('/').unwrap_or(0)],
        None => pattern,
    };
    checked(if literal.is_empty() { "/" } else { literal })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_search_begins_as_deep_as_it_can() {
        for (pattern, expected) in
            [("/a/b/*.py", "/a/b"), ("/*", "/"), ("/a/b", "/a/b"), ("/a/{b,c}/d", "/a"), ("/a?/b", "/")]
        {
            assert_eq!(base(pattern).unwrap(), expected, "{pattern}");
        }
        assert!(base("*.py").is_err());
        assert!(base("").is_err());
    }

    #[test]
    fn patterns_mean_what_shells_mean() {
        for (pattern, path, expected) in [
            ("/a/*.py", "/a/b.py", true),
            ("/a/*.py", "/a/b/c.py", false),
            ("/a/**/*.py", "/a/b/c.py", true),
            ("/a/**/*.py", "/a/c.py", true),
            ("/a/?", "/a/b", true),
            ("/a/[b-d]", "/a/c", true),
            ("/a/[!b-d]", "/a/c", false),
            ("/a/{x,y}/z", "/a/y/z", true),
        ] {
            assert_eq!(fast_glob::glob_match(pattern, path), expected, "{pattern} {path}");
        }
    }
}
