//! Application of layers to a root directory, one member after the other.

use std::os::fd::OwnedFd;

use host_disk::write_sparse;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Uid, XattrFlags, chmodat, chownat, fchmod, fchown, fsetxattr,
    fstat, linkat, mknodat, openat, statat, symlinkat, utimensat,
};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::archive::{Archive, Kind, Member};
use super::layer::Layer;
use super::root::{Root, disk, kind_of, set_mtime, times};
use super::share::{Shared, Traits};
use super::stream::{Budget, Chunks, uncompressed};
use crate::error::{Error, Result, refuse};

/// Size up to which a file is read before it is written, in bytes: if another image has it
/// already, nothing is written.
const SMALL: usize = 128 * 1024;
/// Highest user or group id of a box.
const ID_MAX: u64 = 65_535;
/// Longest name of an extended attribute, in bytes, as in the kernel.
const XATTR_NAME_MAX: usize = 255;
/// Largest value of an extended attribute, in bytes, as in the kernel.
const XATTR_VALUE_MAX: usize = 65_536;
const WHITEOUT: &[u8] = b".wh.";
/// Prefix of notes of aufs, which are no files; `.wh..wh..opq` has it too.
const NOTE: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Unpacking of the layers of an image into one root directory.
#[derive(Debug)]
pub(super) struct Unpacking<'a> {
    root: Root<'a>,
    shared: Shared,
    budget: &'a Budget,
    /// True if files can be given other owners. If not, they belong to the server's user.
    privileged: bool,
    buffer: Vec<u8>,
    /// Counts of the content unpacked so far.
    pub(super) seen: Seen,
}

/// Counts of the content of an image.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) entries: u64,
    pub(super) bytes: u64,
    /// Device nodes, which are left out.
    pub(super) devices: u64,
}

impl<'a> Unpacking<'a> {
    pub(super) fn new(root: Root<'a>, shared: Shared, budget: &'a Budget) -> Self {
        Unpacking {
            root,
            shared,
            budget,
            privileged: rustix::process::geteuid().is_root(),
            buffer: vec![0; SMALL],
            seen: Seen::default(),
        }
    }

    /// Applies the next layer.
    pub(super) fn layer(&mut self, layer: &Layer, read: &(dyn Fn(u64) + Sync)) -> Result<()> {
        self.root.next_layer()?;
        let budget = self.budget;
        let applied = uncompressed(layer, budget, read, |chunks| {
            let mut archive = Archive::new(chunks);
            while let Some(member) = archive.next()? {
                budget.entry()?;
                self.seen.entries += 1;
                self.member(&mut archive, &member).map_err(|error| blame(error, &shown(&member.path)))?;
            }
            Ok(())
        });
        applied.map_err(|error| blame(error, &format!("layer {}", layer.diff_id.escape_debug())))
    }

