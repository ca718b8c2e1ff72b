//! Import of images from archives: the output of `docker save`, an OCI layout in a tar, or the
//! files of one root directory.
//!
//! An archive comes as a stream and may have its table of contents at the end, so it is first
//! written to a file. Its statements are checked like those of a registry: every blob goes into
//! the layout under the digest of its content.

mod expected;
mod names;
mod place;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use domain::Asker;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use host_disk::write_sparse;
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;

use crate::digest::{is_digest, sha256};
use crate::disk;
use crate::error::{Error, Result, stopped};
use crate::image::{Image, ImageGuard, Run};
use crate::layout::descriptor;
use crate::layout::work::{Ingest, Work};
use crate::manifest::{DOCUMENT_BYTES_MAX, Document, INDEXES_MAX, LAYERS_MAX, configuration};
use crate::name::{Name, shown};
use crate::platform::{Platform, offered};
use crate::processors::{Pace, Paced, Turn};
use crate::progress::{Progress, State};
use crate::rootfs::contents::{Contents, HEAD, compression_of};
use crate::rootfs::layer::Compression;
use crate::rootfs::stream::decoder;
use crate::store::Store;
use names::names_of;
use place::Place;

pub(super) use expected::Expected;

/// Bytes of an archive. An error ends the import, which returns it.
pub type Archive = BoxStream<'static, Result<Bytes>>;

/// Bytes copied between two checks of the free space.
const LOOK_BYTES: u64 = 4 << 20;

/// Annotation in which containerd and Docker keep the full name of an image.
const FULL_NAME: &str = "io.containerd.image.name";
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Archive written to a file, which is removed on drop.
#[derive(Debug)]
struct Spool {
    path: PathBuf,
}

