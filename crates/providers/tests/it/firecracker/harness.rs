//! A provider in a temporary folder, with machines in it. All are removed even if a test fails.

use std::path::PathBuf;
use std::time::Duration;

use fixtures::suite::{FULL, PLAIN, SCRATCH};
use providers::Provider;
use providers::firecracker::{DriveRate, Firecracker, FirecrackerConfig};

use crate::image_store::{open_images, put};
use crate::processes::is_root;
use crate::test_box::{new_store, stop_all};

/// Variable with the path of a real Firecracker. Its jailer lies beside it.
const BINARY: &str = "FIRECRACKER_BIN";
/// Variable with the kernel of the guests; the newest of this host unless set.
const KERNEL: &str = "FIRECRACKER_KERNEL";
/// Variable with the folder of its modules; that of its release unless set.
const MODULES: &str = "FIRECRACKER_MODULES";

pub(crate) struct TestProvider {
    pub(crate) firecracker: Firecracker,
    config: FirecrackerConfig,
    folder: tempfile::TempDir,
}

impl TestProvider {
    /// Returns `None`, with a word about it, if no machine can be booted here. The images of the
    /// suite are in its store.
    /// Its templates may take this many mebibytes.
    pub(crate) async fn new(jailed: bool, templates_mb: u64) -> Option<TestProvider> {
        let skip = |reason: &str| fixtures::skip("firecracker", reason);
        let Some(binary) = std::env::var_os(BINARY).map(PathBuf::from) else {
            skip(&format!("{BINARY} names no Firecracker"));
            return None;
        };
        if jailed && !is_root() {
            skip("the jailer needs root");
            return None;
        }
        let kernel = std::env::var_os(KERNEL).map(PathBuf::from);
        let Some(kernel) = kernel.or_else(|| ::firecracker::guest_kernel::newest_installed().unwrap()) else {
            skip(&format!("no kernel is installed, and {KERNEL} names none"));
            return None;
        };
        let images =
            [(PLAIN, fixtures::suite::plain()), (FULL, fixtures::suite::full()), (SCRATCH, fixtures::suite::scratch())];
        let images: Option<Vec<_>> = images.into_iter().map(|(name, image)| Some((name, image?))).collect();
        let Some(images) = images else {
            skip("there is no busybox to make images of");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("tidebox-test-").tempdir().unwrap();
        put(&folder.path().join("images"), &images);
        let config = FirecrackerConfig {
            jailer: binary.with_file_name("jailer"),
            binary,
            kernel: Some(kernel),
            modules: std::env::var_os(MODULES).map(PathBuf::from),
            jailed: Some(jailed),
            // In emulation a guest boots a hundred times slower.
            boot_timeout: Duration::from_secs(240),
            image_snapshots_mb: templates_mb,
            drive_rate: DriveRate::default(),
            data_dir: folder.path().to_owned(),
            store_id: new_store(),
            cgroup_parent: None,
            subids: None,
            images: Some(open_images(folder.path())),
        };
        let firecracker = Firecracker::open(config.clone()).await.unwrap();
        if let Some(error) = firecracker.health().await.error {
            skip(&error);
            return None;
        }
        Some(TestProvider { firecracker, config, folder })
    }

    pub(crate) fn config(&self) -> FirecrackerConfig {
        self.config.clone()
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.path().join("firecracker")
    }
}

impl Drop for TestProvider {
    fn drop(&mut self) {
        stop_all(Firecracker::open(self.config.clone()));
    }
}
