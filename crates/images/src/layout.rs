//! The store's folder as an OCI image layout: blobs by digest, and an index with the names of
//! manifests.
//!
//! A blob is written to `ingest/`, checked, and only then renamed, so everything under `blobs/`
//! is complete. The index is replaced as one file. After a crash at any point the layout still
//! opens, and partial downloads in `ingest/` are resumed.
//!
//! All functions here block, shortly except for rehashing a partial download.

pub(super) mod work;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use domain::Chain;
use host_disk::replace_file;
use oci_spec::image::{Descriptor, Digest, ImageIndex, ImageIndexBuilder, MediaType};
use parking_lot::{Mutex, MutexGuard};

use crate::digest::{hex_of, is_digest, is_hex};

/// Annotation with the name of a manifest.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Handle of the folder of an OCI layout.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    manifests: Vec<Descriptor>,
    /// Digests of the downloads being written, with the number of the `Work` that writes each.
    ingests: HashMap<String, u64>,
    /// Last number given to a `Work` or to a blob whose digest is not known yet.
    next: u64,
    /// Digests that each running pull or import has written or found, by its number. No manifest
    /// may refer to them yet.
    works: HashMap<u64, HashSet<String>>,
    /// Digests of the pulls and imports that ended during the sweep; `None` while there is no
    /// sweep.
    sweeping: Option<HashSet<String>>,
}

impl State {
    fn is_fresh(&self, digest: &str) -> bool {
        self.works.values().chain(&self.sweeping).any(|fresh| fresh.contains(digest))
    }

    /// Returns a number that was not used before.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn mark(&mut self, work: u64, digest: &str) {
        if let Some(fresh) = self.works.get_mut(&work) {
            fresh.insert(digest.to_owned());
        }
    }
}

