//! Search in the content of files, with the libraries of ripgrep.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use grep_matcher::Matcher as _;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish, SinkMatch};
use guest_protocol::file_text::escaped;
use guest_protocol::{
    FileScope, PATTERN_BYTES_MAX, SCOPE_GLOB_BYTES_MAX, SCOPE_GLOBS_MAX, SEARCH_CONTEXT_MAX, SEARCH_LINE_BYTES_MAX,
    SEARCH_TEXT_BYTES_MAX, Search, SearchBound, SearchEnd, SearchMatch, SearchRow, TextPattern,
};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open};

use super::long_work::{Left, Output};
use super::walk::{Entry, Walk};
use crate::failure::{Result, invalid};

/// Maximum size of the cache of a pattern's automaton, in bytes.
const CACHE_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Maximum number of groups and repetitions within each other.
const NESTING_MAX: u32 = 100;
/// Maximum size of a line that is searched, in bytes.
const LINE_BYTES_MAX: usize = 1024 * 1024;
/// Maximum duration of a search or replacement.
pub(super) const TIME_MAX: Duration = Duration::from_secs(60);

/// Reason why the work on files ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Left,
    Bound(SearchBound),
}

impl From<Left> for Stop {
    fn from(Left: Left) -> Stop {
        Stop::Left
    }
}

/// Compiles a pattern to at most `bytes_max` bytes; if `within_lines`, one that matches no end of a
/// line.
///
/// # Errors
/// Invalid for one that is malformed or too large.
pub(super) fn compile(pattern: &TextPattern, within_lines: bool, bytes_max: usize) -> Result<RegexMatcher> {
    if pattern.text.is_empty() {
        return Err(invalid("the pattern is empty; set a pattern to search for"));
    }
    if pattern.text.len() > PATTERN_BYTES_MAX {
        return Err(invalid(format!("the pattern is longer than {} KiB", PATTERN_BYTES_MAX / 1024)));
    }
    let mut builder = RegexMatcherBuilder::new();
    builder
        .fixed_strings(pattern.literal)
        .case_insensitive(pattern.ignore_case)
        .word(pattern.whole_words)
        .multi_line(true)
        .nest_limit(NESTING_MAX)
        .size_limit(bytes_max)
        .dfa_size_limit(bytes_max.min(CACHE_BYTES_MAX));
    if within_lines {
        builder.line_terminator(Some(b'\n'));
    }
    builder.build(&pattern.text).map_err(|error| {
        if matches!(error.kind(), grep_regex::ErrorKind::NotAllowed(_)) {
            return invalid("the pattern contains a line break; a search checks each line separately");
        }
        invalid(format!("the pattern is not a valid regular expression: {error}"))
    })
}

/// Checks the globs of a scope.
pub(super) fn check_scope(scope: &FileScope) -> Result<()> {
    for (field, globs) in [("include", &scope.include), ("exclude", &scope.exclude)] {
        if globs.len() > SCOPE_GLOBS_MAX {
            return Err(invalid(format!("`{field}` has more than {SCOPE_GLOBS_MAX} globs")));
        }
        if globs.iter().any(|glob| glob.len() > SCOPE_GLOB_BYTES_MAX) {
            return Err(invalid(format!("`{field}`: a glob is longer than {SCOPE_GLOB_BYTES_MAX} bytes")));
        }
    }
    Ok(())
}

/// Opens a file of a walk if it is still a regular one.
pub(super) fn open_regular(entry: &Entry) -> Option<(OwnedFd, Stat)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open(entry.path.as_slice(), flags, Mode::empty()).ok()?;
    let stat = fstat(&file).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some((file, stat))
}

/// A file that is read until the work is to stop.
pub(super) struct Watched<'a> {
    pub(super) file: File,
    pub(super) output: &'a Output,
    pub(super) until: Instant,
    pub(super) stop: &'a mut Option<Stop>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        *self.stop = check(self.output, self.until).err();
        if self.stop.is_some() {
            return Err(std::io::Error::other("stopped"));
        }
        self.file.read(buffer)
    }
}

/// Returns whether the work may go on.
pub(super) fn check(output: &Output, until: Instant) -> Result<(), Stop> {
    output.check()?;
    if Instant::now() >= until { Err(Stop::Bound(SearchBound::Time)) } else { Ok(()) }
}

/// Returns the time at which work that began now is to stop.
pub(super) fn until(time_ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(time_ms).min(TIME_MAX)
}

/// Returns an account of nothing.
pub(super) fn nothing() -> SearchEnd {
    SearchEnd { files: 0, binary: 0, too_large: 0, unreadable: 0, truncated: None }
}

