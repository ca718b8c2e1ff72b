//! Users of a box, and files that are worked on as one of them.

use std::sync::Arc;

use providers::{Account, Error, FileChangeKind, Guest, NewXattrs, WatchRow, XATTR_PATHS_MAX, Xattrs};

use super::case::{Case, case};
use super::subject::{Inside, Subject, pieces, soon};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("an account of a box is found by its name", found, Accounts),
        case!("work on files is done as the user that is named", acting, Accounts, Processes, Users),
        case!("a file is written in place, and cut to what is written", in_place, Accounts),
        case!("a file has the attributes that it was written with", attributed, Accounts),
        case!("a file keeps its number when it is written in place", same_file, Accounts, Processes),
        case!("a directory is made once, with its parents", directories, Accounts),
        case!("a link is followed to the end", followed, Accounts, Processes),
        case!("a new file comes, changes its owner and is written, for a watcher", new_file, Watchers),
        case!("changes of files are kept until they are taken", kept, Watchers),
    ]
}

async fn account(inside: &Inside, user: Option<&str>) -> Account {
    soon("the account", inside.guest.account(user)).await.unwrap()
}

async fn found(subject: Subject) {
    let inside = subject.start().await;
    let root = account(&inside, Some("root")).await;
    assert_eq!((root.name.as_str(), root.uid, root.gid, root.home.as_str()), ("root", 0, 0, "/root"));
    assert!(account(&inside, None).await.home.starts_with('/'));
    for nobody in ["eve", "", "root:eve", "../root"] {
        let found = inside.guest.account(Some(nobody)).await;
        assert!(matches!(found, Err(Error::Invalid(_))), "{nobody:?}: {found:?}");
    }
}

fn as_user(inside: &Inside, user: &str) -> Arc<dyn Guest> {
    inside.guest.acting_as(user).unwrap()
}

