//! Imports of archives: valid ones in every form, and invalid ones.

use std::fs;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use domain::Asker;
use fixtures::found;
use fixtures::image::{Entry, Image, Packing, digest, layer};
use futures_util::StreamExt as _;
use images::{Archive, Error};
use images::{Images, ImagesConfig};
use serde_json::json;

/// A store with a limit that a test can reach.
struct Store {
    temp: tempfile::TempDir,
    images: Images,
}

impl Store {
    fn new() -> Self {
        let temp = tempfile::Builder::new().prefix("tidebox-import-").tempdir().unwrap();
        let config = ImagesConfig { image_bytes_max: 16 << 20, ..ImagesConfig::new(temp.path().join("images")) };
        let images = Images::open(config).unwrap();
        Store { temp, images }
    }

    async fn import(&self, name: Option<&str>, archive: Vec<u8>) -> Result<Vec<images::Image>, Error> {
        // Pieces that match no boundary of the archive.
        let pieces: Vec<_> = archive.chunks(70_001).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let stream: Archive = futures_util::stream::iter(pieces).boxed();
        let imported = self.images.import(name, stream).await;
        let left: Vec<_> = fs::read_dir(self.temp.path().join("images/ingest")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        imported
    }

    /// Checks that an import fails with this text, and that no image exists afterwards.
    #[track_caller]
    fn refuses(&self, name: Option<&str>, archive: Vec<u8>, words: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        match runtime.block_on(self.import(name, archive)) {
            Err(Error::Invalid(text) | Error::TooLarge(text)) => {
                assert!(text.contains(words), "`{text}` does not say `{words}`");
                assert!(!text.chars().any(char::is_control), "{text:?}");
            }
            other => panic!("not refused with `{words}`: {other:?}"),
        }
        assert!(runtime.block_on(self.images.list()).unwrap().is_empty());
        let blobs = fs::read_dir(self.temp.path().join("images/blobs/sha256")).unwrap();
        assert_eq!(blobs.count(), 0, "blobs were left");
    }

    /// Reads a file of the image with this name.
    fn read(&self, name: &str, path: &str) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let held = runtime.block_on(self.images.take(name)).unwrap();
        fs::read_to_string(held.root().join(path)).unwrap()
    }

    fn imports(&self, name: Option<&str>, archive: Vec<u8>) -> Vec<images::Image> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.import(name, archive)).unwrap()
    }
}

fn image() -> Image {
    Image::new(&[vec![Entry::file("etc/who", "one"), Entry::file("gone", "")]])
        .and(&[Entry::file("etc/two", "two"), Entry::whiteout("", "gone")])
        .with("Env", json!(["A=1"]))
        .with("Cmd", json!(["/bin/sh"]))
}

#[test]
fn what_docker_saves_is_imported_with_all_its_names() {
    let store = Store::new();
    let images = store.imports(None, image().docker_save(&["app:1", "registry.test:5000/team/app:2"]));
    assert_eq!(images.len(), 1);
    assert_eq!(images[0].names, ["docker.io/library/app:1", "registry.test:5000/team/app:2"]);
    assert_eq!(images[0].layers, 2);
    assert_eq!(store.read("app:1", "etc/two"), "two");
    assert_eq!(store.read("registry.test:5000/team/app:2", "etc/who"), "one");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let held = runtime.block_on(store.images.take("app:1")).unwrap();
    assert!(!held.root().join("gone").exists());
    assert_eq!(held.run().entrypoint, ["/bin/sh"]);
    assert_eq!(held.run().defaults.env["A"], "1");
}

#[test]
fn several_images_of_one_archive_are_imported() {
    let store = Store::new();
    let other = Image::new(&[vec![Entry::file("etc/who", "other")]]);
    // Two tables made one, as `docker save a b` writes it.
    let mut entries = Vec::new();
    let mut table = Vec::new();
    for (image, name) in [(image(), "a:1"), (other, "b:1")] {
        let config = digest(&image.configuration()).replace("sha256:", "") + ".json";
        entries.push(Entry::file(&config, image.configuration()));
        let mut layers = Vec::new();
        for layer in &image.layers {
            let path = digest(layer).replace("sha256:", "") + "/layer.tar";
            entries.push(Entry::file(&path, layer));
            layers.push(path);
        }
        table.push(json!({"Config": config, "RepoTags": [name], "Layers": layers}));
    }
    entries.push(Entry::file("manifest.json", json!(table).to_string()));
    let archive = layer(&entries);
    store.refuses(Some("c:1"), archive.clone(), "cannot share one name");
    assert_eq!(store.imports(None, archive).len(), 2);
    assert_eq!((store.read("a:1", "etc/who"), store.read("b:1", "etc/who")), ("one".to_owned(), "other".to_owned()));
}

