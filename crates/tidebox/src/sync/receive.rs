//! Receives what differs from a box, which is not trusted: nothing outside of the directory changes, and
//! nothing in it that was not asked for.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use api::PackRequest;
use bytes::Bytes;
use client::Client;
use parking_lot::Mutex;
use tar::EntryType;
use tokio::sync::mpsc;

use super::account::Done;
use super::below::Below;
use super::listing::{Kind, Time, Tree, at, encoded, shown, time};
use super::plan::Plan;
use super::send::parts;
use crate::cp::QUEUE_PIECES;
use crate::cp::progress::Counting;
use crate::cp::tree::{guarded, innermost};
use crate::failure::{Failure, Result};

/// Makes the directory here like that of a box.
pub async fn receive(
    client: &Client,
    (id, path): (&str, &str),
    (root, tree): (OwnedFd, Arc<Tree>),
    plan: Arc<Plan>,
    counting: &Mutex<Counting>,
) -> Result<Done> {
    let below = Arc::new(Mutex::new(Below::new(root)));
    let mut done = Done::default();
    let begun = {
        let below = Arc::clone(&below);
        let tree = Arc::clone(&tree);
        let plan = Arc::clone(&plan);
        tokio::task::spawn_blocking(move || begin(&mut below.lock(), &tree, &plan))
    };
    (done.removed, done.sent) = finished(begun.await)?;
    let wanted: Vec<Vec<u8>> = plan.send.iter().filter(|path| is_fetched(&tree, path)).cloned().collect();
    let mut received = HashSet::new();
    for paths in parts(&wanted, |path| encoded(path).len()) {
        let (files, bytes) = fetch(client, (id, path), &below, paths, counting).await?;
        done.bytes += bytes;
        received.extend(files);
    }
    done.sent += received.len() as u64;
    done.missing = wanted.len() as u64 - received.len() as u64;
    let ended = tokio::task::spawn_blocking(move || end(&mut below.lock(), &tree, &plan, &received));
    let (names, missing, changed) = finished(ended.await)?;
    done.sent += names;
    done.missing += missing;
    done.changed = changed;
    Ok(done)
}

fn finished<T>(outcome: std::result::Result<io::Result<T>, tokio::task::JoinError>) -> Result<T> {
    let outcome = outcome.map_err(|error| Failure::new("io_error", error.to_string()))?;
    outcome.map_err(|error| Failure::new("io_error", innermost(&error)))
}

/// Returns whether the content of a path comes from the box: that of the first name of each file.
fn is_fetched(tree: &Tree, path: &[u8]) -> bool {
    match tree.entries.get(path).map(|entry| &entry.kind) {
        Some(Kind::File { first, .. }) => first.as_ref().is_none_or(|first| first == path),
        _ => false,
    }
}

/// Removes, and makes directories and links. Returns the numbers of both.
fn begin(below: &mut Below, tree: &Tree, plan: &Plan) -> io::Result<(u64, u64)> {
    let mut removed = 0;
    let mut made = 0;
    for (path, is_dir) in &plan.remove {
        removed += u64::from(below.remove(path, *is_dir).map_err(at(path))?);
    }
    for path in &plan.directories {
        if !path.is_empty() {
            below.make_dir(path).map_err(at(path))?;
            made += 1;
        }
    }
    for path in &plan.send {
        if let Some(entry) = tree.entries.get(path)
            && let Kind::Link { target } = &entry.kind
        {
            below.make_link(path, target, entry.mtime).map_err(at(path))?;
            made += 1;
        }
    }
    Ok((removed, made))
}

