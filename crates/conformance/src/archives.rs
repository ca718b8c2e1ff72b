//! Directories: as archives, described and changed, and watched.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use providers::{Amend, Attributes, Error, FileChangeKind, Pack, Result, WatchRow};
use tar::{Builder, EntryType, Header};

use super::case::{Case, case};
use super::subject::{Inside, Subject, pieces, soon};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a directory that is packed and unpacked is the same", round_trip, Processes, Archives),
        case!("an archive cannot leave the directory that it is unpacked in", contained, Processes, Archives),
        case!("an archive that is cut leaves what was whole", cut, Processes, Archives),
        case!("a directory is described, and chosen files of it are packed", described, Processes, Archives),
        case!(
            "many files are removed, and their modes and times set, below one directory",
            amended,
            Processes,
            Archives
        ),
        case!("changes of files are reported, in new directories too", watched, Processes, Archives),
    ]
}

async fn packed(inside: &Inside, path: &str) -> Result<Bytes> {
    let archive = soon("an archive", inside.guest.archive(path)).await?;
    let pieces: Vec<Bytes> = soon("the end of an archive", archive.try_collect()).await?;
    Ok(pieces.concat().into())
}

async fn round_trip(subject: Subject) {
    let inside = subject.start().await;
    // The time before the second name: gVisor keeps times by name.
    inside.sh("mkdir -p a/d/empty; echo 1 > a/f; chmod 741 a/f; touch -t 200102030405.06 a/f; ln a/f a/again").await;
    inside.sh("ln -s ../x a/d/l; chmod 2711 a/d; head -c 1000000 /dev/urandom > a/large; mkfifo a/fifo").await;
    let archive = packed(&inside, "/workspace/a").await.unwrap();
    let unpacked = soon("unpacking", inside.guest.unpack("/workspace/new/b", pieces(&archive))).await.unwrap();
    assert_eq!((unpacked.members, unpacked.bytes), (7, 1_000_002));
    let list =
        "find . ! -type p | sort | while read f; do stat -c '%n %a %F %Y' $f; readlink $f; done; cat f d/../again";
    let of = async |dir: &str| inside.sh(&format!("cd {dir}; {list}; cksum large")).await.text().to_owned();
    let (before, after) = (of("a").await, of("new/b").await);
    assert_eq!(before, after);
    assert!(before.contains("./d 2711 directory") && before.contains("../x"), "{before}");
    assert!(matches!(packed(&inside, "/workspace/none").await, Err(Error::NotFound(_))));
    assert!(matches!(packed(&inside, "/workspace/a/fifo").await, Err(Error::Invalid(_))));
}

