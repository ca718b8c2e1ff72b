//! The way through the trees.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use rustix::fs::{AtFlags, Stat, fstat, readlinkat, statat};

use super::ahead::{Awaited, Content, Listed, Pending, Reader, Ready, has_holes};
use super::directory::{self, Entry};
use super::format::{self, BLOCK, INODE_BYTES, Inode, Kind, Layout, SLOT};
use super::memory::{Memory, Share};
use super::output::{Output, write_behind};
use super::tree::{DEPTH_MAX, ENTRIES_BYTES_MAX, Ids, Tree, Unfit, Written};

/// Size from which a file is copied from file to file.
const LARGE: u64 = 256 * 1024;
/// Memory of an inode that has several names, in bytes, with what a map needs to grow.
const LINKED_BYTES: usize = 64;

/// Writes an image of `trees` into the empty file `out`. Blocks, so it needs a thread of its own.
///
/// # Errors
/// If something cannot be read or written, or changes while it is read; [`Unfit`] for a tree that has more of
/// something than an image can hold, or this function is to remember.
pub fn write(trees: Vec<Tree>, ids: Ids, out: &File) -> io::Result<Written> {
    write_within(trees, ids, out, &Memory::new(ENTRIES_BYTES_MAX))
}

fn write_within(trees: Vec<Tree>, ids: Ids, out: &File, memory: &Memory) -> io::Result<Written> {
    let written = write_behind(out, |output| {
        thread::scope(|scope| {
            let reader = Reader::start(scope, ids, memory)?;
            let walk = Walk { output, reader, ids, linked: HashMap::new(), of_linked: memory.share(), inodes: 0 };
            walk.through(trees)
        })
    })?;
    // The end may be a hole.
    out.set_len(written.bytes)?;
    Ok(written)
}

struct Walk<'a, 'f, 'm> {
    output: &'a mut Output<'f>,
    reader: Reader<'m>,
    ids: Ids,
    /// Inodes that have several names, by device and number, with their numbers in the image.
    linked: HashMap<(u64, u64), u64>,
    /// Memory of these.
    of_linked: Share<'m>,
    inodes: u64,
}

/// A directory on the way.
struct Level<'m> {
    dir: Arc<OwnedFd>,
    begun: Begun,
    /// Place of its entry in the level above.
    place: usize,
    /// Places of the directories in it that were not asked for yet, the next one at the end.
    below: Vec<usize>,
    _memory: Share<'m>,
}

/// A directory that comes next.
struct Next<'m> {
    awaited: Awaited<'m>,
    /// Number of levels above it.
    depth: usize,
    /// Place of its entry in the last of them.
    place: usize,
}

/// A directory whose entries are not written yet.
struct Begun {
    inode: u64,
    content_at: u64,
    entries: Vec<Entry>,
    blocks: Vec<directory::Block>,
}

impl<'m> Walk<'_, '_, 'm> {
    /// Writes the whole image.
    fn through(mut self, trees: Vec<Tree>) -> io::Result<Written> {
        self.output.leave(format::start(0, 0, 0).len())?;
        let root = self.root(trees)?;
        self.output.align(BLOCK)?;
        self.output.flush()?;
        let bytes = self.output.at();
        let blocks = u32::try_from(bytes / BLOCK as u64).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let root = u16::try_from(root).map_err(io::Error::other)?;
        self.output.put(0, &format::start(root, self.inodes, blocks))?;
        Ok(Written { bytes, inodes: self.inodes })
    }

    /// Writes the root, with the trees below it. Its number must be small, so it comes first.
    fn root(&mut self, trees: Vec<Tree>) -> io::Result<u64> {
        let about = trees.first().map(|tree| fstat(&tree.dir)).transpose()?.ok_or(io::ErrorKind::InvalidInput)?;
        let mut entries = directory::dots();
        entries.extend(trees.iter().map(|tree| Entry {
            name: tree.name.clone().into_bytes(),
            kind: Kind::Directory,
            inode: 0,
        }));
        directory::sort(&mut entries);
        let mut begun = self.begin(&about, entries, None, &[])?;
        for Tree { name, dir } in trees {
            let inode = self.directory(Arc::new(dir), begun.inode)?;
            begun.set(name.as_bytes(), inode);
        }
        self.finish(&begun)?;
        Ok(begun.inode)
    }

