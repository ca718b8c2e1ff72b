//! Archives of the box's files, as tar: packing. Links are stored as links and never followed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use guest_protocol::file_text::escaped;
use guest_protocol::{Archive, FileScope, Pack};
use rustix::fs::{AtFlags, CWD, FileType, Stat, readlinkat, statat};
use tar::{Builder, EntryType, Header, HeaderMode};

use super::long_work::Output;
use super::names::{decoded, time};
use super::path::{check, name_of, normal};
use super::search::open_regular;
use super::unpack::steps;
use super::walk::{Entry, Walk};
use crate::failure::{Result, lookup_refused};

/// Maximum number of files with several names that are known again by the others. Of further ones,
/// each name is a file of its own.
const SHARED_MAX: usize = 65_536;
const MODE_MAX: u32 = 0o7777;

/// Packs a file, or a directory with all that is below it. Names are those below the directory, which
/// itself is `./`. Devices, FIFOs and sockets are left out, and so is what the user may not read unless the
/// archive is to be whole.
///
/// # Errors
/// Before the head: not found for the path, invalid for one that cannot be packed. After it, a file
/// that has become shorter while it was read ends the archive early, and what cannot be read ends one
/// that is to be whole.
pub(crate) fn pack(request: &Archive, output: &mut Output) -> Result<()> {
    let path = &check(&request.path)?;
    let all = FileScope::all(&request.path);
    let walk = Walk::begin(&all)?;
    let root = normal(path.bytes());
    let stat = statat(CWD, path.bytes(), AtFlags::empty()).map_err(|errno| lookup_refused(path, errno))?;
    if output.begin().is_err() {
        return Ok(());
    }
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    // A file's name in the archive is its own.
    let above = if is_dir { root.len() } else { root.len() - name_of(&root).len() };
    let builder = Builder::new(Sink { output });
    let mut packing = Packing { builder, above, shared: HashMap::new(), is_whole: request.is_whole };
    packing.builder.mode(HeaderMode::Complete);
    let packed = packing.all(walk, is_dir.then_some(&stat));
    packing.end(packed)
}

