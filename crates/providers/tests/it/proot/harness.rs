//! A provider in a temporary folder, with boxes in it. All boxes are removed even if a test
//! fails.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use domain::SandboxId;
use images::Images;
use providers::proot::{Proot, ProotConfig};
use providers::{Chain, Command, Guest, Provider, Result, Spec};

pub(crate) use crate::processes::{is_root, processes_with};
use crate::test_box::{self, BoxAccess, Ran, command, new_store, spec_of, stop_all};
pub(crate) use crate::test_box::{eventually, new_id};

/// Returns whether PRoot is installed. Without it a test is skipped by name.
pub(crate) fn has_proot() -> bool {
    fixtures::found("proot", &[]).is_some()
}

pub(crate) fn spec() -> Spec {
    spec_of("host")
}

pub(crate) struct TestProvider {
    pub(crate) proot: Proot,
    config: ProotConfig,
    folder: tempfile::TempDir,
}

impl TestProvider {
    /// Returns `None` if PRoot is not installed.
    pub(crate) async fn new() -> Option<TestProvider> {
        TestProvider::with(None).await
    }

    /// Makes a provider with an image store. Returns `None` if PRoot is not installed.
    pub(crate) async fn with(images: Option<Images>) -> Option<TestProvider> {
        if !has_proot() {
            return None;
        }
        let folder = tempfile::Builder::new().prefix("tidebox-test-").tempdir().unwrap();
        // The boxes' users pass through it.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let data_dir = folder.path().join("data");
        std::fs::create_dir(&data_dir).unwrap();
        std::fs::set_permissions(&data_dir, std::fs::Permissions::from_mode(0o700)).unwrap();
        let config = ProotConfig {
            binary: PathBuf::from("proot"),
            data_dir,
            store_id: new_store(),
            images,
            subids: None,
            api_is_open: false,
        };
        let proot = Proot::open(config.clone()).await.unwrap();
        let health = proot.health().await;
        assert_eq!(health.error, None, "boxes can be made on this host");
        Some(TestProvider { proot, config, folder })
    }

    /// Opens the provider as a later server does.
    pub(crate) async fn reopen(&self) -> Proot {
        Proot::open(self.config.clone()).await.unwrap()
    }

    pub(crate) fn config(&self) -> ProotConfig {
        self.config.clone()
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.config.data_dir.clone()
    }

    /// Returns the folder of the provider's boxes.
    pub(crate) fn folder(&self) -> PathBuf {
        if is_root() { self.folder.path().join("data-proot") } else { self.config.data_dir.join("proot") }
    }

    pub(crate) fn folder_of(&self, id: &SandboxId) -> PathBuf {
        self.folder().join("boxes").join(id.as_str())
    }

    pub(crate) async fn start(&self) -> TestBox<'_> {
        self.start_with(spec()).await
    }

    pub(crate) async fn start_with(&self, spec: Spec) -> TestBox<'_> {
        let id = new_id();
        self.proot.start(&id, &spec).await.unwrap_or_else(|error| panic!("a box starts: {}", Chain(&error)));
        TestBox::of(self, id)
    }
}

impl Drop for TestProvider {
    fn drop(&mut self) {
        stop_all(Proot::open(self.config.clone()));
        if !std::thread::panicking() {
            // No process runs a program below the folder that is removed now.
            assert_eq!(processes_with("cmdline", &self.folder().display().to_string()), Vec::<String>::new());
        }
    }
}

impl BoxAccess for &TestProvider {
    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        self.proot.guest(id).await
    }

    fn check(ran: &Ran) {
        assert!(!ran.stderr.contains("proot"), "PRoot itself has nothing to say: {ran:?}");
    }
}

pub(crate) type TestBox<'a> = test_box::TestBox<&'a TestProvider>;

impl<'a> TestBox<'a> {
    /// Refers to a box that was started elsewhere.
    pub(crate) fn of(provider: &'a TestProvider, id: SandboxId) -> TestBox<'a> {
        TestBox { place: provider, id }
    }

    pub(crate) async fn run(&self, argv: &[&str]) -> Ran {
        self.finish(command(argv)).await
    }

    /// Runs a program that starts in this directory.
    pub(crate) async fn run_in(&self, workdir: Option<&str>, argv: &[&str]) -> Ran {
        self.finish(Command { workdir: workdir.map(str::to_owned), ..command(argv) }).await
    }

    /// Returns the host's ids of the first process and of PRoot.
    pub(crate) fn pids(&self) -> [u32; 2] {
        let text = std::fs::read_to_string(self.place.folder_of(&self.id).join("pid")).unwrap();
        let pids: Vec<u32> =
            text.lines().map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect();
        pids.try_into().unwrap()
    }
}

/// Returns whether this process still runs. A zombie does not.
pub(crate) fn lives(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z') && !line.contains('X'))
}