    /// Writes a directory and all below it, and returns its number. Without recursion: the tree may be
    /// deeper than the stack of a thread.
    fn directory(&mut self, dir: Arc<OwnedFd>, parent: u64) -> io::Result<u64> {
        let mut levels: Vec<Level<'m>> = Vec::new();
        let mut next = Some(Next { awaited: self.reader.read(dir, b".".to_vec()), depth: 0, place: 0 });
        while let Some(Next { awaited, depth, place }) = next {
            self.leave(&mut levels, depth)?;
            if depth > DEPTH_MAX {
                return Err(Unfit::TooDeep.into());
            }
            let listed = match awaited.listed() {
                // It was listed while the one before it was written, whose memory is free by now.
                Err(error) if depth > 0 && is_too_many(&error) => self.read(&levels[depth - 1], place).listed(),
                listed => listed,
            };
            let Listed { dir, about, attributes, entries, memory, files } = listed?;
            let parent = levels.last().map_or(parent, |above| above.begun.inode);
            let begun = self.begin(&about, entries, Some(parent), &attributes)?;
            let below = begun
                .entries
                .iter()
                .enumerate()
                .rev()
                .filter(|(_, entry)| entry.kind == Kind::Directory && entry.inode == 0)
                .map(|(at, _)| at)
                .collect();
            levels.push(Level { dir: Arc::clone(&dir), begun, place, below, _memory: memory });
            next = self.ahead(&mut levels);
            if let Some(level) = levels.last_mut() {
                self.files(dir.as_fd(), &mut level.begun.entries, files)?;
            }
        }
        self.leave(&mut levels, 0)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Has the directory read that comes next; `None` if there is none.
    fn ahead(&self, levels: &mut [Level<'m>]) -> Option<Next<'m>> {
        let (above, place) =
            levels.iter_mut().enumerate().rev().find_map(|(at, level)| Some((at, level.below.pop()?)))?;
        Some(Next { awaited: self.read(&levels[above], place), depth: above + 1, place })
    }

    /// Has the directory read whose entry is at this place.
    fn read(&self, above: &Level<'m>, place: usize) -> Awaited<'m> {
        self.reader.read(Arc::clone(&above.dir), above.begun.entries[place].name.clone())
    }

    /// Writes the entries of the levels from `depth` on. Returns the number of the first of them.
    fn leave(&mut self, levels: &mut Vec<Level<'m>>, depth: usize) -> io::Result<Option<u64>> {
        let mut left = None;
        while levels.len() > depth
            && let Some(level) = levels.pop()
        {
            self.finish(&level.begun)?;
            left = Some(level.begun.inode);
            if let Some(above) = levels.last_mut() {
                above.begun.entries[level.place].inode = level.begun.inode;
            }
        }
        Ok(left)
    }

    /// Writes all entries of a directory that are no directories themselves.
    fn files(&mut self, dir: BorrowedFd<'_>, entries: &mut [Entry], files: Pending) -> io::Result<()> {
        for entry in entries.iter_mut() {
            match entry.kind {
                Kind::Directory | Kind::File => {}
                Kind::Link | Kind::Characters | Kind::Blocks | Kind::Fifo | Kind::Socket => {
                    entry.inode = self.special(dir, entry)?;
                }
            }
        }
        files.each(|file| {
            entries[file.entry].inode = self.once(&file.about, |walk| walk.file(&file))?;
            Ok(())
        })
    }

    /// Writes the inode of a directory, and leaves room for its entries, whose inodes come after it.
    fn begin(
        &mut self,
        about: &Stat,
        entries: Vec<Entry>,
        parent: Option<u64>,
        attributes: &[u8],
    ) -> io::Result<Begun> {
        // Those of the directory itself and of the one above it among them.
        let directories = entries.iter().filter(|entry| entry.kind == Kind::Directory).count();
        let blocks = directory::blocks(&entries);
        let size = directory::size(&blocks);
        let links = u32::try_from(directories).unwrap_or(u32::MAX);
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
        self.of_linked.grow(LINKED_BYTES)?;
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
                Content::Open(file) if in_blocks >= LARGE || has_holes(about) => {
                    self.output.append_large(file.as_fd(), in_blocks)?
                }
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

fn is_too_many(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Unfit>());
    cause == Some(&Unfit::TooManyNames)
}

fn links(about: &Stat) -> u32 {
    u32::try_from(about.st_nlink).unwrap_or(u32::MAX)
}

fn block_at(at: u64) -> io::Result<u32> {
    u32::try_from(at / BLOCK as u64).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

#[cfg(test)]
mod test {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn written(path: &Path, memory: usize) -> io::Result<Written> {
        let tree = Tree { name: "tree".to_owned(), dir: File::open(path)?.into() };
        write_within(vec![tree], Ids { base: 0, count: u32::MAX }, &tempfile::tempfile()?, &Memory::new(memory))
    }

    fn is_too_much(path: &Path, memory: usize) -> bool {
        written(path, memory).map_err(|error| assert!(is_too_many(&error), "{error}")).is_err()
    }

    #[test]
    fn memory_for_names_is_bounded_and_that_of_a_directory_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        for sub in 0..10 {
            fs::create_dir(dir.path().join(sub.to_string())).unwrap();
            for file in 0..50 {
                fs::write(dir.path().join(format!("{sub}/{file:0>100}")), "").unwrap();
            }
        }
        // One of the directories takes 18,000 bytes, and the one above them less than 2,000.
        assert!(is_too_much(dir.path(), 18_000));
        assert_eq!(written(dir.path(), 20_000).unwrap().inodes, 512);
    }

    #[test]
    fn memory_for_files_with_several_names_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        for sub in 0..10 {
            let sub = dir.path().join(sub.to_string());
            fs::create_dir(&sub).unwrap();
            for file in 0..10 {
                fs::write(sub.join(file.to_string()), "").unwrap();
                fs::hard_link(sub.join(file.to_string()), sub.join(format!("{file}+"))).unwrap();
            }
        }
        // The names of a directory take 3,260 bytes, those above them 1,620, the files of all directories 6,400. The
        // next directory may be listed already.
        assert!(is_too_much(dir.path(), 11_000));
        assert_eq!(written(dir.path(), 15_000).unwrap().inodes, 112);
    }
}
