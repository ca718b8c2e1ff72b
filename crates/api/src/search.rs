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
    /// Absolute path of a file, or of a directory with all that is below it; `/workspace` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FilePath>)]
    pub path: Option<String>,
    /// `pattern` is the text itself.
    #[serde(default)]
    pub literal: bool,
    /// Letters match in either case.
    #[serde(default)]
    pub ignore_case: bool,
    /// Only whole words match.
    #[serde(default)]
    pub whole_words: bool,
    /// Globs of the files to search, written as in a `.gitignore`; all without any.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub include: Vec<String>,
    /// Globs of files and directories to leave out.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub exclude: Vec<String>,
    /// Files and directories whose names begin with a dot too.
    #[serde(default)]
    pub hidden: bool,
    /// Leaves out what git ignores.
    #[serde(default)]
    pub gitignore: bool,
    /// Lines to give before and after each match.
    #[serde(default)]
    #[schema(maximum = 20)]
    pub context: u32,
    /// Maximum number of matches; 1,000 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub max_matches: Option<u32>,
    /// Time after which the search ends with what it has, at most `1m`; `30s` by default.
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
    /// Text to put in its place. `$1`, `${1}` and `${name}` are groups of the expression, `$$` is a
    /// dollar sign; if `literal`, it is the text itself.
    #[schema(max_length = 16384)]
    pub replacement: String,
    /// Absolute path of a file, or of a directory with all that is below it; `/workspace` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FilePath>)]
    pub path: Option<String>,
    /// `pattern` and `replacement` are the texts themselves.
    #[serde(default)]
    pub literal: bool,
    /// Letters match in either case.
    #[serde(default)]
    pub ignore_case: bool,
    /// Only whole words match.
    #[serde(default)]
    pub whole_words: bool,
    /// Globs of the files to change, written as in a `.gitignore`; all without any.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub include: Vec<String>,
    /// Globs of files and directories to leave out.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub exclude: Vec<String>,
    /// Files and directories whose names begin with a dot too.
    #[serde(default)]
    pub hidden: bool,
    /// Leaves out what git ignores.
    #[serde(default)]
    pub gitignore: bool,
    /// Counts, and changes nothing.
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
    /// Lines that match, by path and number.
    pub matches: Vec<SearchMatch>,
    /// Number of text files that were searched.
    pub files_searched: u64,
    /// Files that were passed over.
    pub files_skipped: SkippedFiles,
    /// True if a bound ended the search, so that there may be more matches.
    pub truncated: bool,
    /// The bound that cut the answer short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated_by: Option<SearchBound>,
}

/// Line that matches. Bytes that are not UTF-8 are replaced by U+FFFD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchMatch {
    /// Absolute path of the file.
    pub path: String,
    /// Number of the line, from 1.
    pub line: u64,
    /// Byte of the line at which its first match begins, from 1.
    pub column: u64,
    /// The line without its end; of one longer than 2,000 bytes, the part around the match.
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

/// Numbers of files that were passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SkippedFiles {
    /// Files with a zero byte.
    pub binary: u64,
    /// Files that are too large to change, or have a line above 1 MiB.
    pub too_large: u64,
    /// Files and directories that cannot be read or, in a replacement, not be written.
    pub unreadable: u64,
}

/// A bound that ended a search or a replacement.
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
    /// Files that were changed or, in a dry run, would be; by path.
    pub files: Vec<ReplacedFile>,
    /// Number of replacements in all of them.
    pub replacements: u64,
    /// Number of text files that were searched.
    pub files_searched: u64,
    /// Files that were passed over.
    pub files_skipped: SkippedFiles,
    /// True if a bound ended the replacement, so that there may be more to replace.
    pub truncated: bool,
    /// The bound that cut the answer short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated_by: Option<SearchBound>,
}

/// A file with replacements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplacedFile {
    /// Absolute path of the file.
    pub path: String,
    /// Number of replacements in it.
    pub replacements: u64,
}
