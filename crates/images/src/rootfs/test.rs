use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use fixtures::image::{Entry, Packing, digest, layer};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::*;
use crate::config::Reserve;

const BOUNDS: Bounds = Bounds { bytes_max: 64 << 20, entries_max: 10_000, reserve: Reserve::NONE };
const DIGEST: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000aa";
const OTHER: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000bb";

struct Store {
    temp: TempDir,
    trees: Trees,
}

impl Store {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let trees = Trees::open(&temp.path().join("images")).unwrap();
        Store { temp, trees }
    }

    fn dir(&self) -> PathBuf {
        self.temp.path().join("images")
    }

    fn blob(&self, bytes: &[u8], packing: Packing) -> Layer {
        let blob = packing.pack(bytes);
        let path = self.temp.path().join(digest(&blob));
        fs::write(&path, blob).unwrap();
        let compression = match packing {
            Packing::Plain => Compression::None,
            Packing::Gzip => Compression::Gzip,
            Packing::Zstd => Compression::Zstd,
        };
        Layer { path, compression, diff_id: digest(bytes) }
    }

    fn unpack(&self, digest: &str, layers: &[Vec<Entry>]) -> Result<PathBuf> {
        let layers: Vec<_> = layers.iter().map(|entries| self.blob(&layer(entries), Packing::Gzip)).collect();
        self.trees.unpack(digest, &layers, &BOUNDS, &CancellationToken::new(), &|_| ())
    }

    /// Returns what a failure or a removal must not leave behind.
    fn leftovers(&self) -> Vec<PathBuf> {
        let trees = fs::read_dir(self.dir().join("trees")).unwrap();
        let trash = fs::read_dir(self.dir().join("trash")).unwrap();
        trees.chain(trash).map(|entry| entry.unwrap().path()).collect()
    }
}

fn text(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap()
}

fn inode(root: &Path, path: &str) -> u64 {
    root.join(path).symlink_metadata().unwrap().ino()
}

#[test]
fn layers_are_applied_one_after_the_other() {
    let store = Store::new();
    let root = store
        .unpack(
            DIGEST,
            &[
                vec![
                    Entry::dir("etc").mtime(1_000_000_000, 0),
                    Entry::file("etc/one", "1").mode(0o640).mtime(1_234_567_890, 123_456_789),
                    Entry::file("etc/two", "2"),
                    Entry::file("etc/three", "3"),
                ],
                vec![Entry::file("etc/two", "second"), Entry::whiteout("etc", "three"), Entry::file("a/b/c", "deep")],
            ],
        )
        .unwrap();
    assert_eq!(text(&root, "etc/one"), "1");
    assert_eq!(text(&root, "etc/two"), "second");
    assert!(!root.join("etc/three").exists());
    assert_eq!(text(&root, "a/b/c"), "deep");
    let one = root.join("etc/one").metadata().unwrap();
    assert_eq!((one.mode() & 0o7777, one.mtime(), one.mtime_nsec()), (0o640, 1_234_567_890, 123_456_789));
    assert_eq!(root.join("etc").metadata().unwrap().mtime(), 1_000_000_000, "what happens inside is no change");
    assert_eq!(root.join("a/b").metadata().unwrap().mode() & 0o7777, 0o755);
    assert_eq!(store.trees.find(DIGEST).as_ref(), Some(&root));
    assert_eq!(store.trees.bytes(DIGEST), Some(3 + 6 + 4));
    assert_eq!(store.leftovers().len(), 1);
}

#[test]
fn every_compression_is_read_with_all_its_parts() {
    let tar = layer(&[Entry::file("a", vec![7; 300_000])]);
    let (one, two) = tar.split_at(100_000);
    for packing in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
        let store = Store::new();
        let packed = [packing.pack(one), packing.pack(two)].concat();
        let path = store.temp.path().join("blob");
        fs::write(&path, &packed).unwrap();
        let compression = store.blob(b"", packing).compression;
        let told = Mutex::new(Vec::new());
        let layer = Layer { path, compression, diff_id: digest(&tar) };
        let root = store
            .trees
            .unpack(DIGEST, &[layer], &BOUNDS, &CancellationToken::new(), &|bytes| told.lock().push(bytes))
            .unwrap();
        assert_eq!(fs::read(root.join("a")).unwrap(), vec![7; 300_000], "{packing:?}");
        let told = told.into_inner();
        assert_eq!(told.last(), Some(&(packed.len() as u64)), "{packing:?}");
        assert!(told.is_sorted());
    }
}

#[test]
fn a_second_time_changes_nothing() {
    let store = Store::new();
    let layers = [vec![Entry::file("a", "1")]];
    let first = inode(&store.unpack(DIGEST, &layers).unwrap(), "a");
    assert_eq!(inode(&store.unpack(DIGEST, &layers).unwrap(), "a"), first);
}

