//! Walk over the files below a path, for work on many of them. Links are not followed, and only the
//! directory that is being read is open.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

use guest_protocol::{AGENT_DIR, FileScope, PATH_BYTES_MAX};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ignore::overrides::{Override, OverrideBuilder};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, open, statat};

use super::path::{check, normal};
use crate::failure::{Result, invalid, lookup_refused};

/// Maximum size of all paths of directories that wait to be read, in bytes.
const PENDING_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum number of bytes read from a `.gitignore`.
const GITIGNORE_BYTES_MAX: u64 = 256 * 1024;
/// Maximum number of directories above the start whose `.gitignore` counts.
const PARENTS_MAX: usize = 64;
/// Directories of virtual, endless files and of the agent, entered only if the start is in them.
const APART: [&[u8]; 4] = [b"/proc", b"/sys", b"/dev", AGENT_DIR.as_bytes()];
const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// A file that the walk has come to.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) path: Vec<u8>,
    pub(super) kind: FileType,
}

/// A walk, which is an iterator over what is below its start, each directory before its entries.
pub(super) struct Walk {
    root: Vec<u8>,
    globs: Override,
    with_hidden: bool,
    with_gitignore: bool,
    /// The start itself, if it is no directory.
    single: Option<Entry>,
    pending: Vec<Pending>,
    pending_bytes: usize,
    reading: Option<Reading>,
    /// Number of directories that could not be read.
    pub(super) unreadable: u64,
}

struct Pending {
    path: Vec<u8>,
    rules: Option<Rc<Rules>>,
}

struct Reading {
    path: Vec<u8>,
    entries: Dir,
    rules: Option<Rc<Rules>>,
}

/// Rules of a `.gitignore`, and those of the directories above.
struct Rules {
    own: Gitignore,
    above: Option<Rc<Rules>>,
}

impl Walk {
    /// Begins a walk.
    ///
    /// # Errors
    /// Not found if nothing is at the start; invalid for a glob that cannot be read.
    pub(super) fn begin(scope: &FileScope) -> Result<Walk> {
        let path = &check(&scope.path)?;
        // The start is named by the caller, and may be a link.
        let stat = statat(CWD, path.bytes(), AtFlags::empty()).map_err(|errno| lookup_refused(path, errno))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let root = normal(path.bytes());
        let mut walk = Walk {
            globs: globs(&root, scope)?,
            with_hidden: scope.hidden,
            with_gitignore: scope.gitignore,
            single: None,
            pending: Vec::new(),
            pending_bytes: root.len(),
            reading: None,
            unreadable: 0,
            root,
        };
        if kind == FileType::Directory {
            let rules = scope.gitignore.then(|| walk.rules_above()).flatten();
            walk.pending.push(Pending { path: walk.root.clone(), rules });
        } else if kind == FileType::RegularFile {
            walk.single = Some(Entry { path: walk.root.clone(), kind });
        } else {
            return Err(invalid(format!("{path}: neither a regular file nor a directory")));
        }
        Ok(walk)
    }

    /// Returns the rules of the directories above the start, up to that of its repository. Outside of
    /// a repository, only what is below the start counts.
    fn rules_above(&self) -> Option<Rc<Rules>> {
        let start = Path::new(OsStr::from_bytes(&self.root));
        let above: Vec<&Path> = start.ancestors().take(PARENTS_MAX).collect();
        let top = above.iter().position(|dir| statat(CWD, dir.join(".git"), AtFlags::SYMLINK_NOFOLLOW).is_ok())?;
        let mut rules = None;
        // The start's own rules are read with its entries.
        for dir in above.get(1..=top).unwrap_or_default().iter().rev() {
            rules = rules_of(dir.as_os_str().as_bytes(), rules);
        }
        rules
    }

    /// Begins to read the next directory. Returns false if none is left.
    fn next_dir(&mut self) -> bool {
        while let Some(Pending { path, rules }) = self.pending.pop() {
            self.pending_bytes -= path.len();
            let follow = if path == self.root { OFlags::empty() } else { OFlags::NOFOLLOW };
            let entries = open(path.as_slice(), OPEN_DIR | follow, Mode::empty()).and_then(Dir::new);
            let Ok(entries) = entries else {
                self.unreadable += 1;
                continue;
            };
            let rules = if self.with_gitignore { rules_of(&path, rules) } else { None };
            self.reading = Some(Reading { path, entries, rules });
            return true;
        }
        false
    }

