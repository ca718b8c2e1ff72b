//! Directories, links and searches.

use providers::{Error, Result};

use super::case::{Case, case};
use super::subject::{Subject, argv, soon};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a list is sorted by name and follows no link", list),
        case!("a link is looked at itself", stat_link, LinkTexts),
        case!("the root can be looked at and not be removed", root),
        case!("reading and writing follow links inside the box", follow),
        case!("a link that points out of its directory stays inside the box", outside),
        case!("links that go round, or nowhere, are told from files", odd_links),
        case!("a file, a link itself and an empty directory can be deleted", delete),
        case!("a directory that is not empty is deleted only on request", delete_recursive),
        case!("a wide directory can be deleted", delete_wide, Processes),
        case!("a directory deeper than any path can be deleted", delete_deep, Processes, Depth),
        case!("a file or directory can be moved, over a file too", rename),
        case!("a move that makes no sense is invalid", bad_rename),
        case!("a search knows every form of pattern", glob),
        case!("a search that finds too much is invalid", glob_limit),
    ]
}

fn is_invalid<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Invalid(_)))
}

async fn list(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("mkdir -p d/sub; echo 12345 > d/b; touch d/a d/B d/.h; ln -s /etc d/link; ln -s nowhere d/zz").await;
    let entries = inside.guest.list("/workspace/d").await.unwrap();
    let names: Vec<_> = entries.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, [".h", "B", "a", "b", "link", "sub", "zz"]);
    let by_name = |name: &str| entries.iter().find(|info| info.name == name).unwrap();
    assert!(by_name("sub").is_dir && !by_name("b").is_dir);
    assert_eq!((by_name("b").size, by_name("b").path.as_str()), (6, "/workspace/d/b"));
    let link = by_name("link");
    assert_eq!((link.is_symlink, link.is_dir, link.target.as_deref()), (true, false, Some("/etc")));
    assert_eq!(by_name("zz").target.as_deref(), Some("nowhere"));
    assert!(is_invalid(inside.guest.list("/workspace/d/b").await));
    assert!(inside.guest.list("/workspace/d/sub").await.unwrap().is_empty());
}

async fn stat_link(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("mkdir -p d; ln -s d link; ln -s nowhere dangling").await;
    let link = inside.guest.stat("/workspace/link").await.unwrap();
    assert_eq!((link.is_symlink, link.is_dir, link.target.as_deref()), (true, false, Some("d")));
    assert!(inside.guest.stat("/workspace/dangling").await.unwrap().is_symlink);
}

async fn root(subject: Subject) {
    let inside = subject.start().await;
    let root = inside.guest.stat("/").await.unwrap();
    assert_eq!((root.name.as_str(), root.path.as_str(), root.is_dir), ("/", "/", true));
    assert_eq!(inside.guest.stat("/../..").await.unwrap().path, "/");
    let names: Vec<_> = inside.guest.list("/").await.unwrap().into_iter().map(|info| info.name).collect();
    for name in ["etc", "tmp", "workspace"] {
        assert!(names.iter().any(|found| found == name), "{names:?}");
    }
    assert!(is_invalid(inside.guest.delete("/", false).await));
}

async fn follow(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("mkdir -p d; echo old > d/file; ln -s d/file link; ln -s d dir").await;
    assert_eq!(inside.read("/workspace/link").await, b"old\n");
    inside.write("/workspace/link", "new").await;
    assert_eq!(inside.read("/workspace/d/file").await, b"new");
    assert!(inside.guest.stat("/workspace/link").await.unwrap().is_symlink, "the link was replaced");
    inside.write("/workspace/dir/other", "x").await;
    assert!(inside.exists("/workspace/d/other").await);
}

async fn outside(subject: Subject) {
    let inside = subject.start().await;
    // gVisor of 2022 fails at a link to a bare `/`, inside the box too.
    inside.sh("ln -s /etc/passwd abs; ln -s ../../../../../../../../etc/passwd up; ln -s /. root").await;
    inside.sh("echo theirs > /etc/outside; ln -s ../../../../../../../../etc/outside out").await;
    let own = inside.sh("cat /etc/passwd").await.stdout;
    assert!(!own.is_empty());
    for path in ["/workspace/abs", "/workspace/up", "/workspace/root/etc/passwd", "/../../etc/passwd"] {
        assert!(inside.read(path).await == own, "{path} is not the box's own");
    }
    // Writing through a link changes the box's file, not the host's.
    inside.write("/workspace/out", "mine").await;
    assert_eq!(inside.sh("cat /etc/outside").await.text(), "mine");
    assert!(tokio::fs::metadata("/etc/outside").await.is_err(), "the host was written to");
}

async fn odd_links(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("ln -s b a; ln -s a b; ln -s nowhere dangling; ln -s . here").await;
    assert!(is_invalid(inside.guest.read_file("/workspace/a", 0, None).await));
    assert!(matches!(inside.guest.read_file("/workspace/dangling", 0, None).await, Err(Error::NotFound(_))));
    inside.write("/workspace/here/here/here/file", "x").await;
    assert_eq!(inside.read("/workspace/file").await, b"x");
}

