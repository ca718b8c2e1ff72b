//! Listing of a directory.

use guest_protocol::file_text::escaped;
use guest_protocol::{ENTRY_BYTES, Failure, FileInfo, LIST_BYTES_MAX, PathOnly};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, open, readlinkat, statat};
use rustix::io::Errno;
use tokio::task::yield_now;

use super::owners::Owners;
use super::path::{check, normal, trimmed};
use super::{ENTRIES_PER_TURN, Facts, directory_refused};
use crate::budget::Share;
use crate::failure::{Result, invalid, refused};
use crate::serve::rows::Rows;

/// Entries of a directory, sorted by name, in as few bytes as possible: a directory of forty
/// thousand entries is listed in a box of 64 MiB.
#[derive(Debug)]
pub(crate) struct Listing {
    /// Path of the directory, without a slash at its end.
    dir: String,
    /// Names and link targets, one after the other.
    texts: Vec<u8>,
    entries: Vec<Entry>,
    next: usize,
    owners: Owners,
    share: Share,
}

#[derive(Debug)]
struct Entry {
    /// Start of the name in the texts; the target of a link follows it.
    at: u32,
    name_len: u16,
    target_len: u16,
    facts: Facts,
}

/// Describes the entries of a directory; links are not followed.
pub(crate) async fn list(request: &PathOnly, share: Share) -> Result<Listing> {
    let path = &check(&request.path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let dir = open(path.bytes(), flags, Mode::empty()).map_err(|errno| directory_refused(path, errno))?;
    let mut entries = Dir::read_from(&dir).map_err(|errno| refused(path, errno))?;
    let shown = escaped(trimmed(&normal(path.bytes())));
    let owners = Owners::read();
    let mut listing = Listing { dir: shown, texts: Vec::new(), entries: Vec::new(), next: 0, owners, share };
    let mut bytes = 0;
    let mut turn = 0;
    while let Some(entry) = entries.read() {
        let entry = entry.map_err(|errno| refused(path, errno))?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Removed meanwhile.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(refused(path, errno)),
        };
        let is_symlink = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        let target = is_symlink.then(|| readlinkat(&dir, name, Vec::new()).ok()).flatten();
        let target = target.as_ref().map_or(&b""[..], |target| target.as_bytes());
        bytes += ENTRY_BYTES + 2 * name.to_bytes().len() + listing.dir.len() + target.len();
        if bytes > LIST_BYTES_MAX {
            return Err(invalid(format!(
                "{path}: the directory has more entries than fit into one answer, which is {} MiB or about 50,000 \
                 entries; run `ls` or `find` in the sandbox",
                LIST_BYTES_MAX >> 20
            )));
        }
        listing.push(name.to_bytes(), target, &stat).await?;
        turn += 1;
        if turn % ENTRIES_PER_TURN == 0 {
            yield_now().await;
        }
    }
    listing.share.gathered();
    let texts = &listing.texts;
    listing.entries.sort_unstable_by(|a, b| a.name(texts).cmp(b.name(texts)));
    Ok(listing)
}

impl Listing {
    async fn push(&mut self, name: &[u8], target: &[u8], stat: &Stat) -> Result<()> {
        self.share.room(&mut self.texts, name.len() + target.len()).await?;
        self.share.room(&mut self.entries, 1).await?;
        self.entries.push(Entry {
            at: u32::try_from(self.texts.len()).map_err(|_| name_too_long())?,
            name_len: u16::try_from(name.len()).map_err(|_| name_too_long())?,
            target_len: u16::try_from(target.len()).map_err(|_| name_too_long())?,
            facts: Facts::of(stat),
        });
        self.texts.extend_from_slice(name);
        self.texts.extend_from_slice(target);
        Ok(())
    }
}

fn name_too_long() -> Failure {
    invalid("the directory has a name that is too long")
}

impl Entry {
    fn name<'a>(&self, texts: &'a [u8]) -> &'a [u8] {
        let at = self.at as usize;
        texts.get(at..at + usize::from(self.name_len)).unwrap_or_default()
    }

    fn target<'a>(&self, texts: &'a [u8]) -> Option<&'a [u8]> {
        let at = self.at as usize + usize::from(self.name_len);
        texts.get(at..at + usize::from(self.target_len)).filter(|target| !target.is_empty())
    }
}

impl Rows for Listing {
    type Row<'a> = FileInfo;

    fn next(&mut self) -> Option<FileInfo> {
        let entry = self.entries.get(self.next)?;
        self.next += 1;
        let name = escaped(entry.name(&self.texts));
        let path = format!("{}/{name}", self.dir);
        let target = entry.target(&self.texts).map(escaped);
        Some(entry.facts.info(name, path, target, &self.owners))
    }
}
