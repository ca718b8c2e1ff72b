//! Archives of the box's files, as tar: unpacking below a directory. No name and no link of an archive
//! leads out of it: each step of a path is a directory, opened in the one before.

use std::fs::File;
use std::io::{Read, Write as _};
use std::os::fd::OwnedFd;

use guest_protocol::file_text::escaped;
use guest_protocol::{Failure, FailureKind, PATH_BYTES_MAX, PathOnly, Unpacked};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, fchmod, fstat, futimens, linkat, mkdirat, open,
    openat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use tar::{Archive, Header};

use super::long_work::Input;
use super::path::check;
use super::write::{Temporary, make_dir_and_parents};
use crate::failure::{Result, invalid, refused};

/// Maximum number of members of an archive.
const MEMBERS_MAX: u64 = 1_000_000;
/// Maximum size of the paths of all directories, in bytes: their modes and times are set at the end.
const DIRECTORIES_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum size of a pax header, in bytes.
const PAX_BYTES_MAX: u64 = 64 * 1024;
/// Maximum number of headers before one member.
const HEADERS_MAX: usize = 8;
/// Bytes of a file that are read at once.
const PIECE_BYTES: usize = 64 * 1024;
/// Type of a member that is a directory.
const DIRECTORY: u8 = b'5';
const MODE_MAX: u32 = 0o7777;
/// Mode of directories that no member describes.
const MODE_PARENTS: u32 = 0o755;
const OPEN_DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Unpacks `input` below a directory, which is made if it is missing.
///
/// # Errors
/// Invalid for an archive that is cut short, malformed or would leave the directory. What was
/// unpacked until then stays, and the message has the count.
pub(crate) fn unpack(request: &PathOnly, input: Input) -> Result<Unpacked> {
    let path = &check(&request.path)?;
    // The directory is named by the caller, and may be a link.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let root = match open(path.bytes(), flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            make_dir_and_parents(path.bytes()).map_err(|errno| refused(path, errno))?;
            open(path.bytes(), flags, Mode::empty())
        }
        opened => opened,
    };
    let root = root.map_err(|errno| refused(path, errno))?;
    let mut unpacking =
        Unpacking { root, here: None, directories: Vec::new(), directories_bytes: 0, done: Unpacked::default() };
    let unpacked = unpacking.all(input);
    let dressed = unpacking.dress();
    let done = unpacking.done;
    unpacked.and(dressed).map_err(|failure| {
        let kept = if done.members == 0 {
            "nothing was unpacked".to_owned()
        } else {
            format!("the {} members before it were unpacked and remain", done.members)
        };
        // What is not there is so in the archive, or was removed meanwhile.
        let kind = if failure.kind == FailureKind::NotFound { FailureKind::Invalid } else { failure.kind };
        Failure { kind, message: format!("{}; {kept}", failure.message) }
    })?;
    Ok(done)
}

/// Seconds since 1970, and nanoseconds.
pub(super) type Time = (i64, u32);

/// An archive that is being unpacked.
struct Unpacking {
    root: OwnedFd,
    /// Directory of the last member, with its path.
    here: Option<(Vec<u8>, OwnedFd)>,
    /// Directories of the archive, whose modes and times are set after all that is in them.
    directories: Vec<(Vec<u8>, u32, Time)>,
    directories_bytes: usize,
    done: Unpacked,
}

/// Names of a member that stand in headers before it.
#[derive(Default)]
struct Names {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    mtime: Option<Time>,
    headers: usize,
}

impl Unpacking {
    fn all(&mut self, input: Input) -> Result<()> {
        let mut archive = Archive::new(input);
        let mut names = Names::default();
        for member in archive.entries().map_err(unreadable)?.raw(true) {
            let mut member = member.map_err(unreadable)?;
            let header = member.header().clone();
            names.headers += 1;
            if names.headers > HEADERS_MAX {
                return Err(invalid(format!("the archive has a member with more than {HEADERS_MAX} headers")));
            }
            match header.entry_type().as_byte() {
                b'L' => names.path = Some(text(&mut member)?),
                b'K' => names.link = Some(text(&mut member)?),
                b'x' => pax(&text(&mut member)?, &mut names)?,
                // Comments on the whole archive.
                b'g' => {}
                kind => {
                    let names = std::mem::take(&mut names);
                    let path = names.path.clone().unwrap_or_else(|| header.path_bytes().into_owned());
                    self.member(kind, &header, names, &path, &mut member).map_err(|failure| {
                        let shown: String = escaped(&path).chars().take(200).collect();
                        Failure { message: format!("`{shown}` of the archive: {}", failure.message), ..failure }
                    })?;
                    self.done.members += 1;
                    if self.done.members > MEMBERS_MAX {
                        return Err(invalid(format!("the archive has more than {MEMBERS_MAX} members")));
                    }
                }
            }
        }
        Ok(())
    }

