//! A file system in memory, bounded in size.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use domain::Timestamp;
use guest_protocol::{GLOB_RESULTS_MAX, PATH_BYTES_MAX};

use crate::agent::check_path;
use crate::{Error, FileInfo, Result};

/// Clock for the modification times of files in a box.
pub type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The longest name of a file, in bytes, as the kernel has it.
const NAME_BYTES_MAX: usize = 255;
/// The most links followed for one path, as the kernel has it.
const LINKS_MAX: usize = 40;
/// Bytes that a file uses besides its content, including its name, so that empty files are
/// limited too.
const NODE_BYTES: u64 = 256;

#[derive(Debug, Clone)]
enum Kind {
    Directory(BTreeMap<String, Node>),
    File(BytesMut),
    Link(String),
    Null,
}

#[derive(Debug, Clone)]
struct Node {
    kind: Kind,
    mode: u32,
    modified: Timestamp,
}

impl Node {
    fn entries(&self) -> Option<&BTreeMap<String, Node>> {
        match &self.kind {
            Kind::Directory(entries) => Some(entries),
            Kind::File(_) | Kind::Link(_) | Kind::Null => None,
        }
    }

    fn entries_mut(&mut self) -> Option<&mut BTreeMap<String, Node>> {
        match &mut self.kind {
            Kind::Directory(entries) => Some(entries),
            Kind::File(_) | Kind::Link(_) | Kind::Null => None,
        }
    }

    fn is_dir(&self) -> bool {
        self.entries().is_some()
    }

    fn size(&self) -> u64 {
        match &self.kind {
            Kind::Directory(_) | Kind::Null => 0,
            Kind::File(content) => content.len() as u64,
            Kind::Link(target) => target.len() as u64,
        }
    }

    /// Returns the size of the node with everything below it.
    fn footprint(&self) -> u64 {
        let below: u64 = self.entries().map_or(0, |entries| entries.values().map(Node::footprint).sum());
        NODE_BYTES + self.size() + below
    }
}

/// A path without links, `.` and `..`: the names from the root down.
type Names = Vec<String>;

pub(super) struct FileSystem {
    root: Node,
    used: u64,
    bytes_max: u64,
    now: Now,
}

fn invalid<T>(path: &str, what: &str) -> Result<T> {
    Err(Error::Invalid(format!("{path}: {what}")))
}

fn absent(path: &str) -> Error {
    Error::NotFound(format!("{path}: no such file or directory"))
}

fn join(names: &[String]) -> String {
    format!("/{}", names.join("/"))
}

impl FileSystem {
    /// Makes the initial file system of a box.
    pub(super) fn new(bytes_max: u64, now: Now) -> Result<FileSystem> {
        let root = Node { kind: Kind::Directory(BTreeMap::new()), mode: 0o755, modified: now() };
        let mut fs = FileSystem { root, used: 0, bytes_max, now };
        for path in ["/bin", "/dev", "/etc", "/home/user", "/root", "/tmp", "/usr/bin", "/var", "/workspace"] {
            fs.make_dirs(path)?;
        }
        fs.chmod("/tmp", 0o1777)?;
        fs.chmod("/root", 0o700)?;
        fs.write("/etc/passwd", Some(0o644), b"root:x:0:0:root:/root:/bin/sh\n")?;
        fs.write("/bin/sh", Some(0o755), b"")?;
        fs.put("/dev/null", Kind::Null, 0o666)?;
        Ok(fs)
    }

    /// Returns a copy that takes up to `bytes_max`.
    pub(super) fn copy(&self, bytes_max: u64) -> Result<FileSystem> {
        if self.used > bytes_max {
            return Err(Error::NoSpace);
        }
        Ok(FileSystem { root: self.root.clone(), used: self.used, bytes_max, now: Arc::clone(&self.now) })
    }