    /// Sets the directory modes that would have prevented the unpacking.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.root.leave()?;
        self.root.set_kept_modes()
    }

    fn member(&mut self, archive: &mut Archive<&mut Chunks>, member: &Member) -> Result<()> {
        if self.privileged && (member.uid > ID_MAX || member.gid > ID_MAX) && member.kind != Kind::Hardlink {
            let Member { uid, gid, .. } = member;
            return Err(refuse(format!(
                "it belongs to {uid}:{gid}, but a box has users and groups only up to {ID_MAX}"
            )));
        }
        let steps = clean(&member.path);
        if steps.iter().any(|step| step.starts_with(NOTE) && *step != OPAQUE) {
            return Ok(());
        }
        let Some((last, above)) = steps.split_last() else {
            if member.kind != Kind::Directory {
                return Err(refuse("it is the root, which must be a directory"));
            }
            self.root.leave()?;
            let fd = openat(self.root.fd(), ".", DIRECTORY, Mode::empty()).map_err(disk)?;
            return self.dress_directory(fd, Vec::new(), member);
        };
        let parent = above.join(&b'/');
        if let Some(hidden) = last.strip_prefix(WHITEOUT) {
            return self.whiteout(&parent, last, hidden);
        }
        let path = steps.join(&b'/');
        match member.kind {
            Kind::Directory => self.directory(&parent, last, path, member),
            Kind::File => self.file(archive, &parent, last, member),
            Kind::Hardlink => self.hardlink(&parent, last, member),
            Kind::Symlink | Kind::Fifo | Kind::Device => self.other(&parent, last, member),
        }
    }

    fn whiteout(&mut self, parent: &[u8], last: &[u8], hidden: &[u8]) -> Result<()> {
        if hidden.is_empty() || hidden == b"." || hidden == b".." {
            return Err(refuse("it is a whiteout without a file name"));
        }
        let Some(here) = self.root.enter_existing(parent)? else { return Ok(()) };
        let fd = duplicate(&here.fd)?;
        let ino = here.ino;
        if last == OPAQUE { self.root.hide_content(fd) } else { self.root.hide(&fd, ino, hidden) }
    }

    fn directory(&mut self, parent: &[u8], name: &[u8], path: Vec<u8>, member: &Member) -> Result<()> {
        let here = duplicate(&self.root.enter(parent)?.fd)?;
        let fd = match kind_of(&here, name)? {
            Some(FileType::Directory) => openat(&here, name, DIRECTORY, Mode::empty()).map_err(disk)?,
            Some(_) => {
                self.root.clear(&here, name)?;
                self.root.make_directory(&here, name, 0o700)?
            }
            None => self.root.make_directory(&here, name, 0o700)?,
        };
        self.dress_directory(fd, path, member)
    }

    /// Sets the metadata of a directory and enters it: the next member is likely in it.
    fn dress_directory(&mut self, fd: OwnedFd, path: Vec<u8>, member: &Member) -> Result<()> {
        self.root.leave()?;
        let ino = fstat(&fd).map_err(disk)?.st_ino;
        self.root.touch_directory(ino);
        self.dress(&fd, member)?;
        let mode = if self.privileged || member.mode & 0o700 == 0o700 {
            self.root.keep_mode(ino, None);
            member.mode
        } else {
            self.root.keep_mode(ino, Some(member.mode));
            member.mode | 0o700
        };
        fchmod(&fd, Mode::from(mode)).map_err(disk)?;
        set_mtime(&fd, time_of(member))?;
        self.root.stay(path, fd)
    }

    fn file(&mut self, archive: &mut Archive<&mut Chunks>, parent: &[u8], name: &[u8], member: &Member) -> Result<()> {
        let (here, ino) = self.place(parent, name)?;
        if let Some(parts) = &member.parts {
            // Holes count: a program that copies the file may have to fill them.
            self.budget.take(member.size.saturating_sub(parts.iter().map(|part| part.length).sum()))?;
            let mut file = std::fs::File::from(self.create(&here, name)?);
            for part in parts {
                std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(part.offset)).map_err(|e| written(&e))?;
                self.seen.bytes += self.copy(archive, &mut file, part.length, None)?;
            }
            file.set_len(member.size).map_err(|error| written(&error))?;
            let fd = OwnedFd::from(file);
            self.dress_file(&fd, member)?;
            self.root.touch_file(ino, name);
            return Ok(());
        }
        let xattrs = self.kept(member);
        let (uid, gid) = self.owner(member);
        let traits = Traits { size: member.size, mode: member.mode, uid, gid, mtime: member.mtime, xattrs: &xattrs };
        if member.size <= SMALL as u64 {
            let mut buffer = std::mem::take(&mut self.buffer);
            let done = self.small(archive, &here, name, member, &traits, &mut buffer);
            self.buffer = buffer;
            done?;
        } else {
            let mut file = std::fs::File::from(self.create(&here, name)?);
            let mut hash = Sha256::new();
            self.seen.bytes += self.copy(archive, &mut file, member.size, Some(&mut hash))?;
            file.set_len(member.size).map_err(|error| written(&error))?;
            self.dress_file(&OwnedFd::from(file), member)?;
            let key = self.shared.key(&hash.finalize(), &traits);
            self.shared.offer(&key, &traits, &here, name)?;
        }
        self.root.touch_file(ino, name);
        Ok(())
    }

    fn small(
        &mut self,
        archive: &mut Archive<&mut Chunks>,
        here: &OwnedFd,
        name: &[u8],
        member: &Member,
        traits: &Traits<'_>,
        buffer: &mut [u8],
    ) -> Result<()> {
        let mut content = 0;
        while (content as u64) < member.size {
            content += archive.read(&mut buffer[content..])?;
        }
        self.seen.bytes += member.size;
        let content = &buffer[..content];
        // An empty file takes only an inode, which is not worth a link.
        let key = (!content.is_empty()).then(|| self.shared.key(&Sha256::digest(content), traits));
        if let Some(key) = &key {
            self.room(here, name)?;
            if self.shared.link(key, traits, here, name)?.is_some() {
                return Ok(());
            }
        }
        let mut file = std::fs::File::from(self.create(here, name)?);
        write_sparse(&mut file, content).map_err(|error| written(&error))?;
        file.set_len(member.size).map_err(|error| written(&error))?;
        self.dress_file(&OwnedFd::from(file), member)?;
        match &key {
            Some(key) => self.shared.offer(key, traits, here, name),
            None => Ok(()),
        }
    }

    /// Copies `length` bytes of the member's content, whose blocks of zeros become holes. Returns the bytes that
    /// were written.
    fn copy(
        &mut self,
        archive: &mut Archive<&mut Chunks>,
        file: &mut std::fs::File,
        length: u64,
        mut hash: Option<&mut Sha256>,
    ) -> Result<u64> {
        let mut left = length;
        let mut taken = 0;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
            let mut filled = 0;
            // Whole pieces, so that blocks of zeros are found.
            while filled < most {
                let got = archive.read(&mut self.buffer[filled..most])?;
                if got == 0 {
                    return Err(refuse("its content is truncated"));
                }
                filled += got;
            }
            let piece = &self.buffer[..filled];
            taken += write_sparse(file, piece).map_err(|error| written(&error))?;
            if let Some(hash) = &mut hash {
                hash.update(piece);
            }
            left -= filled as u64;
        }
        Ok(taken)
    }

    fn hardlink(&mut self, parent: &[u8], name: &[u8], member: &Member) -> Result<()> {
        let steps = clean(&member.link);
        let Some((target, above)) = steps.split_last() else {
            return Err(refuse("it is a link to a directory"));
        };
        let (here, ino) = self.place(parent, name)?;
        let there = self.root.existing(&above.join(&b'/'))?.ok_or_else(|| no_target(member))?;
        let at = (fstat(&there).map_err(disk)?.st_ino, *target);
        match statat(&there, *target, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                return Err(refuse("it is a link to a directory"));
            }
            Ok(_) => {}
            Err(Errno::NOENT) => return Err(no_target(member)),
            Err(error) => return Err(disk(error)),
        }
        if at != (ino, name) {
            self.room(&here, name)?;
            linkat(&there, *target, &here, name, AtFlags::empty()).map_err(|error| match error {
                // The directory replaced by this name contained the target.
                Errno::NOENT => no_target(member),
                Errno::MLINK => refuse("its target has too many links"),
                other => disk(other),
            })?;
        }
        self.root.touch_file(ino, name);
        Ok(())
    }

    /// Makes symbolic links and pipes. Devices are left out: an ordinary user may make none, and
    /// a box has its own.
    fn other(&mut self, parent: &[u8], name: &[u8], member: &Member) -> Result<()> {
        let (here, ino) = self.place(parent, name)?;
        self.room(&here, name)?;
        self.root.touch_file(ino, name);
        match member.kind {
            Kind::Symlink => {
                if member.link.is_empty() {
                    return Err(refuse("it is a link without a target"));
                }
                symlinkat(&member.link[..], &here, name).map_err(disk)?;
            }
            Kind::Fifo => mknodat(&here, name, FileType::Fifo, Mode::from(0o600), 0).map_err(disk)?,
            Kind::Device | Kind::File | Kind::Directory | Kind::Hardlink => {
                self.seen.devices += 1;
                return Ok(());
            }
        }
        if self.privileged {
            let (uid, gid) = self.owner(member);
            chownat(&here, name, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(disk)?;
        }
        if member.kind == Kind::Fifo {
            // The pipe was just made here, so no link is followed.
            chmodat(&here, name, Mode::from(member.mode), AtFlags::empty()).map_err(disk)?;
        }
        utimensat(&here, name, &times(time_of(member)), AtFlags::SYMLINK_NOFOLLOW).map_err(disk)
    }

    /// Enters the directory for a file and checks the length of its path.
    fn place(&mut self, parent: &[u8], name: &[u8]) -> Result<(OwnedFd, u64)> {
        let here = self.root.enter(parent)?;
        let fd = duplicate(&here.fd)?;
        let ino = here.ino;
        self.root.length_of(ino, name)?;
        Ok((fd, ino))
    }

    /// Removes an existing entry of this name.
    fn room(&mut self, here: &OwnedFd, name: &[u8]) -> Result<()> {
        match kind_of(here, name)? {
            Some(_) => self.root.clear(here, name),
            None => Ok(()),
        }
    }

    fn create(&mut self, here: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(here, name, flags, Mode::from(0o600)) {
            Err(Errno::EXIST) => {
                self.root.clear(here, name)?;
                openat(here, name, flags, Mode::from(0o600)).map_err(disk)
            }
            other => other.map_err(disk),
        }
    }

    /// Sets the metadata of an open file.
    fn dress_file(&self, fd: &OwnedFd, member: &Member) -> Result<()> {
        self.dress(fd, member)?;
        // After the owner: a change of owner clears the set-user-ID bit.
        fchmod(fd, Mode::from(member.mode)).map_err(disk)?;
        set_mtime(fd, time_of(member))
    }

    /// Sets the owner, then the attributes: a change of owner clears capabilities.
    fn dress(&self, fd: &OwnedFd, member: &Member) -> Result<()> {
        if self.privileged {
            let (uid, gid) = self.owner(member);
            fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).map_err(disk)?;
        }
        for (name, value) in self.kept(member) {
            if name.len() > XATTR_NAME_MAX || name.contains(&0) || value.len() > XATTR_VALUE_MAX {
                return Err(refuse(format!("its attribute {} is too long", shown(&name))));
            }
            match fsetxattr(fd, &name[..], &value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(Errno::NOTSUP) => {
                    tracing::debug!(name = shown(&name), "the file system does not support this attribute")
                }
                Err(Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) => {
                    return Err(refuse(format!("its attribute {} is too long for the file system", shown(&name))));
                }
                Err(Errno::INVAL) => return Err(refuse(format!("its attribute {} is malformed", shown(&name)))),
                Err(error) => return Err(disk(error)),
            }
        }
        Ok(())
    }

    /// Returns the attributes that a file keeps: those of users except notes of overlay file
    /// systems, which would mislead one mounted above; and for root, the capabilities of
    /// programs.
    fn kept(&self, member: &Member) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (kept, dropped): (Vec<_>, Vec<_>) = member.xattrs.iter().cloned().partition(|(name, _)| {
            (name.starts_with(b"user.") && !name.starts_with(b"user.overlay."))
                || (name == b"security.capability" && self.privileged && member.kind == Kind::File)
        });
        for (name, _) in dropped {
            tracing::debug!(name = shown(&name), file = shown(&member.path), "skipped an attribute");
        }
        kept
    }

    fn owner(&self, member: &Member) -> (u32, u32) {
        if self.privileged {
            // The range was checked for every member.
            (u32::try_from(member.uid).unwrap_or_default(), u32::try_from(member.gid).unwrap_or_default())
        } else {
            (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
        }
    }
}