#[test]
fn a_layout_in_a_tar_keeps_its_digest_in_every_compression() {
    for packing in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
        for inner in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
            let store = Store::new();
            let mut image = image();
            image.packing = inner;
            let images = store.imports(None, packing.pack(&image.oci_tar("app:1")));
            assert_eq!(images[0].digest, image.digest());
            assert_eq!(store.read("app:1", "etc/who"), "one", "{packing:?} {inner:?}");
        }
    }
}

#[test]
fn a_name_that_is_given_counts_more_than_the_archives() {
    let store = Store::new();
    let images = store.imports(Some("mine:1"), image().docker_save(&["app:1"]));
    assert_eq!(images[0].names, ["docker.io/library/mine:1"]);
    let images = store.imports(Some("mine:2"), image().oci_tar("latest"));
    assert_eq!(images[0].names, ["docker.io/library/mine:2"]);
}

#[test]
fn the_files_of_a_root_directory_are_an_image() {
    let root = layer(&[
        Entry::dir("./"),
        Entry::dir("./etc"),
        Entry::file("./etc/who", "root"),
        Entry::file("manifest.json", "{}"),
    ]);
    for packing in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
        let store = Store::new();
        store.refuses(None, packing.pack(&root), "but no name");
        let images = store.imports(Some("root:1"), packing.pack(&root));
        assert_eq!(images[0].layers, 1);
        assert_eq!(store.read("root:1", "etc/who"), "root", "{packing:?}");
    }
}

#[test]
fn images_that_other_programs_pack_are_imported() {
    let Some(skopeo) = found("skopeo", &[]) else { return };
    let store = Store::new();
    let image = image();
    let dir = store.temp.path().join("layout");
    image.write_oci(&dir, "app:1");
    let copy = |to: &Path, kind: &str| {
        let output = Command::new(&skopeo)
            .args(["--insecure-policy", "copy", "--quiet"])
            .arg(format!("oci:{}:app:1", dir.display()))
            .arg(format!("{kind}:{}:docker.io/library/{kind}:1", to.display()))
            .env("TMPDIR", store.temp.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read(to).unwrap()
    };
    for kind in ["docker-archive", "oci-archive"] {
        let archive = copy(&store.temp.path().join(kind), kind);
        store.imports(None, archive);
        let name = format!("{kind}:1");
        assert_eq!(store.read(&name, "etc/two"), "two");
        // skopeo can read the imported image.
        let output = Command::new(&skopeo)
            .args(["--insecure-policy", "inspect", "--raw"])
            .arg(format!("oci:{}:docker.io/library/{name}", store.temp.path().join("images").display()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("layers"));
    }
}

// Archives that lie.

/// Members of an archive, by name.
type Files = Vec<(String, Vec<u8>)>;

/// Returns an archive of `docker save` with one change.
fn saved(change: impl Fn(&mut Files)) -> Vec<u8> {
    let image = image();
    let config = digest(&image.configuration()).replace("sha256:", "") + ".json";
    let paths: Vec<_> = (0..2).map(|number| format!("{number}/layer.tar")).collect();
    let table = json!([{"Config": config, "RepoTags": ["app:1"], "Layers": paths}]);
    let mut files = vec![
        (config, image.configuration()),
        (paths[0].clone(), image.layers[0].clone()),
        (paths[1].clone(), image.layers[1].clone()),
        ("manifest.json".to_owned(), table.to_string().into_bytes()),
    ];
    change(&mut files);
    layer(&files.iter().map(|(path, content)| Entry::file(path, content)).collect::<Vec<_>>())
}

#[test]
fn a_layer_that_is_not_the_one_of_the_configuration_is_refused() {
    let other = layer(&[Entry::file("evil", "")]);
    Store::new().refuses(None, saved(|files| files[1].1 = other.clone()), "its configuration says");
    let other = Packing::Gzip.pack(&other);
    Store::new().refuses(None, saved(|files| files[1].1 = other.clone()), "configuration says");
}

#[test]
fn a_missing_or_unreadable_part_is_refused() {
    let store = Store::new();
    store.refuses(None, saved(|files| drop(files.remove(1))), "`0/layer.tar` is missing");
    store.refuses(None, saved(|files| drop(files.remove(0))), "missing from the archive");
    store.refuses(None, saved(|files| files[0].1 = b"{}".to_vec()), "cannot be read");
    store.refuses(None, saved(|files| files[3].1 = b"[]".to_vec()), "lists no image");
    store.refuses(None, saved(|files| files[3].1 = vec![b' '; 5 << 20]), "larger than");
    store.refuses(None, saved(|files| files[3].1 = b"not json".to_vec()), "but no name");
    let fewer = json!([{"Config": "c", "RepoTags": ["app:1"], "Layers": ["0/layer.tar"]}]).to_string();
    let changed = saved(|files| {
        files[0].0 = "c".to_owned();
        files[3].1 = fewer.clone().into_bytes();
    });
    store.refuses(None, changed, "lists 2 layers, but the archive lists 1");
    for (tags, words) in
        [(json!(null), "give it a name"), (json!([]), "give it a name"), (json!(["../x"]), "not a valid image name")]
    {
        let table = json!([{"Config": "c", "RepoTags": tags, "Layers": []}]).to_string();
        store.refuses(None, saved(|files| files[3].1 = table.clone().into_bytes()), words);
    }
}

#[test]
fn links_in_an_archive_lead_to_its_members_and_nowhere_else() {
    let image = image();
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), "secret").unwrap();
    let table = |layers: &[&str]| json!([{"Config": "c.json", "RepoTags": ["app:1"], "Layers": layers}]).to_string();
    let with = |first: Entry| {
        layer(&[
            Entry::file("c.json", image.configuration()),
            Entry::file("0/layer.tar", &image.layers[0]),
            first,
            Entry::file("real/1.tar", &image.layers[1]),
            Entry::file("manifest.json", table(&["0/layer.tar", "1/layer.tar"])),
        ])
    };
    // Older Dockers write a layer that is already in the archive like this.
    let store = Store::new();
    store.imports(None, with(Entry::symlink("1/layer.tar", "../real/1.tar")));
    assert_eq!(store.read("app:1", "etc/two"), "two");
    let store = Store::new();
    store.imports(None, with(Entry::hardlink("1/layer.tar", "real/1.tar")));
    let path = secret.path().to_str().unwrap();
    let up = format!("{}{path}", "../".repeat(20));
    for link in
        [Entry::symlink("1/layer.tar", path), Entry::symlink("1/layer.tar", &up), Entry::hardlink("1/layer.tar", path)]
    {
        Store::new().refuses(None, with(link), "missing from the archive");
    }
    for link in [Entry::symlink("1/layer.tar", "layer.tar"), Entry::fifo("1/layer.tar"), Entry::device("1/layer.tar")] {
        Store::new().refuses(None, with(link), "missing from the archive");
    }
}

