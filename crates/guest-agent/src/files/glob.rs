//! Search for paths by a pattern.

use guest_protocol::file_text::{escaped, unescaped};
use guest_protocol::{GLOB_RESULTS_MAX, Glob, PATH_BYTES_MAX};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, open, statat};
use tokio::task::yield_now;

use super::path::{check, normal, trimmed};
use super::{ENTRIES_PER_TURN, exists};
use crate::budget::Share;
use crate::failure::{Result, invalid};
use crate::serve::rows::Rows;

/// Maximum number of entries that one search visits.
const VISITED_MAX: usize = 1_000_000;
/// Maximum size of all paths of directories that wait to be searched, in bytes.
const PENDING_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes that a waiting path takes besides its text: its entry in the list, and the allocator's
/// overhead.
const PENDING_ENTRY_BYTES: usize = 48;
/// Directories of virtual, endless files, searched only if the pattern names them.
const KERNEL_DIRS: [&[u8]; 3] = [b"/proc", b"/sys", b"/dev"];

/// Paths that match, sorted, in one block of memory.
#[derive(Debug)]
pub(crate) struct Found {
    texts: Vec<u8>,
    /// Start and length of each path.
    paths: Vec<(u32, u32)>,
    next: usize,
    share: Share,
}

impl Found {
    async fn push(&mut self, path: &[u8]) -> Result<()> {
        self.share.room(&mut self.texts, path.len()).await?;
        self.share.room(&mut self.paths, 1).await?;
        self.paths.push((number(self.texts.len())?, number(path.len())?));
        self.texts.extend_from_slice(path);
        Ok(())
    }

    fn finish(mut self) -> Found {
        self.share.gathered();
        let texts = &self.texts;
        self.paths.sort_unstable_by(|a, b| text(texts, *a).cmp(text(texts, *b)));
        self
    }
}

fn number(len: usize) -> Result<u32> {
    u32::try_from(len).map_err(|_| invalid("the pattern matches paths that are too long"))
}

fn text(texts: &[u8], (at, len): (u32, u32)) -> &[u8] {
    texts.get(at as usize..at as usize + len as usize).unwrap_or_default()
}

impl Rows for Found {
    type Row<'a> = String;

    fn next(&mut self) -> Option<String> {
        let place = self.paths.get(self.next)?;
        self.next += 1;
        Some(escaped(text(&self.texts, *place)))
    }
}

/// Searches for the paths that match.
///
/// # Errors
/// Invalid for a malformed pattern, or one that exceeds the limits.
pub(crate) async fn glob(request: &Glob, share: Share) -> Result<Found> {
    let pattern = Pattern::parse(&request.pattern)?;
    let mut found = Found { texts: Vec::new(), paths: Vec::new(), next: 0, share };
    if pattern.is_literal {
        if exists(&pattern.text) {
            found.push(&pattern.text).await?;
        }
        return Ok(found.finish());
    }
    let mut visited = 0;
    let mut pending = vec![pattern.start.clone()];
    let mut pending_bytes = pattern.start.len() + PENDING_ENTRY_BYTES;
    let mut pending_taken = pending_bytes;
    while let Some(dir) = pending.pop() {
        pending_bytes -= dir.len() + PENDING_ENTRY_BYTES;
        yield_now().await;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // The start is named by the caller, and may be a link.
        let follow = if dir == pattern.start { OFlags::empty() } else { OFlags::NOFOLLOW };
        // A directory that cannot be read has no matches.
        let Ok(fd) = open(dir.as_slice(), flags | follow, Mode::empty()) else { continue };
        let Ok(mut entries) = Dir::new(fd) else { continue };
        while let Some(Ok(entry)) = entries.read() {
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            visited += 1;
            if visited > VISITED_MAX {
                return Err(invalid("the pattern would visit more than 1,000,000 files; start it with a longer path"));
            }
            if visited % ENTRIES_PER_TURN == 0 {
                yield_now().await;
            }
            let path = join(&dir, name);
            if pattern.matches(&path) {
                if found.paths.len() >= GLOB_RESULTS_MAX {
                    return Err(invalid("the pattern matches more than 10,000 paths"));
                }
                found.push(&path).await?;
            }
            if is_dir(&path, entry.file_type()) && pattern.may_match_below(&path) {
                pending_bytes += path.len() + PENDING_ENTRY_BYTES;
                if pending_bytes > PENDING_BYTES_MAX {
                    return Err(invalid("the pattern would visit too many directories; start it with a longer path"));
                }
                if pending_bytes > pending_taken {
                    found.share.take(pending_bytes - pending_taken).await?;
                    pending_taken = pending_bytes;
                }
                pending.push(path);
            }
        }
    }
    drop(pending);
    Ok(found.finish())
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let dir = dir.strip_suffix(b"/").unwrap_or(dir);
    [dir, b"/", name].concat()
}