/// Searches with a pattern of at most `bytes_max` bytes when compiled, and sends [`SearchRow`]s.
///
/// # Errors
/// Before the head: not found for the path, invalid for the pattern or a glob.
pub(crate) fn search(request: &Search, bytes_max: usize, output: &mut Output) -> Result<()> {
    let until = until(request.time_ms);
    check_scope(&request.scope)?;
    let matcher = compile(&request.pattern, true, bytes_max)?;
    let walk = Walk::begin(&request.scope)?;
    if output.begin().is_err() {
        return Ok(());
    }
    let context = request.context.min(SEARCH_CONTEXT_MAX) as usize;
    let searcher = SearcherBuilder::new()
        .line_number(true)
        .before_context(context)
        .after_context(context)
        .binary_detection(BinaryDetection::quit(0))
        .bom_sniffing(false)
        .heap_limit(Some(LINE_BYTES_MAX))
        .build();
    let mut work =
        Work { output, until, matcher, searcher, context, left: request.matches_max, text: 0, end: nothing() };
    match work.all(walk) {
        Err(Stop::Left) => return Ok(()),
        Err(Stop::Bound(bound)) => work.end.truncated = Some(bound),
        Ok(()) => {}
    }
    let Work { output, end, .. } = work;
    // A caller that has left does not need it.
    let _ = output.row(&SearchRow::End(end)).and_then(|()| output.flush());
    Ok(())
}

/// A search under way.
struct Work<'a> {
    output: &'a mut Output,
    until: Instant,
    matcher: RegexMatcher,
    searcher: Searcher,
    context: usize,
    /// Number of matches that may still be sent.
    left: u32,
    /// Bytes of text sent so far.
    text: usize,
    end: SearchEnd,
}

impl Work<'_> {
    fn all(&mut self, mut walk: Walk) -> Result<(), Stop> {
        let outcome = loop {
            match walk.next() {
                None => break Ok(()),
                Some(Err(_)) => break Err(Stop::Bound(SearchBound::Size)),
                Some(Ok(entry)) => {
                    let done = check(self.output, self.until).and_then(|()| self.file(&entry));
                    if done.is_err() {
                        break done;
                    }
                }
            }
        };
        self.end.unreadable += walk.unreadable;
        outcome
    }

    fn file(&mut self, entry: &Entry) -> Result<(), Stop> {
        if entry.kind != FileType::RegularFile {
            return Ok(());
        }
        let Some((file, _)) = open_regular(entry) else {
            self.end.unreadable += 1;
            return Ok(());
        };
        let mut stop = None;
        let mut lines = Lines {
            path: escaped(&entry.path),
            matcher: &self.matcher,
            context: self.context,
            before: VecDeque::new(),
            waiting: VecDeque::new(),
            ready: Vec::new(),
            left: self.left,
            text: self.text,
            is_binary: false,
            bound: None,
        };
        let watched = Watched { file: File::from(file), output: self.output, until: self.until, stop: &mut stop };
        let searched = self.searcher.search_reader(&self.matcher, watched, &mut lines);
        let Lines { waiting, mut ready, left, text, is_binary, bound, .. } = lines;
        (self.left, self.text) = (left, text);
        ready.extend(waiting);
        for found in ready {
            self.output.row(&SearchRow::Match(found))?;
        }
        match (is_binary, searched) {
            (true, _) => self.end.binary += 1,
            (false, Ok(())) => self.end.files += 1,
            // The line buffer is at its limit.
            (false, Err(error)) if stop.is_none() && error.raw_os_error().is_none() => self.end.too_large += 1,
            (false, Err(_)) if stop.is_none() => self.end.unreadable += 1,
            (false, Err(_)) => self.end.files += 1,
        }
        stop.or(bound.map(Stop::Bound)).map_or(Ok(()), Err)
    }
}

/// Lines of a file as the searcher finds them.
struct Lines<'a> {
    path: String,
    matcher: &'a RegexMatcher,
    context: usize,
    /// The last lines, with their numbers.
    before: VecDeque<(u64, String)>,
    /// Matches whose lines after them are still to come.
    waiting: VecDeque<SearchMatch>,
    ready: Vec<SearchMatch>,
    left: u32,
    text: usize,
    is_binary: bool,
    bound: Option<SearchBound>,
}

impl Lines<'_> {
    /// Adds a line to the matches that it is after.
    fn add_after(&mut self, number: u64, text: &str) {
        let context = self.context as u64;
        if context == 0 {
            return;
        }
        while self.waiting.front().is_some_and(|first| first.line + context < number) {
            self.ready.extend(self.waiting.pop_front());
        }
        for earlier in &mut self.waiting {
            self.text += text.len();
            earlier.after.push(text.to_owned());
        }
    }

    /// Keeps a line for the matches that it is before.
    fn keep_before(&mut self, number: u64, text: &str) {
        if self.context == 0 {
            return;
        }
        if self.before.len() == self.context {
            self.before.pop_front();
        }
        self.before.push_back((number, text.to_owned()));
    }
}

