//! Descriptions of the two trees of a synchronization, of which that of a box is not trusted.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;

use api::ManifestEntry;
use guest_protocol::file_text::escaped;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use rustix::io::Errno;

use super::steps::{OPEN_DIR, is_temporary, open_steps, split};

/// Maximum number of entries of a tree.
const ENTRIES_MAX: u64 = 1_000_000;
/// Longest line of a manifest, in bytes.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of all paths and targets of a manifest, in bytes.
const NAMES_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Longest path below the directory, in bytes.
const PATH_BYTES_MAX: usize = 4096;
/// Longest name of a file, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Characters that are encoded in the paths of a manifest, as a box encodes them.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%').add(b'"').add(b'\\');

/// Seconds since 1970, and nanoseconds.
pub type Time = (i64, u32);

/// A file, a directory or a link of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    pub mode: u32,
    pub mtime: Time,
}

/// The kinds of [`Entry`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Directory,
    File {
        size: u64,
        /// SHA-256 of the content, where it is known.
        sha256: Option<String>,
        /// First by name of the names of this file, if it has several.
        first: Option<Vec<u8>>,
    },
    Link {
        target: Vec<u8>,
    },
    /// A device, a FIFO or a socket.
    Other,
}

/// Entries by their paths below the directory; that of the directory itself is empty.
#[derive(Debug, Default)]
pub struct Tree {
    pub entries: BTreeMap<Vec<u8>, Entry>,
    /// Number of directories and files that could not be read.
    pub unreadable: u64,
    /// Files that an interrupted run has left.
    pub temporary: Vec<Vec<u8>>,
}

/// Encodes a path for a request.
pub fn encoded(path: &[u8]) -> String {
    percent_encode(path, ENCODED).to_string()
}

/// Returns a path as text for people.
pub fn shown(path: &[u8]) -> String {
    if path.is_empty() { ".".to_owned() } else { escaped(path) }
}

/// Returns a function that adds the path to an error.
pub fn at<E: Into<std::io::Error>>(path: &[u8]) -> impl Fn(E) -> std::io::Error {
    move |error| {
        let error = error.into();
        std::io::Error::new(error.kind(), format!("{}: {error}", shown(path)))
    }
}

impl Tree {
    /// Chooses the first name of each file that has several. `groups` has their names.
    fn settle<I>(&mut self, groups: HashMap<I, Vec<Vec<u8>>>) {
        for names in groups.into_values().filter(|names| names.len() > 1) {
            let least = names.iter().min().cloned();
            for name in names {
                if let Some(Entry { kind: Kind::File { first, .. }, .. }) = self.entries.get_mut(&name) {
                    first.clone_from(&least);
                }
            }
        }
    }
}

/// Lists the tree below a directory of this machine. Links are not followed.
///
/// # Errors
/// If something cannot be read: a part must not be taken for the whole.
pub fn local(root: &OwnedFd) -> std::io::Result<Tree> {
    let mut tree = Tree::default();
    let mut groups: HashMap<(u64, u64), Vec<Vec<u8>>> = HashMap::new();
    let stat = statat(root, "", AtFlags::EMPTY_PATH)?;
    tree.entries.insert(Vec::new(), entry(Kind::Directory, &stat));
    let mut pending = vec![Vec::new()];
    while let Some(dir) = pending.pop() {
        let opened = match open_steps(root, &dir) {
            // It was removed after it was listed.
            Err(Errno::NOENT) if !dir.is_empty() => {
                tree.entries.remove(&dir);
                continue;
            }
            opened => opened.map_err(at(&dir))?,
        };
        let entries = openat(&opened, ".", OPEN_DIR, Mode::empty()).and_then(Dir::new);
        for read in entries.map_err(at(&dir))? {
            let read = read.map_err(at(&dir))?;
            let name = read.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let path = join(&dir, name);
            if is_temporary(name) {
                tree.temporary.push(path);
                continue;
            }
            let stat = match statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) {
                // As above.
                Err(Errno::NOENT) => continue,
                stat => stat.map_err(at(&path))?,
            };
            let kind = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    pending.push(path.clone());
                    Kind::Directory
                }
                FileType::Symlink => {
                    let target = match readlinkat(&opened, name, Vec::new()) {
                        Err(Errno::NOENT) => continue,
                        target => target.map_err(at(&path))?,
                    };
                    Kind::Link { target: target.into_bytes() }
                }
                FileType::RegularFile => {
                    if stat.st_nlink > 1 {
                        groups.entry((stat.st_dev, stat.st_ino)).or_default().push(path.clone());
                    }
                    Kind::File { size: u64::try_from(stat.st_size).unwrap_or(0), sha256: None, first: None }
                }
                FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => Kind::Other,
            };
            tree.entries.insert(path, entry(kind, &stat));
            if tree.entries.len() as u64 > ENTRIES_MAX {
                return Err(std::io::Error::other(format!("has more than {ENTRIES_MAX} entries")));
            }
        }
    }
    tree.settle(groups);
    Ok(tree)
}

