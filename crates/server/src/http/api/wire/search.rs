//! Conversions of searches and replacements.

use std::time::Duration;

use providers::{FileScope, Replace, ReplaceResult, Search, SearchBound, SearchEnd, SearchResult, TextPattern};

use super::scalars::span;
use crate::http::error::{ApiError, malformed};

/// Path where a request leaves it out.
const PATH: &str = "/workspace";
/// Matches, or files to change, where a request leaves the number out.
const COUNT: u32 = 1000;
/// Time where a request leaves it out.
const TIME: Duration = Duration::from_secs(30);
/// Longest time.
const TIME_MAX: Duration = Duration::from_secs(60);

fn time_ms(text: Option<&str>) -> Result<u64, ApiError> {
    let time = text.map(|text| span("timeout", text)).transpose()?.unwrap_or(TIME);
    if time > TIME_MAX {
        return Err(malformed("`timeout` must be at most 1m; search in a smaller directory instead"));
    }
    Ok(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

fn count(field: &str, value: Option<u32>, most: u32) -> Result<u32, ApiError> {
    let value = value.unwrap_or(COUNT);
    if (1..=most).contains(&value) { Ok(value) } else { Err(malformed(format!("`{field}` must be from 1 to {most}"))) }
}

fn text(field: &str, text: &str) -> Result<(), ApiError> {
    if text.len() <= providers::PATTERN_BYTES_MAX {
        return Ok(());
    }
    Err(malformed(format!("`{field}` must be at most {} bytes", providers::PATTERN_BYTES_MAX)))
}

fn globs(field: &str, globs: &[String]) -> Result<(), ApiError> {
    let most = providers::SCOPE_GLOBS_MAX;
    let bytes = providers::SCOPE_GLOB_BYTES_MAX;
    if globs.len() > most || globs.iter().any(|glob| glob.len() > bytes) {
        return Err(malformed(format!("`{field}` must have at most {most} globs of at most {bytes} bytes each")));
    }
    Ok(())
}

/// Converts the body of a search.
pub fn search(body: api::SearchRequest) -> Result<Search, ApiError> {
    text("pattern", &body.pattern)?;
    globs("include", &body.include)?;
    globs("exclude", &body.exclude)?;
    if body.context > providers::SEARCH_CONTEXT_MAX {
        return Err(malformed(format!("`context` must be at most {}", providers::SEARCH_CONTEXT_MAX)));
    }
    Ok(Search {
        context: body.context,
        matches_max: count("max_matches", body.max_matches, providers::SEARCH_MATCHES_MAX)?,
        time_ms: time_ms(body.timeout.as_deref())?,
        pattern: TextPattern {
            text: body.pattern,
            literal: body.literal,
            ignore_case: body.ignore_case,
            whole_words: body.whole_words,
        },
        scope: FileScope {
            path: body.path.unwrap_or_else(|| PATH.to_owned()),
            include: body.include,
            exclude: body.exclude,
            hidden: body.hidden,
            gitignore: body.gitignore,
        },
    })
}

/// Converts the body of a replacement.
pub fn replace(body: api::ReplaceRequest) -> Result<Replace, ApiError> {
    text("pattern", &body.pattern)?;
    text("replacement", &body.replacement)?;
    globs("include", &body.include)?;
    globs("exclude", &body.exclude)?;
    Ok(Replace {
        replacement: body.replacement,
        dry_run: body.dry_run,
        files_max: count("max_files", body.max_files, providers::REPLACE_FILES_MAX)?,
        time_ms: time_ms(body.timeout.as_deref())?,
        pattern: TextPattern {
            text: body.pattern,
            literal: body.literal,
            ignore_case: body.ignore_case,
            whole_words: body.whole_words,
        },
        scope: FileScope {
            path: body.path.unwrap_or_else(|| PATH.to_owned()),
            include: body.include,
            exclude: body.exclude,
            hidden: body.hidden,
            gitignore: body.gitignore,
        },
    })
}

fn skipped(end: &SearchEnd) -> api::SkippedFiles {
    api::SkippedFiles { binary: end.binary, too_large: end.too_large, unreadable: end.unreadable }
}

fn bound(end: &SearchEnd) -> Option<api::SearchBound> {
    end.truncated.map(|bound| match bound {
        SearchBound::Count => api::SearchBound::Count,
        SearchBound::Size => api::SearchBound::Size,
        SearchBound::Time => api::SearchBound::Time,
    })
}

/// Converts the outcome of a search to the API.
pub fn search_result(SearchResult { matches, end }: SearchResult) -> api::SearchResult {
    let matches = matches.into_iter().map(|found| api::SearchMatch {
        path: found.path,
        line: found.line,
        column: found.column,
        text: found.text,
        text_truncated: found.text_cut,
        before: found.before,
        after: found.after,
    });
    api::SearchResult {
        matches: matches.collect(),
        files_searched: end.files,
        files_skipped: skipped(&end),
        truncated: end.truncated.is_some(),
        truncated_by: bound(&end),
    }
}

/// Converts the outcome of a replacement to the API.
pub fn replace_result(ReplaceResult { files, end }: ReplaceResult) -> api::ReplaceResult {
    api::ReplaceResult {
        replacements: files.iter().map(|file| file.replacements).fold(0, u64::saturating_add),
        files: files
            .into_iter()
            .map(|file| api::ReplacedFile { path: file.path, replacements: file.replacements })
            .collect(),
        files_searched: end.files,
        files_skipped: skipped(&end),
        truncated: end.truncated.is_some(),
        truncated_by: bound(&end),
    }
}