/// Gives files their further names, and sets modes and times. Returns the numbers of names, of those that
/// are missing, and of changes.
fn end(below: &mut Below, tree: &Tree, plan: &Plan, received: &HashSet<Vec<u8>>) -> io::Result<(u64, u64, u64)> {
    let mut names = 0;
    let mut missing = 0;
    let mut changed = 0;
    for path in &plan.send {
        if let Some(entry) = tree.entries.get(path)
            && let Kind::File { first: Some(first), .. } = &entry.kind
            && first != path
        {
            if received.contains(first) {
                below.make_name(path, first).map_err(at(path))?;
                names += 1;
            } else {
                missing += 1;
            }
        }
    }
    for path in &plan.attributes {
        if let Some(entry) = tree.entries.get(path) {
            below.set(path, entry).map_err(at(path))?;
            changed += 1;
        }
    }
    let made: HashSet<&Vec<u8>> = plan.directories.iter().collect();
    for path in plan.settle.iter().rev() {
        if let Some(entry) = tree.entries.get(path) {
            below.set(path, entry).map_err(at(path))?;
            changed += u64::from(!made.contains(path));
        }
    }
    Ok((names, missing, changed))
}

/// Receives files. Returns those that came, and their bytes.
async fn fetch(
    client: &Client,
    (id, path): (&str, &str),
    below: &Arc<Mutex<Below>>,
    paths: Vec<Vec<u8>>,
    counting: &Mutex<Counting>,
) -> Result<(Vec<Vec<u8>>, u64)> {
    let request = PackRequest { path: path.to_owned(), paths: paths.iter().map(|path| encoded(path)).collect() };
    let mut content = client.pack_files(id, &request).await?;
    let (sender, receiver) = mpsc::channel(QUEUE_PIECES);
    let below = Arc::clone(below);
    let unpacking = tokio::task::spawn_blocking(move || unpack(&mut below.lock(), &paths, receiver));
    let received = async {
        while let Some(bytes) = content.next().await? {
            counting.lock().add(bytes.len());
            if sender.send(bytes).await.is_err() {
                break;
            }
        }
        Ok::<_, Failure>(())
    };
    let received = received.await;
    drop(sender);
    let unpacked = finished(unpacking.await);
    received?;
    unpacked
}

/// Unpacks regular files, of which each has to be one of `paths`, in their order.
fn unpack(below: &mut Below, paths: &[Vec<u8>], receiver: mpsc::Receiver<Bytes>) -> io::Result<(Vec<Vec<u8>>, u64)> {
    let mut wanted = paths.iter();
    let mut received = Vec::new();
    let mut bytes = 0;
    for member in guarded(receiver).entries()? {
        let mut member = member?;
        let name = member.path_bytes().into_owned();
        let trimmed = name.strip_suffix(b"/").unwrap_or(&name);
        let Some(path) = wanted.find(|path| path.as_slice() == trimmed) else {
            let name = shown(&name);
            return Err(io::Error::other(format!("the sandbox sent `{name}`, which was not requested")));
        };
        // It has become something else meanwhile: the next run sees it.
        if member.header().entry_type() != EntryType::Regular {
            continue;
        }
        let mode = member.header().mode()?;
        let mtime = mtime_of(&mut member)?;
        let size = member.size();
        below.write(path, (mode, mtime), size, &mut member).map_err(at(path))?;
        bytes += size;
        received.push(path.clone());
    }
    Ok((received, bytes))
}