impl Drop for Spool {
    fn drop(&mut self) {
        // A file that stays is removed when the store is opened next.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Image whose blobs are in the layout.
#[derive(Debug)]
struct Ready {
    bytes: Vec<u8>,
    manifest: Box<ImageManifest>,
    config: ImageConfiguration,
    names: Vec<Name>,
}

/// Image as `docker save` lists it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Uncompressed archive with its table of contents.
struct Opened {
    file: File,
    contents: Contents,
}

impl Store {
    /// Imports the images of an archive.
    pub(super) async fn import(
        self: &Arc<Self>,
        expected: Expected,
        archive: Archive,
        asker: Option<Asker>,
    ) -> Result<Vec<Image>> {
        let place = Place::take(self, asker)?;
        let stop = self.pulls.stop.child_token();
        // The client may hang up: dropping the guard stops the blocking work.
        let _hung_up = stop.clone().drop_guard();
        let store = Arc::clone(self);
        let importing = self.pulls.tasks.spawn(async move {
            let _place = place;
            let work = Arc::new(store.layout.work(stop));
            let imported = store.import_all(&work, expected, archive).await;
            let brought = work.end();
            match imported {
                Ok((images, _held)) => {
                    store.evict().await;
                    Ok(images)
                }
                Err(error) => {
                    // No image refers to the blobs of a failed import. On a full disk, all
                    // unneeded blobs go.
                    let is_full = matches!(error, Error::Full(_));
                    store.tidy((!is_full).then_some(brought)).await;
                    Err(if store.pulls.stop.is_cancelled() { stopping() } else { error })
                }
            }
        });
        importing.await.unwrap_or_else(|error| Err(Error::failed("import an image", error)))
    }

    async fn import_all(
        self: &Arc<Self>,
        work: &Arc<Work>,
        expected: Expected,
        archive: Archive,
    ) -> Result<(Vec<Image>, Vec<ImageGuard>)> {
        let spool = work.unless_stopped(self.write_down(archive)).await??;
        let reading = Arc::clone(work);
        let ready = self
            .long_work("read an archive", move |store| Reader { store, work: &reading }.archive(&spool, expected))
            .await?;
        let (state, _) = watch::channel(State::Going(Progress::Resolving));
        let mut images = Vec::new();
        let mut all_held = Vec::new();
        for Ready { bytes, manifest, config, names } in ready {
            let mut latest = None;
            for name in &names {
                let (image, held) = self.keep(work, name, &bytes, &manifest, &config, &state).await?;
                tracing::info!(%name, digest = image.digest, "image imported");
                latest = Some(image);
                all_held.push(held);
            }
            images.extend(latest);
        }
        Ok((images, all_held))
    }

    /// Returns a path for an archive, in the folder that the next start clears.
    fn spool(&self) -> Spool {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("import-{}-{number}", std::process::id());
        Spool { path: self.config.dir.join("ingest").join(name) }
    }

    async fn write_down(&self, mut archive: Archive) -> Result<Spool> {
        let spool = self.spool();
        let file = tokio::fs::File::create(&spool.path).await;
        let mut file = file.map_err(disk::failing("write an archive"))?.into_std().await;
        let mut written = 0_u64;
        let mut looked = 0_u64;
        while let Some(chunk) = archive.next().await {
            let chunk = chunk?;
            written += chunk.len() as u64;
            self.fits(written)?;
            if written >= looked {
                self.room()?;
                looked = written + LOOK_BYTES;
            }
            file = match tokio::task::spawn_blocking(move || write_sparse(&mut file, &chunk).map(|_| file)).await {
                Ok(appended) => appended.map_err(disk::failing("write an archive"))?,
                Err(error) => return Err(Error::failed("write an archive", error)),
            };
        }
        file.set_len(written).map_err(disk::failing("write an archive"))?;
        Ok(spool)
    }

    fn fits(&self, bytes: u64) -> Result<()> {
        let most = self.config.image_bytes_max;
        if bytes <= most {
            return Ok(());
        }
        Err(Error::TooLarge(format!(
            "the archive is larger than {most} bytes, the limit for an image; raise `images.max_image_mb` to accept it"
        )))
    }
}

/// Reader of one archive for an import.
#[derive(Clone, Copy)]
struct Reader<'a> {
    store: &'a Store,
    work: &'a Work,
}

impl Reader<'_> {
    /// Detects the kind of an archive and puts its content into the layout.
    fn archive(self, spool: &Spool, expected: Expected) -> Result<Vec<Ready>> {
        let _turn = Turn::take();
        let mut file = File::open(&spool.path).map_err(disk::failing("read an archive"))?;
        let head = head(&mut file).map_err(disk::failing("read an archive"))?;
        let compression = compression_of(&head).map_err(|error| about("the archive", error))?;
        let bytes_max = self.store.config.image_bytes_max;
        let input = BufReader::new(Paced::new(&file, self.work.stop()));
        let contents = Contents::read(input, compression, bytes_max, self.work.stop())
            .map_err(|error| about("the archive", error))?;
        if contents.members == 0 {
            return Err(Error::Invalid("the archive is empty".to_owned()));
        }
        let name = match expected {
            Expected::Any(name) => name,
            Expected::Root(name, run) => {
                return Ok(vec![self.root_image(&mut file, compression, &contents, name, &run)?]);
            }
        };
        let is_layout = contents.find("index.json").is_some() && contents.find("oci-layout").is_some();
        let has_table = contents.find("manifest.json").is_some();
        if !is_layout && !has_table {
            return self.root_archive(&mut file, compression, &contents, name).map(|ready| vec![ready]);
        }
        let mut plain = None;
        if compression != Compression::None {
            file = self.uncompress(&mut file, compression, &mut plain)?;
        }
        let mut opened = Opened { file, contents };
        // Docker writes both, and its `manifest.json` has the names.
        let saved = if has_table { opened.saved()? } else { None };
        let ready = match saved {
            Some(saved) => self.docker_archive(&mut opened, saved, name),
            None if is_layout => self.layout_archive(&mut opened, name),
            // A root directory may contain a file named `manifest.json`.
            None => {
                let Opened { mut file, contents } = opened;
                return self.root_archive(&mut file, Compression::None, &contents, name).map(|ready| vec![ready]);
            }
        };
        drop(plain);
        ready
    }

    /// Writes the archive to a file without its compression, for random access.
    fn uncompress(self, file: &mut File, compression: Compression, spool: &mut Option<Spool>) -> Result<File> {
        let spool = spool.insert(self.store.spool());
        let plain = File::options().read(true).write(true).create(true).truncate(true).open(&spool.path);
        let mut plain = plain.map_err(disk::failing("write an archive"))?;
        file.rewind().map_err(disk::failing("write an archive"))?;
        let mut input =
            Paced::new(decoder(BufReader::new(Paced::new(file, self.work.stop())), compression)?, self.work.stop());
        let mut left = LOOK_BYTES;
        while left == LOOK_BYTES {
            self.go_on()?;
            // The first pass over the archive has checked the size.
            left = io::copy(&mut (&mut input).take(LOOK_BYTES), &mut plain).map_err(|error| {
                if self.work.stop().is_cancelled() { stopped() } else { disk::failed("write an archive", error) }
            })?;
        }
        Ok(plain)
    }

