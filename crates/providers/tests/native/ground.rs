//! A provider in a temporary folder, and boxes in it. Whatever happens to the
//! test, no box stays.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use domain::{Resources, SandboxId, StoreId};
use fixtures::image::{Image, digest};
use futures_util::StreamExt;
use providers::images::trees::{Bounds, Compression, Layer, Trees};
use providers::images::{Images, ImagesConfig, PullPolicy};
use providers::native::{Native, NativeConfig};
use providers::{Chain, Command, Error, ExitStatus, Guest, OutputEvent, Provider, Slots, Spec};
use serde_json::Value;

/// The longest wait for what must come true.
const EVENTUALLY: Duration = Duration::from_secs(20);
static NEXT: AtomicU32 = AtomicU32::new(0);

fn entropy() -> [u8; 10] {
    let mut entropy = [7; 10];
    entropy[..4].copy_from_slice(&std::process::id().to_be_bytes());
    entropy[6..].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    entropy
}

pub(crate) fn new_id() -> SandboxId {
    SandboxId::from_entropy(entropy())
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn spec() -> Spec {
    Spec {
        image: "host".to_owned(),
        resources: Resources { memory_mb: 256, vcpus: 1, disk_mb: 0, pids: 64 },
        entrypoint: false,
        metadata: BTreeMap::new(),
        lifetime: Duration::from_secs(600),
    }
}

/// A box of an image.
pub(crate) fn spec_of(image: &str) -> Spec {
    Spec { image: image.to_owned(), ..spec() }
}

/// Puts images into the folder of a store that is not open: an OCI layout, and the
/// trees that the store makes of it.
fn put(dir: &Path, images: &[(&str, Image)]) {
    let trees = {
        std::fs::create_dir_all(dir).unwrap();
        Trees::open(dir).unwrap()
    };
    let mut manifests = Vec::new();
    for (name, image) in images {
        image.write_oci(dir, name);
        let index: Value = serde_json::from_slice(&std::fs::read(dir.join("index.json")).unwrap()).unwrap();
        manifests.extend(index["manifests"].as_array().unwrap().clone());
        let packed = image.layers.iter().map(|layer| image.packing.pack(layer));
        let layers: Vec<Layer> = packed
            .zip(&image.layers)
            .map(|(blob, layer)| Layer {
                path: dir.join("blobs").join(digest(&blob).replace(':', "/")),
                compression: Compression::Gzip,
                diff_id: digest(layer),
            })
            .collect();
        let bounds = Bounds { bytes_max: 1 << 30, entries_max: Bounds::ENTRIES_MAX };
        trees.unpack(&image.digest(), &layers, &bounds, &|_| {}).unwrap();
    }
    let index = serde_json::json!({"schemaVersion": 2, "manifests": manifests});
    std::fs::write(dir.join("index.json"), serde_json::to_vec(&index).unwrap()).unwrap();
}

/// The store of images in a data folder, as a server opens it.
pub(crate) fn open_images(data_dir: &Path) -> Images {
    let config = ImagesConfig { pull: PullPolicy::Never, ..ImagesConfig::new(data_dir.join("images")) };
    Images::open(config).unwrap()
}

pub(crate) struct Ground {
    pub(crate) native: Native,
    config: NativeConfig,
    _folder: tempfile::TempDir,
}

impl Ground {
    pub(crate) async fn new() -> Ground {
        Ground::with(None, tempfile::Builder::new().prefix("tidebox-test-").tempdir().unwrap()).await
    }

    /// One whose store of images holds these, and asks no registry for others.
    pub(crate) async fn with_images(images: &[(&str, Image)]) -> Ground {
        let folder = tempfile::Builder::new().prefix("tidebox-test-").tempdir().unwrap();
        put(&folder.path().join("images"), images);
        Ground::with(Some(open_images(folder.path())), folder).await
    }

    async fn with(images: Option<Images>, folder: tempfile::TempDir) -> Ground {
        let config = NativeConfig {
            data_dir: folder.path().to_owned(),
            store_id: StoreId::from_entropy(entropy()),
            cgroup_parent: None,
            subids: None,
            images,
        };
        let native = Native::open(config.clone()).await.unwrap();
        let health = native.health().await;
        assert_eq!(health.error, None, "boxes can be made on this host");
        Ground { native, config, _folder: folder }
    }

    /// The provider as a later server opens it.
    pub(crate) async fn reopen(&self) -> Native {
        Native::open(self.config.clone()).await.unwrap()
    }

    /// The store of images.
    pub(crate) fn images(&self) -> &Images {
        self.config.images.as_ref().expect("it was made with images")
    }

    /// Why a box cannot be started.
    pub(crate) async fn refusal(&self, spec: &Spec) -> Error {
        if let Err(refused) = self.native.check(spec) {
            return refused;
        }
        self.native.start(&new_id(), spec).await.expect_err("it starts")
    }

    pub(crate) fn config(&self) -> NativeConfig {
        self.config.clone()
    }

    pub(crate) fn store(&self) -> &str {
        self.config.store_id.as_str()
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.config.data_dir.join("native")
    }

    pub(crate) fn folder_of(&self, id: &SandboxId) -> PathBuf {
        self.folder().join("boxes").join(id.as_str())
    }

    pub(crate) async fn start(&self) -> Inside<'_> {
        self.start_with(spec()).await
    }

    pub(crate) async fn start_with(&self, spec: Spec) -> Inside<'_> {
        let id = new_id();
        self.native.start(&id, &spec).await.unwrap_or_else(|error| panic!("a box starts: {}", Chain(&error)));
        Inside { ground: self, id, host: None }
    }

    pub(crate) fn slots(&self) -> &dyn Slots {
        self.native.slots().expect("root can make slots")
    }

    /// A box for slots, of four times the usual size.
    pub(crate) async fn start_host(&self) -> SandboxId {
        let (id, mut spec) = (new_id(), spec());
        spec.resources = Resources { memory_mb: 1024, vcpus: 4, disk_mb: 0, pids: 256 };
        self.slots().start_host(&id, &spec).await.unwrap_or_else(|error| panic!("a box starts: {}", Chain(&error)));
        id
    }

    pub(crate) async fn add_slot(&self, host: &SandboxId) -> Inside<'_> {
        self.add_slot_with(host, spec()).await
    }

    pub(crate) async fn add_slot_with(&self, host: &SandboxId, spec: Spec) -> Inside<'_> {
        let id = new_id();
        let added = self.slots().add(host, &id, &spec).await;
        added.unwrap_or_else(|error| panic!("a slot is added: {}", Chain(&error)));
        Inside { ground: self, id, host: Some(host.clone()) }
    }

    /// Whether memory and processes of boxes are held by the kernel.
    pub(crate) fn has_hard_limits(&self) -> bool {
        self.native.facts().limits.iter().all(|(_, kind)| *kind == providers::LimitKind::Hard)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let config = self.config.clone();
        // The runtime of the test may be standing still, so this needs a provider
        // and a runtime of its own.
        let stopped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let native = Native::open(config).await.unwrap();
                for found in native.inventory().await.unwrap() {
                    native.stop(&found.id).await.unwrap();
                }
                native.idle().await;
            });
        });
        let stopped = stopped.join();
        if !std::thread::panicking() {
            stopped.expect("every box can be stopped");
        }
    }
}