fn no_target(member: &Member) -> Error {
    refuse(format!("it is a link to {}, which does not exist", shown(&member.link)))
}

/// Flags to open a directory for work in it; a link in its place is refused.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// Prefixes the text of an error that an image caused with the part that caused it.
fn blame(error: Error, part: &str) -> Error {
    error.reworded(|text| format!("{part}: {text}"))
}

/// Splits a path into its steps from the root. `..` removes the step before it, and has no effect
/// in the root.
pub(super) fn clean(path: &[u8]) -> Vec<&[u8]> {
    let mut steps = Vec::new();
    for step in path.split(|byte| *byte == b'/') {
        match step {
            b"" | b"." => {}
            b".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    steps
}

/// Quotes a name from an image for a message or the log: cut to 200 bytes, with control
/// characters escaped.
fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(&name[..name.len().min(200)]);
    format!("\"{}\"", text.escape_debug())
}

fn time_of(member: &Member) -> Timespec {
    Timespec { tv_sec: member.mtime.0, tv_nsec: i64::from(member.mtime.1) }
}

fn duplicate(fd: &OwnedFd) -> Result<OwnedFd> {
    fd.try_clone().map_err(|error| Error::failed("unpack an image", error))
}

fn written(error: &std::io::Error) -> Error {
    match error.raw_os_error() {
        Some(code) if Errno::from_raw_os_error(code) == Errno::FBIG => {
            refuse("it is larger than the file system allows")
        }
        Some(code) => disk(Errno::from_raw_os_error(code)),
        None => Error::failed("unpack an image", error.to_string()),
    }
}
