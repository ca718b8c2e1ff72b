//! Search in the content of files, and replacement.

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Maximum number of matches of one search.
pub const SEARCH_MATCHES_MAX: u32 = 10_000;
/// Maximum number of files that one replacement changes.
pub const REPLACE_FILES_MAX: u32 = 10_000;
/// Maximum number of lines of context on each side of a match.
pub const SEARCH_CONTEXT_MAX: u32 = 20;
/// Maximum size of a line that is given back, in bytes; of a longer one, the part around the match.
pub const SEARCH_LINE_BYTES_MAX: usize = 2000;
/// Maximum size of all texts and paths of an answer, in bytes.
pub const SEARCH_TEXT_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Maximum size of a pattern or of a replacement, in bytes.
pub const PATTERN_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of globs to include, and of those to leave out.
pub const SCOPE_GLOBS_MAX: usize = 100;
/// Maximum size of a glob, in bytes.
pub const SCOPE_GLOB_BYTES_MAX: usize = 256;
/// Largest row of an answer, in bytes: a match with all its context, each byte encoded as six.
pub const SEARCH_ROW_BYTES_MAX: usize = 6 * SEARCH_LINE_BYTES_MAX * (2 * SEARCH_CONTEXT_MAX as usize + 1) + 64 * 1024;

/// A text to look for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextPattern {
    /// Regular expression, or the text itself.
    pub text: String,
    /// True if it is the text itself.
    pub literal: bool,
    /// True to match letters of either case.
    pub ignore_case: bool,
    /// True to match whole words only.
    pub whole_words: bool,
}

/// The files to look into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileScope {
    /// Absolute path of a file, or of a directory with all that is below it.
    pub path: String,
    /// Globs of the files to look into, as in a `.gitignore`; none for all.
    pub include: Vec<String>,
    /// Globs of files and directories to leave out.
    pub exclude: Vec<String>,
    /// True to look into files and directories whose names begin with a dot too.
    pub hidden: bool,
    /// True to leave out what git ignores.
    pub gitignore: bool,
}

impl FileScope {
    /// Returns the scope of all that is below `path`.
    #[must_use]
    pub fn all(path: impl Into<String>) -> Self {
        Self { path: path.into(), include: Vec::new(), exclude: Vec::new(), hidden: true, gitignore: false }
    }
}

/// A search in the content of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Search {
    /// Text to look for, within a line.
    pub pattern: TextPattern,
    /// Files to look into.
    pub scope: FileScope,
    /// Lines of context on each side, at most [`SEARCH_CONTEXT_MAX`].
    pub context: u32,
    /// Maximum number of matches, at most [`SEARCH_MATCHES_MAX`].
    pub matches_max: u32,
    /// Maximum duration in milliseconds.
    pub time_ms: u64,
}

/// A replacement in the content of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replace {
    /// Text to replace, which may span lines.
    pub pattern: TextPattern,
    /// Text to put in its place. `$1`, `${1}` and `${name}` are groups of a regular expression, `$$`
    /// is a dollar sign.
    pub replacement: String,
    /// Files to change.
    pub scope: FileScope,
    /// True to count only.
    pub dry_run: bool,
    /// Maximum number of files to change, at most [`REPLACE_FILES_MAX`].
    pub files_max: u32,
    /// Maximum duration in milliseconds.
    pub time_ms: u64,
}

/// A row of the answer to a search: matches, then the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchRow {
    /// A line that matches.
    Match(SearchMatch),
    /// The end, always the last row.
    End(SearchEnd),
}

/// A row of the answer to a replacement: files, then the end or a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplaceRow {
    /// A file that was changed, or would be.
    File(ReplacedFile),
    /// The end, the last row of work that has not failed.
    End(SearchEnd),
    /// The failure that has ended the work, as the last row.
    Failed(Failure),
}

/// Line that matches. Bytes that are not UTF-8 are replaced by U+FFFD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchMatch {
    /// Absolute path of the file.
    pub path: String,
    /// Number of the line, from 1.
    pub line: u64,
    /// Byte of the line at which the first match begins, from 1.
    pub column: u64,
    /// The line without its end; of a line above [`SEARCH_LINE_BYTES_MAX`], the part around the match.
    pub text: String,
    /// True if `text` is a part of the line.
    pub text_cut: bool,
    /// Lines before it, each cut as `text` is.
    pub before: Vec<String>,
    /// Lines after it, each cut as `text` is.
    pub after: Vec<String>,
}

/// A file with replacements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacedFile {
    /// Absolute path of the file.
    pub path: String,
    /// Number of replacements in it.
    pub replacements: u64,
}

/// Account of a search or a replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchEnd {
    /// Files that were looked into, binary ones not included.
    pub files: u64,
    /// Files that were passed over because they are binary: there is a zero byte in them.
    pub binary: u64,
    /// Files that were passed over, wholly or from there on, because they or a line of them are too
    /// large.
    pub too_large: u64,
    /// Files and directories that could not be read or, by a replacement, not be written.
    pub unreadable: u64,
    /// Bound that ended the work before all files were looked into.
    pub truncated: Option<SearchBound>,
}

/// A bound that ends a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchBound {
    /// The number of matches, or of files to change.
    Count,
    /// The size of the answer.
    Size,
    /// The time.
    Time,
}