fn entry(kind: Kind, stat: &Stat) -> Entry {
    let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Entry { kind, mode: stat.st_mode & 0o7777, mtime: (stat.st_mtime, nanoseconds) }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// Reader of a box's manifest. Whatever it says, each path is one below the directory, and each lies in a
/// directory that came before it.
#[derive(Debug, Default)]
pub struct Manifest {
    tree: Tree,
    /// Bytes after the last whole line.
    rest: Vec<u8>,
    /// Names of each file that has several, by the one that came first.
    groups: HashMap<Vec<u8>, Vec<Vec<u8>>>,
    lines: u64,
    names_bytes: usize,
    has_ended: bool,
}

impl Manifest {
    /// Takes the next bytes.
    ///
    /// # Errors
    /// With the reason why the manifest is not to be believed.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.rest.extend_from_slice(bytes);
        let mut rest = std::mem::take(&mut self.rest);
        let mut begin = 0;
        while let Some(end) = rest[begin..].iter().position(|byte| *byte == b'\n') {
            self.line(&rest[begin..begin + end])?;
            begin += end + 1;
        }
        rest.drain(..begin);
        if rest.len() > LINE_BYTES_MAX {
            return Err(format!("it has a line of more than {LINE_BYTES_MAX} bytes"));
        }
        self.rest = rest;
        Ok(())
    }

    /// Returns the tree after the last byte.
    ///
    /// # Errors
    /// If entries are missing.
    pub fn end(mut self) -> Result<Tree, String> {
        if !self.has_ended || !self.rest.is_empty() {
            return Err("it is incomplete".to_owned());
        }
        let mut groups = std::mem::take(&mut self.groups);
        for (first, names) in &mut groups {
            names.push(first.clone());
        }
        self.tree.settle(groups);
        Ok(self.tree)
    }

    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        if line.is_empty() {
            return Ok(());
        }
        if line.len() > LINE_BYTES_MAX || self.has_ended {
            return Err("it has lines after its end".to_owned());
        }
        let row: ManifestEntry =
            serde_json::from_slice(line).map_err(|error| format!("a line is malformed: {error}"))?;
        if row.kind == "end" {
            self.has_ended = true;
            self.tree.unreadable = row.unreadable.unwrap_or(0);
            let is_whole = row.entries == Some(self.lines);
            return if is_whole { Ok(()) } else { Err("entries are missing".to_owned()) };
        }
        self.lines += 1;
        if self.lines > ENTRIES_MAX {
            return Err(format!("it has more than {ENTRIES_MAX} entries"));
        }
        let text = row.path.as_deref().ok_or("an entry has no path")?;
        let path: Vec<u8> = percent_decode_str(text).collect();
        self.entry(&path, row).map_err(|reason| format!("`{}` {reason}", shown(&path)))
    }

    fn entry(&mut self, path: &[u8], row: ManifestEntry) -> Result<(), String> {
        self.check(path, &row.kind)?;
        let mode = row.mode.and_then(|mode| u32::from_str_radix(&mode, 8).ok()).filter(|mode| *mode <= 0o7777);
        let mtime = row.mtime.as_deref().and_then(time).ok_or("has no time")?;
        let kind = match row.kind.as_str() {
            "directory" => Kind::Directory,
            "symlink" => {
                let target: Vec<u8> = percent_decode_str(row.target.as_deref().unwrap_or_default()).collect();
                if target.is_empty() || target.len() > PATH_BYTES_MAX || target.contains(&0) {
                    return Err("is a link without a target".to_owned());
                }
                self.names_bytes += target.len();
                Kind::Link { target }
            }
            "file" => {
                let size = row.size.filter(|size| i64::try_from(*size).is_ok()).ok_or("is a file without a size")?;
                let mut sha256 = row.sha256;
                if let Some(first) = row.same_as {
                    let first: Vec<u8> = percent_decode_str(&first).collect();
                    match self.tree.entries.get(&first) {
                        Some(Entry { kind: Kind::File { sha256: of_first, .. }, .. }) => sha256.clone_from(of_first),
                        _ => return Err("is a hard link to a file that is not listed".to_owned()),
                    }
                    self.groups.entry(first).or_default().push(path.to_vec());
                }
                Kind::File { size, sha256, first: None }
            }
            "other" => Kind::Other,
            _ => return Err("has an unknown type".to_owned()),
        };
        self.names_bytes += path.len();
        if self.names_bytes > NAMES_BYTES_MAX {
            return Err(format!("exceeds a limit: all names together have more than {NAMES_BYTES_MAX} bytes"));
        }
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if is_temporary(name) {
            return Ok(());
        }
        self.tree.entries.insert(path.to_vec(), Entry { kind, mode: mode.ok_or("has no mode")?, mtime });
        Ok(())
    }

    /// Checks that a path can only be one below the directory.
    fn check(&self, path: &[u8], kind: &str) -> Result<(), String> {
        if path.is_empty() {
            return if kind == "directory" && self.tree.entries.is_empty() {
                Ok(())
            } else {
                Err("is not the first entry, or not a directory".to_owned())
            };
        }
        if path.len() > PATH_BYTES_MAX || path.contains(&0) || !path.split(|byte| *byte == b'/').all(is_name) {
            return Err("is not a path below the directory".to_owned());
        }
        let above = path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |at| &path[..at]);
        if !matches!(self.tree.entries.get(above), Some(Entry { kind: Kind::Directory, .. })) {
            return Err("is not in any directory".to_owned());
        }
        if self.tree.entries.contains_key(path) {
            return Err("occurs twice".to_owned());
        }
        Ok(())
    }
}