/// Returns the bytes that a pattern stands for: the escaped forms of names mean what they mean in paths. A
/// backslash before anything else takes its special meaning away, so one of a name is doubled.
fn unescaped_pattern(text: &str) -> Vec<u8> {
    let parts: Vec<Vec<u8>> = text.split(r"\x5c").map(unescaped).collect();
    parts.join(&br"\\"[..])
}

/// Returns whether an entry is a directory. Not every file system reports the type with the name.
fn is_dir(path: &[u8], kind: FileType) -> bool {
    if kind != FileType::Unknown {
        return kind == FileType::Directory;
    }
    let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

struct Pattern {
    text: Vec<u8>,
    /// Directory before the first component that is not literal.
    start: Vec<u8>,
    is_literal: bool,
    /// Components, if each of them stands for exactly one of a path.
    parts: Option<Vec<Vec<u8>>>,
    /// Maximum number of components of a match.
    depth_max: usize,
}

impl Pattern {
    fn parse(wanted: &str) -> Result<Pattern> {
        check(wanted)?;
        let text = unescaped_pattern(wanted);
        fast_glob::validate(&text).map_err(|error| invalid(format!("{wanted}: {error}")))?;
        let all: Vec<&[u8]> = text.split(|byte| *byte == b'/').collect();
        let special_at = all.iter().position(|part| part.iter().any(|byte| b"*?[]{}\\".contains(byte)));
        let (literal, rest) = all.split_at(special_at.unwrap_or(all.len()));
        // Doubled slashes and dots match no path, so the literal part loses them.
        let start = normal(&literal.join(&b'/'));
        let text = match special_at {
            None => start.clone(),
            Some(_) => [trimmed(&start), b"/", rest.join(&b'/').as_slice()].concat(),
        };
        let parts: Vec<Vec<u8>> = text.split(|byte| *byte == b'/').skip(1).map(<[u8]>::to_vec).collect();
        let slashes = text.iter().filter(|byte| **byte == b'/').count();
        let any_depth = text.windows(2).any(|pair| pair == b"**");
        let one_to_one = !any_depth && !text.iter().any(|byte| b"{[\\".contains(byte));
        Ok(Pattern {
            depth_max: if any_depth { usize::MAX } else { slashes },
            parts: one_to_one.then_some(parts),
            is_literal: special_at.is_none(),
            start,
            text,
        })
    }

    fn matches(&self, path: &[u8]) -> bool {
        fast_glob::glob_match(&self.text, path)
    }

    /// Returns whether a path below the directory `path` may match.
    fn may_match_below(&self, path: &[u8]) -> bool {
        let is_kernels = KERNEL_DIRS.contains(&path) && !KERNEL_DIRS.contains(&self.start.as_slice());
        let depth = path.iter().filter(|byte| **byte == b'/').count();
        let fits = path.len() < PATH_BYTES_MAX && depth < self.depth_max;
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let part = self.parts.as_ref().map(|parts| parts.get(depth - 1));
        let part_matches = match part {
            None => true,
            Some(part) => part.is_some_and(|part| fast_glob::glob_match(part, name)),
        };
        !is_kernels && fits && part_matches
    }
}
