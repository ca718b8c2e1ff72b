//! `tidebox grep`: a search in the content of a sandbox's files.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::process::ExitCode;

use api::{SearchBound, SearchRequest, SearchResult};
use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::output::harmless;

/// Exit code of a search that found nothing, as grep has it.
const NOTHING: u8 = 1;

/// Search the files of a sandbox
#[derive(Debug, Args)]
#[command(
    after_help = "Prints path:line:text for each matching line, and path-line-text for context lines. Exits with \
                        1 if no line matches.\n\n\
                        tidebox grep sb-… 'fn \\w+' /workspace/src -g '*.rs' -C 2"
)]
pub struct GrepArgs {
    /// Sandbox ID
    id: String,
    /// Regular expression to search for
    pattern: String,
    /// File or directory in the sandbox; /workspace if omitted
    path: Option<String>,
    /// Treat PATTERN as plain text
    #[arg(short = 'F', long)]
    fixed_strings: bool,
    /// Ignore case
    #[arg(short, long)]
    ignore_case: bool,
    /// Match whole words only
    #[arg(short, long)]
    word_regexp: bool,
    /// Search only files that match this glob; a leading ! excludes matching files instead
    #[arg(short, long, value_name = "GLOB")]
    glob: Vec<String>,
    /// Also search hidden files
    #[arg(long)]
    hidden: bool,
    /// Skip files that git ignores
    #[arg(long)]
    gitignore: bool,
    /// Number of context lines to print around each match
    #[arg(short = 'C', long, value_name = "N", default_value_t = 0)]
    context: u32,
    /// Maximum number of matches to print; the server's default (1000) if omitted
    #[arg(short, long, value_name = "N")]
    max_count: Option<u32>,
}

/// Prints what was found, and on stderr where a bound ended the search.
pub async fn run(context: &Context, args: &GrepArgs) -> Result {
    let (exclude, include): (Vec<&String>, Vec<_>) = args.glob.iter().partition(|glob| glob.starts_with('!'));
    let request = SearchRequest {
        pattern: args.pattern.clone(),
        path: args.path.clone(),
        literal: args.fixed_strings,
        ignore_case: args.ignore_case,
        whole_words: args.word_regexp,
        include: include.into_iter().cloned().collect(),
        exclude: exclude.into_iter().map(|glob| glob.trim_start_matches('!').to_owned()).collect(),
        hidden: args.hidden,
        gitignore: args.gitignore,
        context: args.context,
        max_matches: args.max_count,
        timeout: None,
    };
    let result = context.client.search_files(&args.id, &request).await?;
    let to_terminal = std::io::stdout().is_terminal();
    context.output.print(&result, |result| {
        let text = text(result);
        if to_terminal { text.lines().map(|line| harmless(line) + "\n").collect() } else { text }
    })?;
    if let Some(bound) = result.truncated_by {
        context.output.remark(match bound {
            SearchBound::Count => "there are more matches; raise --max-count, or narrow the search",
            SearchBound::Size => "there are more matches than fit in a response; narrow the search",
            SearchBound::Time => "the search timed out before all files were searched; narrow the search",
        });
    }
    Ok(if result.matches.is_empty() { ExitCode::from(NOTHING) } else { ExitCode::SUCCESS })
}

/// Formats the matches as grep does. Lines around two matches are printed once.
fn text(result: &SearchResult) -> String {
    let mut text = String::new();
    let has_context = result.matches.iter().any(|found| !(found.before.is_empty() && found.after.is_empty()));
    let mut last: Option<(&str, u64)> = None;
    for (at, found) in result.matches.iter().enumerate() {
        let first = found.line - found.before.len() as u64;
        let printed = last.filter(|(path, _)| *path == found.path).map_or(0, |(_, line)| line);
        if has_context && last.is_some() && first > printed + 1 || has_context && at > 0 && printed == 0 {
            text.push_str("--\n");
        }
        for (line, before) in (first..).zip(&found.before).filter(|(line, _)| *line > printed) {
            let _ = writeln!(text, "{}-{line}-{before}", found.path);
        }
        let _ = writeln!(text, "{}:{}:{}", found.path, found.line, found.text);
        let next = result.matches.get(at + 1).filter(|next| next.path == found.path).map_or(u64::MAX, |next| next.line);
        let mut end = found.line;
        for (line, after) in (found.line + 1..next).zip(&found.after) {
            let _ = writeln!(text, "{}-{line}-{after}", found.path);
            end = line;
        }
        last = Some((&found.path, end));
    }
    text
}

#[cfg(test)]
mod test {
    use api::{SearchMatch, SkippedFiles};

    use super::*;

    fn found(path: &str, line: u64, text: &str, before: &[&str], after: &[&str]) -> SearchMatch {
        let owned = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect();
        SearchMatch {
            path: path.to_owned(),
            line,
            column: 1,
            text: text.to_owned(),
            text_truncated: false,
            before: owned(before),
            after: owned(after),
        }
    }

    fn printed(matches: Vec<SearchMatch>) -> String {
        let files_skipped = SkippedFiles::default();
        text(&SearchResult { matches, files_searched: 1, files_skipped, truncated: false, truncated_by: None })
    }

    #[test]
    fn lines_around_two_matches_are_printed_once() {
        let matches = vec![
            found("/a", 2, "x2", &["1"], &["3", "4"]),
            found("/a", 5, "x5", &["3", "4"], &["x6"]),
            found("/a", 6, "x6", &["4", "x5"], &[]),
            found("/a", 9, "x9", &["8"], &[]),
            found("/b", 1, "x", &[], &["2"]),
        ];
        assert_eq!(
            printed(matches),
            "/a-1-1\n/a:2:x2\n/a-3-3\n/a-4-4\n/a:5:x5\n/a:6:x6\n--\n/a-8-8\n/a:9:x9\n--\n/b:1:x\n/b-2-2\n"
        );
    }

    #[test]
    fn without_lines_around_them_matches_follow_each_other() {
        let matches = vec![found("/a", 2, "x", &[], &[]), found("/a", 9, "x", &[], &[]), found("/b", 1, "x", &[], &[])];
        assert_eq!(printed(matches), "/a:2:x\n/a:9:x\n/b:1:x\n");
    }
}