fn mtime_of<R: io::Read>(member: &mut tar::Entry<'_, R>) -> io::Result<Time> {
    if let Some(extensions) = member.pax_extensions()? {
        for extension in extensions {
            let extension = extension?;
            if extension.key_bytes() == b"mtime" {
                let text = extension.value().unwrap_or_default();
                return time(text).ok_or_else(|| io::Error::other("the sandbox sent an invalid time"));
            }
        }
    }
    Ok((i64::try_from(member.header().mtime()?).unwrap_or(i64::MAX), 0))
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::path::Path;

    use super::super::listing::Entry;
    use super::super::steps::open_root;
    use super::*;

    fn archive(members: &[(EntryType, &str, &str)]) -> mpsc::Receiver<Bytes> {
        let (sender, receiver) = mpsc::channel(1);
        sender.try_send(crate::cp::tree::test::archive(0o6755, members).into()).unwrap();
        receiver
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn an_archive_that_holds_something_else_than_was_asked_for_is_refused() {
        use EntryType::{Link, Regular, Symlink};
        let outside = tempfile::tempdir().unwrap();
        let root = outside.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(outside.path().join("file"), "safe").unwrap();
        let mut below = Below::new(open_root(&root).unwrap());
        let wanted = [b"a".to_vec(), b"b".to_vec()];
        for members in [
            vec![(Regular, "c", "x")],
            vec![(Regular, "../file", "x")],
            vec![(Regular, "/tmp/tidebox-sync-hostile", "x")],
            vec![(Regular, "b", "x"), (Regular, "a", "x")],
            vec![(Regular, "a", "x"), (Regular, "a", "y")],
            vec![(Symlink, "a", ".."), (Regular, "a/file", "x")],
        ] {
            let error = unpack(&mut below, &wanted, archive(&members)).unwrap_err().to_string();
            assert!(error.contains("not requested"), "{members:?}: {error}");
            assert_eq!(std::fs::read_to_string(outside.path().join("file")).unwrap(), "safe");
            assert_eq!(names(outside.path()), ["file", "root"]);
        }
        std::fs::remove_file(root.join("a")).unwrap();
        std::fs::remove_file(root.join("b")).unwrap();
        // Links in the place of a file are passed over: they were not announced as such.
        let (received, _) =
            unpack(&mut below, &wanted, archive(&[(Link, "a", "../file"), (Regular, "b", "x")])).unwrap();
        assert_eq!((received, names(&root)), (vec![b"b".to_vec()], vec!["b".to_owned()]));
        assert_eq!(root.join("b").metadata().unwrap().mode() & 0o7777, 0o755, "no set-user-id file of this user");
    }

    #[test]
    fn nothing_is_written_removed_or_changed_through_a_link() {
        let outside = tempfile::tempdir().unwrap();
        let root = outside.path().join("root");
        std::fs::create_dir_all(outside.path().join("d")).unwrap();
        std::fs::create_dir(&root).unwrap();
        std::fs::write(outside.path().join("d/file"), "safe").unwrap();
        symlink("../d", root.join("l")).unwrap();
        symlink("../d/file", root.join("f")).unwrap();
        let before = outside.path().join("d/file").metadata().unwrap();
        let mut below = Below::new(open_root(&root).unwrap());
        let file = Entry { kind: Kind::File { size: 0, sha256: None, first: None }, mode: 0o777, mtime: (1, 0) };
        for path in [&b"l/file"[..], b"l/new", b"../d/file", b"l/../../d/file"] {
            assert!(below.write(path, (0o644, (1, 0)), 1, &mut &b"x"[..]).is_err());
            assert!(below.remove(path, false).is_err());
            assert!(below.make_dir(path).is_err());
            assert!(below.make_link(path, b"x", (1, 0)).is_err());
            assert!(below.make_name(path, path).is_err());
            assert!(below.set(path, &file).is_err());
        }
        assert!(below.make_name(b"again", b"f").is_err(), "another name of a link is none of its target");
        below.set(b"f", &file).unwrap();
        below.write(b"f", (0o600, (1, 0)), 1, &mut &b"x"[..]).unwrap();
        let after = outside.path().join("d/file").metadata().unwrap();
        assert_eq!((before.mode(), before.mtime()), (after.mode(), after.mtime()));
        assert_eq!(std::fs::read_to_string(outside.path().join("d/file")).unwrap(), "safe");
        assert_eq!(std::fs::read_to_string(root.join("f")).unwrap(), "x", "the link itself was replaced");
        assert_eq!(names(&root), ["f", "l"]);
        below.remove(b"l", false).unwrap();
        assert_eq!(names(&outside.path().join("d")), ["file"]);
    }

    #[test]
    fn a_file_that_breaks_off_leaves_the_old_one() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("a"), "old").unwrap();
        let mut below = Below::new(open_root(root.path()).unwrap());
        assert!(below.write(b"a", (0o644, (1, 0)), 100, &mut &b"new"[..]).is_err());
        assert_eq!(std::fs::read_to_string(root.path().join("a")).unwrap(), "old");
        assert_eq!(names(root.path()), ["a"]);
    }
}
