//! Comparison of trees with those that umoci unpacks from the same images.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use fixtures::found;
use fixtures::image::{Entry, Image, Packing};
use tokio_util::sync::CancellationToken;

use crate::layers::harness::{DIGEST, Node, TestStore, Tree, is_root, tree};

/// Unpacks an image with umoci, and returns the tree or umoci's message.
pub fn umoci(program: &Path, image: &Image) -> Result<(tempfile::TempDir, PathBuf), String> {
    let temp = tempfile::Builder::new().prefix("tidebox-umoci-").tempdir().unwrap();
    let layout = temp.path().join("layout");
    image.write_oci(&layout, "image");
    let bundle = temp.path().join("bundle");
    let mut command = Command::new(program);
    command.arg("unpack").arg("--image").arg(format!("{}:image", layout.display()));
    if !is_root() {
        command.arg("--rootless");
    }
    let output = command.arg(&bundle).output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let root = bundle.join("rootfs");
    Ok((temp, root))
}

/// Returns a tree in comparable form: inodes by the names that share them, and without the times
/// of directories that no layer names, which nothing defines.
pub fn comparable(root: &Path, named: impl Fn(&[u8]) -> bool) -> Tree {
    let mut all = tree(root);
    let mut groups: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
    for (path, node) in &all {
        groups.entry(node.inode).or_default().push(path.clone());
    }
    for (path, node) in &mut all {
        let group = &groups[&node.inode];
        node.links = group.len() as u64;
        node.inode = all_index(group);
        if node.kind == 'd' && !named(path) {
            node.mtime = (0, 0);
        }
        // umoci's own note on the owner of a file.
        node.xattrs.remove(&b"user.rootlesscontainers"[..]);
    }
    all
}

/// Returns a number for a group of names.
fn all_index(group: &[Vec<u8>]) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    group.hash(&mut hasher);
    hasher.finish()
}

/// Returns the differences between two trees, one per line.
pub fn differences(ours: &Tree, theirs: &Tree) -> Vec<String> {
    let shown = |node: Option<&Node>| node.map_or_else(|| "nothing".to_owned(), |node| format!("{node:?}"));
    let mut paths: Vec<_> = ours.keys().chain(theirs.keys()).collect();
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .filter(|path| ours.get(*path) != theirs.get(*path))
        .map(|path| {
            let name = String::from_utf8_lossy(path);
            format!("{name:?}: ours {}, umoci's {}", shown(ours.get(path)), shown(theirs.get(path)))
        })
        .collect()
}