impl Sink for &mut Lines<'_> {
    type Error = std::io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> std::io::Result<bool> {
        let line = without_end(found.bytes());
        let number = found.line_number().unwrap_or(0);
        if self.left == 0 || self.text >= SEARCH_TEXT_BYTES_MAX {
            self.bound = Some(if self.left == 0 { SearchBound::Count } else { SearchBound::Size });
            return Ok(false);
        }
        let at = self.matcher.find(line).ok().flatten().map_or(0, |found| found.start());
        let (text, text_cut) = excerpt(line, at);
        self.add_after(number, &text);
        let context = self.context as u64;
        let before = self.before.iter().filter(|(line, _)| line + context >= number);
        let before: Vec<String> = before.map(|(_, text)| text.clone()).collect();
        self.keep_before(number, &text);
        self.left -= 1;
        self.text += self.path.len() + text.len() + before.iter().map(String::len).sum::<usize>();
        let found = SearchMatch {
            path: self.path.clone(),
            line: number,
            column: at as u64 + 1,
            text,
            text_cut,
            before,
            after: Vec::new(),
        };
        if context == 0 {
            self.ready.push(found)
        } else {
            self.waiting.push_back(found)
        }
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, line: &SinkContext<'_>) -> std::io::Result<bool> {
        let (text, _) = excerpt(without_end(line.bytes()), 0);
        let number = line.line_number().unwrap_or(0);
        self.add_after(number, &text);
        self.keep_before(number, &text);
        Ok(true)
    }

    fn binary_data(&mut self, _: &Searcher, _: u64) -> std::io::Result<bool> {
        self.is_binary = true;
        Ok(false)
    }

    fn finish(&mut self, _: &Searcher, end: &SinkFinish) -> std::io::Result<()> {
        self.is_binary |= end.binary_byte_offset().is_some();
        Ok(())
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn is_inside_character(line: &[u8], at: usize) -> bool {
    line.get(at).is_some_and(|byte| byte & 0xc0 == 0x80)
}

/// Returns a line as text, and whether it is only the part of it around the byte `at`.
fn excerpt(line: &[u8], at: usize) -> (String, bool) {
    if line.len() <= SEARCH_LINE_BYTES_MAX {
        return (String::from_utf8_lossy(line).into_owned(), false);
    }
    let mut begin = at.saturating_sub(SEARCH_LINE_BYTES_MAX / 4).min(line.len() - SEARCH_LINE_BYTES_MAX);
    let mut end = begin + SEARCH_LINE_BYTES_MAX;
    // Not in the middle of a character, which has at most four bytes.
    for _ in 0..3 {
        begin += usize::from(is_inside_character(line, begin));
        end -= usize::from(is_inside_character(line, end));
    }
    (String::from_utf8_lossy(line.get(begin..end).unwrap_or_default()).into_owned(), true)
}

#[cfg(test)]
mod test {
    use super::*;

    fn pattern(text: &str) -> TextPattern {
        TextPattern { text: text.to_owned(), literal: false, ignore_case: false, whole_words: false }
    }

    #[test]
    fn patterns_that_cannot_be_used_are_refused() {
        for bad in
            ["", "(", r"(a)\1", "a{1000000}", r"(\w{1000}){1000}", r"a\nb", &"(".repeat(200), &"a".repeat(20_000)]
        {
            assert!(compile(&pattern(bad), true, 8 << 20).is_err(), "{bad:.20}");
        }
        assert!(compile(&pattern(r"a\nb"), false, 8 << 20).is_ok());
        assert!(compile(&TextPattern { literal: true, ..pattern("(") }, true, 8 << 20).is_ok());
        assert!(compile(&pattern(r"\w{1,30}@\w{1,30}"), true, 8 << 20).is_ok());
    }

    #[test]
    fn of_a_long_line_the_part_around_the_match_is_given() {
        let line = format!("{}x{}", "ä".repeat(5000), "ö".repeat(5000));
        let (text, cut) = excerpt(line.as_bytes(), 10_000);
        assert!(cut && text.contains('x') && !text.contains('\u{fffd}'), "{text}");
        assert!(text.len() > SEARCH_LINE_BYTES_MAX - 8 && text.len() <= SEARCH_LINE_BYTES_MAX);
        let (text, cut) = excerpt(line.as_bytes(), line.len());
        assert!(cut && text.ends_with('ö'));
        assert_eq!(excerpt(b"a\xffb", 0), ("a\u{fffd}b".to_owned(), false));
    }
}
