//! A control plane and its worker: two real processes.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::server::{Answer, TestServer, free_port};

/// Settings of both: short enough to wait for, and long enough for a loaded machine.
pub const TERMS: &str =
    "leases.ttl=6s leases.grace=2s leases.heartbeat_interval=400ms leases.stale_after=4s auth.worker_token=of-the-pair";
/// Key of the worker's API.
const KEY: &str = "key-of-the-worker";

/// A control plane and a worker.
pub struct Pair {
    pub plane: TestServer,
    pub worker: TestServer,
}

impl Pair {
    /// Starts both and waits for a heartbeat of the worker. The control plane runs nothing by itself.
    pub async fn start(of_plane: &str, of_worker: &str) -> Self {
        // Each of the two must find the other again after a restart.
        let (plane, worker) = (free_port(), free_port());
        let here = format!(
            "{TERMS} {of_plane} server.port={plane} workers.w1.url=http://127.0.0.1:{worker} workers.w1.api_key={KEY}"
        );
        let plane_server = TestServer::start(&here).await;
        let there = format!("{TERMS} {of_worker} server.port={worker} worker.token=of-the-pair");
        let command = format!("worker --control-plane http://127.0.0.1:{plane} --id w1");
        let worker_server = TestServer::builder(&there).command(&command).key(KEY).start().await;
        let pair = Self { plane: plane_server, worker: worker_server };
        pair.plane.post("/admin/workers/local/heartbeat", json!({"status": "draining"})).await.ok();
        pair.heard().await;
        pair
    }

    /// Starts another control plane on a copy of this one's store, as after the restore of a backup. This one
    /// is started anew meanwhile.
    pub async fn restored(&mut self, of_plane: &str) -> TestServer {
        let port = free_port();
        let worker = self.worker.url.trim_end_matches("/api/v1").to_owned();
        let here = format!("{TERMS} {of_plane} server.port={port} workers.w1.url={worker} workers.w1.api_key={KEY}");
        let mut other = TestServer::start(&here).await;
        other.kill();
        self.plane.kill();
        for file in std::fs::read_dir(self.plane.data_dir()).unwrap() {
            let file = file.unwrap();
            if file.file_name().to_str().unwrap().starts_with("tidebox.db") {
                std::fs::copy(file.path(), other.data_dir().join(file.file_name())).unwrap();
            }
        }
        self.plane.launch().await;
        self.heard().await;
        other.launch().await;
        other
    }

    /// Waits until the worker has sent a heartbeat and is not stale.
    pub async fn heard(&self) {
        self.plane
            .until("the worker is heard", async || {
                let seen = self.plane.get("/workers/w1").await;
                seen.status == 200 && seen.json()["stale"] == false
            })
            .await;
    }

    /// Returns the worker's own sandboxes.
    pub async fn boxes(&self) -> Vec<Value> {
        self.worker.get("/sandboxes").await.ok().as_array().unwrap().clone()
    }

    /// Returns the worker's own id for a sandbox of the control plane, if it runs it.
    pub async fn box_of(&self, id: &str) -> Option<String> {
        let found: Vec<String> = self
            .boxes()
            .await
            .iter()
            .filter(|found| found["metadata"]["tidebox.id"] == id)
            .map(|found| found["id"].as_str().unwrap().to_owned())
            .collect();
        assert!(found.len() <= 1, "{id} runs more than once: {found:?}");
        found.into_iter().next()
    }

    /// Sends a write with a lease generation to the worker itself.
    pub async fn write_with_generation(&self, its_id: &str, generation: &str) -> Answer {
        let request = self.worker.request(Method::POST, &format!("/sandboxes/{its_id}/exec"));
        let request = request.header("X-Lease-Generation", generation).json(&json!({"command": "true"}));
        Answer::read(request.send().await.unwrap()).await
    }

    pub fn stop_worker(&self) {
        self.worker.signal(Signal::STOP);
    }

    pub fn continue_worker(&self) {
        self.worker.signal(Signal::CONT);
    }
}