    /// Imports an archive of the files of a root directory, as an image of one layer.
    fn root_archive(
        self,
        file: &mut File,
        compression: Compression,
        contents: &Contents,
        name: Option<Name>,
    ) -> Result<Ready> {
        let Some(name) = name else {
            return Err(Error::Invalid(
                "the archive contains a root directory but no name; give the image a name such as `my-image:1`"
                    .to_owned(),
            ));
        };
        self.root_image(file, compression, contents, name, &Run::default())
    }

    /// Puts a root directory into the layout, as an image with these settings.
    fn root_image(
        self,
        file: &mut File,
        compression: Compression,
        contents: &Contents,
        name: Name,
        run: &Run,
    ) -> Result<Ready> {
        let size = file.metadata().map_err(disk::failing("read an archive"))?.len();
        let layer = self.take_layer(file, 0, size, compression)?;
        let host = Platform::host();
        let config = json!({
            "architecture": host.architecture,
            "variant": host.variant,
            "os": host.os,
            "config": run.config(),
            "rootfs": {"type": "layers", "diff_ids": [contents.digest]},
            "history": [{"created_by": "tidebox image import"}],
        });
        let config = serde_json::to_vec(&config).map_err(|error| Error::failed("describe an image", error))?;
        self.assemble(&config, vec![layer], vec![name])
    }

    /// Imports the images that `docker save` lists.
    fn docker_archive(self, opened: &mut Opened, saved: Vec<Saved>, name: Option<Name>) -> Result<Vec<Ready>> {
        let names = names_of(name, &saved, |saved| saved.repo_tags.clone().unwrap_or_default())?;
        let mut ready = Vec::new();
        // Several images may have the same layer, and one image may have it several times.
        let mut taken = HashMap::new();
        for (saved, names) in saved.iter().zip(names) {
            let image = shown(&names.first().map(Name::to_string).unwrap_or_default());
            let config = opened.document(&saved.config)?;
            let rootfs = serde_json::from_slice::<ImageConfiguration>(&config)
                .map_err(|_| Error::Invalid(format!("the configuration of {image} cannot be read")))?;
            let diff_ids = rootfs.rootfs().diff_ids();
            // Checked before any layer is copied.
            if saved.layers.len() > LAYERS_MAX {
                return Err(Error::Invalid(format!(
                    "{image} cannot be used: it has {} layers, more than {LAYERS_MAX}",
                    saved.layers.len()
                )));
            }
            if diff_ids.len() != saved.layers.len() {
                return Err(Error::Invalid(format!(
                    "{image} cannot be used: its configuration lists {} layers, but the archive lists {}",
                    diff_ids.len(),
                    saved.layers.len()
                )));
            }
            let mut layers = Vec::new();
            for (path, diff_id) in saved.layers.iter().zip(diff_ids) {
                let (offset, size) = opened.place(path)?;
                opened.file.seek(SeekFrom::Start(offset)).map_err(disk::failing("read an archive"))?;
                let mut start = Vec::new();
                let read = (&mut opened.file).take(size.min(HEAD as u64)).read_to_end(&mut start);
                read.map_err(disk::failing("read an archive"))?;
                let compression = compression_of(&start).map_err(|error| about(&shown(path), error))?;
                let layer = if let Some(known) = taken.get(&(offset, size)) {
                    Descriptor::clone(known)
                } else if compression == Compression::None && is_digest(diff_id) && self.work.has(diff_id, size) {
                    descriptor(MediaType::ImageLayer, size, diff_id).map_err(disk::failing("read an archive"))?
                } else {
                    self.take_layer(&mut opened.file, offset, size, compression)?
                };
                taken.insert((offset, size), layer.clone());
                if compression == Compression::None && layer.digest().as_ref() != diff_id {
                    return Err(Error::Invalid(format!(
                        "{image} cannot be used: {} is the layer {}, but its configuration says {}",
                        shown(path),
                        layer.digest(),
                        shown(diff_id)
                    )));
                }
                layers.push(layer);
            }
            ready.push(self.assemble(&config, layers, names)?);
        }
        Ok(ready)
    }