fn is_name(step: &[u8]) -> bool {
    !matches!(step, b"" | b"." | b"..") && step.len() <= NAME_BYTES_MAX
}

/// Parses decimal seconds.
pub fn time(text: &str) -> Option<Time> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let seconds: i64 = seconds.parse().ok()?;
    let nanoseconds: u32 = digits.parse().ok()?;
    // The nanoseconds of the kernel always count up.
    if text.starts_with('-') && nanoseconds > 0 {
        return Some((seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds));
    }
    Some((seconds, nanoseconds))
}

/// Formats a time as decimal seconds.
pub fn time_text((seconds, nanoseconds): Time) -> String {
    if seconds < 0 && nanoseconds > 0 {
        return format!("-{}.{:09}", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanoseconds);
    }
    format!("{seconds}.{nanoseconds:09}")
}

/// Opens a file of a tree for its content, if it is still a regular one.
pub fn open_file(root: &OwnedFd, path: &[u8]) -> rustix::io::Result<(OwnedFd, Stat)> {
    let (above, name) = split(path);
    let dir = open_steps(root, above)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&dir, name, flags, Mode::empty())?;
    let stat = statat(&file, "", AtFlags::EMPTY_PATH)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(rustix::io::Errno::NOENT);
    }
    Ok((file, stat))
}

#[cfg(test)]
mod test {
    use super::*;

    const ROOT: &str = r#"{"type":"directory","path":"","mode":"0755","mtime":"1.5"}"#;

    fn read(lines: &[&str]) -> Result<Tree, String> {
        let mut manifest = Manifest::default();
        for line in lines {
            // A byte at a time.
            for byte in line.bytes().chain([b'\n']) {
                manifest.take(&[byte])?;
            }
        }
        manifest.end()
    }

    fn of(line: &str) -> Result<Tree, String> {
        let end = r#"{"type":"end","entries":2,"unreadable":0}"#;
        read(&[ROOT, line, end])
    }

