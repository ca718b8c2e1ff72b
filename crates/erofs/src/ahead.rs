//! Directories and their files, read ahead by a thread of their own.
//!
//! Opening, looking at and reading a small file takes a thread longer than writing it to the image.
//! So a second thread lists each directory while the one before it is written, and then both take its
//! files.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::{Errno, pread, retry_on_intr};

use super::attributes;
use super::directory::{self, Entry};
use super::format::Kind;
use super::memory::{Memory, Share};
use super::tree::{Ids, OPEN, changed};

/// Most files that a thread takes at once.
const BATCH: usize = 16;
/// Batches that wait to be taken over.
const WAITING_MAX: usize = 8;
/// Most bytes of a file that the second thread reads; larger ones it only opens.
const SMALL: u64 = 32 * 1024;

/// A file of a directory, ready to be written.
#[derive(Debug)]
pub(crate) struct Ready {
    /// Place of its entry in the directory.
    pub(crate) entry: usize,
    pub(crate) about: Stat,
    /// Attributes as they follow the inode.
    pub(crate) attributes: Vec<u8>,
    pub(crate) content: Content,
}

/// Returns whether a file takes less of the disk than it is long.
pub(crate) fn has_holes(about: &Stat) -> bool {
    /// Unit of the kernel's count of blocks.
    const UNIT: i64 = 512;
    about.st_blocks.saturating_mul(UNIT) < about.st_size
}

/// Content of a file.
#[derive(Debug)]
pub(crate) enum Content {
    Open(File),
    Read(Vec<u8>),
}

impl Ready {
    /// Opens a plain file, and nothing else in its place.
    fn open(dir: BorrowedFd<'_>, entry: usize, name: &[u8], ids: Ids) -> io::Result<Ready> {
        let file = File::from(open(dir, name, OFlags::empty())?);
        let about = fstat(&file)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            return Err(changed());
        }
        let attributes = attributes::of(file.as_fd(), ids)?;
        Ok(Ready { entry, about, attributes, content: Content::Open(file) })
    }

    /// Reads the content of a small file.
    fn read(mut self) -> io::Result<Ready> {
        let size = u64::try_from(self.about.st_size).map_err(io::Error::other)?;
        if let Content::Open(file) = &self.content
            && size <= SMALL
            && !has_holes(&self.about)
        {
            let mut content = vec![0; usize::try_from(size).map_err(io::Error::other)?];
            read_at(file.as_fd(), 0, &mut content)?;
            self.content = Content::Read(content);
        }
        Ok(self)
    }
}

/// Plain files of a directory, of which each thread takes the next.
#[derive(Debug)]
struct Files {
    dir: Arc<OwnedFd>,
    /// Places of their entries, and their names.
    names: Vec<(usize, Vec<u8>)>,
    taken: AtomicUsize,
}

impl Files {
    /// Returns the files that the caller has to read; none if all are taken.
    fn take(&self) -> &[(usize, Vec<u8>)] {
        let taken =
            self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |begin| Some(begin + self.share_from(begin)));
        let begin = taken.unwrap_or(self.names.len());
        &self.names[begin..begin + self.share_from(begin)]
    }

    /// Returns how many files to take from `begin` on: ever fewer, so that neither thread waits
    /// long for the other at the end.
    fn share_from(&self, begin: usize) -> usize {
        let left = self.names.len() - begin;
        (left / 4).clamp(1, BATCH).min(left)
    }
}

type Batch = io::Result<Vec<Ready>>;

/// A directory to be read.
#[derive(Debug)]
struct Job<'m> {
    parent: Arc<OwnedFd>,
    name: Vec<u8>,
    listed: SyncSender<io::Result<Listed<'m>>>,
}

/// A directory that is read ahead.
#[derive(Debug)]
pub(crate) struct Awaited<'m>(Receiver<io::Result<Listed<'m>>>);

impl<'m> Awaited<'m> {
    /// Waits until the directory is listed.
    pub(crate) fn listed(self) -> io::Result<Listed<'m>> {
        self.0.recv().unwrap_or_else(|_| Err(io::Error::other("the tree reader stopped")))
    }
}

/// A directory whose files are being read.
#[derive(Debug)]
pub(crate) struct Listed<'m> {
    pub(crate) dir: Arc<OwnedFd>,
    pub(crate) about: Stat,
    /// Attributes as they follow the inode.
    pub(crate) attributes: Vec<u8>,
    /// Entries by their names, with those of the directory itself and of the one above it.
    pub(crate) entries: Vec<Entry>,
    /// Memory that the entries take.
    pub(crate) memory: Share<'m>,
    /// Its plain files.
    pub(crate) files: Pending,
}

/// Plain files of a directory that wait to be written.
#[derive(Debug)]
pub(crate) struct Pending {
    files: Arc<Files>,
    ready: Receiver<Batch>,
    ids: Ids,
}