async fn delete(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("mkdir -p d empty; echo x > d/kept; echo x > file; ln -s d link; ln -s nowhere dangling").await;
    for path in ["file", "link", "dangling", "empty"] {
        let path = format!("/workspace/{path}");
        inside.guest.delete(&path, false).await.unwrap();
        assert!(matches!(inside.guest.delete(&path, false).await, Err(Error::NotFound(_))), "{path}");
    }
    assert_eq!(inside.read("/workspace/d/kept").await, b"x\n", "a link was followed");
}

async fn delete_recursive(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("mkdir -p kept d/e/f; echo x > kept/file; ln -s /workspace/kept d/link; touch d/e/f/g d/.h").await;
    assert!(is_invalid(inside.guest.delete("/workspace/d", false).await));
    assert!(inside.exists("/workspace/d/e/f/g").await);
    inside.guest.delete("/workspace/d", true).await.unwrap();
    assert!(!inside.exists("/workspace/d").await);
    assert_eq!(inside.read("/workspace/kept/file").await, b"x\n", "a link was followed");
}

async fn delete_wide(subject: Subject) {
    delete_made(subject, "mkdir large; cd large; seq 5000 | xargs touch").await;
}

async fn delete_deep(subject: Subject) {
    let script = "while [ ${#p} -lt 3700 ]; do p=dddddddddd/$p; done; mkdir -p large/$p lower/$p lowest/$p; \
                  (cd lower/$p && mv /workspace/lowest .) && cd large/$p && mv /workspace/lower .";
    delete_made(subject, script).await;
}

/// Deletes the directory `large` that `script` makes.
async fn delete_made(subject: Subject, script: &str) {
    const PATH: &str = "/workspace/large";
    let inside = subject.start().await;
    assert_eq!(inside.sh(script).await.code(), 0);
    soon(PATH, inside.guest.delete(PATH, true)).await.unwrap();
    assert!(!inside.exists(PATH).await);
}

async fn rename(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("mkdir -p d/e; echo 1 > a; echo 2 > b; echo 3 > d/e/f; ln -s a link").await;
    inside.guest.rename("/workspace/a", "/workspace/b").await.unwrap();
    assert_eq!(inside.read("/workspace/b").await, b"1\n");
    assert!(!inside.exists("/workspace/a").await);
    inside.guest.rename("/workspace/d", "/workspace/new/parent/d").await.unwrap();
    assert_eq!(inside.read("/workspace/new/parent/d/e/f").await, b"3\n");
    inside.guest.rename("/workspace/link", "/workspace/moved").await.unwrap();
    assert!(inside.guest.stat("/workspace/moved").await.unwrap().is_symlink);
}

async fn bad_rename(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("mkdir -p d/e full; touch file full/file").await;
    for (old, new) in [("d", "d/e/inside"), ("file", "d"), ("d", "file"), ("d", "full"), ("file", "full/file/x")] {
        let result = inside.guest.rename(&format!("/workspace/{old}"), &format!("/workspace/{new}")).await;
        assert!(is_invalid(result), "{old} to {new}");
    }
    assert!(inside.exists("/workspace/d/e").await && inside.exists("/workspace/file").await);
}

async fn glob(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("mkdir -p src/sub/deep; touch a.rs b.rs c.txt src/m.rs src/sub/n.rs src/sub/deep/o.rs src/p.py").await;
    let cases: [(&str, &[&str]); 9] = [
        ("*.rs", &["a.rs", "b.rs"]),
        ("?.rs", &["a.rs", "b.rs"]),
        ("[bc].*", &["b.rs", "c.txt"]),
        ("{a,c}.{rs,txt}", &["a.rs", "c.txt"]),
        ("**/*.rs", &["a.rs", "b.rs", "src/m.rs", "src/sub/deep/o.rs", "src/sub/n.rs"]),
        ("src/**/n.rs", &["src/sub/n.rs"]),
        ("src/*", &["src/m.rs", "src/p.py", "src/sub"]),
        ("c.txt", &["c.txt"]),
        ("*.none", &[]),
    ];
    for (pattern, expected) in cases {
        let found = inside.guest.glob(&format!("/workspace/{pattern}")).await.unwrap();
        let expected: Vec<String> = expected.iter().map(|path| format!("/workspace/{path}")).collect();
        assert_eq!(found, expected, "{pattern}");
    }
    assert_eq!(inside.guest.glob("/etc/passwd").await.unwrap(), ["/etc/passwd"]);
}

async fn glob_limit(subject: Subject) {
    let inside = subject.start().await;
    let names: Vec<String> = (0..10_001).map(|n| n.to_string()).collect();
    for chunk in names.chunks(2000) {
        let command: Vec<&str> = ["touch"].into_iter().chain(chunk.iter().map(String::as_str)).collect();
        assert_eq!(inside.run(argv(&command)).await.code(), 0);
    }
    assert!(is_invalid(inside.guest.glob("/workspace/*").await));
    inside.guest.delete("/workspace/0", false).await.unwrap();
    assert_eq!(inside.guest.glob("/workspace/*").await.unwrap().len(), 10_000);
}
