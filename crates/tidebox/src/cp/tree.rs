//! Directories of this machine as archives, for `tidebox cp -r`.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};
use tar::{Archive, Builder, EntryType, Header};
use tokio::sync::mpsc;

/// Size of the pieces of an archive, in bytes.
const PIECE_BYTES: usize = 256 * 1024;
/// Size of a block of a tar.
const BLOCK_BYTES: usize = 512;
/// Largest header that describes a member of an archive from a box, in bytes.
const HEADER_BYTES_MAX: u64 = 64 * 1024;
/// Maximum number of directories of an archive from a box: their modes and times are set at the end.
const DIRECTORIES_MAX: usize = 100_000;
/// Mode bits that files from a box never get here: set-user-id, set-group-id and sticky. They would be
/// this user's.
const BITS_LEFT_OUT: u32 = 0o7000;

/// Sending end of an archive, on a blocking thread.
pub struct Sink {
    sender: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Sink {
    pub fn new(sender: mpsc::Sender<io::Result<Bytes>>) -> Self {
        Self { sender, piece: Vec::new() }
    }

    /// Sends what has been written.
    pub fn send(&mut self) -> io::Result<()> {
        let piece = Bytes::from(std::mem::take(&mut self.piece));
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Packs the directory `root` into `sender`. Returns the number of devices, FIFOs and sockets, which
/// are left out. Links are not followed.
///
/// # Errors
/// If something cannot be read; the receiver gets it too, so that a part is not taken for the whole.
pub fn pack(root: &Path, sender: mpsc::Sender<io::Result<Bytes>>) -> io::Result<u64> {
    let failures = sender.clone();
    let packed = Packing { root, builder: Builder::new(Sink::new(sender)), shared: HashMap::new() }.all();
    packed.inspect_err(|error| {
        // A receiver that has left does not need it.
        let _ = failures.blocking_send(Err(io::Error::new(error.kind(), error.to_string())));
    })
}

struct Packing<'a> {
    root: &'a Path,
    builder: Builder<Sink>,
    /// Names of files that have several, by device and inode.
    shared: HashMap<(u64, u64), PathBuf>,
}

impl Packing<'_> {
    fn all(mut self) -> io::Result<u64> {
        let metadata = self.root.metadata().map_err(at(self.root))?;
        self.time(&metadata)?;
        self.builder.append_data(&mut header(EntryType::Directory, &metadata), "./", io::empty())?;
        let mut left_out = 0;
        let mut pending = vec![PathBuf::new()];
        while let Some(dir) = pending.pop() {
            let here = self.root.join(&dir);
            let entries = match here.read_dir() {
                // What is removed after it was listed is left out.
                Err(error) if has_vanished(&error) && here != self.root => continue,
                entries => entries.map_err(at(&here))?,
            };
            for entry in entries {
                let name = dir.join(entry.map_err(at(&here))?.file_name());
                let path = self.root.join(&name);
                let metadata = match path.symlink_metadata() {
                    Err(error) if has_vanished(&error) => continue,
                    metadata => metadata.map_err(at(&path))?,
                };
                let kind = metadata.file_type();
                if kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device() {
                    left_out += 1;
                    continue;
                }
                if kind.is_dir() {
                    self.time(&metadata)?;
                    let mut header = header(EntryType::Directory, &metadata);
                    self.builder.append_data(&mut header, name.join(""), io::empty()).map_err(at(&path))?;
                    pending.push(name);
                } else if kind.is_symlink() {
                    let target = match path.read_link() {
                        Err(error) if has_vanished(&error) => continue,
                        target => target.map_err(at(&path))?,
                    };
                    self.time(&metadata)?;
                    self.builder
                        .append_link(&mut header(EntryType::Symlink, &metadata), &name, target)
                        .map_err(at(&path))?;
                } else {
                    // Without a wait for a writer, should a FIFO have taken its place.
                    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
                    let file = match File::options().read(true).custom_flags(flags).open(&path) {
                        Err(error) if has_vanished(&error) => continue,
                        file => file.map_err(at(&path))?,
                    };
                    self.time(&metadata)?;
                    self.file(&name, file, &metadata).map_err(at(&path))?;
                }
            }
        }
        self.builder.finish()?;
        self.builder.get_mut().send()?;
        Ok(left_out)
    }

    fn file(&mut self, name: &Path, file: File, metadata: &Metadata) -> io::Result<()> {
        if metadata.nlink() > 1 {
            match self.shared.get(&(metadata.dev(), metadata.ino())) {
                Some(first) => {
                    let first = first.clone();
                    return self.builder.append_link(&mut header(EntryType::Link, metadata), name, first);
                }
                None => drop(self.shared.insert((metadata.dev(), metadata.ino()), name.to_owned())),
            }
        }
        let mut header = header(EntryType::Regular, metadata);
        header.set_size(metadata.len());
        self.builder.append_data(&mut header, name, Whole { file, left: metadata.len() })
    }

    /// Adds the time of the next member where its header cannot hold it.
    fn time(&mut self, metadata: &Metadata) -> io::Result<()> {
        // Before 1970, the fraction would count the other way.
        if metadata.mtime_nsec() == 0 || metadata.mtime() < 0 {
            return Ok(());
        }
        let time = format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec());
        self.builder.append_pax_extensions([("mtime", time.as_bytes())])
    }
}

