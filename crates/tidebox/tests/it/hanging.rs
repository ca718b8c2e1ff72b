//! Providers that do not answer, or are missing: they affect nothing but themselves.

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{MOCK, TestServer};

/// A Docker Engine that accepts every connection and never answers.
struct Mute {
    _listener: UnixListener,
    dir: tempfile::TempDir,
}

impl Mute {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Connections wait in the listener's backlog for as long as it is open.
        let listener = UnixListener::bind(dir.path().join("docker.sock")).unwrap();
        Self { _listener: listener, dir }
    }

    fn socket(&self) -> String {
        self.dir.path().join("docker.sock").display().to_string()
    }
}

async fn provider(server: &TestServer, name: &str) -> Value {
    let providers = server.get("/providers").await.ok();
    let found = providers.as_array().unwrap().iter().find(|provider| provider["name"] == name);
    found.unwrap_or_else(|| panic!("{providers}")).clone()
}

#[tokio::test]
async fn an_engine_that_never_answers_harms_nothing_but_its_own_boxes() {
    let engine = Mute::new();
    let docker = format!("providers.docker.enabled=true providers.docker.socket={}", engine.socket());
    let mut server = TestServer::start(&format!("{MOCK} {docker}")).await;
    let started = Instant::now();
    let first = server.spawn_with(json!({"ttl": "1s"})).await;
    let lost = server.spawn_with(json!({"metadata": {"mock.vanish_after": "1s"}})).await;
    for id in [&first, &lost] {
        let ended = server.get(&format!("/sandboxes/{id}/wait?state=destroyed&timeout=20s")).await.ok();
        assert_eq!(ended["state"], "destroyed");
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let docker = provider(&server, "docker").await;
    assert_eq!(docker["healthy"], false);
    let error = docker["error"].as_str().unwrap();
    assert!(error.contains(&engine.socket()) && error.contains("longer than a second"), "{error}");
    assert_eq!(provider(&server, "mock").await["healthy"], true);
    server.post("/sandboxes", json!({"provider": "docker"})).await.refused(503, "unavailable", "docker");
    // A hanging provider does not delay the shutdown either.
    let told = Instant::now();
    assert_eq!(server.terminate(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(15), "{:?}", told.elapsed());
}

#[tokio::test]
async fn an_engine_that_is_not_there_does_not_keep_other_providers_from_being_looked_at() {
    let docker = "providers.docker.enabled=true providers.docker.socket=/nowhere/docker.sock";
    let server = TestServer::start(&format!("{MOCK} {docker}")).await;
    let id = server.spawn_with(json!({"metadata": {"mock.die_after": "500ms"}})).await;
    let ended = server.get(&format!("/sandboxes/{id}/wait?state=destroyed&timeout=30s")).await.ok();
    assert_eq!(ended["state"], "destroyed");
    let warnings = || server.log_text().matches("cannot reconcile the boxes of a runtime").count();
    assert_eq!(warnings(), 1, "it is said once, and not every five seconds: {}", server.log_text());
}

#[tokio::test]
async fn who_waits_for_a_sandbox_that_has_expired_is_told_that_it_is_gone() {
    let server = TestServer::start(MOCK).await;
    for _ in 0..5 {
        let id = server.spawn_with(json!({"ttl": "100ms"})).await;
        let made = Instant::now();
        server.until("its end", async || made.elapsed() >= Duration::from_millis(120)).await;
        for state in ["running", "failed"] {
            let waited = server.get(&format!("/sandboxes/{id}/wait?state={state}&timeout=10s")).await;
            // After the clean-up, the sandbox's end is known.
            match waited.status.as_u16() {
                404 => waited.refused(404, "not_found", &id),
                _ => waited.refused(409, "conflict", "is destroyed and will never be"),
            }
        }
        let ended = server.get(&format!("/sandboxes/{id}/wait?state=destroyed&timeout=20s")).await.ok();
        assert_eq!(ended["state"], "destroyed");
    }
}

#[tokio::test]
async fn a_server_without_any_provider_says_so() {
    let server = TestServer::start("providers.native.enabled=false").await;
    server.get("/ready").await.refused(503, "unavailable", "this server has no provider; enable one under `providers`");
}
