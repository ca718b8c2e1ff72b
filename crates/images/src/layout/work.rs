//! Pulls and imports as writers of the layout, and the blobs reserved for them meanwhile.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _};
use std::path::PathBuf;
use std::time::Duration;

use host_disk::write_sparse;
use oci_spec::image::{Descriptor, MediaType};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::{Layout, descriptor, file_name, remove, sync_folder};
use crate::digest::{finish, sha256};
use crate::error::{Error, stopped};

/// Pause between two looks at what is being written.
const PAUSE: Duration = Duration::from_millis(5);

impl Layout {
    /// Registers a pull or an import. Until it ends, no blob that it writes or finds is removed.
    /// It ends soon after `stop` is cancelled.
    pub(crate) fn work(&self, stop: CancellationToken) -> Work {
        let mut state = self.inner.lock();
        let number = state.number();
        state.works.insert(number, HashSet::new());
        Work { layout: self.clone(), number, stop }
    }

    /// Starts a sweep. Until the guard is dropped, no blob that a pull or an import has now is
    /// removed, even if that ends. Only one sweep may run at a time.
    pub(crate) fn sweeping(&self) -> Sweeping {
        self.inner.lock().sweeping = Some(HashSet::new());
        Sweeping { layout: self.clone() }
    }
}

/// Running pull or import.
#[derive(Debug)]
pub(crate) struct Work {
    layout: Layout,
    number: u64,
    stop: CancellationToken,
}

impl Work {
    /// Returns the token that stops it.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Awaits `doing`, and fails once the work is stopped.
    pub(crate) async fn unless_stopped<T>(&self, doing: impl Future<Output = T>) -> Result<T, Error> {
        self.stop.run_until_cancelled(doing).await.ok_or_else(stopped)
    }

    /// Returns whether the blob is in the layout; if so, it is kept until the work ends.
    pub(crate) fn has(&self, digest: &str, size: u64) -> bool {
        let mut state = self.layout.inner.lock();
        let here = fs::metadata(self.layout.blob_path(digest)).is_ok_and(|blob| blob.is_file() && blob.len() == size);
        if here {
            state.mark(self.number, digest);
        }
        here
    }

    /// Starts or resumes the download of a blob. Fails with `WouldBlock` if another pull or
    /// import is writing it.
    pub(crate) fn ingest(&self, digest: &str, size: u64) -> io::Result<Ingest> {
        let layout = &self.layout;
        {
            let mut state = layout.inner.lock();
            if state.ingests.contains_key(digest) {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "the blob is already being written"));
            }
            state.ingests.insert(digest.to_owned(), self.number);
            state.mark(self.number, digest);
        }
        let path = layout.inner.dir.join("ingest").join(file_name(digest));
        let expected = Some((digest.to_owned(), size));
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut ingest = match opened {
            Ok(file) => self.begin(file, path, expected),
            Err(error) => {
                layout.inner.lock().ingests.remove(digest);
                return Err(error);
            }
        };
        ingest.read_again(&self.stop)?;
        Ok(ingest)
    }

    /// Starts a blob whose digest is known only at its end.
    pub(crate) fn ingest_unknown(&self) -> io::Result<Ingest> {
        let number = self.layout.inner.lock().number();
        let path = self.layout.inner.dir.join("ingest").join(format!("new-{number}"));
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        Ok(self.begin(file, path, None))
    }

    fn begin(&self, file: File, path: PathBuf, expected: Option<(String, u64)>) -> Ingest {
        Ingest { layout: self.layout.clone(), work: self.number, file, path, expected, offset: 0, hash: Sha256::new() }
    }

    /// Writes a blob from memory.
    pub(crate) fn put_blob(&self, media_type: MediaType, bytes: &[u8]) -> io::Result<Descriptor> {
        let digest = sha256(bytes);
        if !self.has(&digest, bytes.len() as u64) {
            let mut ingest = self.ingest_unknown()?;
            ingest.write(bytes)?;
            ingest.commit()?;
        }
        descriptor(media_type, bytes.len() as u64, &digest)
    }

    /// Waits until no thread writes a blob of it any more. A download that is given up may have
    /// begun its last step.
    pub(crate) async fn settled(&self) {
        while self.is_writing() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn is_writing(&self) -> bool {
        self.layout.inner.lock().ingests.values().any(|work| *work == self.number)
    }

    /// Ends the work and returns the digests that it has written or found.
    pub(crate) fn end(&self) -> HashSet<String> {
        let mut state = self.layout.inner.lock();
        let fresh = state.works.remove(&self.number).unwrap_or_default();
        if let Some(sweeping) = &mut state.sweeping {
            sweeping.extend(fresh.iter().cloned());
        }
        fresh
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.end();
    }
}