impl Layout {
    /// Opens the layout in `dir`, creating it if needed.
    pub(super) fn open(dir: &Path) -> io::Result<Layout> {
        // Images may be private.
        DirBuilder::new().mode(0o700).recursive(true).create(dir)?;
        fs::create_dir_all(dir.join("blobs/sha256"))?;
        fs::create_dir_all(dir.join("ingest"))?;
        let marker = dir.join("oci-layout");
        if !marker.exists() {
            replace_file(&marker, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        }
        let manifests = read_index(&dir.join("index.json"))?;
        let layout = Layout {
            inner: Arc::new(Inner { dir: dir.to_owned(), state: Mutex::new(State { manifests, ..State::default() }) }),
        };
        if !dir.join("index.json").exists() {
            layout.inner.write_index(&[])?;
        }
        for entry in fs::read_dir(dir.join("ingest"))? {
            let entry = entry?;
            // A blob without a digest cannot be resumed.
            if !is_hex(&entry.file_name().to_string_lossy()) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(layout)
    }

    /// Returns the path of the blob, whether it exists or not. The digest has to be a checked
    /// `sha256:…`.
    pub(super) fn blob_path(&self, digest: &str) -> PathBuf {
        self.inner.blob_path(digest)
    }

    /// Reads a blob; fails if it has more than `bytes_max` bytes.
    pub(super) fn read_blob(&self, digest: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
        let file = File::open(self.blob_path(digest))?;
        let mut bytes = Vec::new();
        file.take(bytes_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the blob is too large"));
        }
        Ok(bytes)
    }

    /// Gives a manifest a name, and takes it from the manifest that had it, which stays without
    /// that name.
    pub(super) fn set_ref(&self, name: &str, manifest: &Descriptor) -> io::Result<()> {
        self.inner.change(|manifests| {
            let mut manifests = without(manifests, name);
            manifests.retain(|other| other.digest() != manifest.digest() || name_of(other).is_some());
            manifests.push(entry(manifest, Some(name)));
            manifests
        })
    }

    /// Returns the digest of the manifest with this name.
    pub(super) fn find(&self, name: &str) -> Option<String> {
        let state = self.inner.lock();
        let found = state.manifests.iter().find(|manifest| name_of(manifest) == Some(name));
        found.map(|manifest| manifest.digest().to_string())
    }

    /// Returns the names that begin with `start`.
    pub(super) fn names_from(&self, start: &str) -> Vec<String> {
        let state = self.inner.lock();
        let names = state.manifests.iter().filter_map(name_of);
        names.filter(|name| name.starts_with(start)).map(str::to_owned).collect()
    }

    /// Removes a name; returns `false` if no manifest had it. The manifest stays.
    pub(super) fn remove_ref(&self, name: &str) -> io::Result<bool> {
        let found = self.find(name).is_some();
        if found {
            self.inner.change(|manifests| without(manifests, name))?;
        }
        Ok(found)
    }

    /// Returns every manifest by digest, with its names sorted; some have none.
    pub(super) fn manifests(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for manifest in &self.inner.lock().manifests {
            let names = all.entry(manifest.digest().to_string()).or_default();
            names.extend(name_of(manifest).map(str::to_owned));
        }
        all
    }

    /// Removes a manifest from the index, with all its names.
    pub(super) fn forget(&self, digest: &str) -> io::Result<()> {
        self.inner.change(|manifests| {
            manifests.iter().filter(|manifest| manifest.digest().as_ref() != digest).cloned().collect()
        })
    }

    /// Returns whether a running pull or import has written or found this digest, or one that
    /// ended during the current sweep.
    pub(super) fn is_fresh(&self, digest: &str) -> bool {
        self.inner.lock().is_fresh(digest)
    }

    /// Removes every blob except those in `live` and those in use by a running pull or import,
    /// and every download that is not being written, limited to `only` if given. Returns the
    /// bytes freed.
    pub(super) fn sweep(&self, live: &HashSet<String>, only: Option<&HashSet<String>>) -> io::Result<u64> {
        let mut freed = 0;
        for entry in fs::read_dir(self.inner.dir.join("blobs/sha256"))? {
            let entry = entry?;
            let digest = format!("sha256:{}", entry.file_name().to_string_lossy());
            let state = self.inner.lock();
            if is_spared(&digest, only) || live.contains(&digest) || state.is_fresh(&digest) {
                continue;
            }
            freed += remove(&entry.path())?;
        }
        for entry in fs::read_dir(self.inner.dir.join("ingest"))? {
            let entry = entry?;
            let digest = format!("sha256:{}", entry.file_name().to_string_lossy());
            let state = self.inner.lock();
            if is_digest(&digest) && !is_spared(&digest, only) && !state.ingests.contains_key(&digest) {
                freed += remove(&entry.path())?;
            }
        }
        Ok(freed)
    }

    /// Returns the size of all blobs and partial downloads, in bytes.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for folder in ["blobs/sha256", "ingest"] {
            for entry in fs::read_dir(self.inner.dir.join(folder))? {
                bytes += entry?.metadata().map_or(0, |blob| blob.len());
            }
        }
        Ok(bytes)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn blob_path(&self, digest: &str) -> PathBuf {
        self.dir.join("blobs/sha256").join(file_name(digest))
    }

    fn change(&self, change: impl FnOnce(&[Descriptor]) -> Vec<Descriptor>) -> io::Result<()> {
        let mut state = self.lock();
        let manifests = change(&state.manifests);
        self.write_index(&manifests)?;
        state.manifests = manifests;
        Ok(())
    }

    fn write_index(&self, manifests: &[Descriptor]) -> io::Result<()> {
        let index = ImageIndexBuilder::default()
            .schema_version(2u32)
            .media_type(MediaType::ImageIndex)
            .manifests(manifests)
            .build()
            .map_err(io::Error::other)?;
        replace_file(&self.dir.join("index.json"), &serde_json::to_vec(&index)?)
    }
}

pub(super) fn descriptor(media_type: MediaType, size: u64, digest: &str) -> io::Result<Descriptor> {
    let digest: Digest = digest.parse().map_err(io::Error::other)?;
    Ok(Descriptor::new(media_type, size, digest))
}

/// Returns the file name of a blob; a fixed one if the digest is malformed, so that it never leads
/// out of the folder.
fn file_name(digest: &str) -> &str {
    hex_of(digest).unwrap_or("no-digest")
}

fn name_of(manifest: &Descriptor) -> Option<&str> {
    manifest.annotations().as_ref()?.get(REF_NAME).map(String::as_str)
}

/// Builds the index entry of a manifest.
fn entry(manifest: &Descriptor, name: Option<&str>) -> Descriptor {
    let mut entry = Descriptor::new(manifest.media_type().clone(), manifest.size(), manifest.digest().clone());
    entry.set_platform(manifest.platform().clone());
    entry.set_annotations(name.map(|name| HashMap::from([(REF_NAME.to_owned(), name.to_owned())])));
    entry
}

/// Returns the manifests without this name. One that had no other name stays, without any.
fn without(manifests: &[Descriptor], name: &str) -> Vec<Descriptor> {
    let (those, mut others): (Vec<_>, Vec<_>) =
        manifests.iter().cloned().partition(|manifest| name_of(manifest) == Some(name));
    for nameless in those {
        if !others.iter().any(|other| other.digest() == nameless.digest()) {
            others.push(entry(&nameless, None));
        }
    }
    others
}

fn remove(path: &Path) -> io::Result<u64> {
    let bytes = fs::metadata(path).map_or(0, |blob| blob.len());
    match fs::remove_file(path) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Reads the manifests of the index. An index that cannot be read is put aside: its images can be
/// pulled again, and the store still opens.
fn read_index(path: &Path) -> io::Result<Vec<Descriptor>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    match serde_json::from_slice::<ImageIndex>(&bytes) {
        Ok(index) => {
            let known = index.manifests().iter().filter(|manifest| is_digest(manifest.digest().as_ref()));
            Ok(known.cloned().collect())
        }
        Err(error) => {
            tracing::warn!(
                path = %path.display(),
                error = %Chain(&error),
                "cannot read the image index; moving it to index.json.broken; pull or import the images again"
            );
            fs::rename(path, path.with_extension("json.broken"))?;
            Ok(Vec::new())
        }
    }
}

fn is_spared(digest: &str, only: Option<&HashSet<String>>) -> bool {
    only.is_some_and(|only| !only.contains(digest))
}

fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

#[cfg(test)]
mod test {
    use tokio_util::sync::CancellationToken;