    /// Returns whether an entry belongs to the scope; for a directory, whether it is entered.
    fn takes(&self, name: &[u8], entry: &Entry, rules: Option<&Rc<Rules>>) -> bool {
        let is_dir = entry.kind == FileType::Directory;
        if !self.with_hidden && name.starts_with(b".") || self.with_gitignore && name == b".git" {
            return false;
        }
        if is_dir && APART.contains(&entry.path.as_slice()) {
            return false;
        }
        let path = Path::new(OsStr::from_bytes(&entry.path));
        if self.globs.matched(path, is_dir).is_ignore() {
            return false;
        }
        let mut next = rules;
        while let Some(rules) = next {
            match rules.own.matched(path, is_dir) {
                Match::Ignore(_) => return false,
                Match::Whitelist(_) => return true,
                Match::None => next = rules.above.as_ref(),
            }
        }
        true
    }
}

impl Iterator for Walk {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if let Some(single) = self.single.take() {
            return Some(Ok(single));
        }
        loop {
            if self.reading.is_none() && !self.next_dir() {
                return None;
            }
            let reading = self.reading.as_mut()?;
            let Some(Ok(read)) = reading.entries.read() else {
                self.reading = None;
                continue;
            };
            let name = read.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let path = join(&reading.path, name);
            let entry = Entry { kind: kind_of(&path, read.file_type()), path };
            let rules = reading.rules.clone();
            if !self.takes(name, &entry, rules.as_ref()) {
                continue;
            }
            if entry.kind == FileType::Directory {
                if entry.path.len() >= PATH_BYTES_MAX {
                    self.unreadable += 1;
                    continue;
                }
                self.pending_bytes += entry.path.len();
                if self.pending_bytes > PENDING_BYTES_MAX {
                    return Some(Err(invalid("there are too many directories; start with a longer path")));
                }
                self.pending.push(Pending { path: entry.path.clone(), rules });
            }
            return Some(Ok(entry));
        }
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let dir = dir.strip_suffix(b"/").unwrap_or(dir);
    [dir, b"/", name].concat()
}

/// Returns the type of an entry. Not every file system reports it with the name.
fn kind_of(path: &[u8], kind: FileType) -> FileType {
    if kind != FileType::Unknown {
        return kind;
    }
    let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
    stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
}

/// Parses the globs to include and to leave out.
fn globs(root: &[u8], scope: &FileScope) -> Result<Override> {
    let mut globs = OverrideBuilder::new(OsStr::from_bytes(root));
    for glob in &scope.include {
        // A `!` would leave out what it matches.
        add_glob(&mut globs, "include", if glob.starts_with('!') { "\\" } else { "" }, glob)?;
    }
    for glob in &scope.exclude {
        add_glob(&mut globs, "exclude", "!", glob)?;
    }
    globs.build().map_err(|error| invalid(format!("the globs cannot be used together: {error}")))
}

fn add_glob(globs: &mut OverrideBuilder, field: &str, prefix: &str, glob: &str) -> Result<()> {
    let is_empty = glob.trim_matches('/').is_empty();
    let added = if is_empty { None } else { globs.add(&format!("{prefix}{glob}")).ok() };
    added.map(drop).ok_or_else(|| {
        let shown: String = glob.chars().take(100).collect();
        invalid(format!("`{field}`: `{shown}` is not a valid glob; write one like *.rs or src/**/test_*.py"))
    })
}

/// Returns the rules of the `.gitignore` in `dir` over those `above`.
fn rules_of(dir: &[u8], above: Option<Rc<Rules>>) -> Option<Rc<Rules>> {
    let mut builder = GitignoreBuilder::new(OsStr::from_bytes(dir));
    for file in [&b".git/info/exclude"[..], b".gitignore"] {
        for line in small_file(&join(dir, file)).lines() {
            // As git does, a line that is no pattern is passed over.
            let _ = builder.add_line(None, line);
        }
    }
    match builder.build() {
        Ok(own) if !own.is_empty() => Some(Rc::new(Rules { own, above })),
        _ => above,
    }
}

