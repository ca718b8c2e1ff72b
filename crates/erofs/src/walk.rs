//! The way through the trees.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};

use super::ahead::{Content, Reader, Ready};
use super::attributes;
use super::directory::{self, Entry};
use super::format::{self, BLOCK, INODE_BYTES, Inode, Kind, Layout, SLOT};
use super::output::{Output, write_behind};
use super::tree::{DEPTH_MAX, Ids, OPEN, TooDeep, Tree, Written, changed};

/// Size from which a file is copied from file to file.
const LARGE: u64 = 256 * 1024;

/// Writes an image of `trees` into the empty file `out`. Blocks, so it needs a thread of its own.
///
/// # Errors
/// If something cannot be read or written, or changes while it is read; [`TooDeep`] if directories are
/// nested deeper than a thousand levels.
pub fn write(trees: Vec<Tree>, ids: Ids, out: &File) -> io::Result<Written> {
    let written =
        write_behind(out, |output| thread::scope(|scope| fill(trees, ids, output, &Reader::start(scope, ids)?)))?;
    // The end may be a hole.
    out.set_len(written.bytes)?;
    Ok(written)
}

fn fill(trees: Vec<Tree>, ids: Ids, output: &mut Output<'_>, reader: &Reader) -> io::Result<Written> {
    let mut walk = Walk { output, reader, ids, linked: HashMap::new(), inodes: 0 };
    walk.output.leave(format::start(0, 0, 0).len())?;
    let root = walk.root(trees)?;
    walk.output.align(BLOCK)?;
    walk.output.flush()?;
    let bytes = walk.output.at();
    let blocks = u32::try_from(bytes / BLOCK as u64).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let root = u16::try_from(root).map_err(io::Error::other)?;
    walk.output.put(0, &format::start(root, walk.inodes, blocks))?;
    Ok(Written { bytes, inodes: walk.inodes })
}

struct Walk<'a, 'f> {
    output: &'a mut Output<'f>,
    reader: &'a Reader,
    ids: Ids,
    /// Inodes that have several names, by device and number, with their numbers in the image.
    linked: HashMap<(u64, u64), u64>,
    inodes: u64,
}

/// A directory on the way.
struct Level {
    dir: OwnedFd,
    begun: Begun,
    /// Entry that comes next.
    at: usize,
}

/// A directory whose entries are not written yet.
struct Begun {
    inode: u64,
    content_at: u64,
    entries: Vec<Entry>,
    blocks: Vec<directory::Block>,
}

impl Walk<'_, '_> {
    /// Writes the root, with the trees below it. Its number must be small, so it comes first.
    fn root(&mut self, trees: Vec<Tree>) -> io::Result<u64> {
        let about = trees.first().map(|tree| fstat(&tree.dir)).transpose()?.ok_or(io::ErrorKind::InvalidInput)?;
        let names = trees.iter().map(|tree| (tree.name.clone().into_bytes(), Kind::Directory)).collect();
        let mut begun = self.begin(&about, names, None, &[])?;
        for Tree { name, dir } in trees {
            let inode = self.directory(dir, begun.inode)?;
            begun.set(name.as_bytes(), inode);
        }
        self.finish(&begun)?;
        Ok(begun.inode)
    }