fn has_vanished(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Content of a file, with as many bytes as were announced.
pub struct Whole {
    pub file: File,
    pub left: u64,
}

impl Read for Whole {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read(&mut buffer[..most])?;
        if read == 0 && most > 0 {
            return Err(io::Error::other("it shrank while it was read"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

fn header(kind: EntryType, metadata: &Metadata) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(metadata.mode() & 0o7777);
    header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
    header.set_size(0);
    header
}

/// Returns a function that adds the path to an error.
fn at(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Unpacks an archive from a box below `root`, an existing directory. What a box sends is not
/// trusted: nothing of it leaves the directory.
///
/// # Errors
/// If the archive is malformed or would leave the directory, or a file cannot be written.
pub fn unpack(root: &Path, receiver: mpsc::Receiver<Bytes>) -> io::Result<()> {
    let mut archive = guarded(receiver);
    archive.set_preserve_permissions(true);
    archive.set_mask(BITS_LEFT_OUT);
    archive.set_overwrite(true);
    all(&mut archive, root).map_err(|error| io::Error::new(error.kind(), innermost(&error)))
}

/// Returns the reader of an archive from a box.
pub fn guarded(receiver: mpsc::Receiver<Bytes>) -> Archive<Guard<Source>> {
    Archive::new(Guard { input: Source { receiver, piece: Bytes::new() }, header: Vec::new(), left: 0 })
}

fn all(archive: &mut Archive<Guard<Source>>, root: &Path) -> io::Result<()> {
    let root = root.canonicalize()?;
    let mut directories = Vec::new();
    for member in archive.entries()? {
        let mut member = member?;
        if member.header().entry_type().is_dir() {
            if directories.len() >= DIRECTORIES_MAX {
                return Err(io::Error::other(format!("the archive has more than {DIRECTORIES_MAX} directories")));
            }
            directories.push(member);
        } else if !member.unpack_in(&root)? {
            return Err(leads_out());
        }
    }
    // The deepest first: a mode may forbid to write, and a file in it changes its time.
    directories.sort_by(|a, b| b.path_bytes().cmp(&a.path_bytes()));
    for mut directory in directories {
        if !directory.unpack_in(&root)? {
            return Err(leads_out());
        }
        // As it was unpacked: without what leads to the root of this machine.
        let path = directory.path()?.into_owned();
        let steps = path.components().filter(|step| matches!(step, Component::Normal(_)));
        let seconds = i64::try_from(directory.header().mtime()?).unwrap_or(i64::MAX);
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: 0 },
        };
        utimensat(CWD, root.join(steps.collect::<PathBuf>()), &times, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

fn leads_out() -> io::Error {
    io::Error::other("the archive has a path outside its directory")
}

/// Returns the whole chain of an error, as one text.
pub fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", innermost(source)),
        None => error.to_string(),
    }
}

/// Receiving end of an archive, on a blocking thread.
pub struct Source {
    receiver: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                None => return Ok(0),
                Some(piece) => self.piece = piece,
            }
        }
        let part = self.piece.split_to(buffer.len().min(self.piece.len()));
        buffer[..part.len()].copy_from_slice(&part);
        Ok(part.len())
    }
}

/// Reader of an archive that refuses headers which would be read into memory whole, however large, and
/// kinds of members that no box of ours sends.
pub struct Guard<R> {
    input: R,
    /// Bytes of the header that is being read.
    header: Vec<u8>,
    /// Bytes of content, and of what pads it, until the next header.
    left: u64,
}

impl<R: Read> Read for Guard<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let to_header = (BLOCK_BYTES - self.header.len()) as u64;
        let most = if self.left > 0 { self.left } else { to_header };
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.input.read(&mut buffer[..most])?;
        if self.left > 0 {
            self.left -= read as u64;
            return Ok(read);
        }
        self.header.extend_from_slice(&buffer[..read]);
        if let Ok(block) = <&[u8; BLOCK_BYTES]>::try_from(self.header.as_slice()) {
            if *block != [0; BLOCK_BYTES] {
                let header = Header::from_byte_slice(block);
                let size = header.entry_size()?;
                let kind = header.entry_type().as_byte();
                let is_described = matches!(kind, b'L' | b'K' | b'x' | b'g');
                if !is_described && !matches!(kind, b'0' | b'1' | b'2' | b'5') {
                    return Err(io::Error::other("the archive has a member of an unsupported type"));
                }
                if is_described && size > HEADER_BYTES_MAX {
                    return Err(io::Error::other("the archive has a header that is too large"));
                }
                self.left = size.div_ceil(BLOCK_BYTES as u64).saturating_mul(BLOCK_BYTES as u64);
            }
            self.header.clear();
        }
        Ok(read)
    }
}

