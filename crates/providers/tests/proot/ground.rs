//! A provider in a temporary folder, and boxes in it. Whatever happens to the
//! test, no box stays.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use domain::{Resources, SandboxId, StoreId};
use futures_util::StreamExt;
use providers::images::Images;
use providers::proot::{Proot, ProotConfig};
use providers::{Command, ExitStatus, Guest, OutputEvent, Provider, Spec};

/// The longest wait for what must come true.
const EVENTUALLY: Duration = Duration::from_secs(20);
static NEXT: AtomicU32 = AtomicU32::new(0);

fn entropy() -> [u8; 10] {
    let mut entropy = [9; 10];
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

/// Whether there is a PRoot here; without one a test is skipped by name.
pub(crate) fn has_proot() -> bool {
    fixtures::found("proot", &[]).is_some()
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

pub(crate) struct Ground {
    pub(crate) proot: Proot,
    config: ProotConfig,
    folder: tempfile::TempDir,
}

impl Ground {
    /// `None` where there is no PRoot.
    pub(crate) async fn new() -> Option<Ground> {
        Ground::with(None).await
    }

    /// The same, with images from a store.
    pub(crate) async fn with(images: Option<Images>) -> Option<Ground> {
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
            store_id: StoreId::from_entropy(entropy()),
            images,
            subids: None,
        };
        let proot = Proot::open(config.clone()).await.unwrap();
        let health = proot.health().await;
        assert_eq!(health.error, None, "boxes can be made on this host");
        Some(Ground { proot, config, folder })
    }

    /// The provider as a later server opens it.
    pub(crate) async fn reopen(&self) -> Proot {
        Proot::open(self.config.clone()).await.unwrap()
    }

    pub(crate) fn config(&self) -> ProotConfig {
        self.config.clone()
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.config.data_dir.clone()
    }

    /// Where the provider has its boxes.
    pub(crate) fn folder(&self) -> PathBuf {
        if is_root() { self.folder.path().join("data-proot") } else { self.config.data_dir.join("proot") }
    }

    pub(crate) fn folder_of(&self, id: &SandboxId) -> PathBuf {
        self.folder().join("boxes").join(id.as_str())
    }

    pub(crate) async fn start(&self) -> Inside<'_> {
        self.start_with(spec()).await
    }

    pub(crate) async fn start_with(&self, spec: Spec) -> Inside<'_> {
        let id = new_id();
        self.proot.start(&id, &spec).await.unwrap_or_else(|error| panic!("a box starts: {}", chain(&error)));
        Inside { ground: self, id }
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
                let proot = Proot::open(config).await.unwrap();
                for found in proot.inventory().await.unwrap() {
                    proot.stop(&found.id).await.unwrap();
                }
                proot.idle().await;
            });
        });
        let stopped = stopped.join();
        if !std::thread::panicking() {
            stopped.expect("every box can be stopped");
            // Nothing runs from below the folder that is about to go.
            assert_eq!(processes_with("cmdline", &self.folder().display().to_string()), Vec::<String>::new());
        }
    }
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

/// A box that runs.
pub(crate) struct Inside<'a> {
    ground: &'a Ground,
    pub(crate) id: SandboxId,
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
        Inside { ground, id }
    }

    /// Runs a command line to its end.
    pub(crate) async fn sh(&self, script: &str) -> Ran {
        self.run(&["/bin/sh", "-c", script]).await
    }

    pub(crate) async fn run(&self, argv: &[&str]) -> Ran {
        self.run_in(None, argv).await
    }

    /// Runs a program that starts in this directory.
    pub(crate) async fn run_in(&self, workdir: Option<&str>, argv: &[&str]) -> Ran {
        let command = Command {
            argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
            env: BTreeMap::new(),
            workdir: workdir.map(str::to_owned),
            user: None,
            timeout: Duration::from_secs(60),
            stdin: None,
            terminal: None,
        };
        let guest = self.guest().await;
        let mut events = guest.exec(command).await.unwrap_or_else(|error| panic!("{argv:?}: {}", chain(&error)));
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(event) = events.next().await {
            match event.unwrap_or_else(|error| panic!("{argv:?}: {}", chain(&error))) {
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

    pub(crate) async fn guest(&self) -> Arc<dyn Guest> {
        self.ground.proot.guest(&self.id).await.unwrap_or_else(|error| panic!("the box answers: {}", chain(&error)))
    }

    /// What a command line writes that must succeed.
    pub(crate) async fn text(&self, script: &str) -> String {
        let ran = self.sh(script).await;
        assert_eq!(ran.exit.code, 0, "{script}: {ran:?}");
        assert!(!ran.stderr.contains("proot"), "PRoot itself has nothing to say: {ran:?}");
        ran.stdout
    }

    /// Runs a command line that must fail.
    pub(crate) async fn refuses(&self, script: &str) {
        let ran = self.sh(script).await;
        assert!(ran.exit.code != 0 && ran.exit.code != 127, "{script}: {ran:?}");
    }

    /// The first process and PRoot, as the host numbers them.
    pub(crate) fn pids(&self) -> [u32; 2] {
        let text = std::fs::read_to_string(self.ground.folder_of(&self.id).join("pid")).unwrap();
        let pids: Vec<u32> =
            text.lines().map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect();
        pids.try_into().unwrap()
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

/// Whether this process still runs; a zombie does not.
pub(crate) fn lives(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z') && !line.contains('X'))
}
