//! Base of the tests of every runtime: new ids, the inside of a box, and the removal of all boxes
//! when a test ends or fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use domain::{Resources, SandboxId, SnapshotId, StoreId};
use futures_util::StreamExt;
use providers::{Chain, Command, ExitStatus, Guest, OutputEvent, Provider, Result, Spec};

/// The longest wait for a condition, on a busy machine.
const EVENTUALLY: Duration = Duration::from_secs(90);
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

pub(crate) fn new_snapshot_id() -> SnapshotId {
    SnapshotId::from_entropy(entropy())
}

pub(crate) fn new_store() -> StoreId {
    StoreId::from_entropy(entropy())
}

/// Returns the spec of a box of an image, with the usual size.
pub(crate) fn spec_of(image: &str) -> Spec {
    Spec {
        image: image.to_owned(),
        resources: Resources { memory_mb: 256, vcpus: 1, disk_mb: 0, pids: 64 },
        entrypoint: false,
        metadata: BTreeMap::new(),
        lifetime: Duration::from_secs(600),
        trust: None,
        snapshot: None,
        is_copy: false,
        egress: Vec::new(),
        asker: None,
    }
}

pub(crate) fn command(argv: &[&str]) -> Command {
    Command {
        argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
        env: BTreeMap::new(),
        workdir: None,
        user: None,
        timeout: Duration::from_secs(60),
        stdin: None,
        terminal: None,
    }
}

/// Stops all boxes when a test has ended, with a provider that `open` makes. It uses a runtime of
/// its own, since that of the test may be blocked.
pub(crate) fn stop_all<P: Provider>(open: impl Future<Output = Result<P>> + Send + 'static) {
    let stopped = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let provider = open.await.unwrap();
            for found in provider.inventory().await.unwrap() {
                provider.stop(&found.id).await.unwrap();
            }
            provider.idle().await;
        });
    });
    let stopped = stopped.join();
    if !std::thread::panicking() {
        stopped.expect("every box can be stopped");
    }
}

/// Access to boxes of one provider.
pub(crate) trait BoxAccess {
    /// Opens the inside of the box with this id.
    fn guest(&self, id: &SandboxId) -> impl Future<Output = Result<Arc<dyn Guest>>> + Send;

    /// Checks a condition on every command that succeeds here.
    fn check(_: &Ran) {}
}

pub(crate) struct TestBox<P> {
    pub(crate) place: P,
    pub(crate) id: SandboxId,
}

/// Output and exit of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit: ExitStatus,
}

impl<P: BoxAccess> TestBox<P> {
    pub(crate) async fn guest(&self) -> Arc<dyn Guest> {
        self.place.guest(&self.id).await.unwrap_or_else(|error| panic!("the box answers: {}", Chain(&error)))
    }

    /// Runs a command to its end.
    pub(crate) async fn finish(&self, command: Command) -> Ran {
        let what = format!("{command:?}");
        let guest = self.guest().await;
        let mut events = guest.exec(command).await.unwrap_or_else(|error| panic!("{what}: {}", Chain(&error)));
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(event) = events.next().await {
            match event.unwrap_or_else(|error| panic!("{what}: {}", Chain(&error))) {
                OutputEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                OutputEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
                OutputEvent::Exit(exit) => {
                    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                    return Ran { stdout: text(stdout), stderr: text(stderr), exit };
                }
            }
        }
        panic!("{what}: the output ended without an exit");
    }

    /// Runs a command line to its end.
    pub(crate) async fn sh(&self, script: &str) -> Ran {
        self.finish(command(&["/bin/sh", "-c", script])).await
    }

    /// Runs a command line that must succeed, and returns its output.
    pub(crate) async fn text(&self, script: &str) -> String {
        let ran = self.sh(script).await;
        assert_eq!(ran.exit.code, 0, "{script}: {ran:?}");
        P::check(&ran);
        ran.stdout
    }

    /// Runs a command line that must fail.
    pub(crate) async fn refuses(&self, script: &str) {
        let ran = self.sh(script).await;
        assert!(ran.exit.code != 0 && ran.exit.code != 127, "{script}: {ran:?}");
    }
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(EVENTUALLY, wait).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}