#[test]
fn of_two_members_with_one_name_the_last_one_is_read() {
    let store = Store::new();
    let archive = saved(|files| files.insert(0, ("manifest.json".to_owned(), b"not this".to_vec())));
    store.imports(None, archive);
    assert_eq!(store.read("app:1", "etc/who"), "one");
}

#[test]
fn a_layout_whose_blobs_are_not_what_they_are_called_is_refused() {
    let image = image();
    let files = image.oci_files("app:1");
    let changed = |change: &dyn Fn(&mut Files)| {
        let mut files = files.clone();
        change(&mut files);
        layer(&files.iter().map(|(path, content)| Entry::file(path, content)).collect::<Vec<_>>())
    };
    let store = Store::new();
    for blob in 2..files.len() {
        store.refuses(None, changed(&|files| files[blob].1[0] ^= 1), "does not match its name");
        store.refuses(None, changed(&|files| files[blob].1.push(0)), "but should have");
        store.refuses(None, changed(&|files| drop(files.remove(blob))), "missing from the archive");
    }
    store.refuses(None, changed(&|files| files[1].1 = b"{}".to_vec()), "not an image index");
    let none = json!({"schemaVersion": 2, "manifests": []}).to_string();
    store.refuses(None, changed(&|files| files[1].1 = none.clone().into_bytes()), "contains no image");
    store.refuses(None, image.oci_tar("latest"), "give it a name");
    for digest in ["sha256:../../../../etc/passwd", "md5:00", "sha512:00"] {
        let lying = json!({"schemaVersion": 2, "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": 1,
            "annotations": {"org.opencontainers.image.ref.name": "app:1"},
        }]});
        store.refuses(None, changed(&|files| files[1].1 = lying.to_string().into_bytes()), "");
    }
}

#[test]
fn an_image_for_another_machine_is_refused() {
    let mut image = image();
    image.architecture = "s390x".to_owned();
    let store = Store::new();
    store.refuses(None, image.docker_save(&["app:1"]), "is built for");
    store.refuses(None, image.oci_tar("app:1"), "is built for");
}