    /// Returns the number of bytes that its files take.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    fn get(&self, names: &[String]) -> Option<&Node> {
        names.iter().try_fold(&self.root, |node, name| node.entries()?.get(name))
    }

    fn get_mut(&mut self, names: &[String]) -> Option<&mut Node> {
        names.iter().try_fold(&mut self.root, |node, name| node.entries_mut()?.get_mut(name))
    }

    /// Follows the links of `path`, and the last one too if `follow`. The path need not exist.
    fn resolve(&self, path: &str, follow: bool) -> Result<Names> {
        check_path(path)?;
        let split = |path: &str| path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        let mut todo = VecDeque::from(split(path));
        let mut names = Names::new();
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            match name.as_str() {
                "." => continue,
                ".." => {
                    names.pop();
                    continue;
                }
                _ if name.len() > NAME_BYTES_MAX => return invalid(path, "a name in it is longer than 255 bytes"),
                _ => {}
            }
            if self.get(&names).is_some_and(|node| !node.is_dir()) {
                return invalid(path, "not a directory");
            }
            names.push(name);
            let Some(Node { kind: Kind::Link(target), .. }) = self.get(&names) else { continue };
            if todo.is_empty() && !follow {
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return invalid(path, "too many levels of symbolic links");
            }
            names.pop();
            if target.starts_with('/') {
                names.clear();
            }
            for name in split(target).into_iter().rev() {
                todo.push_front(name);
            }
        }
        if names.iter().map(|name| name.len() + 1).sum::<usize>() > PATH_BYTES_MAX {
            return invalid(path, "the path is longer than 4096 bytes");
        }
        Ok(names)
    }

    fn existing(&self, path: &str, follow: bool) -> Result<(Names, &Node)> {
        let names = self.resolve(path, follow)?;
        match self.get(&names) {
            Some(node) => Ok((names.clone(), node)),
            None => Err(absent(path)),
        }
    }

    fn reserve(&mut self, more: u64) -> Result<()> {
        let used = self.used.saturating_add(more);
        if used > self.bytes_max {
            return Err(Error::NoSpace);
        }
        self.used = used;
        Ok(())
    }

    /// Makes the missing directories of `names`.
    fn make_parents(&mut self, path: &str, names: &[String]) -> Result<()> {
        let now = (self.now)();
        for end in 1..=names.len() {
            match self.get(&names[..end]) {
                Some(node) if node.is_dir() => {}
                Some(_) => return invalid(path, "not a directory"),
                None => {
                    self.reserve(NODE_BYTES)?;
                    let made = Node { kind: Kind::Directory(BTreeMap::new()), mode: 0o755, modified: now };
                    self.attach(path, &names[..end], made)?;
                }
            }
        }
        Ok(())
    }

    /// Puts a node into an existing directory, replacing an entry of the same name.
    fn attach(&mut self, path: &str, names: &[String], node: Node) -> Result<()> {
        let now = (self.now)();
        let Some((name, parent)) = names.split_last() else { return invalid(path, "is a directory") };
        let parent = self.get_mut(parent).ok_or_else(|| absent(path))?;
        parent.modified = now;
        let Some(entries) = parent.entries_mut() else { return invalid(path, "not a directory") };
        if let Some(old) = entries.insert(name.clone(), node) {
            self.used = self.used.saturating_sub(old.footprint());
        }
        Ok(())
    }

    fn put(&mut self, path: &str, kind: Kind, mode: u32) -> Result<()> {
        let names = self.resolve(path, false)?;
        let Some((_, parent)) = names.split_last() else { return invalid(path, "is a directory") };
        let node = Node { kind, mode, modified: (self.now)() };
        self.make_parents(path, parent)?;
        self.reserve(node.footprint())?;
        self.attach(path, &names, node)
    }

    /// Makes the directories of a path, like `mkdir -p`.
    pub(super) fn make_dirs(&mut self, path: &str) -> Result<()> {
        let names = self.resolve(path, true)?;
        self.make_parents(path, &names)
    }

    /// Makes a directory that is not there, and its parents.
    pub(super) fn make_dir(&mut self, path: &str) -> Result<()> {
        match self.existing(path, true) {
            Ok((_, node)) if node.is_dir() => Err(Error::Conflict(format!("{path}: the directory exists already"))),
            Ok(_) => invalid(path, "is not a directory"),
            Err(_) => self.make_dirs(path),
        }
    }

    /// Describes what a path leads to, through all links.
    pub(super) fn follow(&self, path: &str) -> Result<FileInfo> {
        self.existing(path, true).map(|(names, node)| info(&names, node))
    }

    /// Makes a symbolic link.
    pub(super) fn link(&mut self, target: &str, path: &str) -> Result<()> {
        if self.existing(path, false).is_ok() {
            return invalid(path, "file exists");
        }
        self.put(path, Kind::Link(target.to_owned()), 0o777)
    }

    /// Returns whether the path is a directory.
    pub(super) fn is_dir(&self, path: &str) -> bool {
        self.existing(path, true).is_ok_and(|(_, node)| node.is_dir())
    }

    /// Returns the number of content bytes that still fit.
    pub(super) fn free(&self) -> u64 {
        self.bytes_max.saturating_sub(self.used)
    }

    /// Reads a whole regular file.
    pub(super) fn read(&self, path: &str) -> Result<(FileInfo, Bytes)> {
        let (names, node) = self.existing(path, true)?;
        match &node.kind {
            Kind::File(content) => Ok((info(&names, node), Bytes::copy_from_slice(content))),
            Kind::Directory(_) => invalid(path, "is a directory"),
            Kind::Link(_) | Kind::Null => invalid(path, "not a regular file"),
        }
    }

    /// Returns whether the path is `/dev/null`.
    pub(super) fn is_null(&self, path: &str) -> bool {
        self.existing(path, true).is_ok_and(|(_, node)| matches!(node.kind, Kind::Null))
    }

    /// Replaces the content of a file, or makes it with its parents.
    pub(super) fn write(&mut self, path: &str, mode: Option<u32>, content: &[u8]) -> Result<()> {
        let names = self.resolve(path, true)?;
        let old = self.get(&names);
        if old.is_some_and(|node| !matches!(node.kind, Kind::File(_))) || names.is_empty() || path.ends_with('/') {
            return invalid(path, "not a regular file");
        }
        let size = content.len() as u64;
        let Some(old_size) = old.map(Node::size) else {
            return self.put(&join(&names), Kind::File(BytesMut::from(content)), mode.unwrap_or(0o644));
        };
        self.reserve(size.saturating_sub(old_size))?;
        self.used = self.used.saturating_sub(old_size.saturating_sub(size));
        let now = (self.now)();
        if let Some(node) = self.get_mut(&names) {
            node.kind = Kind::File(BytesMut::from(content));
            node.mode = mode.unwrap_or(node.mode);
            node.modified = now;
        }
        Ok(())
    }

    /// Appends to an existing file, or to `/dev/null`.
    pub(super) fn append(&mut self, path: &str, more: &[u8]) -> Result<()> {
        let names = self.resolve(path, true)?;
        match self.get(&names).map(|node| &node.kind) {
            Some(Kind::File(_)) => {}
            Some(Kind::Null) => return Ok(()),
            _ => return Err(absent(path)),
        }
        self.reserve(more.len() as u64)?;
        let now = (self.now)();
        if let Some(node) = self.get_mut(&names)
            && let Kind::File(content) = &mut node.kind
        {
            content.extend_from_slice(more);
            node.modified = now;
        }
        Ok(())
    }

    pub(super) fn delete(&mut self, path: &str, recursive: bool) -> Result<()> {
        let (names, node) = self.existing(path, false)?;
        if !recursive && node.entries().is_some_and(|entries| !entries.is_empty()) {
            return invalid(path, "the directory is not empty; ask for a recursive delete");
        }
        self.detach(path, &names).map(|_| ())
    }

    fn detach(&mut self, path: &str, names: &[String]) -> Result<Node> {
        let Some((name, parent)) = names.split_last() else {
            return invalid(path, "the root cannot be moved or removed");
        };
        let now = (self.now)();
        let parent = self.get_mut(parent).ok_or_else(|| absent(path))?;
        let node = parent.entries_mut().and_then(|entries| entries.remove(name)).ok_or_else(|| absent(path))?;
        parent.modified = now;
        self.used = self.used.saturating_sub(node.footprint());
        Ok(node)
    }

    pub(super) fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        let (names, node) = self.existing(path, true)?;
        let Some(entries) = node.entries() else { return invalid(path, "not a directory") };
        Ok(entries.iter().map(|(name, node)| info(&[&names[..], std::slice::from_ref(name)].concat(), node)).collect())
    }

    /// Returns the metadata of a file, a directory or a link itself.
    pub(super) fn stat(&self, path: &str) -> Result<FileInfo> {
        self.existing(path, false).map(|(names, node)| info(&names, node))
    }

    pub(super) fn rename(&mut self, old: &str, new: &str) -> Result<()> {
        let (from, node) = self.existing(old, false)?;
        let to = self.resolve(new, false)?;
        if to.len() > from.len() && to.starts_with(&from) {
            return invalid(new, "a directory cannot be moved into itself");
        }
        if from == to {
            return Ok(());
        }
        let is_dir = node.is_dir();
        match self.get(&to) {
            Some(there) if is_dir && !there.is_dir() => return invalid(new, "not a directory"),
            Some(there) if !is_dir && there.is_dir() => return invalid(new, "is a directory"),
            Some(there) if there.entries().is_some_and(|entries| !entries.is_empty()) => {
                return invalid(new, "the directory is not empty");
            }
            _ => {}
        }
        let Some((_, parent)) = to.split_last() else { return invalid(new, "is a directory") };
        self.make_parents(new, parent)?;
        let node = self.detach(old, &from)?;
        self.used = self.used.saturating_add(node.footprint());
        self.attach(new, &to, node)
    }

    pub(super) fn chmod(&mut self, path: &str, mode: u32) -> Result<()> {
        let names = self.resolve(path, true)?;
        let node = self.get_mut(&names).ok_or_else(|| absent(path))?;
        node.mode = mode;
        Ok(())
    }

    /// Returns the paths that match a pattern.
    pub(super) fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        check_path(pattern)?;
        let mut found = Vec::new();
        let mut todo = vec![(String::new(), &self.root)];
        while let Some((path, node)) = todo.pop() {
            for (name, below) in node.entries().into_iter().flatten() {
                let path = format!("{path}/{name}");
                if fast_glob::glob_match(pattern, &path) {
                    if found.len() == GLOB_RESULTS_MAX {
                        return invalid(pattern, "more than 10000 paths match; narrow the pattern");
                    }
                    found.push(path.clone());
                }
                todo.push((path, below));
            }
        }
        found.sort();
        Ok(found)
    }
}