/// Reads the beginning of a small text; empty if it is missing or not a regular file.
fn small_file(path: &[u8]) -> String {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(file) = open(path, flags, Mode::empty()) else { return String::new() };
    let is_regular = fstat(&file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    let mut bytes = Vec::new();
    if !is_regular || std::fs::File::from(file).take(GITIGNORE_BYTES_MAX).read_to_end(&mut bytes).is_err() {
        return String::new();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod test {
    use super::*;

    fn scope(path: &Path) -> FileScope {
        FileScope {
            path: path.to_str().unwrap().to_owned(),
            include: Vec::new(),
            exclude: Vec::new(),
            hidden: false,
            gitignore: false,
        }
    }

    /// Returns the paths of a walk below its start, sorted.
    fn walked(scope: &FileScope) -> Vec<String> {
        let root = format!("{}/", scope.path);
        let mut paths: Vec<String> = Walk::begin(scope)
            .unwrap()
            .map(|entry| String::from_utf8(entry.unwrap().path).unwrap().replace(&root, ""))
            .collect();
        paths.sort();
        paths
    }

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
    }

    #[test]
    fn a_walk_leaves_out_hidden_files_and_those_of_globs() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[("a.rs", ""), ("b.txt", ""), ("d/c.rs", ""), ("d/e/f.txt", ""), (".h/x.rs", "")]);
        let plain = scope(dir.path());
        assert_eq!(walked(&plain), ["a.rs", "b.txt", "d", "d/c.rs", "d/e", "d/e/f.txt"]);
        let of = |include: &[&str], exclude: &[&str]| FileScope {
            include: include.iter().map(|&glob| glob.to_owned()).collect(),
            exclude: exclude.iter().map(|&glob| glob.to_owned()).collect(),
            ..plain.clone()
        };
        assert_eq!(walked(&of(&["*.rs"], &[])), ["a.rs", "d", "d/c.rs", "d/e"]);
        assert_eq!(walked(&of(&["*.rs"], &["d"])), ["a.rs"]);
        assert_eq!(walked(&of(&[], &["*.txt", "/d/e"])), ["a.rs", "d", "d/c.rs"]);
        assert_eq!(walked(&of(&["d/**"], &[])), ["d", "d/c.rs", "d/e", "d/e/f.txt"]);
        assert_eq!(walked(&FileScope { hidden: true, ..of(&["x.rs"], &["d"]) }), [".h", ".h/x.rs"]);
        for glob in ["a{b", "[", "", "/"] {
            assert!(Walk::begin(&of(&[glob], &[])).is_err(), "{glob}");
            assert!(Walk::begin(&of(&[], &[glob])).is_err(), "{glob}");
        }
    }

    #[test]
    fn rules_of_git_count_from_its_repository_down() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &[
                ("repo/.git/info/exclude", "*.bak\n"),
                ("repo/.gitignore", "*.log\n/build\n!keep.log\n"),
                ("repo/a.log", ""),
                ("repo/a.bak", ""),
                ("repo/keep.log", ""),
                ("repo/build/x", ""),
                ("repo/src/build/x", ""),
                ("repo/src/.gitignore", "!b.log\n"),
                ("repo/src/a.log", ""),
                ("repo/src/b.log", ""),
                (".gitignore", "*\n"),
            ],
        );
        let with = |path: &str| FileScope { gitignore: true, ..scope(&dir.path().join(path)) };
        assert_eq!(walked(&with("repo")), ["keep.log", "src", "src/b.log", "src/build", "src/build/x"]);
        assert_eq!(walked(&with("repo/src")), ["b.log", "build", "build/x"]);
        let hidden = FileScope { hidden: true, ..with("repo/src") };
        assert_eq!(walked(&hidden), [".gitignore", "b.log", "build", "build/x"]);
    }

    #[test]
    fn a_gitignore_that_is_no_file_holds_nothing_up() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[("a", "")]);
        rustix::fs::mknodat(CWD, dir.path().join(".gitignore"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(walked(&FileScope { gitignore: true, ..scope(dir.path()) }), ["a"]);
    }

    #[test]
    fn links_are_seen_and_not_entered() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[("d/a", "")]);
        std::os::unix::fs::symlink("..", dir.path().join("d/up")).unwrap();
        assert_eq!(walked(&scope(dir.path())), ["d", "d/a", "d/up"]);
        std::os::unix::fs::symlink("d", dir.path().join("l")).unwrap();
        assert_eq!(walked(&scope(&dir.path().join("l"))), ["a", "up"], "but the start may be one");
    }
}