    fn member(&mut self, kind: u8, header: &Header, names: Names, path: &[u8], content: &mut impl Read) -> Result<()> {
        let mode = header.mode().map_err(malformed_number)? & MODE_MAX;
        let mtime = match names.mtime {
            Some(mtime) => mtime,
            None => (i64::try_from(header.mtime().map_err(malformed_number)?).unwrap_or(i64::MAX), 0),
        };
        let steps = steps(path)?;
        let Some((name, above)) = steps.split_last() else {
            if kind != DIRECTORY {
                return Err(invalid("its name is that of the directory itself"));
            }
            return self.later(Vec::new(), mode, mtime);
        };
        let above = above.join(&b'/');
        if kind == DIRECTORY || kind == b'0' && path.ends_with(b"/") {
            let path = steps.join(&b'/');
            self.enter(&path)?;
            return self.later(path, mode, mtime);
        }
        self.enter(&above)?;
        let dir = self.here()?;
        match kind {
            b'0' | b'7' => {
                let size = header.size().map_err(malformed_number)?;
                file(dir, name, mode, mtime, size, content)?;
                self.done.bytes += size;
            }
            b'2' => {
                let target = names.link.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned());
                clear(dir, name)?;
                symlinkat(target.as_slice(), dir, *name).map_err(|errno| refused("its link", errno))?;
                // A file system without times of links is one with less.
                let _ = utimensat(dir, *name, &times(mtime), AtFlags::SYMLINK_NOFOLLOW);
            }
            b'1' => {
                let target = names.link.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned());
                let target = self::steps(&target)?;
                let Some((first, above)) = target.split_last() else {
                    return Err(invalid("it is a hard link to the directory itself"));
                };
                let first_dir = self.open(&above.join(&b'/'), false)?;
                let dir = self.here()?;
                let found = identity(&first_dir, first).map_err(|errno| refused("the target of its link", errno))?;
                if identity(dir, name) != Ok(found) {
                    clear(dir, name)?;
                    linkat(&first_dir, *first, dir, *name, AtFlags::empty())
                        .map_err(|errno| refused("its link", errno))?;
                }
            }
            b'S' => {
                return Err(invalid("sparse files are not supported; pack without --sparse"));
            }
            b'3' | b'4' | b'6' => {
                return Err(invalid("is a device or a FIFO; leave it out"));
            }
            _ => return Err(invalid("is of an unknown kind")),
        }
        Ok(())
    }

    /// Opens the directory of the next member, and makes what is missing of its path.
    fn enter(&mut self, path: &[u8]) -> Result<()> {
        if self.here.as_ref().is_none_or(|(here, _)| here != path) {
            self.here = Some((path.to_vec(), self.open(path, true)?));
        }
        Ok(())
    }

    fn here(&self) -> Result<&OwnedFd> {
        self.here.as_ref().map(|(_, dir)| dir).ok_or_else(|| invalid("has no directory"))
    }

    /// Opens a directory below the root, step by step.
    fn open(&self, path: &[u8], makes: bool) -> Result<OwnedFd> {
        let mut dir =
            openat(&self.root, ".", OPEN_DIR, Mode::empty()).map_err(|errno| refused("its directory", errno))?;
        for step in path.split(|byte| *byte == b'/').filter(|step| !step.is_empty()) {
            dir = match open_step(&dir, step) {
                Err(Errno::NOENT) if makes => {
                    mkdirat(&dir, step, Mode::from_raw_mode(MODE_PARENTS)).and_then(|()| open_step(&dir, step))
                }
                opened => opened,
            }
            .map_err(|errno| {
                let shown = escaped(step);
                match errno {
                    Errno::LOOP | Errno::NOTDIR => invalid(format!(
                        "`{shown}` in its path is a link or a file in the sandbox, not a directory; remove it first"
                    )),
                    errno => refused(format!("`{shown}` in its path"), errno),
                }
            })?;
        }
        Ok(dir)
    }

    /// Sets mode and time of a directory at the end.
    fn later(&mut self, path: Vec<u8>, mode: u32, mtime: Time) -> Result<()> {
        self.directories_bytes += path.len() + size_of::<(Vec<u8>, u32, Time)>();
        if self.directories_bytes > DIRECTORIES_BYTES_MAX {
            return Err(invalid("the archive has too many directories"));
        }
        self.directories.push((path, mode, mtime));
        Ok(())
    }

    /// Sets the modes and times of the directories, the deepest first.
    fn dress(&mut self) -> Result<()> {
        self.here = None;
        for (path, mode, mtime) in std::mem::take(&mut self.directories).into_iter().rev() {
            // The box's processes may have removed it.
            let Ok(dir) = self.open(&path, false) else { continue };
            fchmod(&dir, Mode::from_raw_mode(mode)).map_err(|errno| refused("a directory of the archive", errno))?;
            let _ = futimens(&dir, &times(mtime));
        }
        Ok(())
    }
}