fn info(names: &[String], node: &Node) -> FileInfo {
    FileInfo {
        name: names.last().map_or_else(|| "/".to_owned(), Clone::clone),
        path: join(names),
        size: node.size(),
        is_dir: node.is_dir(),
        is_symlink: matches!(node.kind, Kind::Link(_)),
        target: match &node.kind {
            Kind::Link(target) => Some(target.clone()),
            Kind::Directory(_) | Kind::File(_) | Kind::Null => None,
        },
        modified: node.modified,
        mode: node.mode,
        owner: Some("root".to_owned()),
        group: Some("root".to_owned()),
    }
}

#[cfg(test)]
mod test {
    use std::sync::Arc;

    use super::*;

    fn fs() -> FileSystem {
        FileSystem::new(64 * 1024, Arc::new(|| Timestamp::UNIX_EPOCH)).unwrap()
    }

    #[test]
    fn what_is_removed_gives_its_room_back() {
        let mut fs = fs();
        let before = fs.free();
        fs.write("/a/b/c", None, &[0; 1000]).unwrap();
        fs.write("/a/b/c", None, &[0; 10_000]).unwrap();
        fs.append("/a/b/c", &[0; 10]).unwrap();
        fs.write("/a/d", None, b"").unwrap();
        fs.rename("/a/d", "/a/b/c").unwrap();
        fs.link("nowhere", "/a/link").unwrap();
        assert!(fs.free() < before);
        fs.delete("/a", true).unwrap();
        assert_eq!(fs.free(), before);
    }

    #[test]
    fn a_full_file_system_keeps_what_it_has() {
        let mut fs = fs();
        fs.write("/a", None, b"old").unwrap();
        assert!(matches!(fs.write("/a", None, &[0; 65536]), Err(Error::NoSpace)));
        assert_eq!(&fs.read("/a").unwrap().1[..], b"old");
        let before = fs.free();
        assert!(matches!(fs.append("/a", &[0; 65536]), Err(Error::NoSpace)));
        assert_eq!(fs.free(), before);
        assert!((0..1000).any(|n| matches!(fs.write(&format!("/{n}"), None, b""), Err(Error::NoSpace))));
    }

    #[test]
    fn links_that_go_round_are_refused() {
        let mut fs = fs();
        fs.link("/b", "/a").unwrap();
        fs.link("/a", "/b").unwrap();
        assert!(matches!(fs.read("/a"), Err(Error::Invalid(_))));
        assert!(fs.stat("/a").unwrap().is_symlink);
    }
}