impl Pending {
    /// Calls `write` for each file, in any order.
    pub(crate) fn each(self, mut write: impl FnMut(Ready) -> io::Result<()>) -> io::Result<()> {
        loop {
            let mine = self.files.take();
            for (entry, name) in mine {
                write(Ready::open(self.files.dir.as_fd(), *entry, name, self.ids)?)?;
            }
            // Without any left for this thread, the other has to be waited for.
            while let Some(batch) = if mine.is_empty() { self.ready.recv().ok() } else { self.ready.try_recv().ok() } {
                batch?.into_iter().try_for_each(&mut write)?;
            }
            if mine.is_empty() {
                return Ok(());
            }
        }
    }
}

/// The second thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Reader<'m>(Sender<Job<'m>>);

impl<'m> Reader<'m> {
    /// Starts the thread.
    pub(crate) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        ids: Ids,
        memory: &'m Memory,
    ) -> io::Result<Reader<'m>>
    where
        'm: 'scope,
    {
        let (jobs, waiting) = channel();
        let reader = Builder::new().name("erofs-read".to_owned());
        reader.spawn_scoped(scope, move || serve(&waiting, ids, memory))?;
        Ok(Reader(jobs))
    }

    /// Has a directory read after those that were asked for before.
    pub(crate) fn read(&self, parent: Arc<OwnedFd>, name: Vec<u8>) -> Awaited<'m> {
        let (listed, awaited) = sync_channel(1);
        // A thread that has ended is noticed when the answer is waited for.
        let _ = self.0.send(Job { parent, name, listed });
        Awaited(awaited)
    }
}

/// Lists each directory as soon as it is asked for, and reads the files of those before it meanwhile.
fn serve<'m>(jobs: &Receiver<Job<'m>>, ids: Ids, memory: &'m Memory) {
    let mut listed = VecDeque::new();
    // A job that comes late makes the other thread wait, and files do not.
    while let Some(job) = if listed.is_empty() { jobs.recv().ok().map(Some) } else { Some(jobs.try_recv().ok()) } {
        if let Some(Job { parent, name, listed: answer }) = job {
            let (filled, ready) = sync_channel(WAITING_MAX);
            let list = list(&parent, &name, ids, memory, ready);
            if let Ok(list) = &list {
                listed.push_back((Arc::clone(&list.files.files), filled));
            }
            // Without a receiver nothing waits for it.
            let _ = answer.send(list);
        }
        let Some((files, filled)) = listed.front() else { continue };
        let mine = files.take().iter();
        let batch: Batch =
            mine.map(|(entry, name)| Ready::open(files.dir.as_fd(), *entry, name, ids)?.read()).collect();
        if matches!(&batch, Ok(none) if none.is_empty()) || filled.send(batch).is_err() {
            listed.pop_front();
        }
    }
}

fn list<'m>(
    parent: &OwnedFd,
    name: &[u8],
    ids: Ids,
    memory: &'m Memory,
    ready: Receiver<Batch>,
) -> io::Result<Listed<'m>> {
    let dir = Arc::new(open(parent.as_fd(), name, OFlags::DIRECTORY)?);
    let about = fstat(&dir)?;
    let attributes = attributes::of(dir.as_fd(), ids)?;
    let (entries, memory) = entries(&dir, memory)?;
    let named = entries.iter().enumerate().filter(|(_, entry)| entry.kind == Kind::File);
    let names = named.map(|(at, entry)| (at, entry.name.clone())).collect();
    let files = Arc::new(Files { dir: Arc::clone(&dir), names, taken: AtomicUsize::new(0) });
    Ok(Listed { dir, about, attributes, entries, memory, files: Pending { files, ready, ids } })
}

/// Opens an entry. The time of its last access stays as it is, where this process may have that: the kernel
/// would write a new one for each file that was changed since.
fn open(dir: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let flags = OPEN | flags;
    match openat(dir, name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => Ok(openat(dir, name, flags, Mode::empty())?),
        opened => Ok(opened?),
    }
}

fn entries<'m>(dir: &OwnedFd, memory: &'m Memory) -> io::Result<(Vec<Entry>, Share<'m>)> {
    let mut share = memory.share();
    let mut entries = directory::dots();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        // Each name is there twice while the files are read.
        share.grow(2 * (name.len() + 2 * size_of::<Entry>()))?;
        let mut kind = entry.file_type();
        if kind == FileType::Unknown {
            kind = FileType::from_raw_mode(statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
        }
        entries.push(Entry { name: name.to_vec(), kind: kind_of(kind)?, inode: 0 });
    }
    directory::sort(&mut entries);
    Ok((entries, share))
}

fn kind_of(kind: FileType) -> io::Result<Kind> {
    Ok(match kind {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::CharacterDevice => Kind::Characters,
        FileType::BlockDevice => Kind::Blocks,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::Symlink => Kind::Link,
        FileType::Unknown => return Err(changed()),
    })
}

/// Reads a part of a file. What the file lacks stays as it is in `into`.
pub(crate) fn read_at(file: BorrowedFd<'_>, from: u64, into: &mut [u8]) -> io::Result<()> {
    let mut got = 0;
    while got < into.len() {
        match retry_on_intr(|| pread(file, &mut into[got..], from + got as u64))? {
            0 => break,
            count => got += count,
        }
    }
    Ok(())
}