/// Opens a directory that is no link. gVisor follows a link to a directory in spite of `O_NOFOLLOW`, so
/// that what is opened has to be what the name itself stands for.
pub(super) fn open_step(dir: &OwnedFd, step: &[u8]) -> Result<OwnedFd, Errno> {
    let named = statat(dir, step, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(named.st_mode) != FileType::Directory {
        return Err(Errno::NOTDIR);
    }
    let opened = openat(dir, step, OPEN_DIR, Mode::empty())?;
    let found = fstat(&opened)?;
    if (found.st_dev, found.st_ino) == (named.st_dev, named.st_ino) { Ok(opened) } else { Err(Errno::LOOP) }
}

/// Returns the components of a path below the root.
pub(super) fn steps(path: &[u8]) -> Result<Vec<&[u8]>> {
    if path.starts_with(b"/") {
        return Err(invalid("its name is absolute; pack with names below the directory"));
    }
    if path.len() > PATH_BYTES_MAX || path.contains(&0) {
        return Err(invalid("its name is not a valid file name"));
    }
    let steps: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|step| !matches!(*step, b"" | b".")).collect();
    if steps.contains(&&b".."[..]) {
        return Err(invalid("its name has `..`, which could lead out of the directory"));
    }
    Ok(steps)
}

/// Removes a file or link that is in the way.
fn clear(dir: &OwnedFd, name: &[u8]) -> Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR | Errno::PERM) if is_dir(dir, name) => {
            Err(invalid("a directory with this name exists in the sandbox; remove it first"))
        }
        Err(errno) => Err(refused("the file with this name in the sandbox", errno)),
    }
}

pub(super) fn is_dir(dir: &OwnedFd, name: &[u8]) -> bool {
    let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn file(dir: &OwnedFd, name: &[u8], mode: u32, mtime: Time, size: u64, content: &mut impl Read) -> Result<()> {
    if is_dir(dir, name) {
        return Err(invalid("a directory with this name exists in the sandbox; remove it first"));
    }
    // A part never stands under the file's own name.
    let temporary = Temporary::in_dir(dir).map_err(file_refused)?;
    let mut file = File::from(temporary.file.try_clone().map_err(|_| file_refused(Errno::MFILE))?);
    let mut left = size;
    let mut buffer = vec![0; PIECE_BYTES.min(usize::try_from(size).unwrap_or(PIECE_BYTES))];
    while left > 0 {
        let read = content.read(&mut buffer).map_err(unreadable)?;
        if read == 0 {
            return Err(invalid("the archive is truncated"));
        }
        let piece = buffer.get(..read).unwrap_or_default();
        file.write_all(piece).map_err(|error| file_refused(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        left = left.saturating_sub(read as u64);
    }
    fchmod(&file, Mode::from_raw_mode(mode)).map_err(file_refused)?;
    futimens(&file, &times(mtime)).map_err(file_refused)?;
    temporary.rename(name).map_err(file_refused)
}

pub(super) fn file_refused(errno: Errno) -> Failure {
    refused("the file", errno)
}

/// Returns the device and the inode of a file, a link itself.
fn identity(dir: &OwnedFd, name: &[u8]) -> Result<(u64, u64), Errno> {
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| (stat.st_dev, stat.st_ino))
}

pub(super) fn times((seconds, nanoseconds): Time) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}

/// Returns the failure for an archive that cannot be read on.
fn unreadable(error: std::io::Error) -> Failure {
    if matches!(error.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionAborted) {
        return invalid("the archive is truncated");
    }
    invalid(format!("this is not a tar archive, or it is damaged: {error}"))
}

fn malformed_number(_: std::io::Error) -> Failure {
    invalid("a number in its header is malformed")
}

/// Reads the content of a header that describes the next member.
fn text(content: &mut impl Read) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let read = content.take(PAX_BYTES_MAX + 1).read_to_end(&mut text);
    read.map_err(unreadable)?;
    if text.len() as u64 > PAX_BYTES_MAX {
        return Err(invalid(format!("the archive has a header above {} KiB", PAX_BYTES_MAX / 1024)));
    }
    while text.last() == Some(&0) {
        text.pop();
    }
    Ok(text)
}