/// Returns an archive of members with any names.
fn archive(members: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, content) in members {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        let content = if *kind == EntryType::Symlink {
            header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
            ""
        } else {
            content
        };
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

async fn contained(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("mkdir out in; ln -s ../out in/old").await;
    let regular = |name| (EntryType::Regular, name, "x");
    for members in [
        vec![regular("/workspace/out/a")],
        vec![regular("../out/a")],
        vec![regular("old/a")],
        vec![(EntryType::Symlink, "new", "../out"), regular("new/a")],
        vec![(EntryType::Char, "device", "")],
        vec![regular("twice"), regular("twice/a")],
    ] {
        let unpacked = soon("unpacking", inside.guest.unpack("/workspace/in", pieces(&archive(&members)))).await;
        assert!(matches!(unpacked, Err(Error::Invalid(_))), "{members:?}: {unpacked:?}");
    }
    assert_eq!(inside.sh("ls -A out").await.text(), "");
}

async fn cut(subject: Subject) {
    let inside = subject.start().await;
    let whole = archive(&[(EntryType::Regular, "a", "whole"), (EntryType::Regular, "b", &"x".repeat(5000))]);
    for (bytes, words) in [(&whole[..3000], "1 members"), (&b"no tar"[..], "nothing was unpacked")] {
        match soon("unpacking", inside.guest.unpack("/workspace/d", pieces(bytes))).await {
            Err(Error::Invalid(message)) => assert!(message.contains(words), "{message}"),
            outcome => panic!("{outcome:?}"),
        }
    }
    assert_eq!(inside.sh("ls d; cat d/a").await.text(), "a\nwhole");
}

/// Returns the lines of a manifest.
async fn manifest(inside: &Inside, path: &str, checksum: bool) -> Result<Vec<serde_json::Value>> {
    let bytes = soon("a manifest", inside.guest.manifest(path, checksum)).await?;
    let bytes: Vec<Bytes> = soon("the end of a manifest", bytes.try_collect()).await?;
    let lines = bytes.concat();
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Ok(lines.map(|line| serde_json::from_slice(line).unwrap()).collect())
}

async fn described(subject: Subject) {
    let inside = subject.start().await;
    inside
        .sh("mkdir -p a/d out; printf abc > a/f; chmod 640 a/f; touch -t 200102030405.06 a/f; ln a/f a/d/again")
        .await;
    inside.sh("ln -s '../x%' a/d/l; mkfifo a/d/fifo; touch \"$(printf 'a/d/\\377 %%')\"; ln -s ../out a/link").await;
    let lines = manifest(&inside, "/workspace/a", true).await.unwrap();
    let of = |path: &str| {
        let found = lines.iter().find(|line| line["path"] == path);
        found.unwrap_or_else(|| panic!("{path}: {lines:?}"))
    };
    assert_eq!((&lines[0]["path"], &lines[0]["type"]), (&"".into(), &"directory".into()));
    assert_eq!((&of("f")["size"], &of("f")["mode"]), (&3.into(), &"0640".into()));
    // Of the two names, one is the other's, and has its digest. gVisor keeps times by name.
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let (f, again) = (of("f"), of("d/again"));
    assert!(f["sha256"] == digest && again["same_as"] == "f" || again["sha256"] == digest && f["same_as"] == "d/again");
    assert_eq!(f["mtime"], "981173106.000000000");
    assert_eq!((&of("d/l")["type"], &of("d/l")["target"]), (&"symlink".into(), &"../x%25".into()));
    assert_eq!((&of("d/fifo")["type"], &of("link")["type"]), (&"other".into(), &"symlink".into()));
    assert_eq!(of("d/%FF %25")["size"], 0);
    let end = lines.last().unwrap();
    assert_eq!((&end["type"], &end["entries"], &end["unreadable"]), (&"end".into(), &8.into(), &0.into()), "{lines:?}");
    assert!(manifest(&inside, "/workspace/a", false).await.unwrap().iter().all(|line| line.get("sha256").is_none()));
    assert!(matches!(manifest(&inside, "/workspace/none", false).await, Err(Error::NotFound(_))));
    assert!(matches!(manifest(&inside, "/workspace/a/f", false).await, Err(Error::Invalid(_))));

    let pack = |paths: &[&str]| Pack {
        path: "/workspace/a".to_owned(),
        paths: paths.iter().map(|&path| path.to_owned()).collect(),
    };
    let archive =
        soon("an archive", inside.guest.pack(&pack(&["f", "none", "d/fifo", "d", "d/%FF %25"]))).await.unwrap();
    let archive: Vec<Bytes> = soon("the end of an archive", archive.try_collect()).await.unwrap();
    let archive = archive.concat();
    let mut archive = tar::Archive::new(&archive[..]);
    let names = archive.entries().unwrap().map(|member| member.unwrap().path_bytes().into_owned());
    assert_eq!(names.collect::<Vec<_>>(), [&b"f"[..], b"d/", b"d/\xff %"]);
    for path in ["../out", "/etc/passwd", "d/%2e%2e/f"] {
        assert!(matches!(inside.guest.pack(&pack(&["f", path])).await, Err(Error::Invalid(_))), "{path}");
    }
}

async fn amended(subject: Subject) {
    let inside = subject.start().await;
    inside
        .sh("mkdir -p a/d/e a/full out; echo > a/d/f; echo > a/full/f; echo > a/g; echo > out/f; ln -s ../out a/l")
        .await;
    let attributes =
        |path: &str, mode, mtime: &str| Attributes { path: path.to_owned(), mode, mtime: Some(mtime.to_owned()) };
    let change = |remove: &[&str], attributes: Vec<Attributes>| Amend {
        path: "/workspace/a".to_owned(),
        remove: remove.iter().map(|&path| path.to_owned()).collect(),
        attributes,
    };
    let wanted = change(
        &["d/f", "d/e", "d", "none", "none/x", "full", "l/f"],
        vec![
            attributes("g", Some(0o640), "981173106.25"),
            attributes("l/f", Some(0o777), "1"),
            attributes("none", None, "1"),
            attributes("", Some(0o750), "981173106"),
        ],
    );
    let done = soon("changes", inside.guest.amend(&wanted)).await.unwrap();
    assert_eq!((done.removed, done.changed, done.failed), (3, 2, 4), "{done:?}");
    let failed: Vec<&str> = done.failures.iter().map(|failure| failure.path.as_str()).collect();
    assert_eq!(failed, ["full", "l/f", "l/f", "none"]);
    assert_eq!(
        inside.sh("ls a a/full out; stat -c '%a %Y' a/g a").await.text(),
        "a:\nfull\ng\nl\n\na/full:\nf\n\nout:\nf\n640 981173106\n750 981173106\n"
    );
    // The link itself may go, and what it leads to stays.
    assert_eq!(soon("changes", inside.guest.amend(&change(&["l"], Vec::new()))).await.unwrap().removed, 1);
    assert_eq!(inside.sh("ls out").await.text(), "f\n");
    for path in ["../out/f", "/workspace/out/f", "%2e%2e/out/f"] {
        for wanted in [change(&["g", path], Vec::new()), change(&["g"], vec![attributes(path, None, "1")])] {
            assert!(matches!(inside.guest.amend(&wanted).await, Err(Error::Invalid(_))), "{path}");
        }
    }
    assert_eq!(inside.sh("ls a").await.text(), "full\ng\n", "nothing was done");
}

async fn watched(subject: Subject) {
    use FileChangeKind::{Created, Deleted, Modified};
    let inside = subject.start().await;
    inside.sh("mkdir d; echo 1 > d/old").await;
    let mut changes = soon("a watch", inside.guest.watch("/workspace/d", true)).await.unwrap();
    inside.sh("echo 2 > d/new; rm d/old; mkdir -p d/a/b; sleep 0.5; echo 3 > d/a/b/deep; touch d/end").await;
    let mut seen = Vec::new();
    while !seen.contains(&(Created, "/workspace/d/end".to_owned())) {
        match soon("a change", changes.next()).await.expect("the box lives").unwrap() {
            WatchRow::Change(change) => seen.push((change.kind, change.path)),
            WatchRow::Overflow => panic!("an overflow after {seen:?}"),
        }
    }
    for (kind, path) in [(Created, "new"), (Modified, "new"), (Deleted, "old"), (Created, "a"), (Created, "a/b/deep")] {
        assert!(seen.contains(&(kind, format!("/workspace/d/{path}"))), "{kind:?} {path}: {seen:?}");
    }
    assert!(matches!(inside.guest.watch("/workspace/none", false).await, Err(Error::NotFound(_))));
}