#[cfg(test)]
pub(crate) mod test {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn through(archive: &[u8], root: &Path) -> io::Result<()> {
        let (sender, receiver) = mpsc::channel(archive.len().div_ceil(1000).max(1));
        for piece in archive.chunks(1000) {
            sender.try_send(Bytes::copy_from_slice(piece)).unwrap();
        }
        drop(sender);
        unpack(root, receiver)
    }

    /// Makes an archive of files with this mode, or links with these targets.
    pub(crate) fn archive(mode: u32, members: &[(EntryType, &str, &str)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (kind, name, content) in members {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(mode);
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
            if is_link {
                header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
            }
            header.set_size(if is_link { 0 } else { content.len() as u64 });
            header.set_cksum();
            builder.append(&header, if is_link { &b""[..] } else { content.as_bytes() }).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn a_hostile_archive_writes_nothing_outside_of_its_directory() {
        use EntryType::{Char, GNULongName, Link, Regular, Symlink};
        let outside = tempfile::tempdir().unwrap();
        let root = outside.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(outside.path().join("file"), "safe").unwrap();
        let absolute = outside.path().join("absolute").to_str().unwrap().to_owned();
        for members in [
            vec![(Regular, "../file", "x")],
            vec![(Regular, absolute.as_str(), "x")],
            vec![(Symlink, "l", ".."), (Regular, "l/file", "x")],
            vec![(Symlink, "f", "../file"), (Regular, "f", "x")],
            vec![(Link, "h", "../file"), (Regular, "h", "x")],
            vec![(Symlink, "m", "/"), (Regular, "m/tmp/tidebox-hostile", "x")],
            vec![(Char, "null", "")],
            vec![(GNULongName, "n", &"x/".repeat(100_000)), (Regular, "a", "x")],
        ] {
            // Refused, or kept inside: the box chose the names.
            let _ = through(&archive(0o4755, &members), &root);
            assert_eq!(std::fs::read_to_string(outside.path().join("file")).unwrap(), "safe", "{members:?}");
            let names: Vec<_> = outside.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names.len(), 2, "{members:?}: {names:?}");
            assert!(!Path::new("/tmp/tidebox-hostile").exists());
        }
        through(&archive(0o4755, &[(Regular, "run", "x")]), &root).unwrap();
        assert_eq!(root.join("run").metadata().unwrap().mode() & 0o7777, 0o755, "no set-user-id file of this user");
        assert!(through(&archive(0o4755, &[(Regular, "run", &"x".repeat(2000))])[..1500], &root).is_err());
    }

    #[test]
    fn a_tree_is_packed_and_unpacked_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::create_dir_all(from.join("d/e")).unwrap();
        std::fs::create_dir(&to).unwrap();
        std::fs::write(from.join("d/f"), vec![7; 600_000]).unwrap();
        std::fs::hard_link(from.join("d/f"), from.join("again")).unwrap();
        symlink("/nowhere", from.join("l")).unwrap();
        std::fs::set_permissions(from.join("d/f"), std::fs::Permissions::from_mode(0o741)).unwrap();
        std::fs::set_permissions(from.join("d/e"), std::fs::Permissions::from_mode(0o555)).unwrap();
        let (sender, mut receiver) = mpsc::channel(100);
        assert_eq!(pack(&from, sender).unwrap(), 0);
        let mut packed = Vec::new();
        while let Ok(piece) = receiver.try_recv() {
            packed.extend_from_slice(&piece.unwrap());
        }
        through(&packed, &to).unwrap();
        let of = |path: &str| to.join(path).symlink_metadata().unwrap();
        assert_eq!((of("d/f").mode() & 0o7777, of("d/f").len()), (0o741, 600_000));
        assert_eq!(of("d/f").ino(), of("again").ino());
        assert_eq!(of("d/e").mode() & 0o7777, 0o555);
        assert_eq!(of("d").mtime(), from.join("d").metadata().unwrap().mtime());
        assert_eq!(to.join("l").read_link().unwrap(), Path::new("/nowhere"));
        assert_eq!(of("d/f").mtime(), from.join("d/f").metadata().unwrap().mtime());
    }
}
