//! Boxes that are kept ready, and the spawns that take them.

mod snapshots;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use crate::server::{MOCK, NATIVE, TestServer};

/// Returns the figures of the entry `a`.
async fn figures(server: &TestServer) -> Value {
    let entries = server.get("/diagnostics").await.ok()["warm_pool"].clone();
    entries.as_array().unwrap().iter().find(|entry| entry["name"] == "a").expect("the entry `a`").clone()
}

/// Waits until that many boxes of the entry `a` are ready.
async fn filled(server: &TestServer, boxes: u64) {
    server.until("the pool is full", async || figures(server).await["ready"] == boxes).await;
}

async fn start(settings: &str, boxes: u64) -> TestServer {
    let server = TestServer::start(&format!("{settings} warm_pool.a.count={boxes}")).await;
    filled(&server, boxes).await;
    server
}

fn folders(server: &TestServer) -> BTreeSet<PathBuf> {
    std::fs::read_dir(server.data_dir().join("native/boxes")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Returns the first process of a box.
fn first_process(folder: &std::path::Path) -> Pid {
    let text = std::fs::read_to_string(folder.join("pid")).unwrap();
    Pid::from_raw(text.split(' ').next().unwrap().parse().unwrap()).unwrap()
}

#[tokio::test]
async fn a_spawn_takes_a_box_that_is_ready_and_another_takes_its_place() {
    let server = start(MOCK, 2).await;
    let answer = server.post("/sandboxes", json!({"owner_id": "alice", "metadata": {"a": "b"}, "ttl": "5m"})).await;
    assert_eq!(answer.status, 201, "{}", answer.json());
    let timing = answer.headers["server-timing"].to_str().unwrap().to_owned();
    let phases: Vec<&str> = timing.split(", ").filter_map(|phase| Some(phase.split_once(';')?.0)).collect();
    assert_eq!(phases, ["admission", "store", "warm_box"], "{timing}");
    let spawned = answer.json();
    let id = spawned["id"].as_str().unwrap();
    assert_eq!((&spawned["state"], &spawned["owner_id"]), (&json!("running"), &json!("alice")));
    assert_eq!(spawned["metadata"], json!({"a": "b"}));
    assert_eq!(server.output(id, "echo here").await, "here\n");
    filled(&server, 2).await;
    let figures = figures(&server).await;
    assert_eq!(
        (&figures["hits_total"], &figures["misses_total"], &figures["error"]),
        (&json!(1), &json!(0), &json!(null))
    );
    let history = crate::events::history(&server).await;
    let kinds: Vec<&str> = history.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["worker.online", "sandbox.created", "sandbox.running", "exec.started", "exec.completed"]);
}

#[tokio::test]
async fn a_spawn_that_asks_for_anything_else_has_a_box_of_its_own() {
    let server = start(&format!("{MOCK} warm_pool.a.memory_mb=128"), 1).await;
    for body in [json!({}), json!({"memory_mb": 129}), json!({"memory_mb": 128, "entrypoint": true})] {
        server.post("/sandboxes", body).await;
    }
    assert_eq!(figures(&server).await["hits_total"], 0);
    server.spawn_with(json!({"memory_mb": 128})).await;
    assert_eq!(figures(&server).await["hits_total"], 1);
}

#[tokio::test]
async fn a_burst_of_twice_the_pool_is_served_and_no_box_is_given_twice() {
    let server = start(NATIVE, 4).await;
    let ready = folders(&server);
    let spawns = join_all((0..8).map(|_| server.spawn())).await;
    let distinct: BTreeSet<&String> = spawns.iter().collect();
    assert_eq!(distinct.len(), 8);
    for id in &spawns {
        assert_eq!(server.output(id, "cat /workspace/mine 2>/dev/null; echo $? > /workspace/mine").await, "");
    }
    let of_the_pool = |id: &&String| ready.iter().any(|folder| folder.ends_with(id));
    assert!(spawns.iter().filter(of_the_pool).count() >= 4, "all that were ready are used");
    let figures = figures(&server).await;
    assert_eq!(figures["hits_total"].as_u64().unwrap() + figures["misses_total"].as_u64().unwrap(), 8, "{figures}");
    filled(&server, 4).await;
}

#[tokio::test]
async fn a_box_that_died_on_the_shelf_is_not_given_away() {
    let server = start(NATIVE, 2).await;
    for folder in folders(&server) {
        let process = pidfd_open(first_process(&folder), PidfdFlags::empty()).unwrap();
        pidfd_send_signal(&process, Signal::KILL).unwrap();
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        assert_eq!(poll(&mut ended, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })), Ok(1), "it ends");
    }
    // At once, and after the service has seen it.
    for _ in 0..2 {
        let id = server.spawn().await;
        assert_eq!(server.output(&id, "echo here").await, "here\n");
    }
    server.until("dead boxes are replaced", async || figures(&server).await["replaced_total"] == 2).await;
    filled(&server, 2).await;
    let id = server.spawn().await;
    assert_eq!(server.output(&id, "echo here").await, "here\n");
}

