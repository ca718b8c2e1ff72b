//! Search and replacement in the content of files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, Instant};

use guest_protocol::{
    Failure, FailureKind, FileScope, Replace, ReplaceRow, Search, SearchBound, SearchEnd, SearchMatch, SearchRow,
    TextPattern,
};
use http_body_util::{BodyExt, Full};
use hyper::StatusCode;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::files::kind;
use crate::harness::{Agent, answer, eventually, within};

fn pattern(text: &str) -> TextPattern {
    TextPattern { text: text.to_owned(), literal: false, ignore_case: false, whole_words: false }
}

fn scope(path: &str) -> FileScope {
    FileScope { path: path.to_owned(), include: Vec::new(), exclude: Vec::new(), hidden: false, gitignore: false }
}

fn wanted(text: &str, path: &str) -> Search {
    Search { pattern: pattern(text), scope: scope(path), context: 0, matches_max: 1000, time_ms: 30_000 }
}

fn replacement(text: &str, with: &str, path: &str) -> Replace {
    Replace {
        pattern: pattern(text),
        replacement: with.to_owned(),
        scope: scope(path),
        dry_run: false,
        files_max: 1000,
        time_ms: 30_000,
    }
}

impl Agent {
    async fn rows<T: DeserializeOwned>(&mut self, path: &str, request: &impl Serialize) -> Result<Vec<T>, Failure> {
        let body = Full::from(serde_json::to_vec(request).unwrap()).boxed_unsync();
        let response = self.send("POST", path, body, &[]).await;
        if response.status() != StatusCode::OK {
            return Err(answer::<Value>(response).await.unwrap_err());
        }
        let text = within(response.into_body().collect()).await.unwrap().to_bytes();
        Ok(text.split_inclusive(|byte| *byte == b'\n').map(|line| serde_json::from_slice(line).unwrap()).collect())
    }

    async fn search(&mut self, request: &Search) -> Result<(Vec<SearchMatch>, SearchEnd), Failure> {
        let mut rows: Vec<SearchRow> = self.rows("/files/search", request).await?;
        let Some(SearchRow::End(end)) = rows.pop() else { panic!("no end") };
        let found = rows.into_iter().map(|row| match row {
            SearchRow::Match(found) => found,
            SearchRow::End(_) => panic!("two ends"),
        });
        Ok((found.collect(), end))
    }

    async fn replace(&mut self, request: &Replace) -> Result<(Vec<(String, u64)>, SearchEnd), Failure> {
        let mut rows: Vec<ReplaceRow> = self.rows("/files/replace", request).await?;
        let Some(ReplaceRow::End(end)) = rows.pop() else { panic!("no end") };
        let files = rows.into_iter().map(|row| match row {
            ReplaceRow::File(file) => (file.path, file.replacements),
            ReplaceRow::End(_) | ReplaceRow::Failed(_) => panic!("two ends"),
        });
        Ok((files.collect(), end))
    }
}

#[tokio::test]
async fn a_match_has_its_place_and_the_lines_around_it() {
    let mut agent = Agent::start().await;
    let path = agent.path("text");
    fs::write(&path, "one\ntwo\r\n  x=1\nfour\nfive\nx=2\nseven").unwrap();
    let (found, end) = agent.search(&Search { context: 2, ..wanted(r"x=\d", &path) }).await.unwrap();
    assert_eq!((end.files, end.truncated), (1, None));
    let [first, second] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((first.line, first.column, first.text.as_str(), first.text_cut), (3, 3, "  x=1", false));
    assert_eq!(first.before, ["one", "two"]);
    assert_eq!(first.after, ["four", "five"]);
    assert_eq!((second.line, second.column, second.text.as_str()), (6, 1, "x=2"));
    assert_eq!(second.before, ["four", "five"]);
    assert_eq!(second.after, ["seven"]);
    // Lines that match are lines around others too.
    let (found, _) = agent.search(&Search { context: 1, ..wanted("e", &path) }).await.unwrap();
    let lines: Vec<_> = found.iter().map(|found| (found.line, found.before.join(","), found.after.join(","))).collect();
    let expected = [(1, "", "two"), (5, "four", "x=2"), (7, "x=2", "")];
    assert_eq!(lines, expected.map(|(line, before, after)| (line, before.to_owned(), after.to_owned())));
}

#[tokio::test]
async fn every_match_of_neighbouring_lines_has_its_own_context() {
    let mut agent = Agent::start().await;
    let path = agent.path("text");
    fs::write(&path, "a1\na2\na3\nb\nc\nd\ne\na4\n").unwrap();
    let (found, _) = agent.search(&Search { context: 2, ..wanted("a", &path) }).await.unwrap();
    let lines: Vec<_> =
        found.iter().map(|found| (found.text.as_str(), found.before.join(","), found.after.join(","))).collect();
    let expected = [("a1", "", "a2,a3"), ("a2", "a1", "a3,b"), ("a3", "a1,a2", "b,c"), ("a4", "d,e", "")];
    assert_eq!(lines, expected.map(|(text, before, after)| (text, before.to_owned(), after.to_owned())));
}