#[test]
fn an_archive_that_is_none_is_refused() {
    let store = Store::new();
    for packing in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
        store.refuses(Some("a:1"), packing.pack(b"no archive at all"), "cannot be used");
        let cut = packing.pack(&layer(&[Entry::file("a", vec![b'x'; 20_000])]));
        store.refuses(Some("a:1"), cut[..cut.len() / 2].to_vec(), "truncated");
        store.refuses(Some("a:1"), packing.pack(&layer(&[])), "is empty");
    }
    store.refuses(Some("a:1"), Vec::new(), "is empty");
    store.refuses(Some("host"), Vec::new(), "");
}

#[test]
fn archives_larger_than_an_image_may_be_are_refused() {
    let store = Store::new();
    store.refuses(Some("a:1"), vec![0; 17 << 20], "larger than");
    let zeros = layer(&[Entry::file("zeros", vec![0; 20 << 20])]);
    for packing in [Packing::Gzip, Packing::Zstd] {
        store.refuses(Some("a:1"), packing.pack(&zeros), "larger than");
        // The bomb in the layer of an image.
        let mut image = Image::new(&[]);
        image.layers = vec![zeros.clone()];
        image.packing = packing;
        store.refuses(None, image.oci_tar("app:1"), "larger than");
    }
}

#[tokio::test]
async fn what_is_too_large_names_what_sets_the_bound() {
    let store = Store::new();
    let zeros = layer(&[Entry::file("zeros", vec![0; 20 << 20])]);
    let mut image = Image::new(&[]);
    image.layers = vec![zeros.clone()];
    image.packing = Packing::Zstd;
    for (name, archive) in
        [(Some("a:1"), zeros.clone()), (Some("a:1"), Packing::Gzip.pack(&zeros)), (None, image.oci_tar("app:1"))]
    {
        let imported = store.import(name, archive).await;
        let Err(Error::TooLarge(text)) = imported else { panic!("{imported:?}") };
        assert!(text.contains("16777216 bytes") && text.contains("raise `images.max_image_mb`"), "{text}");
    }
}

#[test]
fn what_is_packed_in_another_way_is_called_by_its_name() {
    let store = Store::new();
    for (head, name) in
        [(&b"\xfd7zXZ\x00\x00\x04\xe6"[..], "xz"), (b"BZh91AY&SY\x1a\x2b", "bzip2"), (b"PK\x03\x04", "zip")]
    {
        let archive = [head, &[7; 3_000]].concat();
        let words = format!("compressed with {name}; use plain tar, gzip or zstd");
        store.refuses(Some("a:1"), archive.clone(), &words);
        store.refuses(None, saved(|files| files[1].1 = archive.clone()), &words);
    }
}

#[test]
fn an_image_that_no_box_can_be_told_of_is_refused_at_once() {
    let store = Store::new();
    let with = |bytes: usize| image().with("Env", json!([format!("A={}", "x".repeat(bytes))]));
    store.refuses(None, with(110_000).docker_save(&["app:1"]), "more than 98304");
    store.refuses(None, with(110_000).oci_tar("app:1"), "more than 98304");
    store.imports(None, with(90_000).docker_save(&["app:1"]));
}

#[test]
fn a_layer_that_is_listed_many_times_is_copied_once() {
    let store = Store::new();
    let files = layer(&[Entry::file("noise", vec![7; 1 << 20])]);
    let table = |layers: usize| json!([{"Config": "c.json", "RepoTags": ["app:1"], "Layers": vec!["l"; layers]}]);
    let archive = |layers: usize| {
        let mut image = Image::new(&[]);
        image.layers = vec![files.clone(); layers];
        layer(&[
            Entry::file("c.json", image.configuration()),
            Entry::file("l", Packing::Gzip.pack(&files)),
            Entry::file("manifest.json", table(layers).to_string()),
        ])
    };
    let images = store.imports(None, archive(10));
    assert_eq!(images[0].layers, 10);
    Store::new().refuses(None, archive(1_025), "layers, more than 1024");
}

