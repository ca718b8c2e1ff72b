//! Replacement in the content of files.

use std::fs::File;
use std::io::Read as _;
use std::time::Instant;

use grep_matcher::{Captures as _, Matcher as _};
use grep_regex::RegexMatcher;
use guest_protocol::file_text::escaped;
use guest_protocol::{
    Failure, FailureKind, PATTERN_BYTES_MAX, Replace, ReplaceRow, ReplacedFile, SEARCH_TEXT_BYTES_MAX, SearchBound,
    SearchEnd,
};
use rustix::fs::FileType;

use super::long_work::Output;
use super::path::RawPath;
use super::search::{Stop, Watched, check, check_scope, compile, nothing, open_regular, until};
use super::walk::{Entry, Walk};
use super::write;
use crate::failure::{Result, invalid};

/// Replacements between two looks at the time.
const REPLACEMENTS_PER_LOOK: u64 = 1024;

/// Replaces in files of at most `bytes_max` bytes, before and after, with a pattern of at most as many
/// when compiled, and sends [`ReplaceRow`]s.
///
/// # Errors
/// Before the head: not found for the path, invalid for the pattern or a glob.
pub(crate) fn replace(request: &Replace, bytes_max: usize, output: &mut Output) -> Result<()> {
    let until = until(request.time_ms);
    check_scope(&request.scope)?;
    if request.replacement.len() > PATTERN_BYTES_MAX {
        return Err(invalid(format!("the replacement is longer than {} KiB", PATTERN_BYTES_MAX / 1024)));
    }
    let matcher = compile(&request.pattern, false, bytes_max)?;
    let walk = Walk::begin(&request.scope)?;
    if output.begin().is_err() {
        return Ok(());
    }
    let left = request.files_max;
    let mut work = Work { request, bytes_max, output, until, matcher, left, text: 0, end: nothing() };
    match work.all(walk) {
        Err(Outcome::Failed(failure)) => {
            let _ = work.output.row(&ReplaceRow::Failed(failure)).and_then(|()| work.output.flush());
            return Ok(());
        }
        Err(Outcome::Stopped(Stop::Left)) => return Ok(()),
        Err(Outcome::Stopped(Stop::Bound(bound))) => work.end.truncated = Some(bound),
        Ok(()) => {}
    }
    let Work { output, end, .. } = work;
    // A caller that has left does not need it.
    let _ = output.row(&ReplaceRow::End(end)).and_then(|()| output.flush());
    Ok(())
}

/// Reason why a replacement ends early.
enum Outcome {
    Stopped(Stop),
    Failed(Failure),
}

impl<T: Into<Stop>> From<T> for Outcome {
    fn from(stop: T) -> Outcome {
        Outcome::Stopped(stop.into())
    }
}

/// A replacement under way.
struct Work<'a> {
    request: &'a Replace,
    bytes_max: usize,
    output: &'a mut Output,
    until: Instant,
    matcher: RegexMatcher,
    /// Number of files that may still be changed.
    left: u32,
    /// Bytes of paths sent so far.
    text: usize,
    end: SearchEnd,
}

/// Outcome of the work on one file.
enum Done {
    /// Number of replacements, which may be 0.
    Replaced(u64),
    Binary,
    TooLarge,
    Unreadable,
}

/// Content of a file, or the reason why it is passed over.
type Content = Result<Vec<u8>, Done>;