/// A box, or a slot in one, that runs.
pub(crate) struct Inside<'a> {
    ground: &'a Ground,
    pub(crate) id: SandboxId,
    host: Option<SandboxId>,
}

/// What a command wrote, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit: ExitStatus,
}

impl<'a> Inside<'a> {
    /// A box that somebody else started.
    pub(crate) fn of(ground: &'a Ground, id: SandboxId) -> Inside<'a> {
        Inside { ground, id, host: None }
    }

    /// Runs a command line to its end.
    pub(crate) async fn sh(&self, script: &str) -> Ran {
        self.run(&["/bin/sh", "-c", script]).await
    }

    /// Runs a Python program to its end.
    pub(crate) async fn python(&self, program: &str) -> Ran {
        self.run(&["/usr/bin/python3", "-c", program]).await
    }

    pub(crate) async fn run(&self, argv: &[&str]) -> Ran {
        let command = Command {
            argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
            env: BTreeMap::new(),
            workdir: None,
            user: None,
            timeout: Duration::from_secs(60),
            stdin: None,
            terminal: None,
        };
        let guest = self.guest().await;
        let mut events = guest.exec(command).await.unwrap_or_else(|error| panic!("{argv:?}: {}", Chain(&error)));
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(event) = events.next().await {
            match event.unwrap_or_else(|error| panic!("{argv:?}: {}", Chain(&error))) {
                OutputEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                OutputEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
                OutputEvent::Exit(exit) => {
                    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                    return Ran { stdout: text(stdout), stderr: text(stderr), exit };
                }
            }
        }
        panic!("{argv:?}: the output ended without an exit");
    }

    /// The box of a slot.
    pub(crate) fn host(&self) -> &SandboxId {
        self.host.as_ref().expect("it is a slot")
    }

    pub(crate) async fn guest(&self) -> Arc<dyn Guest> {
        let guest = match &self.host {
            Some(host) => self.ground.slots().slot_guest(host, &self.id).await,
            None => self.ground.native.guest(&self.id).await,
        };
        guest.unwrap_or_else(|error| panic!("the box answers: {}", Chain(&error)))
    }

    /// What a command line writes that must succeed.
    pub(crate) async fn text(&self, script: &str) -> String {
        let ran = self.sh(script).await;
        assert_eq!(ran.exit.code, 0, "{script}: {ran:?}");
        ran.stdout
    }

    /// Runs a command line that must fail.
    pub(crate) async fn refuses(&self, script: &str) {
        let ran = self.sh(script).await;
        assert!(ran.exit.code != 0 && ran.exit.code != 127, "{script}: {ran:?}");
    }

    /// The first process, as the host numbers it.
    pub(crate) fn pid(&self) -> u32 {
        let folder = match &self.host {
            Some(host) => self.ground.folder_of(host).join("slots").join(self.id.as_str()),
            None => self.ground.folder_of(&self.id),
        };
        let text = std::fs::read_to_string(folder.join("pid")).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    }
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(EVENTUALLY, wait).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}

/// Every directory of a control group with this name.
pub(crate) fn cgroups_named(name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = waiting.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name() == name {
                    found.push(entry.path());
                }
                waiting.push(entry.path());
            }
        }
    }
    found
}

/// The processes of the host that have `text` in a file of their folder in `/proc`.
pub(crate) fn processes_with(file: &str, text: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let numbered =
        entries.filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()));
    let read =
        |path: &Path| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    numbered
        .filter(|entry| read(&entry.path().join(file)).contains(text))
        .map(|entry| entry.path().display().to_string())
        .collect()
}
