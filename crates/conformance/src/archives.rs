//! Directories: as archives, and watched.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use providers::{Error, FileChangeKind, Result, WatchRow};
use tar::{Builder, EntryType, Header};

use super::case::{Case, case};
use super::subject::{Inside, Subject, pieces, soon};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a directory that is packed and unpacked is the same", round_trip, Processes),
        case!("an archive cannot leave the directory that it is unpacked in", contained, Processes),
        case!("an archive that is cut leaves what was whole", cut, Processes),
        case!("changes of files are reported, in new directories too", watched, Processes),
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