/// Packs chosen files below a directory, in the order of their paths. One that is not there, or cannot
/// be packed, is left out.
///
/// # Errors
/// Before the head: not found for the directory, invalid for a path that could lead out of it. After it
/// as [`pack`].
pub(crate) fn chosen(request: &Pack, output: &mut Output) -> Result<()> {
    let path = &check(&request.path)?;
    let paths: Vec<Vec<u8>> = request.paths.iter().map(|path| decoded(path)).collect();
    for path in &paths {
        steps(path)?;
    }
    statat(CWD, path.bytes(), AtFlags::empty()).map_err(|errno| lookup_refused(path, errno))?;
    if output.begin().is_err() {
        return Ok(());
    }
    let root = normal(path.bytes());
    let builder = Builder::new(Sink { output });
    let mut packing = Packing { builder, above: root.len(), shared: HashMap::new(), is_whole: false };
    packing.builder.mode(HeaderMode::Complete);
    let mut packed = Ok(());
    for below in &paths {
        let path = [root.strip_suffix(b"/").unwrap_or(&root), b"/", below.as_slice()].concat();
        let Ok(stat) = statat(CWD, path.as_slice(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
        packed = packing.entry(&Entry { path, kind: FileType::from_raw_mode(stat.st_mode) });
        if packed.is_err() {
            break;
        }
    }
    packing.end(packed)
}

/// End of an archive in its thread.
struct Sink<'a> {
    output: &'a mut Output,
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.output.bytes(bytes).map_err(|_| std::io::Error::other("the caller has disconnected"))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An archive that is being written.
struct Packing<'a> {
    builder: Builder<Sink<'a>>,
    /// Bytes of each path that are not in its name.
    above: usize,
    /// Names of files with several of them, by device and inode.
    shared: HashMap<(u64, u64), Vec<u8>>,
    /// True if nothing may be left out because it cannot be read.
    is_whole: bool,
}

impl Packing<'_> {
    fn all(&mut self, mut walk: Walk, root: Option<&Stat>) -> std::io::Result<()> {
        if let Some(stat) = root {
            self.time(stat)?;
            self.builder.append_data(&mut header(EntryType::Directory, stat), "./", std::io::empty())?;
        }
        for entry in &mut walk {
            let entry = entry.map_err(|failure| std::io::Error::other(failure.message))?;
            self.entry(&entry)?;
        }
        if self.is_whole && walk.unreadable > 0 {
            return Err(std::io::Error::other("a directory cannot be read, or its path is too long"));
        }
        Ok(())
    }

    /// Leaves out an entry that cannot be read, unless the archive is to be whole.
    fn leave_out(&self, path: &[u8]) -> std::io::Result<()> {
        if self.is_whole {
            let path = escaped(path);
            return Err(std::io::Error::other(format!("{path} cannot be read")));
        }
        Ok(())
    }

    fn end(mut self, packed: std::io::Result<()>) -> Result<()> {
        let ended = packed.and_then(|()| self.builder.finish());
        let Sink { output } = self.builder.get_mut();
        match ended {
            Ok(()) => {
                let _ = output.flush();
                Ok(())
            }
            Err(error) => Err(crate::failure::internal(error.to_string())),
        }
    }

    /// Returns the name of an entry in the archive.
    fn name<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        let name = path.get(self.above..).unwrap_or_default();
        name.strip_prefix(b"/").unwrap_or(name)
    }

    fn entry(&mut self, entry: &Entry) -> std::io::Result<()> {
        let name = Path::new(OsStr::from_bytes(self.name(&entry.path)));
        match entry.kind {
            FileType::Directory => {
                let Ok(stat) = statat(CWD, entry.path.as_slice(), AtFlags::SYMLINK_NOFOLLOW) else {
                    return self.leave_out(&entry.path);
                };
                if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                    return Ok(());
                }
                self.time(&stat)?;
                self.builder.append_data(&mut header(EntryType::Directory, &stat), name.join(""), std::io::empty())
            }
            FileType::Symlink => {
                let path = entry.path.as_slice();
                let Ok(stat) = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) else { return self.leave_out(path) };
                let Ok(target) = readlinkat(CWD, path, Vec::new()) else { return self.leave_out(path) };
                let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                self.time(&stat)?;
                self.builder.append_link(&mut header(EntryType::Symlink, &stat), name, target)
            }
            FileType::RegularFile => self.file(entry, name),
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Ok(()),
        }
    }

    /// Adds the time of the next member where its header cannot hold it.
    fn time(&mut self, stat: &Stat) -> std::io::Result<()> {
        if stat.st_mtime_nsec == 0 && stat.st_mtime >= 0 {
            return Ok(());
        }
        self.builder.append_pax_extensions([("mtime", time(stat).as_bytes())])
    }

    fn file(&mut self, entry: &Entry, name: &Path) -> std::io::Result<()> {
        let Some((file, stat)) = open_regular(entry) else { return self.leave_out(&entry.path) };
        if stat.st_nlink > 1 {
            let id = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.shared.get(&id) {
                let first = Path::new(OsStr::from_bytes(first)).to_owned();
                return self.builder.append_link(&mut header(EntryType::Link, &stat), name, first);
            }
            if self.shared.len() < SHARED_MAX {
                self.shared.insert(id, name.as_os_str().as_bytes().to_vec());
            }
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let mut header = header(EntryType::Regular, &stat);
        header.set_size(size);
        // A file that grows meanwhile ends where it ended when it was opened.
        let mut content = Whole { file: File::from(file), left: size };
        self.time(&stat)?;
        self.builder.append_data(&mut header, name, &mut content)
    }
}

/// Content of a file, with as many bytes as were announced.
struct Whole {
    file: File,
    left: u64,
}

impl Read for Whole {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read(buffer.get_mut(..most).unwrap_or_default())?;
        if read == 0 && most > 0 {
            return Err(std::io::Error::other("a file became shorter while it was being read"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

fn header(kind: EntryType, stat: &Stat) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & MODE_MAX);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_size(0);
    header
}
