//! A store beside files that must not change, and the checks on both.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use fixtures::image::{Entry, Packing, digest, layer};
use images::Error;
use images::Reserve;
use images::rootfs::{Bounds, Compression, Layer, Trees};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

pub const BOUNDS: Bounds = Bounds { bytes_max: 8 << 20, entries_max: 5_000, reserve: Reserve::NONE };
pub const DIGEST: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000aa";

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A store, and beside it files that no layer may touch.
pub struct TestStore {
    temp: TempDir,
    pub trees: Trees,
    before: Tree,
}

/// Metadata of the files below a directory, by path.
pub type Tree = BTreeMap<Vec<u8>, Node>;

/// Metadata and content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub kind: char,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, i64),
    /// Target of a link, or digest of a file.
    pub content: Vec<u8>,
    pub size: u64,
    pub inode: u64,
    pub links: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl TestStore {
    pub fn new() -> Self {
        let temp = tempfile::Builder::new().prefix("tidebox-layers-").tempdir().unwrap();
        let outside = temp.path().join("outside");
        fs::create_dir_all(outside.join("dir/below")).unwrap();
        fs::write(outside.join("file"), "precious").unwrap();
        fs::write(outside.join("dir/file"), "precious too").unwrap();
        symlink("file", outside.join("link")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            outside.join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from(0o644),
            0,
        )
        .unwrap();
        fs::create_dir(temp.path().join("blobs")).unwrap();
        let trees = Trees::open(&temp.path().join("images")).unwrap();
        let mut store = TestStore { temp, trees, before: Tree::new() };
        store.before = store.everything_else();
        store
    }

    /// Returns the folder with the files that must not change.
    pub fn outside(&self) -> PathBuf {
        self.temp.path().join("outside")
    }

    pub fn images(&self) -> PathBuf {
        self.temp.path().join("images")
    }

    /// Writes a layer's blob.
    pub fn blob(&self, tar: &[u8], packing: Packing) -> Layer {
        let blob = packing.pack(tar);
        let path = self.temp.path().join("blobs").join(digest(&blob));
        fs::write(&path, blob).unwrap();
        let compression = match packing {
            Packing::Plain => Compression::None,
            Packing::Gzip => Compression::Gzip,
            Packing::Zstd => Compression::Zstd,
        };
        Layer { path, compression, diff_id: digest(tar) }
    }

    /// Unpacks an image of these archives.
    pub fn unpack(&self, digest: &str, tars: &[Vec<u8>]) -> Result<PathBuf, Error> {
        let layers: Vec<_> = tars.iter().map(|tar| self.blob(tar, Packing::Plain)).collect();
        let unpacked = self.trees.unpack(digest, &layers, &BOUNDS, &CancellationToken::new(), &|_| ());
        self.check();
        unpacked
    }

    /// Unpacks an image of layers with these members.
    pub fn unpack_entries(&self, digest: &str, layers: &[Vec<Entry>]) -> Result<PathBuf, Error> {
        let tars: Vec<_> = layers.iter().map(|entries| layer(entries)).collect();
        self.unpack(digest, &tars)
    }

    /// Fails unless everything beside the trees is unchanged.
    #[track_caller]
    pub fn check(&self) {
        let after = self.everything_else();
        assert_eq!(self.before, after, "something beside the tree has changed");
        let unfinished = fs::read_dir(self.images().join("trees")).unwrap().filter(|tree| {
            let name = tree.as_ref().unwrap().file_name();
            name.len() != 64
        });
        assert_eq!(unfinished.count(), 0, "something unfinished was left");
        assert_eq!(fs::read_dir(self.images().join("trash")).unwrap().count(), 0, "the trash was left");
    }

    fn everything_else(&self) -> Tree {
        let mut all = Tree::new();
        look(&self.outside(), b"outside", &mut all);
        // A new file beside it would show here, and in the folder's times.
        let mut beside: Vec<_> =
            fs::read_dir(self.temp.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        beside.sort();
        assert_eq!(beside, ["blobs", "images", "outside"]);
        let mut folders: Vec<_> =
            fs::read_dir(self.images()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        folders.sort();
        assert_eq!(folders, ["files", "trash", "trees"]);
        all
    }
}

/// Returns everything below a directory, and the directory itself under an empty name.
pub fn tree(root: &Path) -> Tree {
    let mut all = Tree::new();
    look(root, b"", &mut all);
    all
}

fn look(path: &Path, name: &[u8], all: &mut Tree) {
    let metadata = path.symlink_metadata().unwrap();
    let kind = metadata.file_type();
    let (letter, content) = if kind.is_dir() {
        ('d', Vec::new())
    } else if kind.is_symlink() {
        ('l', fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec())
    } else if kind.is_file() {
        ('f', digest(&readable(path)).into_bytes())
    } else {
        ('?', metadata.mode().to_le_bytes().to_vec())
    };
    let node = Node {
        kind: letter,
        mode: if letter == 'l' { 0o777 } else { metadata.mode() & 0o7777 },
        owner: (metadata.uid(), metadata.gid()),
        mtime: (metadata.mtime(), metadata.mtime_nsec()),
        content,
        size: if letter == 'd' { 0 } else { metadata.len() },
        inode: metadata.ino(),
        links: if letter == 'd' { 0 } else { metadata.nlink() },
        xattrs: if letter == 'l' { BTreeMap::new() } else { xattrs(path) },
    };
    all.insert(name.to_vec(), node);
    if letter == 'd' {
        let locked = !is_root() && metadata.mode() & 0o500 != 0o500;
        if locked {
            set_mode(path, 0o700);
        }
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            look(&entry.path(), &[name, b"/", entry.file_name().as_bytes()].concat(), all);
        }
        if locked {
            set_mode(path, metadata.mode());
        }
    }
}

/// Reads a file, even if its mode forbids it.
fn readable(path: &Path) -> Vec<u8> {
    let mode = path.metadata().unwrap().mode();
    if is_root() || mode & 0o400 != 0 {
        return fs::read(path).unwrap();
    }
    set_mode(path, 0o400);
    let content = fs::read(path).unwrap();
    set_mode(path, mode);
    content
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o7777)).unwrap();
}

