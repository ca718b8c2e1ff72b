//! Callers that use the service as intended, and the times that they wait.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::TestServer;

/// Pause of a caller between two rounds: an agent thinks longer.
const THINKING: Duration = Duration::from_millis(100);
/// Rounds between two spawns of one caller.
const ROUNDS_PER_SPAWN: usize = 4;

/// Times that honest callers waited, and their failures.
#[derive(Debug, Default)]
pub struct Figures {
    exec: Vec<Duration>,
    spawn: Vec<Duration>,
    file: Vec<Duration>,
    /// Answers that were no success.
    pub failures: Vec<String>,
}

impl Figures {
    /// Returns the times by call.
    pub fn calls(&self) -> [(&'static str, &[Duration]); 3] {
        [("exec", &self.exec), ("spawn", &self.spawn), ("file write and read", &self.file)]
    }

    /// Returns the 95th percentile by call.
    pub fn p95(&self) -> Vec<(&'static str, Duration)> {
        self.calls().into_iter().map(|(what, samples)| (what, percentile(samples, 95))).collect()
    }

    /// Returns the number of answers that were no success.
    pub fn failed(&self) -> usize {
        self.failures.len()
    }

    fn add(&mut self, other: Figures) {
        self.exec.extend(other.exec);
        self.spawn.extend(other.spawn);
        self.file.extend(other.file);
        self.failures.extend(other.failures);
    }
}

/// Returns the time that `percent` of the samples stay below.
pub fn percentile(samples: &[Duration], percent: usize) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Lets `callers` work for the time `part` and returns the times that they waited.
pub async fn live(server: &TestServer, callers: usize, part: Duration) -> Figures {
    let mut all = Figures::default();
    let end = Instant::now() + part;
    for figures in join_all((0..callers).map(|number| Caller::new(server, number).live(end))).await {
        all.add(figures);
    }
    all
}

struct Caller<'a> {
    server: &'a TestServer,
    http: reqwest::Client,
    owner: String,
    figures: Figures,
}

impl<'a> Caller<'a> {
    fn new(server: &'a TestServer, number: usize) -> Self {
        // The hostile callers have another address: owners can be made up, so all owners of one
        // address together have a share too.
        let address = Ipv4Addr::new(127, 0, 0, 2);
        let http = crate::server::http_client().timeout(Duration::from_secs(60)).local_address(IpAddr::V4(address));
        let http = http.build().unwrap();
        Self { server, http, owner: format!("honest-{number}"), figures: Figures::default() }
    }

    async fn live(mut self, end: Instant) -> Figures {
        let Some(own) = self.spawn().await else { return self.figures };
        self.figures.spawn.clear();
        for round in 0.. {
            if Instant::now() >= end {
                break;
            }
            self.exec(&own).await;
            self.file(&own, round).await;
            if round % ROUNDS_PER_SPAWN == 0
                && let Some(id) = self.spawn().await
            {
                self.call(Method::DELETE, &format!("/sandboxes/{id}"), None).await;
            }
            tokio::time::sleep(THINKING).await;
        }
        self.call(Method::DELETE, &format!("/sandboxes/{own}"), None).await;
        self.figures
    }

    async fn spawn(&mut self) -> Option<String> {
        let started = Instant::now();
        let body = json!({"memory_mb": 64, "vcpus": 1, "ttl": "2h"});
        let answer = self.call(Method::POST, "/sandboxes", Some(body)).await?;
        self.figures.spawn.push(started.elapsed());
        Some(answer["id"].as_str()?.to_owned())
    }

    async fn exec(&mut self, id: &str) {
        let started = Instant::now();
        let body = json!({"command": "echo", "args": ["done"], "mode": "argv"});
        let Some(answer) = self.call(Method::POST, &format!("/sandboxes/{id}/exec"), Some(body)).await else { return };
        self.figures.exec.push(started.elapsed());
        if answer["exit_code"] != 0 || answer["stdout"] != "done\n" {
            self.figures.failures.push(format!("{}: exec: {answer}", self.owner));
        }
    }

    async fn file(&mut self, id: &str, round: usize) {
        let started = Instant::now();
        let content = format!("round {round}");
        let body = json!({"path": "/workspace/note", "content": content});
        if self.call(Method::POST, &format!("/sandboxes/{id}/files"), Some(body)).await.is_none() {
            return;
        }
        let path = format!("/sandboxes/{id}/files?path=/workspace/note");
        let Some(read) = self.call(Method::GET, &path, None).await else { return };
        self.figures.file.push(started.elapsed());
        if read != Value::String(content) {
            self.figures.failures.push(format!("{}: a file: {read}", self.owner));
        }
    }

    /// Sends a request and returns the body of a success, text that is no JSON as a string.
    async fn call(&mut self, method: Method, path: &str, body: Option<Value>) -> Option<Value> {
        let url = format!("{}/api/v1{path}", self.server.url);
        let mut request = self.http.request(method.clone(), url).header("X-User-ID", &self.owner);
        if let Some(body) = &body {
            request = request.json(body);
        }
        let answer = async {
            let answer = request.send().await?;
            Ok::<(StatusCode, String), reqwest::Error>((answer.status(), answer.text().await?))
        };
        match answer.await {
            Ok((status, text)) if status.is_success() => {
                Some(serde_json::from_str(&text).unwrap_or(Value::String(text)))
            }
            outcome => {
                self.figures.failures.push(format!("{}: {method} {path}: {outcome:?}", self.owner));
                None
            }
        }
    }
}