async fn acting(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("mkdir -m 777 shared; mkdir -m 700 own; echo x > own/secret; chmod 644 own/secret").await;
    let (ann, root) = (as_user(&inside, "1234:1235"), as_user(&inside, "0:0"));
    ann.write_file("/workspace/shared/a", None, pieces(b"1")).await.unwrap();
    ann.overwrite_file("/workspace/shared/b", None, pieces(b"2")).await.unwrap();
    ann.make_dir("/workspace/shared/d").await.unwrap();
    root.overwrite_file("/workspace/shared/c", None, pieces(b"3")).await.unwrap();
    for (name, owner, group) in
        [("a", "1234", "1235"), ("b", "1234", "1235"), ("d", "1234", "1235"), ("c", "root", "root")]
    {
        let info = inside.guest.stat(&format!("/workspace/shared/{name}")).await.unwrap();
        assert_eq!((info.owner.as_deref(), info.group.as_deref()), (Some(owner), Some(group)), "{name}");
    }
    let listed = ann.list("/workspace/shared").await.unwrap();
    assert_eq!(
        listed.iter().map(|info| info.owner.as_deref().unwrap()).collect::<Vec<_>>(),
        ["1234", "1234", "root", "1234"]
    );
    for refused in [
        ann.read_file("/workspace/own/secret", 0, None).await.map(drop),
        ann.overwrite_file("/workspace/shared/c", None, pieces(b"4")).await,
        ann.write_file("/workspace/own/new", None, pieces(b"4")).await,
        ann.delete("/workspace/own/secret", false).await,
        ann.list("/workspace/own").await.map(drop),
        ann.add_watcher("/workspace/own/secret", false).await.map(drop),
    ] {
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    let nobody = as_user(&inside, "eve").stat("/").await;
    assert!(matches!(nobody, Err(Error::Invalid(_))), "{nobody:?}");
    assert_eq!(inside.read("/workspace/shared/c").await, b"3");
}

async fn in_place(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    for content in [&b"a long line"[..], b"short", b""] {
        guest.overwrite_file("/workspace/a/b/file", None, pieces(content)).await.unwrap();
        assert_eq!(inside.read("/workspace/a/b/file").await, content);
    }
    assert_eq!(guest.stat("/workspace/a/b/file").await.unwrap().mode, 0o644);
    for bad in ["/workspace/a", "/workspace/a/b/file/below", "/workspace/new/"] {
        let refused = guest.overwrite_file(bad, None, pieces(b"x")).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{bad}: {refused:?}");
    }
}

async fn same_file(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("echo first > file; ln file other; ln -s other link; mkfifo fifo; ln -s nowhere dangling").await;
    for (path, content) in [("/workspace/file", b"second"), ("/workspace/link", b"third-")] {
        inside.guest.overwrite_file(path, None, pieces(content)).await.unwrap();
        assert_eq!(inside.read("/workspace/other").await, content);
    }
    for bad in ["/workspace/fifo", "/workspace/dangling", "/dev/null"] {
        let refused = soon("the refusal", inside.guest.overwrite_file(bad, None, pieces(b"x"))).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{bad}: {refused:?}");
    }
}

async fn attributed(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let path = "/workspace/file".to_owned();
    let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let write = async |pairs: &[(&str, &str)]| {
        let values: Xattrs = pairs.iter().copied().map(pair).collect();
        let new = NewXattrs { prefix: "user.suite.".to_owned(), values };
        guest.overwrite_file(&path, Some(new), pieces(b"x")).await
    };
    let read = async |prefix: &str| {
        let paths = [path.clone(), "/workspace/none".to_owned()];
        let [of_file, of_none]: [Xattrs; 2] = guest.xattrs(&paths, prefix).await.unwrap().try_into().unwrap();
        assert!(of_none.is_empty());
        of_file
    };
    write(&[]).await.unwrap();
    assert!(read("user.suite.").await.is_empty());
    match write(&[("a", "1"), ("b", "")]).await {
        // Not everywhere are they kept, and that is said.
        Err(Error::NotSupported(_)) => return,
        outcome => outcome.unwrap(),
    }
    assert_eq!(read("user.suite.").await, [("a", "1"), ("b", "")].map(pair).into());
    assert_eq!(read("user.suite.a").await, Xattrs::new());
    assert_eq!(read("user.").await.len(), 2);
    write(&[("c", "\u{e4}")]).await.unwrap();
    assert_eq!(read("user.suite.").await, [pair(("c", "\u{e4}"))].into());
    guest.overwrite_file(&path, None, pieces(b"y")).await.unwrap();
    assert_eq!(read("user.suite.").await.len(), 1);
    let too_many = vec![path.clone(); XATTR_PATHS_MAX + 1];
    let refused = guest.xattrs(&too_many, "user.").await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

async fn directories(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    guest.make_dir("/workspace/a/b/c").await.unwrap();
    let info = guest.stat("/workspace/a/b/c").await.unwrap();
    assert_eq!((info.is_dir, info.mode), (true, 0o755));
    let again = guest.make_dir("/workspace/a/b").await;
    assert!(matches!(again, Err(Error::Conflict(_))), "{again:?}");
    inside.write("/workspace/file", b"x").await;
    for bad in ["/workspace/file", "/workspace/file/below", "relative", ""] {
        let refused = guest.make_dir(bad).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{bad}: {refused:?}");
    }
}

async fn followed(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("mkdir d; echo text > d/file; ln -s d e; ln -s e/file link; ln -s nowhere dangling").await;
    let info = inside.guest.resolve("/workspace/link").await.unwrap();
    assert_eq!((info.path.as_str(), info.name.as_str(), info.size), ("/workspace/d/file", "file", 5));
    assert!(!info.is_symlink && info.target.is_none());
    let info = inside.guest.resolve("/workspace/e").await.unwrap();
    assert_eq!((info.path.as_str(), info.is_dir), ("/workspace/d", true));
    for absent in ["/workspace/dangling", "/workspace/none"] {
        let found = inside.guest.resolve(absent).await;
        assert!(matches!(found, Err(Error::NotFound(_))), "{absent}: {found:?}");
    }
}

/// Returns the changes below `dir`, with names below it, and whether each is a move.
fn changes(dir: &str, rows: Vec<WatchRow>) -> Vec<(FileChangeKind, String, bool)> {
    let change = |row| match row {
        WatchRow::Change(change) => change,
        WatchRow::Overflow => panic!("an overflow"),
    };
    let named = |path: &str| path.strip_prefix(dir).unwrap().trim_start_matches('/').to_owned();
    rows.into_iter().map(change).map(|change| (change.kind, named(&change.path), change.moved)).collect()
}

async fn new_file(subject: Subject) {
    use FileChangeKind::{Attributes, Created, Modified};
    let inside = subject.start().await;
    let guest = &inside.guest;
    guest.make_dir("/workspace/d").await.unwrap();
    let watcher = guest.add_watcher("/workspace/d", false).await.unwrap();
    assert_eq!(guest.watcher_changes(watcher).await.unwrap(), []);
    guest.overwrite_file("/workspace/d/new", None, pieces(b"text")).await.unwrap();
    let seen = changes("/workspace/d", guest.watcher_changes(watcher).await.unwrap());
    let expected = [Created, Attributes, Modified].map(|kind| (kind, "new".to_owned(), false));
    assert_eq!(seen, expected, "at once, and nothing else");
    assert_eq!(guest.watcher_changes(watcher).await.unwrap(), []);
}

async fn kept(subject: Subject) {
    use FileChangeKind::{Created, Deleted};
    let inside = subject.start().await;
    let guest = &inside.guest;
    inside.sh("mkdir -p d out; echo 1 > d/old; echo 2 > d/gone").await;
    let watcher = guest.add_watcher("/workspace/d", true).await.unwrap();
    inside.sh("mv d/old out/; mv out/old d/back; rm d/gone; mkdir d/sub; sleep 0.3; echo 3 > d/sub/deep").await;
    let seen = changes("/workspace/d", guest.watcher_changes(watcher).await.unwrap());
    for (kind, name, moved) in [
        (Deleted, "old", true),
        (Created, "back", true),
        (Deleted, "gone", false),
        (Created, "sub", false),
        (Created, "sub/deep", false),
    ] {
        assert!(seen.contains(&(kind, name.to_owned(), moved)), "{kind:?} {name}: {seen:?}");
    }
    guest.remove_watcher(watcher).await.unwrap();
    let gone = [guest.watcher_changes(watcher).await.map(drop), guest.remove_watcher(watcher).await];
    assert!(gone.iter().all(|gone| matches!(gone, Err(Error::NotFound(_)))), "{gone:?}");
    assert!(matches!(guest.add_watcher("/workspace/none", false).await, Err(Error::NotFound(_))));
}
