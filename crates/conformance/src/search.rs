//! Search and replacement in the content of files.

use providers::{Error, FileScope, Replace, Search, SearchBound, TextPattern};

use super::case::{Case, case};
use super::subject::{Subject, soon};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a search in files gives lines by path and number", lines, Processes, Search),
        case!("a search in files passes over what is no text, and counts it", no_text, Processes, Search),
        case!("a search in files says where a bound has ended it", bounds, Processes, Search),
        case!("a pattern or a path that cannot be searched is refused", refused, Processes, Search),
        case!("a replacement in files keeps modes, and changes nothing in a dry run", replaced, Processes, Search),
    ]
}

fn pattern(text: &str) -> TextPattern {
    TextPattern { text: text.to_owned(), literal: false, ignore_case: false, whole_words: false }
}

fn scope(path: &str) -> FileScope {
    FileScope { path: path.to_owned(), include: Vec::new(), exclude: Vec::new(), hidden: false, gitignore: false }
}

fn wanted(text: &str) -> Search {
    Search { pattern: pattern(text), scope: scope("/workspace"), context: 0, matches_max: 100, time_ms: 30_000 }
}

async fn lines(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("mkdir d .git; printf 'a1\\nb\\n a2' > d/z; echo a3 > a; echo a4 > .h; echo a5 > d/skip").await;
    inside.sh("echo skip > .gitignore").await;
    let search = async |request: Search| {
        let found = soon("a search", inside.guest.search(&request)).await.unwrap();
        assert_eq!(found.end.truncated, None);
        let line = |m: providers::SearchMatch| format!("{}:{}:{}:{}", m.path, m.line, m.column, m.text);
        found.matches.into_iter().map(line).collect::<Vec<_>>()
    };
    let all = ["/workspace/a:1:1:a3", "/workspace/d/skip:1:1:a5", "/workspace/d/z:1:1:a1", "/workspace/d/z:3:2: a2"];
    assert_eq!(search(wanted("a[0-9]")).await, all);
    let kept = FileScope { gitignore: true, exclude: vec!["z".to_owned()], hidden: true, ..scope("/workspace") };
    assert_eq!(search(Search { scope: kept, ..wanted("a[0-9]") }).await, ["/workspace/.h:1:1:a4", all[0]]);
    let one = scope("/workspace/d/z");
    let found = inside.guest.search(&Search { scope: one, context: 1, ..wanted("b") }).await.unwrap();
    assert_eq!((&found.matches[0].before[..], &found.matches[0].after[..]), (&["a1".into()][..], &[" a2".into()][..]));
}

async fn no_text(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("echo x > text; printf 'x\\0' > binary; ln -s text link; mkfifo fifo; truncate -s 10G hole").await;
    let found = soon("a search", inside.guest.search(&wanted("x"))).await.unwrap();
    assert_eq!(found.matches.len(), 1);
    assert_eq!((found.end.files, found.end.binary), (1, 2));
}

async fn bounds(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("yes x | head -n 200 > many").await;
    let found = inside.guest.search(&wanted("x")).await.unwrap();
    assert_eq!((found.matches.len(), found.end.truncated), (100, Some(SearchBound::Count)));
    let none = inside.guest.search(&Search { time_ms: 1, ..wanted("(x+x+)+y|x") }).await.unwrap();
    assert!(matches!(none.end.truncated, Some(SearchBound::Time | SearchBound::Count)));
}

async fn refused(subject: Subject) {
    let inside = subject.start().await;
    for text in ["", "(", r"(\w{1000}){1000}"] {
        assert!(matches!(inside.guest.search(&wanted(text)).await, Err(Error::Invalid(_))), "{text}");
    }
    let at = |path: &str| Search { scope: scope(path), ..wanted("x") };
    assert!(matches!(inside.guest.search(&at("workspace")).await, Err(Error::Invalid(_))));
    assert!(matches!(inside.guest.search(&at("/dev/null")).await, Err(Error::Invalid(_))));
    assert!(matches!(inside.guest.search(&at("/none")).await, Err(Error::NotFound(_))));
}

async fn replaced(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("echo one two > a; chmod 750 a; echo three > b").await;
    let swap = Replace {
        pattern: pattern(r"(\w+) (\w+)"),
        replacement: "$2 $1".to_owned(),
        scope: scope("/workspace"),
        dry_run: true,
        files_max: 10,
        time_ms: 30_000,
    };
    for (dry_run, content) in [(true, "one two\n"), (false, "two one\n")] {
        let done = soon("a replacement", inside.guest.replace(&Replace { dry_run, ..swap.clone() })).await.unwrap();
        let files: Vec<_> = done.files.iter().map(|file| (file.path.as_str(), file.replacements)).collect();
        assert_eq!((files, done.end.files), (vec![("/workspace/a", 1)], 2));
        assert_eq!(inside.sh("cat a").await.text(), content);
    }
    assert_eq!(inside.sh("stat -c %a a; ls -A | wc -l").await.text(), "750\n2\n");
}