    /// Writes a directory and all below it, and returns its number. Without recursion: the tree may be
    /// deeper than the stack of a thread.
    fn directory(&mut self, dir: OwnedFd, parent: u64) -> io::Result<u64> {
        let mut levels = vec![self.enter(dir, parent)?];
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { return Err(io::ErrorKind::NotFound.into()) };
            match level.begun.entries.get_mut(level.at) {
                Some(entry) if entry.inode != 0 => level.at += 1,
                // All others are written on entering the directory.
                Some(entry) => {
                    if depth > DEPTH_MAX {
                        return Err(io::Error::other(TooDeep));
                    }
                    let below = openat(&level.dir, entry.name.as_slice(), OPEN | OFlags::DIRECTORY, Mode::empty())?;
                    let parent = level.begun.inode;
                    levels.push(self.enter(below, parent)?);
                }
                None => {
                    self.finish(&level.begun)?;
                    let inode = level.begun.inode;
                    levels.pop();
                    match levels.last_mut() {
                        Some(above) => above.begun.entries[above.at].inode = inode,
                        None => return Ok(inode),
                    }
                }
            }
        }
    }

    fn enter(&mut self, dir: OwnedFd, parent: u64) -> io::Result<Level> {
        let about = fstat(&dir)?;
        let attributes = attributes::of(dir.as_fd(), self.ids)?;
        let names = names(&dir)?;
        let mut begun = self.begin(&about, names, Some(parent), &attributes)?;
        self.files(dir.as_fd(), &mut begun.entries)?;
        Ok(Level { dir, begun, at: 0 })
    }

    /// Writes all entries of a directory that are no directories themselves.
    fn files(&mut self, dir: BorrowedFd<'_>, entries: &mut [Entry]) -> io::Result<()> {
        let mut files = Vec::new();
        for (at, entry) in entries.iter_mut().enumerate() {
            match entry.kind {
                Kind::Directory => {}
                Kind::File => files.push((at, entry.name.clone())),
                Kind::Link | Kind::Characters | Kind::Blocks | Kind::Fifo | Kind::Socket => {
                    entry.inode = self.special(dir, entry)?;
                }
            }
        }
        let reader = self.reader;
        reader.each(dir, files, |file| {
            entries[file.entry].inode = self.once(&file.about, |walk| walk.file(&file))?;
            Ok(())
        })
    }

    /// Writes the inode of a directory, and leaves room for its entries, whose inodes come after it.
    fn begin(
        &mut self,
        about: &Stat,
        names: Vec<(Vec<u8>, Kind)>,
        parent: Option<u64>,
        attributes: &[u8],
    ) -> io::Result<Begun> {
        let below = names.iter().filter(|(_, kind)| *kind == Kind::Directory).count();
        let entry = |(name, kind)| Entry { name, kind, inode: 0 };
        let dots = [(b".".to_vec(), Kind::Directory), (b"..".to_vec(), Kind::Directory)];
        let mut entries: Vec<Entry> = dots.into_iter().chain(names).map(entry).collect();
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let blocks = directory::blocks(&entries);
        let size = directory::size(&blocks);
        let links = u32::try_from(below + 2).unwrap_or(u32::MAX);
        let (inode, content_at) = if fits(attributes, size) {
            let inode = self.inode(about, Layout::Inline, size as u64, 0, links, attributes, size)?;
            (inode, self.output.leave(size)?)
        } else {
            self.output.align(BLOCK)?;
            let content_at = self.output.leave(size)?;
            self.end_of_blocks()?;
            let place = block_at(content_at)?;
            (self.inode(about, Layout::Plain, size as u64, place, links, attributes, 0)?, content_at)
        };
        let mut begun = Begun { inode, content_at, entries, blocks };
        begun.set(b".", inode);
        begun.set(b"..", parent.unwrap_or(inode));
        Ok(begun)
    }

    fn finish(&mut self, begun: &Begun) -> io::Result<()> {
        self.output.put(begun.content_at, &directory::content(&begun.entries, &begun.blocks))
    }

    /// Writes the inode of an entry that has no file's content, and returns its number.
    fn special(&mut self, dir: BorrowedFd<'_>, entry: &Entry) -> io::Result<u64> {
        let name = entry.name.as_slice();
        let about = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if entry.kind == Kind::Link {
            let target = readlinkat(dir, name, Vec::new())?;
            return self.once(&about, |walk| walk.bytes(&about, target.as_bytes()));
        }
        let device = about.st_rdev;
        let place = match entry.kind {
            Kind::Characters | Kind::Blocks => format::device(rustix::fs::major(device), rustix::fs::minor(device)),
            Kind::File | Kind::Directory | Kind::Fifo | Kind::Socket | Kind::Link => 0,
        };
        self.once(&about, |walk| walk.inode(&about, Layout::Plain, 0, place, links(&about), &[], 0))
    }

    /// Writes an inode that may have other names, unless one of them has come before.
    fn once(&mut self, about: &Stat, write: impl FnOnce(&mut Self) -> io::Result<u64>) -> io::Result<u64> {
        if about.st_nlink < 2 {
            return write(self);
        }
        let key = (about.st_dev, about.st_ino);
        if let Some(inode) = self.linked.get(&key) {
            return Ok(*inode);
        }
        let inode = write(self)?;
        self.linked.insert(key, inode);
        Ok(inode)
    }

    fn file(&mut self, file: &Ready) -> io::Result<u64> {
        let Ready { about, attributes, content, .. } = file;
        let size = u64::try_from(about.st_size).map_err(io::Error::other)?;
        let rest = usize::try_from(size % BLOCK as u64).map_err(io::Error::other)?;
        let whole = size - rest as u64;
        let is_inline = rest > 0 && fits(attributes, rest);
        let in_blocks = if is_inline { whole } else { size };
        let mut place = 0;
        if in_blocks > 0 {
            self.output.align(BLOCK)?;
            place = block_at(self.output.at())?;
            match content {
                Content::Open(file) if in_blocks >= LARGE => self.output.append_large(file.as_fd(), in_blocks)?,
                Content::Open(_) | Content::Read(_) => {
                    self.content(content, 0, usize::try_from(in_blocks).map_err(io::Error::other)?)?
                }
            }
            self.end_of_blocks()?;
        }
        let layout = if is_inline { Layout::Inline } else { Layout::Plain };
        let behind = if is_inline { rest } else { 0 };
        let inode = self.inode(about, layout, size, place, links(about), attributes, behind)?;
        if is_inline {
            self.content(content, whole, rest)?;
        }
        Ok(inode)
    }

    /// Appends `size` bytes of a file's content from `from` on.
    fn content(&mut self, content: &Content, from: u64, size: usize) -> io::Result<()> {
        match content {
            Content::Open(file) => self.output.append_file(file.as_fd(), from, size),
            Content::Read(bytes) => {
                let from = usize::try_from(from).map_err(io::Error::other)?;
                self.output.append(&bytes[from..from + size])
            }
        }
    }

    /// Writes an inode with this content.
    fn bytes(&mut self, about: &Stat, content: &[u8]) -> io::Result<u64> {
        let size = content.len() as u64;
        if fits(&[], content.len()) {
            let inode = self.inode(about, Layout::Inline, size, 0, links(about), &[], content.len())?;
            self.output.append(content)?;
            return Ok(inode);
        }
        self.output.align(BLOCK)?;
        let place = block_at(self.output.at())?;
        self.output.append(content)?;
        self.end_of_blocks()?;
        self.inode(about, Layout::Plain, size, place, links(about), &[], 0)
    }

    /// Ends content that is in blocks of its own. The last one has nothing else: the kernel takes all of it up to
    /// the first zero for the last name of a directory, and shows it behind the end of a file that is mapped.
    fn end_of_blocks(&mut self) -> io::Result<()> {
        self.output.align(BLOCK)
    }

    /// Writes an inode where it and `behind` bytes of content have room, and returns its number. The
    /// content behind it is written next.
    #[expect(clippy::too_many_arguments, reason = "fields of the format")]
    fn inode(
        &mut self,
        about: &Stat,
        layout: Layout,
        size: u64,
        place: u32,
        links: u32,
        attributes: &[u8],
        behind: usize,
    ) -> io::Result<u64> {
        self.output.align(SLOT)?;
        let in_block = usize::try_from(self.output.at() % BLOCK as u64).map_err(io::Error::other)?;
        if behind > 0 && in_block + INODE_BYTES + attributes.len() + behind > BLOCK {
            self.output.align(BLOCK)?;
        }
        self.inodes += 1;
        let inode = Inode {
            layout,
            mode: u16::try_from(about.st_mode & 0xffff).unwrap_or(0),
            size,
            place,
            number: u32::try_from(self.inodes).unwrap_or(u32::MAX),
            uid: self.ids.shifted(about.st_uid),
            gid: self.ids.shifted(about.st_gid),
            mtime: about.st_mtime.cast_unsigned(),
            mtime_nsec: u32::try_from(about.st_mtime_nsec).unwrap_or(0),
            links,
        };
        let at = self.output.at();
        self.output.append(&inode.encode(attributes.len()))?;
        self.output.append(attributes)?;
        Ok(at / SLOT as u64)
    }
}

impl Begun {
    fn set(&mut self, name: &[u8], inode: u64) {
        if let Ok(at) = self.entries.binary_search_by(|entry| entry.name.as_slice().cmp(name)) {
            self.entries[at].inode = inode;
        }
    }
}

/// Returns whether as much content has room behind an inode: it may not cross the end of a block.
fn fits(attributes: &[u8], bytes: usize) -> bool {
    INODE_BYTES + attributes.len() + bytes <= BLOCK
}

fn links(about: &Stat) -> u32 {
    u32::try_from(about.st_nlink).unwrap_or(u32::MAX)
}

fn block_at(at: u64) -> io::Result<u32> {
    u32::try_from(at / BLOCK as u64).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

fn names(dir: &OwnedFd) -> io::Result<Vec<(Vec<u8>, Kind)>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let mut kind = entry.file_type();
        if kind == FileType::Unknown {
            kind = FileType::from_raw_mode(statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
        }
        names.push((name.to_vec(), kind_of(kind)?));
    }
    Ok(names)
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
