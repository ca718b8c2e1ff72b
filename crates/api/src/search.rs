//! Search and replacement in the content of files.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{FilePath, Span};

/// A search in the content of files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    /// Regular expression to find within a line.
    #[schema(min_length = 1, max_length = 16384)]
    pub pattern: String,
    /// Absolute path of a file, or of a directory to search recursively; `/workspace` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FilePath>)]
    pub path: Option<String>,
    /// True to match `pattern` literally, not as a regular expression.
    #[serde(default)]
    pub literal: bool,
    /// True to ignore case.
    #[serde(default)]
    pub ignore_case: bool,
    /// True to match whole words only.
    #[serde(default)]
    pub whole_words: bool,
    /// Globs of the files to search, in `.gitignore` syntax; all files if empty.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub include: Vec<String>,
    /// Globs of files and directories to skip.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub exclude: Vec<String>,
    /// True to include files and directories whose names begin with a dot.
    #[serde(default)]
    pub hidden: bool,
    /// True to skip files that git ignores.
    #[serde(default)]
    pub gitignore: bool,
    /// Number of lines to return before and after each match.
    #[serde(default)]
    #[schema(maximum = 20)]
    pub context: u32,
    /// Maximum number of matches; 1,000 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub max_matches: Option<u32>,
    /// Time after which the search returns the matches found so far, at most `1m`; `30s` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub timeout: Option<String>,
}

/// A replacement in the content of files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceRequest {
    /// Regular expression to replace, which may span lines.
    #[schema(min_length = 1, max_length = 16384)]
    pub pattern: String,
    /// Replacement text. `$1`, `${1}` and `${name}` are groups of the expression, `$$` is a dollar sign; with
    /// `literal`, the text is used as it is.
    #[schema(max_length = 16384)]
    pub replacement: String,
    /// Absolute path of a file, or of a directory to search recursively; `/workspace` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FilePath>)]
    pub path: Option<String>,
    /// True to use `pattern` and `replacement` literally.
    #[serde(default)]
    pub literal: bool,
    /// True to ignore case.
    #[serde(default)]
    pub ignore_case: bool,
    /// True to match whole words only.
    #[serde(default)]
    pub whole_words: bool,
    /// Globs of the files to change, in `.gitignore` syntax; all files if empty.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub include: Vec<String>,
    /// Globs of files and directories to skip.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub exclude: Vec<String>,
    /// True to include files and directories whose names begin with a dot.
    #[serde(default)]
    pub hidden: bool,
    /// True to skip files that git ignores.
    #[serde(default)]
    pub gitignore: bool,
    /// True to count the replacements without changing any file.
    #[serde(default)]
    pub dry_run: bool,
    /// Maximum number of files to change; 1,000 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub max_files: Option<u32>,
    /// Time after which no further file is changed, at most `1m`; `30s` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub timeout: Option<String>,
}

/// Outcome of a search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchResult {
    /// Matching lines, by path and line number.
    pub matches: Vec<SearchMatch>,
    /// Number of text files that were searched.
    pub files_searched: u64,
    /// Files that were skipped.
    pub files_skipped: SkippedFiles,
    /// True if a limit ended the search, so that there may be more matches.
    pub truncated: bool,
    /// Limit that cut the result short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated_by: Option<SearchBound>,
}

/// A matching line. Bytes that are not UTF-8 are replaced by U+FFFD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchMatch {
    /// Absolute path of the file.
    pub path: String,
    /// Number of the line, from 1.
    pub line: u64,
    /// Position of the first byte of the first match in the line, from 1.
    pub column: u64,
    /// The line without its line ending; if it is longer than 2,000 bytes, the part around the match.
    pub text: String,
    /// True if `text` is only a part of the line.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub text_truncated: bool,
    /// Lines before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// Lines after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
}

/// Number of files that were skipped, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SkippedFiles {
    /// Files with a zero byte.
    pub binary: u64,
    /// Files that are too large to change, or that have a line longer than 1 MiB.
    pub too_large: u64,
    /// Files and directories that cannot be read or, in a replacement, cannot be written.
    pub unreadable: u64,
}

/// A limit that ended a search or a replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SearchBound {
    /// `max_matches` or `max_files`.
    Count,
    /// The size of the answer: 2 MiB of text.
    Size,
    /// `timeout`.
    Time,
}

/// Outcome of a replacement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplaceResult {
    /// Files that were changed or, in a dry run, would be changed, by path.
    pub files: Vec<ReplacedFile>,
    /// Number of replacements in all files.
    pub replacements: u64,
    /// Number of text files that were searched.
    pub files_searched: u64,
    /// Files that were skipped.
    pub files_skipped: SkippedFiles,
    /// True if a limit ended the replacement, so that there may be more to replace.
    pub truncated: bool,
    /// Limit that cut the result short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated_by: Option<SearchBound>,
}

/// A file with replacements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplacedFile {
    /// Absolute path of the file.
    pub path: String,
    /// Number of replacements in this file.
    pub replacements: u64,
}