/// Reads the records of a pax header.
fn pax(text: &[u8], names: &mut Names) -> Result<()> {
    let mut rest = text;
    while !rest.is_empty() {
        let space = rest.iter().position(|byte| *byte == b' ').ok_or_else(malformed_pax)?;
        let length = rest.get(..space).and_then(|digits| str::from_utf8(digits).ok()?.parse::<usize>().ok());
        let record = length.and_then(|length| rest.get(space + 1..length)).ok_or_else(malformed_pax)?;
        rest = rest.get(length.unwrap_or(usize::MAX)..).ok_or_else(malformed_pax)?;
        let record = record.strip_suffix(b"\n").ok_or_else(malformed_pax)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(malformed_pax)?;
        let key = record.get(..equals).unwrap_or_default();
        let value = record.get(equals + 1..).unwrap_or_default();
        match key {
            b"path" => names.path = Some(value.to_vec()),
            b"linkpath" => names.link = Some(value.to_vec()),
            b"mtime" => {
                names.mtime = Some(str::from_utf8(value).ok().and_then(time).ok_or_else(malformed_pax)?);
            }
            b"size" => return Err(invalid("a file above 8 GiB must be packed with tar --format=gnu")),
            key if key.starts_with(b"GNU.sparse.") => {
                return Err(invalid("sparse files are not supported; pack without --sparse"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn malformed_pax() -> Failure {
    invalid("the archive has a malformed pax header")
}

/// Parses decimal seconds.
pub(super) fn time(text: &str) -> Option<Time> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let seconds = seconds.parse::<i64>().ok()?;
    let nanoseconds = digits.parse::<u32>().ok()?;
    // The nanoseconds of the kernel always count up.
    if text.starts_with('-') && nanoseconds > 0 {
        return Some((seconds - 1, 1_000_000_000 - nanoseconds));
    }
    Some((seconds, nanoseconds))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn times_have_nanoseconds_before_1970_too() {
        for (text, expected) in [
            ("0", Some((0, 0))),
            ("12.5", Some((12, 500_000_000))),
            ("12.1234567899", Some((12, 123_456_789))),
            ("-1.25", Some((-2, 750_000_000))),
            ("", None),
            ("1.x", None),
        ] {
            assert_eq!(time(text), expected, "{text}");
        }
    }

    #[test]
    fn a_name_that_could_lead_out_is_refused() {
        for bad in ["/etc/passwd", "../x", "a/../../x", "a/..", "a\0b"] {
            assert!(steps(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(steps(b"./a//b/").unwrap(), [&b"a"[..], b"b"]);
        assert!(steps(b"./").unwrap().is_empty());
    }

    #[test]
    fn records_of_a_pax_header_are_read_by_their_length() {
        let mut names = Names::default();
        pax(b"14 path=a\nb=c\n14 linkpath=x\n22 mtime=12.000000001\n".as_slice(), &mut names)
            .unwrap_or_else(|_| panic!());
        assert_eq!(names.path.as_deref(), Some(&b"a\nb=c"[..]));
    }
}
