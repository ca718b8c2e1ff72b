//! Changes of files, by the kernel's inotify.

use std::collections::HashMap;
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use guest_protocol::file_text::escaped;
use guest_protocol::{FileChange, FileChangeKind, FileScope, WATCHED_DIRECTORIES_MAX, WatchFiles, WatchRow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{AtFlags, CWD, FileType, statat};
use rustix::io::Errno;

use super::long_work::{Left, Output};
use super::path::{check, normal};
use super::walk::Walk;
use crate::failure::{Result, exhausted, invalid, lookup_refused, refused};

/// Maximum number of watches of a box at once.
pub(crate) const WATCHES_MAX: usize = 8;
/// Time between two looks whether the caller has left.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Maximum size of the paths of the directories of one watch, in bytes.
const PATHS_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Size of the buffer for the kernel's events.
pub(super) const EVENTS_BYTES: usize = 16 * 1024;
const ENTRY_CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::EXCL_UNLINK);
/// Flags of the root's events after which it has none.
const ROOT_GONE: ReadFlags =
    ReadFlags::DELETE_SELF.union(ReadFlags::MOVE_SELF).union(ReadFlags::UNMOUNT).union(ReadFlags::IGNORED);

/// Watches a file, or the entries of a directory, and sends [`WatchRow`]s until the caller leaves or the
/// path itself is gone.
///
/// # Errors
/// Before the head: not found for the path, invalid for too many directories, exhausted if the kernel
/// has no watch left.
pub(crate) fn watch(request: &WatchFiles, output: &mut Output) -> Result<()> {
    let mut watching = Watching::of(request)?;
    // A caller that has left ends the work.
    let _ = output.begin().and_then(|()| watching.follow(output));
    Ok(())
}

fn none_left(path: impl Display, errno: Errno) -> guest_protocol::Failure {
    match errno {
        Errno::NOSPC | Errno::MFILE => {
            exhausted("the kernel has no watches left for this user; watch a smaller directory")
        }
        errno => refused(path, errno),
    }
}

/// Receiver of the changes of a watch.
pub(super) trait Sink {
    /// # Errors
    /// The one that the changes are for has left.
    fn row(&mut self, row: WatchRow) -> Result<(), Left>;
}

impl Sink for Output {
    fn row(&mut self, row: WatchRow) -> Result<(), Left> {
        Output::row(self, &row)
    }
}

/// Paths that are watched.
pub(super) struct Watching {
    pub(super) fd: OwnedFd,
    root: Vec<u8>,
    /// The kernel's number for the root.
    root_id: i32,
    is_dir: bool,
    recursive: bool,
    paths: Paths,
}

/// Paths of the directories that are watched, by the kernel's number.
#[derive(Default)]
struct Paths {
    by_id: HashMap<i32, Vec<u8>>,
    /// Size of all of them.
    bytes: usize,
}

impl Paths {
    fn fits(&self, path: &[u8]) -> bool {
        self.by_id.len() < WATCHED_DIRECTORIES_MAX && self.bytes + path.len() <= PATHS_BYTES_MAX
    }

    fn insert(&mut self, id: i32, path: Vec<u8>) {
        self.bytes += path.len();
        if let Some(old) = self.by_id.insert(id, path) {
            self.bytes -= old.len();
        }
    }

    fn remove(&mut self, id: i32) {
        if let Some(old) = self.by_id.remove(&id) {
            self.bytes -= old.len();
        }
    }
}

/// Change that the kernel has reported.
pub(super) struct Seen {
    id: i32,
    flags: ReadFlags,
    name: Vec<u8>,
}

impl Watching {
    /// Begins to watch.
    ///
    /// # Errors
    /// As for [`watch`].
    pub(super) fn of(request: &WatchFiles) -> Result<Watching> {
        let path = &check(&request.path)?;
        let stat = statat(CWD, path.bytes(), AtFlags::empty()).map_err(|errno| lookup_refused(path, errno))?;
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(|errno| none_left(path, errno))?;
        let mut watching = Watching {
            fd,
            root: normal(path.bytes()),
            root_id: -1,
            is_dir,
            recursive: request.recursive && is_dir,
            paths: Paths::default(),
        };
        watching.begin()?;
        Ok(watching)
    }

    fn begin(&mut self) -> Result<()> {
        let flags = ENTRY_CHANGES | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let id = inotify::add_watch(&self.fd, self.root.as_slice(), flags);
        self.root_id = id.map_err(|errno| none_left(escaped(&self.root), errno))?;
        self.paths.insert(self.root_id, self.root.clone());
        self.fill()
    }

    /// Watches all directories below the root, if the watch is recursive.
    fn fill(&mut self) -> Result<()> {
        if !self.recursive {
            return Ok(());
        }
        let root = self.root.clone();
        match self.add_below(&root, |_, _| {}) {
            Ok(true) => Ok(()),
            Ok(false) => Err(invalid(format!(
                "{}: has more than {WATCHED_DIRECTORIES_MAX} directories, or {PATHS_BYTES_MAX} bytes of their paths; \
                 watch one of them, or do not watch recursively",
                escaped(&root)
            ))),
            Err(errno) => Err(none_left(escaped(&root), errno)),
        }
    }