    use super::work::Work;
    use super::*;
    use crate::digest::sha256;

    pub(super) fn work(layout: &Layout) -> Work {
        layout.work(CancellationToken::new())
    }

    pub(super) fn layout() -> (tempfile::TempDir, Layout) {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::open(&folder.path().join("images")).unwrap();
        (folder, layout)
    }

    fn again(folder: &tempfile::TempDir) -> Layout {
        Layout::open(&folder.path().join("images")).unwrap()
    }

    #[test]
    fn a_name_moves_and_what_had_it_stays_without() {
        let (folder, layout) = layout();
        let first = work(&layout).put_blob(MediaType::ImageManifest, b"1").unwrap();
        let second = work(&layout).put_blob(MediaType::ImageManifest, b"2").unwrap();
        layout.set_ref("a", &first).unwrap();
        layout.set_ref("b", &first).unwrap();
        layout.set_ref("a", &second).unwrap();
        let names = |layout: &Layout| -> Vec<(String, Vec<String>)> {
            layout.manifests().into_iter().map(|(digest, names)| (digest, names.into_iter().collect())).collect()
        };
        let (one, two) = (first.digest().to_string(), second.digest().to_string());
        let mut expected = vec![(one.clone(), vec!["b".to_owned()]), (two.clone(), vec!["a".to_owned()])];
        expected.sort();
        assert_eq!(names(&layout), expected);
        assert!(layout.remove_ref("b").unwrap());
        assert!(!layout.remove_ref("b").unwrap());
        let layout = again(&folder);
        assert_eq!(layout.manifests()[&one].len(), 0, "nameless, and not forgotten");
        assert_eq!(layout.find("a"), Some(two.clone()));
        layout.forget(&one).unwrap();
        assert_eq!(names(&again(&folder)), [(two, vec!["a".to_owned()])]);
    }

    #[test]
    fn nothing_that_somebody_works_with_is_swept_away() {
        let (_folder, layout) = layout();
        let working = work(&layout);
        let blob = working.put_blob(MediaType::ImageConfig, b"new").unwrap().digest().to_string();
        let partial = sha256(b"partial");
        let ingest = working.ingest(&partial, 7).unwrap();
        layout.sweep(&HashSet::new(), None).unwrap();
        assert!(layout.blob_path(&blob).exists() && layout.bytes().unwrap() == 3);
        drop((working, ingest));
        assert_eq!(layout.sweep(&HashSet::from([blob.clone()]), None).unwrap(), 0);
        assert_eq!(layout.sweep(&HashSet::new(), Some(&HashSet::from([partial]))).unwrap(), 0);
        assert_eq!(layout.sweep(&HashSet::new(), None).unwrap(), 3);
        assert!(!layout.blob_path(&blob).exists());
    }

    #[test]
    fn no_digest_leads_out_of_the_folder() {
        let (folder, layout) = layout();
        for digest in ["../../../etc/passwd", "sha256:../../../../etc/passwd", "sha256:", "", "sha512:aa"] {
            assert!(layout.blob_path(digest).starts_with(folder.path().join("images/blobs/sha256")));
            assert!(!layout.blob_path(digest).to_string_lossy().contains(".."));
            assert!(!work(&layout).has(digest, 0) && !is_digest(digest));
        }
    }
}
