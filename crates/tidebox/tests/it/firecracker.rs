//! Sandboxes that are virtual machines, with a Firecracker that makes none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::server::{Answer, TestServer};

/// Server whose machines are those of a fake.
struct Machines {
    server: TestServer,
    /// Files of the fake, and the socket of the agent.
    _folder: tempfile::TempDir,
    _agent: JoinSet<()>,
    /// A permit for each request that is held.
    held: Arc<Semaphore>,
}

impl Machines {
    async fn start() -> Option<Machines> {
        let folder = tempfile::Builder::new().prefix("tidebox-test-").tempdir().unwrap();
        let agent = folder.path().join("agent.sock");
        let binary = fixtures::firecracker::write_fake(folder.path(), &agent, "")?;
        let image = fixtures::suite::scratch()?;
        let kernel = folder.path().join("vmlinux");
        std::fs::write(&kernel, fixtures::firecracker::kernel()).unwrap();
        let held = Arc::new(Semaphore::new(0));
        let agent = serve(&agent, Arc::clone(&held));
        let settings = format!(
            "providers.default=firecracker providers.firecracker.enabled=true providers.native.enabled=false \
             providers.firecracker.jailer.enabled=false providers.firecracker.binary={} providers.firecracker.kernel={} \
             defaults.image=machine:1",
            binary.display(),
            kernel.display()
        );
        let server = TestServer::start(&settings).await;
        let import = server.request(Method::POST, "/images/import").header("content-type", "application/x-tar");
        let answer = Answer::read(import.body(image.docker_save(&["machine:1"])).send().await.unwrap()).await;
        assert_eq!(answer.status, 201, "{}", answer.json());
        Some(Machines { server, _folder: folder, _agent: agent, held })
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.server.data_dir().join("firecracker").join(name)
    }
}