#[track_caller]
fn same(image: &Image, implicit: &[&str]) {
    let Some(program) = found("umoci", &[]) else { return };
    let store = TestStore::new();
    let layers: Vec<_> = image.layers.iter().map(|layer| store.blob(layer, Packing::Gzip)).collect();
    let bounds = images::rootfs::Bounds { bytes_max: 1 << 30, entries_max: 100_000, reserve: images::Reserve::NONE };
    let ours = store.trees.unpack(DIGEST, &layers, &bounds, &CancellationToken::new(), &|_| ()).unwrap();
    let (_temp, theirs) = umoci(&program, image).unwrap();
    let named = |path: &[u8]| !implicit.iter().any(|implicit| implicit.as_bytes() == path);
    let (ours, theirs) = (comparable(&ours, named), comparable(&theirs, named));
    assert!(ours.len() > 3, "an empty tree equals every other");
    let differences = differences(&ours, &theirs);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn an_image_with_everything_is_unpacked_as_umoci_does() {
    // CAP_NET_RAW, permitted and effective, with a line feed among the bytes.
    let power = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, b'\n', 0, 0, 0, 0, 0, 0];
    let mut bottom = vec![
        Entry::dir("").mode(0o751).mtime(1_600_000_000, 5),
        Entry::dir("bin").mtime(1_500_000_000, 250_000_000),
        Entry::file("bin/su", "setuid").mode(0o4755).owner(0, 42),
        Entry::file("bin/wall", "setgid").mode(0o2755).owner(0, 5),
        Entry::dir("tmp").mode(0o1777).mtime(1_400_000_000, 0),
        Entry::dir("home").mode(0o2775).owner(1000, 1000),
        Entry::file("home/big", vec![b'x'; 700_000]).owner(1000, 1000).mtime(1_234_567_890, 987_654_321),
        Entry::hardlink("home/hard", "home/big"),
        Entry::hardlink("home/harder", "/home/hard"),
        Entry::symlink("home/soft", "../bin/su").owner(1000, 1000).mtime(1_300_000_000, 1),
        Entry::hardlink("home/hardsoft", "home/soft"),
        Entry::symlink("home/dangling", "/no/such/place"),
        Entry::fifo("home/pipe").mode(0o620).owner(3, 4).mtime(1_200_000_000, 0),
        Entry::file("home/empty", "").mode(0),
        Entry::file("home/same1", "the same"),
        Entry::file("home/same2", "the same"),
        Entry::dir("home/attributed").xattr("user.dir", "d"),
        Entry::file("home/attributes", "a").xattr("user.one", "1").xattr("user.two", b"\0\n\xff"),
        Entry::file(b"home/\xff\xfe not utf-8 \n", "odd"),
        Entry::file("home/ünïcødé 名前", "fine"),
        Entry::file(format!("home/{}", "long".repeat(50)), "long"),
        Entry::file("home/old", "before 1970").mtime(-86_400, 0),
        Entry::dir("usr"),
        Entry::dir("usr/lib"),
        Entry::file("usr/lib/one", "1"),
        Entry::symlink("lib", "usr/lib"),
        Entry::dir("gone"),
        Entry::file("gone/a", ""),
        Entry::dir("gone/b"),
        Entry::file("gone/b/c", ""),
        Entry::dir("opaque").mode(0o700),
        Entry::file("opaque/lower", "l"),
        Entry::dir("opaque/dir"),
        Entry::file("opaque/dir/lower", "l"),
        Entry::dir("dir-to-file"),
        Entry::file("dir-to-file/x", ""),
        Entry::file("file-to-dir", "f"),
        Entry::symlink("link-to-dir", "usr"),
        Entry::dir("kept").mtime(1_111_111_111, 0),
        Entry::dir("readonly").mode(0o555),
    ];
    if is_root() {
        bottom.push(Entry::file("bin/ping", "power").mode(0o755).owner(7, 7).xattr("security.capability", power));
    }
    let middle = vec![
        Entry::file("lib/two", "through the link"),
        Entry::whiteout("", "gone"),
        Entry::file("opaque/new-before", "n"),
        Entry::opaque("opaque"),
        Entry::file("opaque/dir/new", "n"),
        Entry::file("dir-to-file", "now a file"),
        Entry::dir("file-to-dir").mtime(1_000, 0),
        Entry::file("file-to-dir/x", "now a directory"),
        Entry::dir("link-to-dir").mtime(2_000, 0),
        Entry::file("kept/new", "k"),
        Entry::whiteout("home", "same1"),
        Entry::file("bin/su", "without the bit").mode(0o755),
        Entry::file("readonly/new", "r"),
    ];
    let top = vec![
        Entry::dir("gone").mode(0o711).mtime(3_000, 0),
        Entry::file("gone/again", "back"),
        Entry::hardlink("home/to-lower", "usr/lib/two"),
        Entry::dir("home").mode(0o755).owner(1000, 1000).mtime(4_000, 7),
        Entry::whiteout("kept", "not-there"),
        Entry::whiteout("usr/lib", "one"),
    ];
    // With umoci, hiding all entries of a directory at once changes its time.
    same(&Image::new(&[bottom, middle, top]), &["/opaque", "/opaque/dir"]);
}

#[test]
fn an_image_like_alpine_is_unpacked_as_umoci_does() {
    let Some(image) = Image::alpine_like() else { return };
    same(&image, &[""]);
}

#[test]
fn a_directory_has_no_mode_of_a_removed_one_whose_inode_it_got() {
    let names = |prefix: &str| (0..64).map(|number| format!("top/{prefix}{number}")).collect::<Vec<_>>();
    // The server could not work in a directory with this mode, and sets it at the end.
    let closed: Vec<_> = names("old").into_iter().map(|name| Entry::dir(name).mode(0o644)).collect();
    // Their parents are in no layer.
    let mut inside: Vec<_> = names("new").into_iter().map(|name| Entry::dir(format!("{name}/inside"))).collect();
    inside.insert(0, Entry::opaque("top"));
    let store = TestStore::new();
    let root = store.unpack(DIGEST, &Image::new(&[closed, inside]).layers).unwrap();
    let unpacked = tree(&root);
    for name in names("new") {
        assert_eq!(unpacked[format!("/{name}").as_bytes()].mode, 0o755, "{name}");
    }
    assert_eq!(unpacked.len(), 2 + 2 * 64, "the old ones are gone");
}
