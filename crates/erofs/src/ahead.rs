//! Files of a directory, read by two threads at once.
//!
//! Opening, looking at and reading a small file takes a thread longer than writing it to the image.
//! So a second thread takes files of the same directory, and hands over what it has read.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope};

use rustix::fs::{FileType, Mode, Stat, fstat, openat};
use rustix::io::{pread, retry_on_intr};

use super::attributes;
use super::tree::{Ids, OPEN, changed};

/// Files that a thread takes at once.
const BATCH: usize = 16;
/// Least number of files for which the second thread is asked.
const WORTHWHILE: usize = 4 * BATCH;
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

/// Content of a file.
#[derive(Debug)]
pub(crate) enum Content {
    Open(File),
    Read(Vec<u8>),
}

impl Ready {
    /// Opens a plain file, and nothing else in its place.
    fn open(dir: BorrowedFd<'_>, entry: usize, name: &[u8], ids: Ids) -> io::Result<Ready> {
        let file = File::from(openat(dir, name, OPEN, Mode::empty())?);
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
    dir: OwnedFd,
    /// Places of their entries, and their names.
    names: Vec<(usize, Vec<u8>)>,
    taken: AtomicUsize,
}

impl Files {
    /// Returns the files that the caller has to read; none if all are taken.
    fn take(&self) -> &[(usize, Vec<u8>)] {
        let begin = self.taken.fetch_add(BATCH, Ordering::Relaxed).min(self.names.len());
        &self.names[begin..(begin + BATCH).min(self.names.len())]
    }
}

type Batch = io::Result<Vec<Ready>>;

/// Work for the second thread: files, and the way for what it has read.
type Job = (Arc<Files>, SyncSender<Batch>);

/// The second thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Reader {
    jobs: Sender<Job>,
    ids: Ids,
}

impl Reader {
    /// Starts the thread.
    pub(crate) fn start<'scope>(scope: &'scope Scope<'scope, '_>, ids: Ids) -> io::Result<Reader> {
        let (jobs, waiting) = channel();
        let reader = Builder::new().name("erofs-read".to_owned());
        reader.spawn_scoped(scope, move || serve(&waiting, ids))?;
        Ok(Reader { jobs, ids })
    }

    /// Calls `write` for each of the named files of a directory, in any order.
    pub(crate) fn each(
        &self,
        dir: BorrowedFd<'_>,
        names: Vec<(usize, Vec<u8>)>,
        mut write: impl FnMut(Ready) -> io::Result<()>,
    ) -> io::Result<()> {
        if names.len() < WORTHWHILE {
            return names.iter().try_for_each(|(entry, name)| write(Ready::open(dir, *entry, name, self.ids)?));
        }
        let files = Arc::new(Files { dir: dir.try_clone_to_owned()?, names, taken: AtomicUsize::new(0) });
        let (filled, ready) = sync_channel(WAITING_MAX);
        // A thread that has ended takes no file.
        let _ = self.jobs.send((Arc::clone(&files), filled));
        loop {
            let mine = files.take();
            for (entry, name) in mine {
                write(Ready::open(dir, *entry, name, self.ids)?)?;
            }
            // Without any left for this thread, the other has to be waited for.
            while let Some(batch) = if mine.is_empty() { ready.recv().ok() } else { ready.try_recv().ok() } {
                batch?.into_iter().try_for_each(&mut write)?;
            }
            if mine.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Reads the files of each job until all are taken, or the other thread has given up.
fn serve(jobs: &Receiver<Job>, ids: Ids) {
    for (files, filled) in jobs {
        loop {
            let mine = files.take().iter();
            let batch: Batch =
                mine.map(|(entry, name)| Ready::open(files.dir.as_fd(), *entry, name, ids)?.read()).collect();
            if matches!(&batch, Ok(none) if none.is_empty()) || filled.send(batch).is_err() {
                break;
            }
        }
    }
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
