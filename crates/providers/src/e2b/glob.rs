//! Searches for paths, by lists of the directory that they begin in.

use guest_protocol::GLOB_RESULTS_MAX;

use super::files;
use super::guest::E2bGuest;
use crate::{Error, Result};

/// Deepest list that is asked for.
const DEPTH_MAX: u32 = 64;

/// Returns the paths that match a pattern; see [`crate::Guest::glob`].
pub(super) async fn glob(guest: &E2bGuest, pattern: &str) -> Result<Vec<String>> {
    let (folder, depth) = scope(pattern);
    let entries = match files::list(guest, folder, depth).await {
        Ok(entries) => entries,
        Err(Error::NotFound(_) | Error::Invalid(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let paths = entries.into_iter().map(|entry| entry.path);
    let mut found: Vec<String> = paths.filter(|path| fast_glob::glob_match(pattern, path)).collect();
    if found.len() > GLOB_RESULTS_MAX {
        return Err(Error::Invalid(format!("{pattern}: more than {GLOB_RESULTS_MAX} paths match; narrow the pattern")));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Returns the directory that all matches are below, and how deep they may be.
fn scope(pattern: &str) -> (&str, u32) {
    let special = pattern.find(['*', '?', '[', '{', '\\', '!']).unwrap_or(pattern.len());
    let folder = pattern[..special].rfind('/').unwrap_or(0);
    let rest = &pattern[folder..];
    // `**` has any depth, and braces may hold slashes.
    let depth = if rest.contains("**") || rest.contains('{') {
        DEPTH_MAX
    } else {
        u32::try_from(rest.matches('/').count()).unwrap_or(DEPTH_MAX).clamp(1, DEPTH_MAX)
    };
    (if folder == 0 { "/" } else { &pattern[..folder] }, depth)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_search_begins_where_the_pattern_does() {
        for (pattern, folder, depth) in [
            ("/*", "/", 1),
            ("/a/b/*.txt", "/a/b", 1),
            ("/a/*/c", "/a", 2),
            ("/a/b", "/a", 1),
            ("/a/**/c", "/a", DEPTH_MAX),
            ("/a/{b,c/d}/e", "/a", DEPTH_MAX),
            ("/a?", "/", 1),
            ("/ab[c]/d", "/", 2),
        ] {
            assert_eq!(scope(pattern), (folder, depth), "{pattern}");
        }
    }
}