    #[test]
    fn files_that_vanish_while_they_are_listed_are_left_out() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("kept"), "kept").unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let names: Vec<_> = (0..50).map(|number| folder.path().join(number.to_string())).collect();
                    for name in &names {
                        std::fs::create_dir(name).unwrap();
                        std::os::unix::fs::symlink("nowhere", name.join("link")).unwrap();
                    }
                    for name in &names {
                        std::fs::remove_file(name.join("link")).unwrap();
                        std::fs::remove_dir(name).unwrap();
                    }
                }
            });
            let root = rustix::fs::open(folder.path(), OPEN_DIR, Mode::empty()).unwrap();
            let outcomes: Vec<_> = (0..100).map(|_| local(&root)).collect();
            is_done.store(true, Ordering::Relaxed);
            for outcome in outcomes {
                assert!(outcome.unwrap().entries.contains_key(&b"kept"[..]));
            }
        });
    }

    #[test]
    fn a_manifest_that_leads_out_or_contradicts_itself_is_not_believed() {
        let file = |path: &str| format!(r#"{{"type":"file","path":"{path}","size":1,"mode":"0644","mtime":"1"}}"#);
        assert_eq!(of(&file("a%20%ff")).unwrap().entries.len(), 2);
        for bad in ["", "/etc", "..", "../x", "a/../b", "a/", "a//b", ".", "none/x", "a%00b", "%2e%2e/x", "%2Fetc"] {
            assert!(of(&file(bad)).is_err(), "{bad}");
        }
        assert!(of(&file(&"x".repeat(256))).is_err());
        for bad in [
            r#"{"type":"file","path":"a","mode":"0644","mtime":"1"}"#,
            r#"{"type":"file","path":"a","size":-1,"mode":"0644","mtime":"1"}"#,
            r#"{"type":"file","path":"a","size":1,"mode":"99","mtime":"1"}"#,
            r#"{"type":"file","path":"a","size":1,"mode":"0644","mtime":"x"}"#,
            r#"{"type":"file","path":"a","size":1,"mode":"0644","mtime":"1","same_as":"../b"}"#,
            r#"{"type":"symlink","path":"a","mode":"0777","mtime":"1"}"#,
            r#"{"type":"device","path":"a","mode":"0777","mtime":"1"}"#,
            r#"{"type":"file","size":1,"mode":"0644","mtime":"1"}"#,
            "no json",
            ROOT,
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
        let link = r#"{"type":"symlink","path":"l","target":"/etc","mode":"0777","mtime":"1"}"#;
        let end = r#"{"type":"end","entries":3,"unreadable":0}"#;
        let below = file("l/passwd");
        assert!(read(&[ROOT, link, &below, end]).unwrap_err().contains("not in any directory"));
        let twice = file("a");
        assert!(read(&[ROOT, &twice, &twice, end]).unwrap_err().contains("twice"));
    }

    #[test]
    fn a_manifest_that_breaks_off_or_never_ends_is_not_believed() {
        let end = r#"{"type":"end","entries":1,"unreadable":0}"#;
        assert!(read(&[ROOT, "", end]).is_ok(), "an empty line is a sign of life");
        assert!(read(&[ROOT]).is_err());
        assert!(read(&[ROOT, end, ROOT]).is_err());
        assert!(read(&[ROOT, r#"{"type":"end","entries":7}"#]).is_err());
        let mut manifest = Manifest::default();
        let endless = (0..10).find_map(|_| manifest.take(&[b'x'; 10_000]).err());
        assert!(endless.unwrap().contains("a line of more than"));
    }

    #[test]
    fn names_of_one_file_are_known_by_the_first_of_them() {
        let file = |path: &str, more: &str| {
            format!(r#"{{"type":"file","path":"{path}","size":1,"mode":"0644","mtime":"1"{more}}}"#)
        };
        let (z, a) = (file("z", r#","sha256":"77""#), file("a", r#","same_as":"z""#));
        let tree = read(&[ROOT, &z, &a, r#"{"type":"end","entries":3,"unreadable":1}"#]).unwrap();
        for path in [&b"a"[..], b"z"] {
            let expected = Kind::File { size: 1, sha256: Some("77".to_owned()), first: Some(b"a".to_vec()) };
            assert_eq!(tree.entries[path].kind, expected);
        }
        assert_eq!(tree.unreadable, 1);
    }

    #[test]
    fn times_are_the_same_after_they_were_text() {
        for when in [(0, 0), (12, 1), (1_700_000_000, 999_999_999), (-1, 500_000_000), (-5, 0)] {
            assert_eq!(time(&time_text(when)), Some(when));
        }
        assert!(time("").is_none() && time("1.").is_none() && time("1.+5").is_none() && time("x").is_none());
    }
}