/// Serves agents that answer every request with a hello, but hang up at one for a directory, and hold one for a
/// file.
fn serve(socket: &Path, held: Arc<Semaphore>) -> JoinSet<()> {
    let listener = UnixListener::bind(socket).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let held = Arc::clone(&held);
            connections.spawn(async move {
                let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                let mut holding = Vec::new();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    match request.uri().path() {
                        "/files/list" => return,
                        "/files/stat" => {
                            holding.push((request, respond));
                            held.add_permits(1);
                            continue;
                        }
                        _ => {}
                    }
                    let version = request.headers()["tidebox-protocol"].to_str().unwrap();
                    let hello = format!(r#"{{"protocol":{version},"version":"test"}}"#);
                    if let Ok(mut body) = respond.send_response(http::Response::new(()), false) {
                        let _ = body.send_data(Bytes::from(hello), true);
                    }
                }
            });
        }
    });
    tasks
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the ids that a path lists.
async fn listed(server: &TestServer, path: &str) -> BTreeSet<String> {
    let listed = server.get(path).await.ok();
    let of_sandboxes = listed.as_array().unwrap().iter().filter(|one| one["kind"] != "image");
    of_sandboxes.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

/// Returns which sandboxes of the list are on disk.
async fn on_disk(server: &TestServer) -> BTreeMap<String, bool> {
    let listed = server.get("/sandboxes").await.ok();
    let of = |row: &Value| (row["id"].as_str().unwrap().to_owned(), row["on_disk"] == true);
    listed.as_array().unwrap().iter().map(of).collect()
}

async fn state(server: &TestServer, id: &str) -> Value {
    server.get(&format!("/sandboxes/{id}")).await.ok()["state"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_is_not_the_end_of_its_sandbox() {
    let Some(machines) = Machines::start().await else { return };
    let server = &machines.server;
    let id = server.spawn().await;
    let words = "before you send it again";
    for _ in 0..3 {
        server.get(&format!("/sandboxes/{id}/files/list?path=/")).await.refused(409, "conflict", words);
        assert_eq!(state(server, &id).await, "running");
    }
    // What keeps the memory ends what is under way.
    for (path, body) in [("snapshots", json!({})), ("pause", json!({"to_disk": true, "force": true}))] {
        let asking = async { server.get(&format!("/sandboxes/{id}/files/stat?path=/file")).await };
        let keeping = async {
            machines.held.acquire().await.unwrap().forget();
            server.post(&format!("/sandboxes/{id}/{path}"), body).await.ok();
        };
        let (answer, ()) = tokio::join!(asking, keeping);
        answer.refused(409, "conflict", words);
    }
    assert_eq!(state(server, &id).await, "paused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_paused_to_disk_wakes_for_a_request_and_is_told_of() {
    let Some(machines) = Machines::start().await else { return };
    let server = &machines.server;
    let spawned = server.post("/sandboxes", json!({})).await;
    assert_eq!(spawned.status, 201, "{}", spawned.json());
    let timing = spawned.headers["server-timing"].to_str().unwrap().to_owned();
    assert!(["image;", "box;", "agent;"].iter().all(|phase| timing.contains(phase)), "{timing}");
    server.until("the image has a snapshot", async || server.get("/snapshots").await.ok()[0]["kind"] == "image").await;
    let listed = server.get("/snapshots").await.ok();
    assert_eq!((&listed[0]["provider"], &listed[0]["kernel"]), (&json!("firecracker"), &json!("6.1.0-fake")));
    let metrics = server.get("/metrics/prometheus").await;
    let metrics = String::from_utf8_lossy(&metrics.bytes).into_owned();
    for line in [
        "tidebox_image_snapshots{provider=\"firecracker\"} 1",
        "tidebox_image_snapshot_fallbacks_total{provider=\"firecracker\"} 0",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    let next = server.post("/sandboxes", json!({})).await;
    assert!(next.headers["server-timing"].to_str().unwrap().contains("restore;"), "{:?}", next.headers);

    let id_of = |answer: &Answer| answer.json()["id"].as_str().unwrap().to_owned();
    let (id, next) = (id_of(&spawned), id_of(&next));
    let path = format!("/sandboxes/{id}/pause");
    let in_memory = server.post(&path, json!({})).await.ok();
    assert_eq!((&in_memory["state"], &in_memory["on_disk"]), (&json!("paused"), &Value::Null));
    for _ in 0..2 {
        let on_disk = server.post(&path, json!({"to_disk": true})).await.ok();
        assert_eq!((&on_disk["state"], &on_disk["on_disk"]), (&json!("paused"), &json!(true)));
    }
    assert_eq!(on_disk(server).await, BTreeMap::from([(id.clone(), true), (next, false)]));
    assert!(machines.folder("boxes").join(&id).join("suspended/machine.json").exists());
    server.post(&format!("/sandboxes/{id}/extend"), json!({"ttl": "10m"})).await.ok();
    assert_eq!(state(server, &id).await, "running");
    assert!(!machines.folder("boxes").join(&id).join("suspended").exists());
    assert!(on_disk(server).await.values().all(|on_disk| !on_disk));
    let told = crate::events::history(server).await;
    let told: Vec<&str> = told.iter().filter_map(|event| event["type"].as_str()).collect();
    assert!(told.contains(&"sandbox.suspended") && told.contains(&"sandbox.resumed"), "{told:?}");
    let taken = server.post(&format!("/sandboxes/{id}/snapshots"), json!({"memory": true})).await.ok();
    assert_eq!((&taken["memory"], &taken["kernel"]), (&json!(true), &json!("6.1.0-fake")));
    server.post(&format!("/sandboxes/{id}/snapshots"), json!({"memory": false})).await.refused(
        400,
        "not_supported",
        "`memory`",
    );
    let snapshot = &taken["id"];
    let larger = json!({"snapshot": snapshot, "memory_mb": 1024});
    server.post("/sandboxes", larger).await.refused(400, "bad_request", "cannot change");
    let copy = server.post("/sandboxes", json!({"snapshot": snapshot})).await;
    assert_eq!(copy.status, 201, "{}", copy.json());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_moment_of_a_machine_loses_nothing_and_leaves_nothing() {
    let Some(mut machines) = Machines::start().await else { return };
    let origin = machines.server.spawn().await;
    let (mut sandboxes, mut snapshots) = (BTreeSet::from([origin.clone()]), BTreeSet::new());
    for round in 0..20u64 {
        let server = &machines.server;
        if matches!(round % 5, 1 | 2) {
            // A resume that was cut off leaves the machine on disk, from where neither is taken.
            server.post(&format!("/sandboxes/{origin}/resume"), json!({})).await.ok();
        }
        let (path, body) = match round % 5 {
            0 => ("/sandboxes".to_owned(), json!({})),
            1 => (format!("/sandboxes/{origin}/snapshots"), json!({})),
            2 => (format!("/sandboxes/{origin}/fork"), json!({"count": 2})),
            3 => (format!("/sandboxes/{origin}/pause"), json!({"to_disk": true})),
            _ => (format!("/sandboxes/{origin}/resume"), json!({})),
        };
        let asked = tokio::spawn(server.request(Method::POST, &path).json(&body).send());
        // A moment that differs from round to round, up to the end of the longest of them.
        tokio::time::sleep(Duration::from_millis(9 * round)).await;
        machines.server.kill();
        if let Ok(answer) = asked.await.unwrap()
            && let status = answer.status()
            && let Ok(answer) = answer.json::<Value>().await
        {
            assert!(status.is_success(), "{path}: {answer}");
            let ids = if answer.is_array() { answer.as_array().unwrap().clone() } else { vec![answer] };
            let acknowledged = if path.ends_with("/snapshots") { &mut snapshots } else { &mut sandboxes };
            acknowledged.extend(ids.iter().map(|one| one["id"].as_str().unwrap().to_owned()));
        }
        machines.server.launch().await;
        let settled = async || matches!(state(&machines.server, &origin).await.as_str(), Some("running" | "paused"));
        machines.server.until("the origin is settled", settled).await;
    }
    let server = &machines.server;
    server
        .until("half machines and half snapshots are gone", async || {
            names(&machines.folder("boxes")) == listed(server, "/sandboxes").await
                && names(&machines.folder("snapshots")) == listed(server, "/snapshots").await
        })
        .await;
    let (alive, kept) = (listed(server, "/sandboxes").await, listed(server, "/snapshots").await);
    assert!(alive.is_superset(&sandboxes), "{sandboxes:?} were acknowledged, {alive:?} are there");
    assert!(kept.is_superset(&snapshots), "{snapshots:?} were acknowledged, {kept:?} are there");
    for id in &alive {
        server.post(&format!("/sandboxes/{id}/resume"), json!({})).await.ok();
        // Its agent answers.
        server.post(&format!("/sandboxes/{id}/extend"), json!({"ttl": "10m"})).await.ok();
    }
    for snapshot in &kept {
        assert_eq!(server.post("/sandboxes", json!({"snapshot": snapshot})).await.status, 201);
        server.delete(&format!("/snapshots/{snapshot}")).await.ok();
    }
    for id in &listed(server, "/sandboxes").await {
        server.delete(&format!("/sandboxes/{id}")).await.ok();
    }
    let is_left = || processes_below(&server.data_dir());
    server.until("no process is left", async || is_left().is_empty()).await;
    server
        .until("no file is left", async || {
            ["boxes", "snapshots", "trash"].iter().all(|name| names(&machines.folder(name)).is_empty())
        })
        .await;
}

/// Returns the processes that work below a folder.
fn processes_below(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let works_there = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder.join("firecracker")))
    };
    entries.filter(works_there).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
