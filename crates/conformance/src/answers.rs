//! Memory of a box that large answers use.

use futures_util::future::join_all;
use providers::{Error, Spec};

use super::case::{Case, case};
use super::subject::Subject;

/// Entries of a directory that is far larger than most. What the kernel keeps of each file, nearly 3 KB, counts
/// for the box too, and cannot be freed while a journal allocates memory: names are long, so that few files make
/// a long list.
const ENTRIES: usize = 8_000;
const NAME_BYTES: usize = 240;
/// Lists at the same time, which together are larger than the box.
const LISTS: usize = 40;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("lists of a large directory do not end a small box", large_lists, Processes),
        case!("looks at a full console do not end a small box", full_console, Processes, Console),
    ]
}

fn small(subject: &Subject) -> Spec {
    let mut spec = subject.spec();
    spec.resources.memory_mb = subject.small_memory_mb();
    spec.resources.disk_mb = 0;
    spec
}

async fn large_lists(subject: Subject) {
    let (inside, dir) = (subject.start_as(&small(&subject)).await, "/var/many");
    let prefix = "x".repeat(NAME_BYTES);
    let made =
        inside.sh(&format!("mkdir -p {dir} && cd {dir} && seq {ENTRIES} | sed s/^/{prefix}/ | xargs touch")).await;
    assert_eq!(made.code(), 0, "{}", String::from_utf8_lossy(&made.stderr));
    let lists = join_all((0..LISTS).map(|_| inside.guest.list(dir))).await;
    let whole = lists.iter().filter_map(|list| list.as_ref().ok());
    for entries in whole.clone() {
        assert_eq!(entries.len(), ENTRIES);
        assert!(entries.iter().all(|entry| entry.name.len() > NAME_BYTES));
    }
    assert!(whole.count() > 0, "none of the lists came: {:?}", lists.first());
    let refused = lists.iter().filter_map(|list| list.as_ref().err());
    for error in refused {
        // The latter of another service, whose own memory for requests is taken.
        assert!(matches!(error, Error::Exhausted(_) | Error::Unavailable(_)), "{error:?}");
    }
    assert_eq!(inside.guest.list(dir).await.unwrap().len(), ENTRIES);
    assert_eq!(inside.sh("echo works").await.text(), "works\n");
}

async fn full_console(subject: Subject) {
    const LOOKS: usize = 200;
    let inside = subject.start_as(&small(&subject)).await;
    // Each of these bytes is encoded as six in an answer.
    let fill =
        "(until [ -e go ]; do sleep 0.05; done; head -c 1000000 /dev/zero | tr '\\0' '\\1'; echo; echo filled) & true";
    assert_eq!(inside.sh(fill).await.code(), 0);
    // Output written from now on no longer belongs to the command.
    inside.write("/workspace/go", "").await;
    super::subject::eventually("the console is full", || async {
        inside.guest.console(1).await.unwrap().last().is_some_and(|line| line == "filled")
    })
    .await;
    let looks = join_all((0..LOOKS).map(|_| inside.guest.console(10_000))).await;
    let whole = looks.iter().filter_map(|look| look.as_ref().ok()).inspect(|lines| {
        assert_eq!(lines.iter().map(String::len).sum::<usize>(), 1_000_000 + "filled".len());
    });
    assert!(whole.count() > 0, "none of the looks came: {:?}", looks.first());
    for error in looks.iter().filter_map(|look| look.as_ref().err()) {
        // The latter of another service, whose own memory for requests is taken.
        assert!(matches!(error, Error::Exhausted(_) | Error::Unavailable(_)), "{error:?}");
    }
    assert_eq!(inside.sh("echo works").await.text(), "works\n");
}