#[tokio::test]
async fn a_text_is_found_by_case_by_word_and_as_it_is() {
    let mut agent = Agent::start().await;
    let path = agent.path("text");
    fs::write(&path, "foo.bar\nFOO.bar\nfooxbar\nfoobar2 foo\n").unwrap();
    let mut lines = async |pattern: TextPattern| {
        let (found, _) = agent.search(&Search { pattern, ..wanted("", &path) }).await.unwrap();
        found.iter().map(|found| found.line).collect::<Vec<_>>()
    };
    assert_eq!(lines(pattern("foo.bar")).await, [1, 3]);
    assert_eq!(lines(TextPattern { literal: true, ..pattern("foo.bar") }).await, [1]);
    assert_eq!(lines(TextPattern { ignore_case: true, ..pattern("foo.bar") }).await, [1, 2, 3]);
    assert_eq!(lines(TextPattern { whole_words: true, ..pattern("foo") }).await, [1, 4]);
    assert_eq!(lines(pattern("^foo")).await, [1, 3, 4]);
    assert_eq!(lines(pattern("bar$")).await, [1, 2, 3]);
}

#[tokio::test]
async fn what_is_no_text_is_passed_over_and_counted() {
    let mut agent = Agent::start().await;
    let dir = agent.path("d");
    fs::create_dir(&dir).unwrap();
    fs::write(format!("{dir}/text"), "x\n").unwrap();
    fs::write(format!("{dir}/binary"), b"x\0x\n").unwrap();
    fs::write(format!("{dir}/long"), "x".repeat(3 << 20)).unwrap();
    fs::write(format!("{dir}/latin"), b"\xe4 x\n").unwrap();
    symlink("text", format!("{dir}/link")).unwrap();
    mknodat(CWD, format!("{dir}/fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let (found, end) = agent.search(&wanted("x", &dir)).await.unwrap();
    let mut texts: Vec<_> = found.iter().map(|found| found.text.as_str()).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["x", "\u{fffd} x"]);
    assert_eq!(end, SearchEnd { files: 2, binary: 1, too_large: 1, unreadable: 0, truncated: None });
    assert_eq!(kind(agent.search(&wanted("x", &format!("{dir}/fifo"))).await), FailureKind::Invalid);
    assert_eq!(kind(agent.search(&wanted("x", &format!("{dir}/none"))).await), FailureKind::NotFound);
    assert_eq!(kind(agent.search(&wanted("x", "relative")).await), FailureKind::Invalid);
}

#[tokio::test]
async fn a_bound_that_ends_a_search_is_named() {
    let mut agent = Agent::start().await;
    let dir = agent.path("d");
    fs::create_dir(&dir).unwrap();
    fs::write(format!("{dir}/a"), "x\n".repeat(100)).unwrap();
    let (found, end) = agent.search(&Search { matches_max: 100, ..wanted("x", &dir) }).await.unwrap();
    assert_eq!((found.len(), end.truncated), (100, None), "all there are");
    let (found, end) = agent.search(&Search { matches_max: 99, ..wanted("x", &dir) }).await.unwrap();
    assert_eq!((found.len(), end.truncated), (99, Some(SearchBound::Count)));
    fs::write(format!("{dir}/b"), format!("{}\n", "x".repeat(1999)).repeat(2000)).unwrap();
    let (found, end) = agent.search(&Search { matches_max: 10_000, ..wanted("xx", &dir) }).await.unwrap();
    assert_eq!(end.truncated, Some(SearchBound::Size));
    assert!((1000..1100).contains(&found.len()), "{}", found.len());
    let (_, end) = agent.search(&Search { time_ms: 0, ..wanted("x", &dir) }).await.unwrap();
    assert_eq!(end.truncated, Some(SearchBound::Time));
}

#[tokio::test]
async fn a_vast_file_takes_no_memory_and_a_search_that_is_left_ends() {
    let mut agent = Agent::start().await;
    let path = agent.path("vast");
    let file = fs::File::create(&path).unwrap();
    file.set_len(10 << 30).unwrap();
    // A hole is binary from its first byte.
    let (found, end) = agent.search(&wanted("(x+x+)+y", &path)).await.unwrap();
    assert_eq!((found.len(), end.binary), (0, 1));
    // A text of this length is made of one that is read again and again.
    fs::remove_file(&path).unwrap();
    let dir = agent.path("many");
    fs::create_dir(&dir).unwrap();
    fs::write(format!("{dir}/0"), format!("{}\n", "x".repeat(4000)).repeat(2000)).unwrap();
    for n in 1..200 {
        fs::hard_link(format!("{dir}/0"), format!("{dir}/{n}")).unwrap();
    }
    let begun = Instant::now();
    let slow = Search { pattern: TextPattern { whole_words: true, ..pattern(r"(x+x+)+\w{1,9}y") }, ..wanted("", &dir) };
    let body = Full::from(serde_json::to_vec(&slow).unwrap()).boxed_unsync();
    let response = agent.send("POST", "/files/search", body, &[]).await;
    // The agent serves others meanwhile.
    assert!(agent.stat(&dir).await.is_ok());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let threads = format!("/proc/{}/task", agent.pid());
    assert_eq!(fs::read_dir(&threads).unwrap().count(), 2);
    drop(response);
    eventually("the thread ends", || fs::read_dir(&threads).unwrap().count() == 1).await;
    assert!(peak_kb(agent.pid()) < 32 * 1024, "{} KiB", peak_kb(agent.pid()));
}

/// Returns the most memory that a process has had.
fn peak_kb(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_replacement_keeps_mode_and_owner_and_counts() {
    let mut agent = Agent::start().await;
    let dir = agent.path("d");
    fs::create_dir(&dir).unwrap();
    let (a, b) = (format!("{dir}/a"), format!("{dir}/b"));
    fs::write(&a, "let foo = bar;\nlet x = y;\n").unwrap();
    fs::write(&b, "nothing\n").unwrap();
    fs::set_permissions(&a, fs::Permissions::from_mode(0o750)).unwrap();
    let untouched = fs::metadata(&b).unwrap().ino();
    let swap = replacement(r"let (\w+) = (?P<value>\w+);", "let ${value} = $1; // $$", &dir);
    let (files, end) = agent.replace(&Replace { dry_run: true, ..swap.clone() }).await.unwrap();
    assert_eq!((files, end.files), (vec![(a.clone(), 2)], 2));
    assert_eq!(fs::read_to_string(&a).unwrap(), "let foo = bar;\nlet x = y;\n", "a dry run changes nothing");
    let (files, _) = agent.replace(&swap).await.unwrap();
    assert_eq!(files, [(a.clone(), 2)]);
    assert_eq!(fs::read_to_string(&a).unwrap(), "let bar = foo; // $\nlet y = x; // $\n");
    assert_eq!(fs::metadata(&a).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::metadata(&b).unwrap().ino(), untouched, "a file without a match is not written");
    let literal = TextPattern { literal: true, ..pattern("// $") };
    agent.replace(&Replace { pattern: literal, ..replacement("", "$1", &a) }).await.unwrap();
    assert_eq!(fs::read_to_string(&a).unwrap(), "let bar = foo; $1\nlet y = x; $1\n");
    agent.replace(&replacement(r";[^;]*\n", "\n", &a)).await.unwrap();
    assert_eq!(fs::read_to_string(&a).unwrap(), "let bar = foo\nlet y = x\n", "it may span lines");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "no temporary file is left");
}

#[tokio::test]
async fn a_replacement_is_bounded_and_leaves_what_is_no_text() {
    let mut agent = Agent::start().await;
    let dir = agent.path("d");
    fs::create_dir(&dir).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(format!("{dir}/{name}"), "x\n").unwrap();
    }
    fs::write(format!("{dir}/binary"), b"x\0").unwrap();
    fs::write(format!("{dir}/large"), "x".repeat(9 << 20)).unwrap();
    let (files, end) = agent.replace(&Replace { files_max: 2, ..replacement("x", "y", &dir) }).await.unwrap();
    assert_eq!((files.len(), end.truncated), (2, Some(SearchBound::Count)));
    let changed = |name: &&str| fs::read(format!("{dir}/{name}")).unwrap() == b"y\n";
    assert_eq!(["a", "b", "c"].iter().filter(|name| changed(name)).count(), 2);
    let (_, end) = agent.replace(&replacement("x", "y", &dir)).await.unwrap();
    assert_eq!((end.binary, end.too_large, end.truncated), (1, 1, None));
    assert_eq!(fs::metadata(format!("{dir}/large")).unwrap().len(), 9 << 20);
    // A file that would grow beyond all bounds stays what it is.
    fs::write(format!("{dir}/grows"), "z".repeat(1 << 20)).unwrap();
    let (files, end) = agent.replace(&replacement("z", &"long".repeat(1000), &dir)).await.unwrap();
    assert_eq!((files.len(), end.too_large), (0, 2));
    assert_eq!(fs::metadata(format!("{dir}/grows")).unwrap().len(), 1 << 20);
}
