//! A provider in a temporary folder, with boxes in it. All boxes are removed even if a test
//! fails.

use std::path::PathBuf;
use std::sync::Arc;

use domain::{Resources, SandboxId};
use fixtures::image::Image;
use images::Images;
use providers::native::{Native, NativeConfig};
use providers::{Chain, Error, Guest, Provider, Result, Slots, Spec};

pub(crate) use crate::image_store::open_images;
use crate::image_store::put;
pub(crate) use crate::processes::{is_root, processes_with};
use crate::test_box::{self, BoxAccess, Ran, command, new_store, stop_all};
pub(crate) use crate::test_box::{eventually, new_id, spec_of};

pub(crate) fn spec() -> Spec {
    spec_of("host")
}

pub(crate) struct TestProvider {
    pub(crate) native: Native,
    config: NativeConfig,
    _folder: tempfile::TempDir,
}

impl TestProvider {
    pub(crate) async fn new() -> TestProvider {
        let folder = tempfile::Builder::new().prefix("tidebox-test-").tempdir().unwrap();
        TestProvider::with(None, folder, false).await
    }

    /// Makes a provider whose image store has these images and asks no registry for others.
    pub(crate) async fn with_images(images: &[(&str, Image)]) -> TestProvider {
        TestProvider::of(images, false).await
    }

    /// The same, with connections out of boxes led to their agents.
    pub(crate) async fn transparent(images: &[(&str, Image)]) -> TestProvider {
        TestProvider::of(images, true).await
    }

    async fn of(images: &[(&str, Image)], transparent: bool) -> TestProvider {
        let folder = tempfile::Builder::new().prefix("tidebox-test-").tempdir().unwrap();
        put(&folder.path().join("images"), images);
        TestProvider::with(Some(open_images(folder.path())), folder, transparent).await
    }

    async fn with(images: Option<Images>, folder: tempfile::TempDir, transparent: bool) -> TestProvider {
        let config = NativeConfig {
            data_dir: folder.path().to_owned(),
            store_id: new_store(),
            cgroup_parent: None,
            subids: None,
            images,
            transparent_egress: transparent,
            fsync: false,
        };
        TestProvider::opened(config, folder).await
    }

    /// Makes a provider with this configuration, whose data is in `folder`.
    pub(crate) async fn opened(config: NativeConfig, folder: tempfile::TempDir) -> TestProvider {
        let native = Native::open(config.clone()).await.unwrap();
        let health = native.health().await;
        assert_eq!(health.error, None, "boxes can be made on this host");
        TestProvider { native, config, _folder: folder }
    }

    /// Opens the provider as a later server does.
    pub(crate) async fn reopen(&self) -> Native {
        Native::open(self.config.clone()).await.unwrap()
    }

    pub(crate) fn images(&self) -> &Images {
        self.config.images.as_ref().expect("it was made with images")
    }

    /// Starts a box, which must fail, and returns the error.
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

    pub(crate) async fn start(&self) -> TestBox<'_> {
        self.start_with(spec()).await
    }

    pub(crate) async fn start_with(&self, spec: Spec) -> TestBox<'_> {
        let id = new_id();
        self.native.start(&id, &spec).await.unwrap_or_else(|error| panic!("a box starts: {}", Chain(&error)));
        TestBox::of(self, id)
    }

    pub(crate) fn slots(&self) -> &dyn Slots {
        self.native.slots().expect("root can make slots")
    }

    /// Starts a box for slots, with four times the usual size.
    pub(crate) async fn start_host(&self) -> SandboxId {
        let (id, mut spec) = (new_id(), spec());
        spec.resources = Resources { memory_mb: 1024, vcpus: 4, disk_mb: 0, pids: 256 };
        self.slots().start_host(&id, &spec).await.unwrap_or_else(|error| panic!("a box starts: {}", Chain(&error)));
        id
    }

    pub(crate) async fn add_slot(&self, host: &SandboxId) -> TestBox<'_> {
        self.add_slot_with(host, spec()).await
    }

    pub(crate) async fn add_slot_with(&self, host: &SandboxId, spec: Spec) -> TestBox<'_> {
        let id = new_id();
        let added = self.slots().add(host, &id, &spec).await;
        added.unwrap_or_else(|error| panic!("a slot is added: {}", Chain(&error)));
        TestBox { place: BoxOrSlot { provider: self, host: Some(host.clone()) }, id }
    }

    /// Returns whether the kernel enforces the limits of boxes.
    pub(crate) fn has_hard_limits(&self) -> bool {
        self.native.facts().limits.iter().all(|(_, kind)| *kind == providers::LimitKind::Hard)
    }
}

impl Drop for TestProvider {
    fn drop(&mut self) {
        stop_all(Native::open(self.config.clone()));
    }
}

/// Access to a box, or to a slot in a box.
pub(crate) struct BoxOrSlot<'a> {
    provider: &'a TestProvider,
    host: Option<SandboxId>,
}

impl BoxAccess for BoxOrSlot<'_> {
    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        match &self.host {
            Some(host) => self.provider.slots().slot_guest(host, id).await,
            None => self.provider.native.guest(id).await,
        }
    }
}

/// A running box, or a slot in one.
pub(crate) type TestBox<'a> = test_box::TestBox<BoxOrSlot<'a>>;

impl<'a> TestBox<'a> {
    /// Refers to a box that was started elsewhere.
    pub(crate) fn of(provider: &'a TestProvider, id: SandboxId) -> TestBox<'a> {
        TestBox { place: BoxOrSlot { provider, host: None }, id }
    }

    pub(crate) async fn run(&self, argv: &[&str]) -> Ran {
        self.finish(command(argv)).await
    }

    /// Runs a Python program to its end.
    pub(crate) async fn python(&self, program: &str) -> Ran {
        self.run(&["/usr/bin/python3", "-c", program]).await
    }

    /// Returns the box of a slot.
    pub(crate) fn host(&self) -> &SandboxId {
        self.place.host.as_ref().expect("it is a slot")
    }

    /// Returns the host's id of the first process.
    pub(crate) fn pid(&self) -> u32 {
        let BoxOrSlot { provider, host } = &self.place;
        let folder = match host {
            Some(host) => provider.folder_of(host).join("slots").join(self.id.as_str()),
            None => provider.folder_of(&self.id),
        };
        let text = std::fs::read_to_string(folder.join("pid")).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    }
}

/// Returns every directory of a control group with this name.
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