    /// Imports the images that the index of an OCI layout lists.
    fn layout_archive(self, opened: &mut Opened, name: Option<Name>) -> Result<Vec<Ready>> {
        let index = opened.document("index.json")?;
        let index: ImageIndex = serde_json::from_slice(&index)
            .map_err(|_| Error::Invalid("the index.json of the archive is not an image index".to_owned()))?;
        let names = names_of(name, index.manifests(), |manifest| {
            let notes = manifest.annotations().as_ref();
            let full_name = notes.and_then(|notes| notes.get(FULL_NAME));
            // A bare tag does not name the repository.
            let ref_name = notes.and_then(|notes| notes.get(REF_NAME)).filter(|name| name.contains([':', '/']));
            full_name.or(ref_name).cloned().into_iter().collect()
        })?;
        let mut ready = Vec::new();
        for (manifest, names) in index.manifests().iter().zip(names) {
            let image = shown(&names.first().map(Name::to_string).unwrap_or_default());
            let mut bytes = opened.blob_document(manifest)?;
            let mut document = Document::parse(&bytes, &image)?;
            for _ in 0..INDEXES_MAX {
                let Document::Index(platforms) = &document else { break };
                let host = Platform::host();
                let Some(chosen) = host.choose(platforms.manifests()) else {
                    let there = offered(platforms.manifests());
                    return Err(Error::Invalid(format!(
                        "{image} is not available for {host}, the platform of this server; available: {there}"
                    )));
                };
                bytes = opened.blob_document(chosen)?;
                document = Document::parse(&bytes, &image)?;
            }
            let Document::Manifest(manifest) = document else {
                return Err(Error::Invalid(format!(
                    "{image} cannot be used: it is nested in more than {INDEXES_MAX} indexes"
                )));
            };
            for blob in [manifest.config()].into_iter().chain(manifest.layers()) {
                self.take_blob(opened, blob)?;
            }
            ready.push(self.ready(bytes, manifest, names)?);
        }
        Ok(ready)
    }

    /// Puts a part of a file into the layout, as a layer.
    fn take_layer(self, file: &mut File, offset: u64, size: u64, compression: Compression) -> Result<Descriptor> {
        let mut ingest = self.work.ingest_unknown().map_err(disk::failing("write a layer"))?;
        self.copy(file, offset, size, &mut ingest, "write a layer")?;
        let (digest, size) = ingest.commit().map_err(disk::failing("write a layer"))?;
        let media_type = match compression {
            Compression::None => MediaType::ImageLayer,
            Compression::Gzip => MediaType::ImageLayerGzip,
            Compression::Zstd => MediaType::ImageLayerZstd,
        };
        descriptor(media_type, size, &digest).map_err(disk::failing("write a layer"))
    }

    /// Copies a blob from the archive's OCI layout into the store's, and checks its digest.
    fn take_blob(self, opened: &mut Opened, blob: &Descriptor) -> Result<()> {
        let digest = blob.digest().to_string();
        if self.work.has(&digest, blob.size()) {
            return Ok(());
        }
        let (offset, size) = opened.blob_place(blob)?;
        let mut ingest = self.work.ingest(&digest, size).map_err(|error| blob_failed(&digest, error))?;
        ingest.restart().map_err(|error| blob_failed(&digest, error))?;
        self.copy(&mut opened.file, offset, size, &mut ingest, "write a layer")?;
        ingest.commit().map(drop).map_err(|error| blob_failed(&digest, error))
    }

    /// Copies a part of a file into a blob.
    fn copy(self, file: &mut File, offset: u64, size: u64, ingest: &mut Ingest, action: &'static str) -> Result<()> {
        file.seek(SeekFrom::Start(offset)).map_err(disk::failing(action))?;
        let mut left = size;
        let mut buffer = vec![0; 256 * 1024];
        let mut looked = u64::MAX;
        let mut pace = Pace::default();
        while left > 0 {
            if looked - left >= LOOK_BYTES {
                self.go_on()?;
                looked = left;
            }
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            file.read_exact(&mut buffer[..most]).map_err(disk::failing(action))?;
            ingest.write(&buffer[..most]).map_err(disk::failing(action))?;
            left -= most as u64;
            pace.count(most);
        }
        Ok(())
    }

    /// Fails once the import is stopped, or if there is no room for more.
    fn go_on(self) -> Result<()> {
        if self.work.stop().is_cancelled() {
            return Err(stopped());
        }
        self.store.room()
    }