/// Running sweep for blobs that no image needs.
#[derive(Debug)]
pub(crate) struct Sweeping {
    layout: Layout,
}

impl Drop for Sweeping {
    fn drop(&mut self) {
        self.layout.inner.lock().sweeping = None;
    }
}

/// Blob being written. If dropped, one with a known digest can be resumed.
#[derive(Debug)]
pub(crate) struct Ingest {
    layout: Layout,
    work: u64,
    file: File,
    path: PathBuf,
    /// Expected digest and size; `None` accepts any content.
    expected: Option<(String, u64)>,
    offset: u64,
    hash: Sha256,
}

impl Ingest {
    /// Deletes the partial blob.
    pub(crate) fn discard(self) -> io::Result<()> {
        remove(&self.path).map(drop)
    }

    /// Returns the number of bytes written so far.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Appends bytes. Fails with `InvalidData` if they exceed the announced size.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.expected.as_ref().is_some_and(|(_, size)| self.offset + bytes.len() as u64 > *size) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the blob is larger than announced"));
        }
        let end = self.offset + bytes.len() as u64;
        // Layers that are not compressed have the holes of their files as zeros. The length tells a later
        // download where this one ended.
        if let Err(error) = write_sparse(&mut self.file, bytes).and_then(|_| self.file.set_len(end)) {
            // A part of it may be written: the file is cut after the last whole write.
            let _ = self.file.set_len(self.offset);
            return Err(error);
        }
        self.hash.update(bytes);
        self.offset = end;
        Ok(())
    }

    /// Empties the blob and starts it again.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.offset = 0;
        self.hash = Sha256::new();
        Ok(())
    }

    /// Checks the blob and puts it among the others; returns its digest and size. A blob that
    /// differs from the announced one is deleted, and the error is `InvalidData`.
    pub(crate) fn commit(self) -> io::Result<(String, u64)> {
        let digest = finish(self.hash.clone());
        if let Some((expected, size)) = &self.expected
            && (*expected != digest || *size != self.offset)
        {
            let text = format!("the blob has {} bytes and the digest {digest}", self.offset);
            fs::remove_file(&self.path)?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        self.file.sync_all()?;
        let place = self.layout.blob_path(&digest);
        {
            let mut state = self.layout.inner.lock();
            fs::rename(&self.path, &place)?;
            state.mark(self.work, &digest);
        }
        sync_folder(&place)?;
        Ok((digest, self.offset))
    }

    fn read_again(&mut self, stop: &CancellationToken) -> io::Result<()> {
        let size = self.expected.as_ref().map_or(0, |(_, size)| *size);
        if self.file.metadata()?.len() > size {
            self.file.set_len(0)?;
        }
        let mut buffer = vec![0; 128 * 1024];
        loop {
            if stop.is_cancelled() {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "the download was stopped"));
            }
            match self.file.read(&mut buffer)? {
                0 => return Ok(()),
                read => {
                    self.hash.update(&buffer[..read]);
                    self.offset += read as u64;
                }
            }
        }
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        match &self.expected {
            Some((digest, _)) => {
                self.layout.inner.lock().ingests.remove(digest);
            }
            // A committed blob is no longer there.
            None => drop(fs::remove_file(&self.path)),
        }
    }
}