#[test]
fn names_without_end_are_refused() {
    let names: Vec<_> = (0..1_025).map(|number| format!("app:{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    Store::new().refuses(None, image().docker_save(&names), "more than 1024 names");
}

#[tokio::test]
async fn an_import_whose_caller_has_left_ends_and_leaves_nothing() {
    let store = Store::new();
    // Much to read through, and little to send.
    let entries: Vec<_> = (0..20_000).map(|number| Entry::file(number.to_string(), "")).collect();
    let archive = Bytes::from(Packing::Zstd.pack(&layer(&entries)));
    let sent = tokio_util::sync::CancellationToken::new();
    let last = sent.clone();
    let stream =
        futures_util::stream::once(async move { Ok(archive) }).chain(futures_util::stream::poll_fn(move |_| {
            last.cancel();
            std::task::Poll::Ready(None)
        }));
    let importing = store.images.import(Some("a:1"), stream.boxed());
    tokio::select! {
        biased;
        () = sent.cancelled() => {}
        imported = importing => panic!("{imported:?}"),
    }
    tokio::time::timeout(std::time::Duration::from_secs(60), store.images.close()).await.unwrap();
    assert!(store.images.list().await.unwrap().is_empty(), "it went on");
    for folder in ["ingest", "blobs/sha256", "trees", "trash"] {
        let left = fs::read_dir(store.temp.path().join("images").join(folder)).unwrap();
        assert_eq!(left.count(), 0, "{folder}");
    }
}

#[test]
fn a_hostile_root_directory_is_refused_like_a_hostile_layer() {
    let store = Store::new();
    store.refuses(Some("a:1"), layer(&[Entry::hardlink("a", "/etc/passwd")]), "which does not exist");
    store.refuses(Some("a:1"), layer(&[Entry::symlink("a", "a"), Entry::file("a/b", "")]), "a loop of symbolic links");
}

#[tokio::test]
async fn a_stream_that_breaks_off_leaves_nothing() {
    let store = Store::new();
    let begun = image().docker_save(&["app:1"])[..2_000].to_vec();
    let pieces = vec![Ok(Bytes::from(begun)), Err(Error::Unavailable("the line is dead".to_owned()))];
    let imported = store.images.import(None, futures_util::stream::iter(pieces).boxed()).await;
    assert!(matches!(imported, Err(Error::Unavailable(_))), "{imported:?}");
    assert_eq!(fs::read_dir(store.temp.path().join("images/ingest")).unwrap().count(), 0);
    assert!(store.images.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn archives_that_one_caller_sends_for_ever_leave_places_to_others() {
    let store = Store::new();
    let [greedy, honest] = [1, 2].map(|number| Some(Asker { caller: number, address: number }));
    let mut sending = Vec::new();
    let refused = loop {
        let archive: Archive = futures_util::stream::pending().boxed();
        let mut import = Box::pin(store.images.import_for(Some("slow:1"), archive, greedy));
        match futures_util::poll!(&mut import) {
            std::task::Poll::Pending => sending.push(import),
            std::task::Poll::Ready(refused) => break refused,
        }
    };
    assert_eq!(sending.len(), 8, "half of all");
    assert!(matches!(&refused, Err(Error::Unavailable(text)) if text.contains("for this caller")), "{refused:?}");
    let archive = layer(&[Entry::file("hello", "there is room")]);
    let archive: Archive = futures_util::stream::once(async move { Ok(Bytes::from(archive)) }).boxed();
    store.images.import_for(Some("quick:1"), archive, honest).await.unwrap();
    assert_eq!(
        fs::read_to_string(store.images.take("quick:1").await.unwrap().root().join("hello")).unwrap(),
        "there is room"
    );
    // A caller that disconnects gives its place back.
    drop(sending);
    store.images.close().await;
    assert_eq!(fs::read_dir(store.temp.path().join("images/ingest")).unwrap().count(), 0);
}

/// Packs the files of a layout with a number of indexes between `index.json` and the image. Only the
/// first one names the image.
fn nested(indexes: usize) -> Vec<u8> {
    let mut files = image().oci_files("app:1");
    for _ in 0..indexes {
        let (_, outer) = files.iter_mut().find(|(path, _)| path == "index.json").unwrap();
        let inner = std::mem::take(outer);
        let manifest = json!({
            "mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest(&inner), "size": inner.len(),
            "annotations": {"org.opencontainers.image.ref.name": "app:1"},
        });
        *outer = serde_json::to_vec(&json!({"schemaVersion": 2, "manifests": [manifest]})).unwrap();
        files.push((digest(&inner).replace("sha256:", "blobs/sha256/"), inner));
    }
    let dirs = [Entry::dir("blobs"), Entry::dir("blobs/sha256")];
    let entries: Vec<_> =
        dirs.into_iter().chain(files.into_iter().map(|(path, bytes)| Entry::file(path, bytes))).collect();
    layer(&entries)
}

#[test]
fn indexes_may_lead_to_indexes_up_to_a_bound() {
    // The innermost index has the manifest without a platform, as of an image in `index.json`.
    for indexes in [1, 2, 4] {
        let store = Store::new();
        assert_eq!(store.imports(None, nested(indexes)).len(), 1, "{indexes}");
        assert_eq!(store.read("app:1", "etc/who"), "one");
    }
    Store::new().refuses(None, nested(5), "more than 4 indexes");
}
