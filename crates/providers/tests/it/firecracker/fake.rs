//! A provider whose Firecracker makes no machines.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fixtures::suite::SCRATCH;
use guest_protocol::{Failure, FailureKind, VERSION};
use http::Response;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use providers::firecracker::{DriveRate, Firecracker, FirecrackerConfig};
use providers::{Provider, SandboxId, Spec};
use tokio::net::UnixListener;
use tokio::task::JoinSet;

use crate::image_store::{open_images, put};
use crate::test_box::{eventually, new_store, spec_of};

/// Room for the templates of the machines of the tests.
const TEMPLATES_MB: u64 = 1024;

/// Provider in a temporary folder, and the agent of all its boxes.
pub(crate) struct FakeProvider {
    pub(crate) firecracker: Firecracker,
    pub(crate) config: FirecrackerConfig,
    pub(crate) folder: tempfile::TempDir,
    _agents: JoinSet<()>,
    agents: Arc<Agents>,
}

/// Agents that only say hello, and what they were asked for.
#[derive(Default)]
struct Agents {
    asked: Mutex<HashMap<String, usize>>,
    /// Requests that they refuse.
    refused: Mutex<Option<&'static str>>,
}

impl FakeProvider {
    /// Returns `None`, with a word about it, where the provider would not even try.
    pub(crate) async fn new() -> Option<FakeProvider> {
        let image = fixtures::suite::scratch()?;
        let folder = tempfile::Builder::new().prefix("tidebox-test-").tempdir().unwrap();
        put(&folder.path().join("images"), &[(SCRATCH, image)]);
        let agents = Arc::default();
        let serving = serve(&folder.path().join("agent.sock"), &agents);
        let kernel = folder.path().join("vmlinux");
        std::fs::write(&kernel, fixtures::firecracker::kernel()).unwrap();
        let binary = write_fake(folder.path(), "")?;
        let config = FirecrackerConfig {
            binary,
            kernel: Some(kernel),
            modules: None,
            jailed: Some(false),
            jailer: "jailer".into(),
            boot_timeout: Duration::from_secs(60),
            image_snapshots_mb: TEMPLATES_MB,
            drive_rate: DriveRate::default(),
            data_dir: folder.path().to_owned(),
            store_id: new_store(),
            cgroup_parent: None,
            subids: None,
            images: Some(open_images(folder.path())),
        };
        let firecracker = Firecracker::open(config.clone()).await.unwrap();
        Some(FakeProvider { firecracker, config, folder, _agents: serving, agents })
    }

    /// Has the machines of later boxes fail in this way; see [`fixtures::firecracker::write_fake`].
    pub(crate) fn fail(&self, fault: &str) {
        write_fake(self.folder.path(), fault).unwrap();
    }

    /// Opens the provider as a later server does.
    pub(crate) async fn reopen(&self) -> Firecracker {
        Firecracker::open(self.config.clone()).await.unwrap()
    }

    /// Returns how often agents were asked for this.
    pub(crate) fn asked(&self, path: &str) -> usize {
        self.agents.asked.lock().get(path).copied().unwrap_or(0)
    }

    /// Has agents refuse this, or nothing.
    pub(crate) fn refuse(&self, path: Option<&'static str>) {
        *self.agents.refused.lock() = path;
    }

    /// Returns the requests that the process of a box has got.
    pub(crate) fn requests(&self, id: &SandboxId) -> Vec<String> {
        let text = std::fs::read_to_string(self.boxes().join(id.as_str()).join("vm/requests")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns the folders of templates, finished or not.
    pub(crate) fn templates(&self) -> Vec<PathBuf> {
        let listed = std::fs::read_dir(self.folder.path().join("firecracker/templates")).unwrap();
        listed.map(|entry| entry.unwrap().path()).collect()
    }

    /// Waits until there are this many templates, all of them finished, and returns the folder of one.
    pub(crate) async fn template(&self, count: usize) -> PathBuf {
        let is_finished = |dir: &PathBuf| dir.join("machine.json").exists() && !dir.to_str().unwrap().contains(".new-");
        eventually("the templates are finished", async || {
            let found = self.templates();
            // The folder is there a moment before the provider knows it.
            let known = self.firecracker.image_snapshots().unwrap().snapshots.len();
            found.len() == count && found.iter().all(is_finished) && known == count
        })
        .await;
        self.templates().remove(0)
    }

    pub(crate) fn boxes(&self) -> PathBuf {
        self.folder.path().join("firecracker").join("boxes")
    }
}

pub(crate) fn spec() -> Spec {
    spec_of(SCRATCH)
}

fn write_fake(folder: &Path, fault: &str) -> Option<PathBuf> {
    fixtures::firecracker::write_fake(folder, &folder.join("agent.sock"), fault)
}

fn serve(socket: &Path, agents: &Arc<Agents>) -> JoinSet<()> {
    let listener = UnixListener::bind(socket).unwrap();
    let agents = Arc::clone(agents);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let agents = Arc::clone(&agents);
            connections.spawn(async move {
                let answer = service_fn(|request: http::Request<_>| {
                    let answer = agents.answer(request.uri().path());
                    async { Ok::<_, Infallible>(answer) }
                });
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    });
    tasks
}

impl Agents {
    fn answer(&self, path: &str) -> Response<Full<Bytes>> {
        *self.asked.lock().entry(path.to_owned()).or_default() += 1;
        let hello = format!(r#"{{"protocol":{VERSION},"version":"test"}}"#);
        let mut answer = Response::new(Full::new(Bytes::from(hello)));
        if *self.refused.lock() == Some(path) {
            let failure = Failure { kind: FailureKind::Conflict, message: "not now".to_owned() };
            *answer.status_mut() = failure.kind.status().try_into().unwrap();
            *answer.body_mut() = Full::new(serde_json::to_vec(&failure).unwrap().into());
        }
        answer
    }
}
