//! Search and replacement in the content of files.

use std::time::Duration;

use api::{ReplaceRequest, SearchRequest};

use super::fault::fault;
use super::guest::CustomGuest;
use crate::{
    Error, Replace, ReplaceResult, ReplacedFile, Result, Search, SearchBound, SearchEnd, SearchMatch, SearchResult,
};

/// Waits for the answer to work that may take `time_ms` at the remote service.
async fn ask<T>(
    guest: &CustomGuest,
    action: &'static str,
    path: &str,
    time_ms: u64,
    answer: impl Future<Output = client::Result<T>>,
) -> Result<T> {
    let _permit = guest.permit().await?;
    let after = Duration::from_millis(time_ms) + guest.remote.timeout;
    let answer = tokio::time::timeout(after, answer).await.unwrap_or(Err(client::Error::Timeout { after }));
    match answer.map_err(|error| fault(action, guest.remote.boxes.generation(&guest.id), error)) {
        Err(Error::Gone) => Err(guest.missing(path).await),
        answer => answer,
    }
}

fn time(time_ms: u64) -> Option<String> {
    Some(format!("{}ms", time_ms.max(1)))
}

fn end(files: u64, skipped: api::SkippedFiles, bound: Option<api::SearchBound>) -> SearchEnd {
    SearchEnd {
        files,
        binary: skipped.binary,
        too_large: skipped.too_large,
        unreadable: skipped.unreadable,
        truncated: bound.map(|bound| match bound {
            api::SearchBound::Count => SearchBound::Count,
            api::SearchBound::Size => SearchBound::Size,
            api::SearchBound::Time => SearchBound::Time,
        }),
    }
}

/// Searches; see [`crate::Guest::search`].
pub(super) async fn search(guest: &CustomGuest, request: &Search) -> Result<SearchResult> {
    const ACTION: &str = "search in files";
    let Search { pattern, scope, context, matches_max, time_ms } = request.clone();
    let asked = SearchRequest {
        pattern: pattern.text,
        path: Some(scope.path.clone()),
        literal: pattern.literal,
        ignore_case: pattern.ignore_case,
        whole_words: pattern.whole_words,
        include: scope.include,
        exclude: scope.exclude,
        hidden: scope.hidden,
        gitignore: scope.gitignore,
        context,
        max_matches: Some(matches_max),
        timeout: time(time_ms),
    };
    let answer = guest.remote.client.search_files(guest.sandbox(), &asked);
    let found = ask(guest, ACTION, &scope.path, time_ms, answer).await?;
    if found.matches.len() > matches_max as usize {
        return Err(Error::failed(ACTION, "the other service returned more than requested"));
    }
    let matches = found.matches.into_iter().map(|found| SearchMatch {
        path: found.path,
        line: found.line,
        column: found.column,
        text: found.text,
        text_cut: found.text_truncated,
        before: found.before,
        after: found.after,
    });
    let end = end(found.files_searched, found.files_skipped, found.truncated_by);
    Ok(SearchResult { matches: matches.collect(), end })
}

/// Replaces; see [`crate::Guest::replace`].
pub(super) async fn replace(guest: &CustomGuest, request: &Replace) -> Result<ReplaceResult> {
    const ACTION: &str = "replace in files";
    let Replace { pattern, replacement, scope, dry_run, files_max, time_ms } = request.clone();
    let asked = ReplaceRequest {
        pattern: pattern.text,
        replacement,
        path: Some(scope.path.clone()),
        literal: pattern.literal,
        ignore_case: pattern.ignore_case,
        whole_words: pattern.whole_words,
        include: scope.include,
        exclude: scope.exclude,
        hidden: scope.hidden,
        gitignore: scope.gitignore,
        dry_run,
        max_files: Some(files_max),
        timeout: time(time_ms),
    };
    let client = guest.writing()?;
    let answer = client.replace_in_files(guest.sandbox(), &asked);
    let replaced = ask(guest, ACTION, &scope.path, time_ms, answer).await?;
    if replaced.files.len() > files_max as usize {
        return Err(Error::failed(ACTION, "the other service returned more than requested"));
    }
    let end = end(replaced.files_searched, replaced.files_skipped, replaced.truncated_by);
    let files = replaced.files.into_iter();
    let files = files.map(|file| ReplacedFile { path: file.path, replacements: file.replacements });
    Ok(ReplaceResult { files: files.collect(), end })
}