pub fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65_536];
    let Ok(length) = rustix::fs::llistxattr(path, &mut names) else { return BTreeMap::new() };
    let names = &names[..length];
    let mut found = BTreeMap::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65_536];
        if let Ok(length) = rustix::fs::lgetxattr(path, name, &mut value) {
            value.truncate(length);
            found.insert(name.to_vec(), value);
        }
    }
    found
}

/// Outcome of an attack.
pub struct Outcome {
    pub store: TestStore,
    pub result: Result<PathBuf, Error>,
}

/// Unpacks an image whose layers were made with the absolute path of the files that must not
/// change, and checks that these are unchanged.
#[track_caller]
pub fn attack(layers: impl FnOnce(&str) -> Vec<Vec<Entry>>) -> Outcome {
    let store = TestStore::new();
    let outside = store.outside();
    let result = store.unpack_entries(DIGEST, &layers(outside.to_str().unwrap()));
    Outcome { store, result }
}

/// Does the same as [`attack`], with whole archives.
#[track_caller]
pub fn attack_raw(tars: impl FnOnce(&str) -> Vec<Vec<u8>>) -> Outcome {
    let store = TestStore::new();
    let outside = store.outside();
    let result = store.unpack(DIGEST, &tars(outside.to_str().unwrap()));
    Outcome { store, result }
}

impl Outcome {
    /// Returns the image's root, and fails if it was not unpacked.
    #[track_caller]
    pub fn root(&self) -> &Path {
        match &self.result {
            Ok(root) => root,
            Err(error) => panic!("refused: {error}"),
        }
    }

    /// Returns the paths inside from the root, with a leading slash.
    #[track_caller]
    pub fn names(&self) -> Vec<String> {
        tree(self.root())
            .into_keys()
            .filter(|path| !path.is_empty())
            .map(|path| String::from_utf8_lossy(&path).into_owned())
            .collect()
    }

    /// Checks that the image has a file with this content.
    #[track_caller]
    pub fn holds(&self, path: &str, content: &str) {
        let path = self.root().join(path.trim_start_matches('/'));
        let metadata = path.symlink_metadata().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(metadata.is_file(), "{} is no file", path.display());
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }

    /// Checks that the image has no such file.
    #[track_caller]
    pub fn lacks(&self, path: &str) {
        assert!(self.root().join(path).symlink_metadata().is_err(), "{path} is there");
    }

    /// Checks that the image is refused with this text, and that nothing of it is left.
    #[track_caller]
    pub fn refused(&self, words: &str) {
        match &self.result {
            Ok(_) => panic!("unpacked, and should have been refused: {words}"),
            Err(error @ (Error::Invalid(text) | Error::TooLarge(text))) => {
                assert!(text.contains(words), "`{error}` does not say `{words}`");
                assert!(!text.chars().any(char::is_control), "a terminal would act on {text:?}");
                assert!(text.len() < 1_000, "too long: {text}");
            }
            Err(other) => panic!("not the image is blamed: {other:?}"),
        }
        assert!(self.store.trees.find(DIGEST).is_none());
        assert_eq!(fs::read_dir(self.store.images().join("trees")).unwrap().count(), 0);
        self.store.trees.collect().unwrap();
        let shared = tree(&self.store.images().join("files"));
        assert!(shared.values().all(|node| node.kind == 'd'), "files were left");
    }
}