    /// Writes a manifest for an image that has none.
    fn assemble(self, config: &[u8], layers: Vec<Descriptor>, names: Vec<Name>) -> Result<Ready> {
        let config = self.work.put_blob(MediaType::ImageConfig, config);
        let config = config.map_err(disk::failing("write an image's configuration"))?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MediaType::ImageManifest,
            "config": config,
            "layers": layers,
        });
        let bytes = serde_json::to_vec(&manifest).map_err(|error| Error::failed("describe an image", error))?;
        let Document::Manifest(manifest) = Document::parse(&bytes, "the image")? else {
            return Err(Error::failed("describe an image", "it was read back as an index"));
        };
        self.ready(bytes, manifest, names)
    }

    /// Makes the checks of a pull: configuration, platform and settings for running it.
    fn ready(self, bytes: Vec<u8>, manifest: Box<ImageManifest>, names: Vec<Name>) -> Result<Ready> {
        let image = shown(&names.first().map(Name::to_string).unwrap_or_default());
        let config = self
            .store
            .layout
            .read_blob(manifest.config().digest().as_ref(), DOCUMENT_BYTES_MAX)
            .map_err(disk::failing("read an image's configuration"))?;
        let config = configuration(&config, &manifest, &image)?;
        let host = Platform::host();
        let platform = Platform::of(&config);
        if !host.runs(&platform) {
            let platform = shown(&platform.to_string());
            return Err(Error::Invalid(format!(
                "{image} is built for {platform}, but this server is {host}; export it for {host}"
            )));
        }
        Run::of(&config, &image)?;
        Ok(Ready { bytes, manifest, config, names })
    }
}

/// Converts the failure to write a blob of an archive.
fn blob_failed(digest: &str, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::InvalidData {
        return Error::Invalid(format!("the archive's blob {} does not match its name", shown(digest)));
    }
    if error.kind() == io::ErrorKind::WouldBlock {
        return Error::Unavailable(format!("another task is writing {}; try again", shown(digest)));
    }
    disk::failed("write a layer", error)
}

impl Opened {
    /// Reads the list of `docker save`; `None` if the file is something else.
    fn saved(&mut self) -> Result<Option<Vec<Saved>>> {
        let Ok(saved) = serde_json::from_slice::<Vec<Saved>>(&self.document("manifest.json")?) else { return Ok(None) };
        if saved.is_empty() {
            return Err(Error::Invalid("the manifest.json of the archive lists no image".to_owned()));
        }
        Ok(Some(saved))
    }

    fn place(&self, path: &str) -> Result<(u64, u64)> {
        self.contents.find(path).ok_or_else(|| Error::Invalid(format!("{} is missing from the archive", shown(path))))
    }

    /// Reads a whole member, of at most [`DOCUMENT_BYTES_MAX`] bytes.
    fn document(&mut self, path: &str) -> Result<Vec<u8>> {
        let (offset, size) = self.place(path)?;
        if size > DOCUMENT_BYTES_MAX {
            let path = shown(path);
            return Err(Error::Invalid(format!("{path} in the archive is larger than {DOCUMENT_BYTES_MAX} bytes")));
        }
        let mut bytes = Vec::new();
        let read = self.file.seek(SeekFrom::Start(offset));
        read.and_then(|_| (&mut self.file).take(size).read_to_end(&mut bytes))
            .map_err(disk::failing("read an archive"))?;
        Ok(bytes)
    }

    fn blob_place(&self, blob: &Descriptor) -> Result<(u64, u64)> {
        let digest = blob.digest().to_string();
        if !is_digest(&digest) {
            return Err(Error::Invalid(format!("the archive's digest {} is not sha256", shown(&digest))));
        }
        let (offset, size) = self.place(&format!("blobs/sha256/{}", digest.trim_start_matches("sha256:")))?;
        if size != blob.size() {
            let said = blob.size();
            return Err(Error::Invalid(format!(
                "the archive's blob {} has {size} bytes, but should have {said}",
                shown(&digest)
            )));
        }
        Ok((offset, size))
    }

    /// Reads a manifest of an OCI layout and checks its digest.
    fn blob_document(&mut self, blob: &Descriptor) -> Result<Vec<u8>> {
        self.blob_place(blob)?;
        let digest = blob.digest().to_string();
        let bytes = self.document(&format!("blobs/sha256/{}", digest.trim_start_matches("sha256:")))?;
        if sha256(&bytes) != digest {
            return Err(Error::Invalid(format!("the archive's blob {} does not match its name", shown(&digest))));
        }
        Ok(bytes)
    }
}

/// Reads the first bytes of a file and rewinds it.
fn head(file: &mut File) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    file.take(HEAD as u64).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(start)
}

fn stopping() -> Error {
    Error::Unavailable("this server is shutting down; import the image again after it restarts".to_owned())
}

fn about(what: &str, error: Error) -> Error {
    error.reworded(|text| format!("{what} cannot be used: {text}"))
}