    /// Watches the directories below `dir`, and hands what is there to `found`. Returns false if there
    /// are too many.
    fn add_below(&mut self, dir: &[u8], mut found: impl FnMut(&[u8], bool)) -> Result<bool, Errno> {
        let Ok(path) = str::from_utf8(dir) else { return Ok(true) };
        let scope = FileScope::all(path);
        // What is gone again has nothing to watch.
        let Ok(walk) = Walk::begin(&scope) else { return Ok(true) };
        for entry in walk {
            let Ok(entry) = entry else { return Ok(false) };
            let is_dir = entry.kind == FileType::Directory;
            found(&entry.path, is_dir);
            if is_dir && !self.add(&entry.path)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Watches one directory. Returns false if there are too many.
    fn add(&mut self, dir: &[u8]) -> Result<bool, Errno> {
        if !self.paths.fits(dir) {
            return Ok(false);
        }
        let flags = ENTRY_CHANGES | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        match inotify::add_watch(&self.fd, dir, flags) {
            Ok(id) => self.paths.insert(id, dir.to_vec()),
            Err(Errno::NOSPC) => return Err(Errno::NOSPC),
            // Gone again, or not readable.
            Err(_) => {}
        }
        Ok(true)
    }

    /// Stops to watch a directory that was moved away, and those below it.
    fn remove(&mut self, dir: &[u8]) {
        let is_below =
            |path: &[u8]| path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"));
        let below = self.paths.by_id.iter().filter(|(_, path)| is_below(path)).map(|(id, _)| *id);
        for id in below.collect::<Vec<_>>() {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: i32) {
        let _ = inotify::remove_watch(&self.fd, id);
        self.paths.remove(id);
    }

    /// Watches what is there now, after events were lost: directories may have come, gone and moved.
    fn renew(&mut self) {
        let before = std::mem::take(&mut self.paths);
        self.paths.insert(self.root_id, self.root.clone());
        // The caller learns of an overflow in any case.
        let _ = self.fill();
        for id in before.by_id.into_keys() {
            if !self.paths.by_id.contains_key(&id) {
                self.forget(id);
            }
        }
    }

    /// Sends the changes until the path is gone.
    fn follow(&mut self, output: &mut Output) -> Result<(), Left> {
        let mut buffer = [const { MaybeUninit::uninit() }; EVENTS_BYTES];
        loop {
            output.check()?;
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, Some(&LOOK)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(_) => return Ok(()),
            }
            let seen = self.read(&mut buffer);
            let goes_on = self.report(seen, output)?;
            output.flush()?;
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// Reads what the kernel returns at once; nothing if there is nothing.
    pub(super) fn read(&self, buffer: &mut [MaybeUninit<u8>]) -> Vec<Seen> {
        let mut seen = Vec::new();
        let mut reader = Reader::new(&self.fd, buffer);
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| name.to_bytes().to_vec()).unwrap_or_default();
            seen.push(Seen { id: event.wd(), flags: event.events(), name });
            if reader.is_buffer_empty() {
                break;
            }
        }
        seen
    }

    /// Reports changes. Returns false if the path is gone.
    pub(super) fn report(&mut self, seen: Vec<Seen>, output: &mut impl Sink) -> Result<bool, Left> {
        let mut last = None;
        for event in seen {
            if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                // Before the row: who lists the directories then misses none that comes later.
                self.renew();
                output.row(WatchRow::Overflow)?;
                last = None;
                continue;
            }
            if event.id == self.root_id && event.flags.intersects(ROOT_GONE) {
                output.row(row(FileChangeKind::Deleted, &self.root, self.is_dir, false))?;
                return Ok(false);
            }
            if event.flags.contains(ReadFlags::IGNORED) {
                self.paths.remove(event.id);
                continue;
            }
            let Some(kind) = kind_of(event.flags) else { continue };
            let Some(dir) = self.paths.by_id.get(&event.id) else { continue };
            let path = match event.name.as_slice() {
                b"" => dir.clone(),
                name => [dir.strip_suffix(b"/").unwrap_or(dir), b"/", name].concat(),
            };
            // A writer makes many of one kind in a row.
            if last.as_ref() == Some(&(kind, path.clone())) && kind == FileChangeKind::Modified {
                continue;
            }
            let is_dir = event.flags.contains(ReadFlags::ISDIR);
            let moved = event.flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO);
            output.row(row(kind, &path, is_dir, moved))?;
            if is_dir && self.recursive {
                self.directory(kind, &path, output)?;
            }
            last = Some((kind, path));
        }
        Ok(true)
    }

    /// Follows a directory that has come, with what is in it by now, or has gone.
    fn directory(&mut self, kind: FileChangeKind, path: &[u8], output: &mut impl Sink) -> Result<(), Left> {
        if kind == FileChangeKind::Deleted {
            self.remove(path);
            return Ok(());
        }
        if kind != FileChangeKind::Created {
            return Ok(());
        }
        let mut sent = Ok(());
        let added = self.add(path).and_then(|fits| {
            if !fits {
                return Ok(false);
            }
            self.add_below(path, |path, is_dir| {
                if sent.is_ok() {
                    sent = output.row(row(FileChangeKind::Created, path, is_dir, false));
                }
            })
        });
        sent?;
        // Changes in it are not seen from here on.
        if added != Ok(true) { output.row(WatchRow::Overflow) } else { Ok(()) }
    }
}

fn row(kind: FileChangeKind, path: &[u8], is_dir: bool, moved: bool) -> WatchRow {
    let path = escaped(path);
    WatchRow::Change(FileChange { kind, path, is_dir, moved })
}

fn kind_of(flags: ReadFlags) -> Option<FileChangeKind> {
    if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        Some(FileChangeKind::Created)
    } else if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        Some(FileChangeKind::Deleted)
    } else if flags.contains(ReadFlags::MODIFY) {
        Some(FileChangeKind::Modified)
    } else if flags.contains(ReadFlags::ATTRIB) {
        Some(FileChangeKind::Attributes)
    } else {
        None
    }
}