#[cfg(test)]
mod test {
    use super::super::test::{layout, work};
    use super::*;

    #[test]
    fn a_blob_that_broke_off_is_gone_on_with_and_checked_as_a_whole() {
        let (folder, layout) = layout();
        let writing = work(&layout);
        let (content, digest) = (b"hello, world".as_slice(), sha256(b"hello, world"));
        let mut ingest = writing.ingest(&digest, 12).unwrap();
        ingest.write(&content[..5]).unwrap();
        let other = work(&layout).ingest(&digest, 12).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::WouldBlock, "one writer at a time");
        drop(ingest);
        let layout = Layout::open(&folder.path().join("images")).unwrap();
        let writing = work(&layout);
        assert!(!writing.has(&digest, 12));
        let mut ingest = writing.ingest(&digest, 12).unwrap();
        assert_eq!(ingest.offset(), 5);
        ingest.write(&content[5..]).unwrap();
        assert_eq!(ingest.commit().unwrap(), (digest.clone(), 12));
        assert!(writing.has(&digest, 12) && !writing.has(&digest, 11));
        assert_eq!(layout.read_blob(&digest, 12).unwrap(), content);
        assert!(layout.read_blob(&digest, 11).is_err());
    }

    #[test]
    fn what_is_not_as_announced_does_not_become_a_blob() {
        let (_folder, layout) = layout();
        let writing = work(&layout);
        let digest = sha256(b"right");
        for wrong in ["wrong", "righ", ""] {
            let mut ingest = writing.ingest(&digest, 5).unwrap();
            ingest.write(wrong.as_bytes()).unwrap();
            assert_eq!(ingest.commit().unwrap_err().kind(), io::ErrorKind::InvalidData);
            assert!(!layout.blob_path(&digest).exists());
            assert_eq!(writing.ingest(&digest, 5).unwrap().offset(), 0, "nothing of it is kept");
        }
        let mut ingest = writing.ingest(&digest, 5).unwrap();
        ingest.write(b"ri").unwrap();
        assert_eq!(ingest.write(b"ghty").unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(ingest.offset(), 2);
        ingest.write(b"ght").unwrap();
        ingest.commit().unwrap();
    }

    #[test]
    fn what_one_holds_ends_with_it_whoever_else_is_at_work() {
        let (_folder, layout) = layout();
        let (slow, quick) = (work(&layout), work(&layout));
        let theirs = slow.put_blob(MediaType::ImageConfig, b"slow").unwrap().digest().to_string();
        let both = quick.put_blob(MediaType::ImageConfig, b"both").unwrap().digest().to_string();
        assert!(slow.has(&both, 4));
        let ours = quick.put_blob(MediaType::ImageConfig, b"quick").unwrap().digest().to_string();
        assert!(layout.is_fresh(&ours));
        assert_eq!(quick.end(), HashSet::from([both.clone(), ours.clone()]));
        assert!(!layout.is_fresh(&ours) && layout.is_fresh(&both) && layout.is_fresh(&theirs));
        layout.sweep(&HashSet::new(), None).unwrap();
        assert_eq!([&ours, &both, &theirs].map(|digest| layout.blob_path(digest).exists()), [false, true, true]);
    }

    #[test]
    fn what_ends_while_it_is_swept_is_not_swept_away() {
        let (_folder, layout) = layout();
        let working = work(&layout);
        let blob = working.put_blob(MediaType::ImageConfig, b"new").unwrap().digest().to_string();
        let sweeping = layout.sweeping();
        // The image may have its name by now, which the sweep cannot know.
        drop(working);
        assert_eq!(layout.sweep(&HashSet::new(), None).unwrap(), 0);
        drop(sweeping);
        assert_eq!(layout.sweep(&HashSet::new(), None).unwrap(), 3);
        assert!(!layout.blob_path(&blob).exists());
    }
}