#[tokio::test]
async fn a_crash_keeps_what_was_taken_and_leaves_nothing_of_the_rest() {
    let mut server = start(NATIVE, 3).await;
    let id = server.spawn().await;
    server.write(&id, "/workspace/mine", "kept").await;
    let before = folders(&server);
    server.kill();
    server.launch().await;
    assert_eq!(server.output(&id, "cat /workspace/mine").await, "kept");
    filled(&server, 3).await;
    let is_gone = async || {
        let now = folders(&server);
        now.len() == 4 && before.iter().filter(|folder| now.contains(*folder)).all(|folder| folder.ends_with(&id))
    };
    server.until("boxes without a sandbox are removed", is_gone).await;
    assert_eq!(server.get("/sandboxes").await.ok().as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_server_that_stops_removes_what_was_not_taken() {
    let mut server = start(NATIVE, 3).await;
    let id = server.spawn().await;
    assert_eq!(server.terminate(), Some(0));
    let left = folders(&server);
    assert!(left.len() == 1 && left.iter().all(|folder| folder.ends_with(&id)), "{left:?}");
    server.launch().await;
    assert_eq!(server.output(&id, "echo here").await, "here\n");
}

#[tokio::test]
async fn boxes_of_the_pool_count_for_nobody_and_one_that_is_refused_goes_back() {
    let server = start(&format!("{MOCK} defaults.max_sandboxes=2"), 3).await;
    assert_eq!(server.get("/sandboxes").await.ok(), json!([]));
    for _ in 0..2 {
        server.spawn().await;
    }
    filled(&server, 3).await;
    server.post("/sandboxes", json!({})).await.refused(429, "resource_limit", "2 active");
    let figures = figures(&server).await;
    assert_eq!(
        (&figures["ready"], &figures["hits_total"], &figures["replaced_total"]),
        (&json!(3), &json!(2), &json!(0))
    );
}

#[tokio::test]
async fn boxes_follow_their_template_and_their_age() {
    let server = TestServer::start(&format!("{MOCK} warm_pool.a.template=py warm_pool.a.count=2")).await;
    server
        .until("the fault is named", async || {
            figures(&server).await["error"].as_str().is_some_and(|text| text.contains("`py`"))
        })
        .await;
    server.post("/templates", json!({"name": "py", "memory_mb": 64})).await.ok();
    filled(&server, 2).await;
    server.spawn_with(json!({"template": "py"})).await;
    // Which template it was matters no more than its values.
    server.spawn_with(json!({"memory_mb": 64})).await;
    assert_eq!(figures(&server).await["hits_total"], 2);
    filled(&server, 2).await;
    server.put("/templates/py", json!({"memory_mb": 96})).await.ok();
    server.until("they are replaced", async || figures(&server).await["replaced_total"] == 2).await;
    filled(&server, 2).await;
    server.spawn_with(json!({"template": "py"})).await;
    assert_eq!(figures(&server).await["hits_total"], 3);

    let server = start(&format!("{MOCK} warm_pool.a.max_age=1s"), 1).await;
    server.until("it is replaced", async || figures(&server).await["replaced_total"].as_u64() >= Some(2)).await;
    filled(&server, 1).await;
    assert!(figures(&server).await["oldest_ms"].as_u64().unwrap() < 5000);
}

#[tokio::test]
async fn an_image_that_is_gone_stops_its_entry_and_no_other() {
    let settings = format!("{NATIVE} warm_pool.a.image=team/gone:1 warm_pool.b.count=1");
    let server = TestServer::start(&settings).await;
    let names_it = async || figures(&server).await["error"].as_str().is_some_and(|text| text.contains("team/gone:1"));
    server.until("the fault is named", names_it).await;
    let other = async || {
        let entries = server.get("/diagnostics").await.ok()["warm_pool"].clone();
        entries[1]["name"] == "b" && entries[1]["ready"] == 1
    };
    server.until("the other entry is filled", other).await;
    server.spawn().await;
    server.post("/sandboxes", json!({"image": "team/gone:1"})).await.refused(400, "bad_request", "team/gone:1");
    let text = String::from_utf8(server.get("/metrics/prometheus").await.bytes).unwrap();
    for line in
        ["tidebox_warm_pool_wanted{entry=\"b\"} 1", "tidebox_warm_pool_spawns_total{entry=\"b\",outcome=\"hit\"} 1"]
    {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn a_sandbox_with_connections_and_a_long_life_takes_one_too() {
    let server = start(&format!("{NATIVE} defaults.max_ttl=1000h warm_pool.a.max_age=10s"), 1).await;
    let id = server.spawn_with(json!({"ttl": "999h", "egress": {"mode": "open"}})).await;
    assert_eq!(figures(&server).await["hits_total"], 1);
    let proxy = server.output(&id, "echo $HTTP_PROXY").await;
    assert!(proxy.starts_with("http://"), "{proxy}");
    let state = server.get(&format!("/sandboxes/{id}/egress")).await.ok();
    assert_eq!(state["policy"]["mode"].as_str().or(state["mode"].as_str()), Some("open"), "{state}");
    // Longer than the box would have lived on the shelf.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.output(&id, "echo here").await, "here\n");
}

#[tokio::test]
async fn a_spawn_with_a_key_that_took_a_box_is_found_again() {
    let server = start(MOCK, 2).await;
    let spawn = async || {
        let request = server.request(reqwest::Method::POST, "/sandboxes").header("idempotency-key", "one");
        crate::server::Answer::read(request.json(&json!({})).send().await.unwrap()).await.ok()["id"].clone()
    };
    assert_eq!(spawn().await, spawn().await);
    assert_eq!(figures(&server).await["hits_total"], 1);
}