#[test]
fn what_is_cut_short_or_altered_is_refused_and_leaves_nothing() {
    let tar = layer(&[Entry::file("a", vec![1; 200_000]), Entry::file("b", vec![2; 50_000])]);
    for packing in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
        let store = Store::new();
        let whole = store.blob(&tar, packing);
        let bytes = fs::read(&whole.path).unwrap();
        for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            fs::write(&whole.path, &bytes[..cut]).unwrap();
            let error = store
                .trees
                .unpack(DIGEST, std::slice::from_ref(&whole), &BOUNDS, &CancellationToken::new(), &|_| ())
                .unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{packing:?} at {cut}: {error:?}");
            assert_eq!(store.leftovers(), Vec::<PathBuf>::new(), "{packing:?} at {cut}");
        }
        let mut altered = tar.clone();
        altered[600] ^= 1;
        fs::write(&whole.path, packing.pack(&altered)).unwrap();
        let error = store.trees.unpack(DIGEST, &[whole], &BOUNDS, &CancellationToken::new(), &|_| ()).unwrap_err();
        assert!(error.to_string().contains("configuration says"), "{error}");
        assert_eq!(store.leftovers(), Vec::<PathBuf>::new());
    }
}

#[test]
fn images_share_equal_files_and_nothing_else() {
    let store = Store::new();
    let big = vec![9; 300_000];
    let common = |mode| {
        vec![
            Entry::file("small", "same"),
            Entry::file("big", &big),
            Entry::file("mode", "same content").mode(mode),
            Entry::file("empty", ""),
        ]
    };
    let one = store.unpack(DIGEST, &[common(0o644)]).unwrap();
    let two = store.unpack(OTHER, &[common(0o600)]).unwrap();
    assert_eq!(inode(&one, "small"), inode(&two, "small"));
    assert_eq!(inode(&one, "big"), inode(&two, "big"));
    assert_ne!(inode(&one, "mode"), inode(&two, "mode"));
    assert_ne!(inode(&one, "empty"), inode(&two, "empty"));
    assert_eq!(fs::read(two.join("big")).unwrap(), big);

    store.trees.remove(DIGEST).unwrap();
    assert!(store.trees.find(DIGEST).is_none());
    assert!(store.trees.collect().unwrap() > 0, "the file with the other mode");
    assert_eq!(fs::read(two.join("big")).unwrap(), big, "still in use");
    store.trees.remove(OTHER).unwrap();
    assert!(store.trees.collect().unwrap() >= 300_000);
    assert_eq!(store.trees.collect().unwrap(), 0);
    assert_eq!(store.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn equal_files_of_one_image_are_two_files_and_hard_links_are_one() {
    let store = Store::new();
    let layers = [vec![Entry::file("a", "same"), Entry::file("b", "same"), Entry::hardlink("c", "a")]];
    let one = store.unpack(DIGEST, &layers).unwrap();
    let two = store.unpack(OTHER, &layers).unwrap();
    assert_ne!(inode(&one, "a"), inode(&one, "b"));
    assert_eq!(inode(&one, "a"), inode(&one, "c"));
    assert_eq!(inode(&one, "a"), inode(&two, "a"));
    assert_eq!(inode(&one, "b"), inode(&two, "b"));
}

#[test]
fn a_damaged_shared_file_is_not_used_again() {
    let store = Store::new();
    let layers = [vec![Entry::file("a", "content")]];
    let one = store.unpack(DIGEST, &layers).unwrap();
    fs::write(one.join("a"), "").unwrap();
    let two = store.unpack(OTHER, &layers).unwrap();
    assert_eq!(text(&two, "a"), "content");
}

#[test]
fn what_a_crash_left_is_removed_and_files_are_still_shared() {
    let store = Store::new();
    store.unpack(DIGEST, &[vec![Entry::file("a", "1")]]).unwrap();
    let unfinished = store.dir().join("trees/unfinished-7-00");
    fs::create_dir_all(unfinished.join("root/b")).unwrap();
    fs::write(unfinished.join(BOOT), this_boot()).unwrap();
    fs::create_dir_all(store.dir().join("trash/x/y")).unwrap();
    let trees = Trees::open(&store.dir()).unwrap();
    assert_eq!(store.leftovers().len(), 1, "the finished one");
    assert!(trees.find(DIGEST).is_some());
    assert_eq!(trees.collect().unwrap(), 0, "and its shared file");
    assert_eq!(fs::read_dir(store.dir().join("files")).unwrap().count(), 1);
}

#[test]
fn after_a_loss_of_power_nothing_that_may_be_damaged_is_shared() {
    let store = Store::new();
    let root = store.unpack(DIGEST, &[vec![Entry::file("a", "1")]]).unwrap();
    let unfinished = store.dir().join("trees/unfinished-7-00");
    fs::create_dir_all(&unfinished).unwrap();
    fs::write(unfinished.join(BOOT), "another run of the machine").unwrap();
    let trees = Trees::open(&store.dir()).unwrap();
    assert_eq!(root.join("a").metadata().unwrap().nlink(), 1);
    assert!(trees.find(DIGEST).is_some());
}

#[test]
fn the_folders_are_closed_to_others() {
    let store = Store::new();
    store.unpack(DIGEST, &[vec![Entry::file("su", "x").mode(0o4755)]]).unwrap();
    for folder in ["trees", "files", "trash"] {
        let mode = store.dir().join(folder).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "{folder}");
    }
}