impl Work<'_> {
    fn all(&mut self, mut walk: Walk) -> Result<(), Outcome> {
        let outcome = loop {
            match walk.next() {
                None => break Ok(()),
                Some(Err(_)) => break Err(Stop::Bound(SearchBound::Size).into()),
                Some(Ok(entry)) => {
                    let done = check(self.output, self.until).map_err(Outcome::from).and_then(|()| self.file(&entry));
                    if done.is_err() {
                        break done;
                    }
                }
            }
        };
        self.end.unreadable += walk.unreadable;
        outcome
    }

    fn file(&mut self, entry: &Entry) -> Result<(), Outcome> {
        if entry.kind != FileType::RegularFile {
            return Ok(());
        }
        match self.change(entry)? {
            Done::Binary => self.end.binary += 1,
            Done::TooLarge => self.end.too_large += 1,
            Done::Unreadable => self.end.unreadable += 1,
            Done::Replaced(0) => self.end.files += 1,
            Done::Replaced(replacements) => {
                let path = escaped(&entry.path);
                self.end.files += 1;
                self.left -= 1;
                self.text += path.len();
                self.output.row(&ReplaceRow::File(ReplacedFile { path, replacements }))?;
            }
        }
        Ok(())
    }

    /// Changes a file, unless this is a dry run.
    fn change(&self, entry: &Entry) -> Result<Done, Outcome> {
        let content = match self.read(entry)? {
            Ok(content) => content,
            Err(done) => return Ok(done),
        };
        let Some((changed, replacements)) = self.replaced(&content)? else { return Ok(Done::TooLarge) };
        if replacements > 0 && (self.left == 0 || self.text >= SEARCH_TEXT_BYTES_MAX) {
            let bound = if self.left == 0 { SearchBound::Count } else { SearchBound::Size };
            return Err(Stop::Bound(bound).into());
        }
        if self.request.dry_run || changed == content {
            return Ok(Done::Replaced(replacements));
        }
        // A request for a name that is no UTF-8 cannot be made either.
        match write::overwrite(&RawPath::from(entry.path.as_slice()), &changed) {
            Ok(()) => Ok(Done::Replaced(replacements)),
            Err(failure) if failure.kind == FailureKind::NoSpace => Err(Outcome::Failed(failure)),
            Err(_) => Ok(Done::Unreadable),
        }
    }

    /// Reads a file whole.
    fn read(&self, entry: &Entry) -> Result<Content, Outcome> {
        let Some((file, stat)) = open_regular(entry) else { return Ok(Err(Done::Unreadable)) };
        let most = self.bytes_max as u64;
        if u64::try_from(stat.st_size).is_ok_and(|size| size > most) {
            return Ok(Err(Done::TooLarge));
        }
        let mut stop = None;
        let mut content = Vec::new();
        let watched = Watched { file: File::from(file), output: self.output, until: self.until, stop: &mut stop };
        let read = watched.take(most + 1).read_to_end(&mut content);
        if let Some(stop) = stop {
            return Err(stop.into());
        }
        Ok(match read {
            Err(_) => Err(Done::Unreadable),
            Ok(_) if content.len() > self.bytes_max => Err(Done::TooLarge),
            Ok(_) if content.contains(&0) => Err(Done::Binary),
            Ok(_) => Ok(content),
        })
    }

    /// Returns the new content and the number of replacements; `None` if it would be too large.
    fn replaced(&self, content: &[u8]) -> Result<Option<(Vec<u8>, u64)>, Outcome> {
        let mut changed = Vec::new();
        let mut count = 0;
        let mut stop = None;
        let mut is_too_large = false;
        // This matcher never fails.
        let Ok(mut groups) = self.matcher.new_captures() else { return Ok(None) };
        let replacement = self.request.replacement.as_bytes();
        let replaced = self.matcher.replace_with_captures(content, &mut groups, &mut changed, |groups, changed| {
            count += 1;
            if self.request.pattern.literal {
                changed.extend_from_slice(replacement);
            } else {
                groups.interpolate(|name| self.matcher.capture_index(name), content, replacement, changed);
            }
            if count % REPLACEMENTS_PER_LOOK == 0 {
                stop = check(self.output, self.until).err();
            }
            is_too_large = changed.len() > self.bytes_max;
            stop.is_none() && !is_too_large
        });
        is_too_large |= replaced.is_err() || changed.len() > self.bytes_max;
        match stop {
            Some(stop) => Err(stop.into()),
            None => Ok((!is_too_large).then_some((changed, count))),
        }
    }
}
