//! Snapshots of sandboxes, sandboxes of snapshots, and forks.

mod elsewhere;

use std::collections::BTreeSet;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::cli::{succeeds, tidebox};
use crate::server::{MOCK, NATIVE, TestServer};

/// Takes a snapshot and returns it.
async fn take(server: &TestServer, id: &str, body: Value) -> Value {
    let answer = server.post(&format!("/sandboxes/{id}/snapshots"), body).await;
    assert_eq!(answer.status, 201, "{}", answer.json());
    answer.json()
}

async fn take_id(server: &TestServer, id: &str) -> String {
    take(server, id, json!({})).await["id"].as_str().unwrap().to_owned()
}

async fn fork(server: &TestServer, id: &str, body: Value) -> Vec<Value> {
    let answer = server.post(&format!("/sandboxes/{id}/fork"), body).await;
    assert_eq!(answer.status, 201, "{}", answer.json());
    answer.json().as_array().unwrap().clone()
}

async fn ids(server: &TestServer, path: &str) -> Vec<String> {
    let listed = server.get(path).await.ok();
    listed.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

async fn read(server: &TestServer, id: &str, path: &str) -> String {
    server.output(id, &format!("cat {path}")).await
}

/// Returns the actions of the reconciler on snapshots so far.
async fn actions(server: &TestServer) -> Vec<String> {
    let history = crate::events::history(server).await;
    let actions = history.iter().filter(|event| event["type"] == "reconcile.action");
    let actions = actions.map(|event| event["data"]["action"].as_str().unwrap().to_owned());
    actions.filter(|action| action.starts_with("snapshot")).collect()
}

#[tokio::test]
async fn a_snapshot_is_described_listed_and_removed() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn_with(json!({"owner_id": "alice", "image": "a-box"})).await;
    let other = server.spawn_with(json!({"owner_id": "bob"})).await;
    let taken = take(&server, &id, json!({"name": "before_1.0"})).await;
    let second = take_id(&server, &other).await;
    let snapshot = taken["id"].as_str().unwrap();
    assert_eq!(
        (&taken["name"], &taken["owner_id"], &taken["sandbox_id"]),
        (&json!("before_1.0"), &json!("alice"), &json!(id))
    );
    assert_eq!(
        (&taken["provider"], &taken["image"], &taken["memory"]),
        (&json!("mock"), &json!("a-box"), &json!(false))
    );
    assert_eq!(taken["kind"], "sandbox");
    assert!(taken["size_bytes"].as_u64().unwrap() > 0 && !taken["kernel"].as_str().unwrap().is_empty(), "{taken}");
    assert_eq!(server.get(&format!("/snapshots/{snapshot}")).await.ok(), taken);
    assert_eq!(ids(&server, "/snapshots").await, [second.as_str(), snapshot]);
    assert_eq!(ids(&server, "/snapshots?owner_id=alice").await, [snapshot]);
    assert_eq!(ids(&server, &format!("/snapshots?sandbox_id={other}")).await, [second.as_str()]);
    assert!(ids(&server, &format!("/snapshots?owner_id=alice&sandbox_id={other}")).await.is_empty());
    server.delete(&format!("/snapshots/{snapshot}")).await.ok();
    server.get(&format!("/snapshots/{snapshot}")).await.refused(404, "not_found", snapshot);
    server.delete(&format!("/snapshots/{snapshot}")).await.refused(404, "not_found", snapshot);
    assert_eq!(ids(&server, "/snapshots").await, [second]);
    let history = crate::events::history(&server).await;
    let kinds: Vec<&Value> = history.iter().filter(|event| event["data"]["snapshot_id"] == snapshot).collect();
    let kinds: Vec<&str> = kinds.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["snapshot.created", "snapshot.deleted"]);
}

#[tokio::test]
async fn a_sandbox_of_a_snapshot_has_its_files_and_keeps_its_changes_to_itself() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn_with(json!({"memory_mb": 128, "image": "a-box"})).await;
    server.write(&id, "/workspace/a", "one").await;
    let snapshot = take_id(&server, &id).await;
    server.write(&id, "/workspace/a", "two").await;
    let made = server.post("/sandboxes", json!({"snapshot": snapshot})).await;
    assert_eq!(made.status, 201);
    let made = made.json();
    assert_eq!((&made["memory_mb"], &made["image"]), (&json!(128), &json!("a-box")), "{made}");
    let copy = made["id"].as_str().unwrap().to_owned();
    assert_eq!(read(&server, &copy, "/workspace/a").await, "one");
    server.write(&copy, "/workspace/a", "three").await;
    let larger = server.spawn_with(json!({"snapshot": snapshot, "memory_mb": 256})).await;
    assert_eq!(server.get(&format!("/sandboxes/{larger}")).await.ok()["memory_mb"], 256);
    assert_eq!(read(&server, &larger, "/workspace/a").await, "one");
    assert_eq!(read(&server, &id, "/workspace/a").await, "two");
    // What was made of it goes on without it, and without its origin.
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    let later = server.spawn_with(json!({"snapshot": snapshot})).await;
    server.delete(&format!("/snapshots/{snapshot}")).await.ok();
    assert_eq!(read(&server, &copy, "/workspace/a").await, "three");
    assert_eq!(read(&server, &later, "/workspace/a").await, "one");
}

#[tokio::test]
async fn a_spawn_of_a_snapshot_names_nothing_that_contradicts_it() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let snapshot = take_id(&server, &id).await;
    server.post("/templates", json!({"name": "py"})).await.ok();
    for (field, value) in
        [("image", json!("host")), ("template", json!("py")), ("prepare", json!([{"command": "true"}]))]
    {
        let mut body = json!({"snapshot": snapshot});
        body[field] = value;
        for path in ["/sandboxes", "/sandboxes/admission"] {
            server.post(path, body.clone()).await.refused(400, "bad_request", &format!("`{field}`"));
        }
    }
    for unknown in ["snap-aaaaaaaaaaaaaaaa", "snap", "../../etc", "sb-aaaaaaaaaaaaaaaa"] {
        for path in ["/sandboxes", "/sandboxes/admission"] {
            server.post(path, json!({"snapshot": unknown})).await.refused(404, "not_found", unknown);
        }
    }
    server.post("/sandboxes", json!({"snapshot": ""})).await.refused(400, "bad_request", "`snapshot`");
    server.post("/templates", json!({"name": "x", "snapshot": snapshot})).await.refused(400, "bad_request", "snapshot");
    server.spawn_with(json!({"snapshot": snapshot, "provider": "mock", "prepare": []})).await;
}

#[tokio::test]
async fn an_owner_has_as_many_snapshots_as_one_may_have_and_others_have_theirs() {
    let server = TestServer::start(&format!("{MOCK} snapshots.max_per_owner=1")).await;
    let ids = [
        server.spawn_with(json!({"owner_id": "alice"})).await,
        server.spawn_with(json!({"owner_id": "bob"})).await,
        server.spawn().await,
    ];
    for id in &ids {
        take_id(&server, id).await;
    }
    let path = |id: &str| format!("/sandboxes/{id}/snapshots");
    server.post(&path(&ids[0]), json!({})).await.refused(429, "resource_limit", "snapshots.max_per_owner");
    assert_eq!(server.post(&path(&ids[2]), json!({})).await.status, 201);
    let fork = server.post(&format!("/sandboxes/{}/fork", ids[0]), json!({})).await;
    assert_eq!(fork.status, 201, "a fork keeps none");
}

#[tokio::test]
async fn bad_requests_for_snapshots_say_why() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/snapshots");
    for name in ["", "a b", "ä", "a/b", &"x".repeat(65)] {
        server.post(&path, json!({"name": name})).await.refused(400, "bad_request", "`name` must be 1 to 64");
    }
    server.post(&path, json!({"memory": true})).await.refused(400, "not_supported", "`memory`");
    let files = take(&server, &id, json!({"memory": false})).await;
    server.delete(&format!("/snapshots/{}", files["id"].as_str().unwrap())).await.ok();
    server.post(&path, json!({"nmae": "a"})).await.refused(400, "bad_request", "nmae");
    server.get("/snapshots?owner=alice").await.refused(400, "bad_request", "owner");
    server.get("/snapshots?sandbox_id=a").await.refused(400, "bad_request", "`sandbox_id`");
    let unknown = "sb-aaaaaaaaaaaaaaaa";
    server.post(&format!("/sandboxes/{unknown}/snapshots"), json!({})).await.refused(404, "not_found", unknown);
    server.post(&format!("/sandboxes/{unknown}/fork"), json!({})).await.refused(404, "not_found", unknown);
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    server.post(&path, json!({})).await.refused(404, "not_found", &id);
    assert_eq!(server.get("/snapshots").await.ok(), json!([]));
}

#[tokio::test]
async fn a_sandbox_that_is_being_destroyed_has_no_snapshots() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn_with(json!({"metadata": {"mock.stop_delay": "2s"}})).await;
    let destroy = tokio::spawn(server.request(Method::DELETE, &format!("/sandboxes/{id}")).send());
    server
        .until("its removal", async || server.get(&format!("/sandboxes/{id}")).await.ok()["state"] == "destroying")
        .await;
    for path in ["snapshots", "fork"] {
        let answer = server.post(&format!("/sandboxes/{id}/{path}"), json!({})).await;
        assert!([404, 409].contains(&answer.status.as_u16()), "{path}: {}", answer.json());
    }
    destroy.await.unwrap().unwrap();
    assert_eq!(server.get("/snapshots").await.ok(), json!([]));
}

#[tokio::test]
async fn a_snapshot_that_fails_leaves_nothing() {
    let mut server = TestServer::start(MOCK).await;
    server.expect_trouble("a request failed");
    let id = server.spawn_with(json!({"metadata": {"mock.snapshot_fail": "1"}})).await;
    let path = format!("/sandboxes/{id}/snapshots");
    server.post(&path, json!({})).await.refused(500, "provider_error", "mock");
    assert_eq!(server.get("/snapshots").await.ok(), json!([]));
    take(&server, &id, json!({})).await;
}

#[tokio::test]
async fn snapshots_are_bounded_in_number_and_in_size() {
    let server = TestServer::start(&format!("{MOCK} snapshots.max=2 snapshots.max_mb=1")).await;
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/snapshots");
    let first = take_id(&server, &id).await;
    take_id(&server, &id).await;
    server.post(&path, json!({})).await.refused(429, "resource_limit", "`snapshots.max`");
    assert_eq!(fork(&server, &id, json!({})).await.len(), 1, "a fork needs no place");
    server.delete(&format!("/snapshots/{first}")).await.ok();
    server.write(&id, "/workspace/large", &"x".repeat(1 << 20)).await;
    server.post(&path, json!({})).await.refused(429, "resource_limit", "`snapshots.max_mb`");
    assert_eq!(ids(&server, "/snapshots").await.len(), 1);
    server.exec(&id, "rm /workspace/large").await;
    take_id(&server, &id).await;
}

#[tokio::test]
async fn what_copies_keep_of_their_origins_counts_to_the_bound_and_is_theirs() {
    if !rustix::process::geteuid().is_root() {
        fixtures::skip("snapshots", "only root has snapshots on `native`");
        return;
    }
    let server = TestServer::start(&format!("{NATIVE} snapshots.max_mb=50")).await;
    let mut id = server.spawn().await;
    for round in 0..2 {
        server.output(&id, &format!("head -c 20000000 /dev/urandom > /workspace/{round}; sync; echo written")).await;
        let copy = fork(&server, &id, json!({})).await.remove(0);
        server.delete(&format!("/sandboxes/{id}")).await.ok();
        id = copy["id"].as_str().unwrap().to_owned();
    }
    let used = server.get(&format!("/sandboxes/{id}/stats")).await.ok()["disk"]["used_bytes"].as_u64().unwrap();
    assert!(used >= 40_000_000, "{used}");
    server.output(&id, "head -c 20000000 /dev/urandom > /workspace/more; sync; echo written").await;
    let path = format!("/sandboxes/{id}/fork");
    server.post(&path, json!({})).await.refused(429, "resource_limit", "`snapshots.max_mb`");
    // What has gone makes room.
    let other = server.spawn().await;
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    take_id(&server, &other).await;
}

#[tokio::test]
async fn concurrent_requests_do_not_exceed_the_bound() {
    let server = TestServer::start(&format!("{MOCK} snapshots.max=3")).await;
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/snapshots");
    let answers = join_all((0..8).map(|_| server.post(&path, json!({})))).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 3);
    assert_eq!(ids(&server, "/snapshots").await.len(), 3);
}

#[tokio::test]
async fn a_fork_is_as_its_origin() {
    let server = TestServer::start(MOCK).await;
    let id = server
        .spawn_with(json!({
            "owner_id": "alice", "memory_mb": 96, "metadata": {"a": "1", "b": "1"},
            "egress": {"mode": "allow-list", "allow": ["a.example"]},
        }))
        .await;
    server.write(&id, "/workspace/a", "one").await;
    let copies = fork(&server, &id, json!({"count": 3, "ttl": "5m", "metadata": {"b": "2"}})).await;
    let distinct: BTreeSet<&str> = copies.iter().map(|copy| copy["id"].as_str().unwrap()).collect();
    assert_eq!(distinct.len(), 3);
    for copy in &copies {
        let copy_id = copy["id"].as_str().unwrap();
        assert_eq!((&copy["state"], &copy["owner_id"]), (&json!("running"), &json!("alice")));
        assert_eq!((&copy["memory_mb"], &copy["metadata"]), (&json!(96), &json!({"a": "1", "b": "2"})));
        let egress = server.get(&format!("/sandboxes/{copy_id}/egress")).await.ok();
        assert_eq!(egress["policy"], server.get(&format!("/sandboxes/{id}/egress")).await.ok()["policy"]);
        assert_eq!(read(&server, copy_id, "/workspace/a").await, "one");
        server.write(copy_id, "/workspace/a", copy_id).await;
    }
    assert_eq!(read(&server, &id, "/workspace/a").await, "one");
    for copy_id in distinct {
        assert_eq!(read(&server, copy_id, "/workspace/a").await, copy_id);
    }
    assert_eq!(server.get("/snapshots").await.ok(), json!([]), "its own snapshot is gone");
    assert_eq!(fork(&server, &id, json!({})).await.len(), 1, "one unless another number is asked for");
}

#[tokio::test]
async fn a_count_out_of_bounds_forks_nothing() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    for count in [0, 101] {
        let answer = server.post(&format!("/sandboxes/{id}/fork"), json!({"count": count})).await;
        answer.refused(400, "bad_request", "`count` must be 1 to 100");
    }
    let answer = server.post(&format!("/sandboxes/{id}/fork"), json!({"count": 2, "ttl": "1000h"})).await;
    answer.refused(429, "resource_limit", "`ttl`");
    assert_eq!(ids(&server, "/sandboxes").await, [id]);
}

#[tokio::test]
async fn a_fork_of_a_hundred_with_room_for_ten_leaves_none_behind() {
    let server = TestServer::start(&format!("{MOCK} defaults.max_sandboxes=10")).await;
    let id = server.spawn().await;
    let answer = server.post(&format!("/sandboxes/{id}/fork"), json!({"count": 100})).await;
    answer.refused(429, "resource_limit", "10 active sandboxes");
    assert_eq!(ids(&server, "/sandboxes").await, [id.as_str()]);
    assert_eq!(fork(&server, &id, json!({"count": 9})).await.len(), 9);
    assert_eq!(ids(&server, "/sandboxes").await.len(), 10);
}

#[tokio::test]
async fn copies_whose_caller_has_gone_are_removed() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn_with(json!({"metadata": {"mock.start_delay": "1s"}})).await;
    let request = server.request(Method::POST, &format!("/sandboxes/{id}/fork")).json(&json!({"count": 3}));
    let fork = tokio::spawn(request.send());
    server.until("copies", async || ids(&server, "/sandboxes").await.len() == 4).await;
    fork.abort();
    server.until("their removal", async || ids(&server, "/sandboxes").await == [id.as_str()]).await;
}

#[tokio::test]
async fn a_paused_sandbox_has_snapshots_and_copies_and_stays_paused() {
    if !rustix::process::geteuid().is_root() {
        fixtures::skip("pause", "only root can freeze a control group");
        return;
    }
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    server.write(&id, "/workspace/f", "kept").await;
    server.post(&format!("/sandboxes/{id}/pause"), json!({})).await.ok();
    let snapshot = take_id(&server, &id).await;
    let copies = fork(&server, &id, json!({"count": 2})).await;
    let made = server.spawn_with(json!({"snapshot": snapshot})).await;
    for copy in copies.iter().map(|copy| copy["id"].as_str().unwrap()).chain([made.as_str()]) {
        assert_eq!(read(&server, copy, "/workspace/f").await, "kept");
    }
    assert_eq!(server.get(&format!("/sandboxes/{id}")).await.ok()["state"], "paused");
}

#[tokio::test]
async fn a_snapshot_that_a_crash_left_unfinished_is_removed() {
    let mut server = TestServer::start(MOCK).await;
    for path in ["snapshots", "fork"] {
        let id = server.spawn_with(json!({"metadata": {"mock.snapshot_delay": "1h"}})).await;
        let request = server.request(Method::POST, &format!("/sandboxes/{id}/{path}")).json(&json!({}));
        let take = tokio::spawn(request.send());
        let store = server.data_dir().join("tidebox.db");
        server.until("the row", async || rows(&store).await == ["creating"]).await;
        server.kill();
        assert!(take.await.unwrap().is_err());
        server.launch().await;
        server.until("its removal", async || rows(&store).await.is_empty()).await;
        let said = async || actions(&server).await.contains(&"snapshot_removed".to_owned());
        server.until("the event", said).await;
        assert_eq!(server.get("/snapshots").await.ok(), json!([]));
    }
}

#[tokio::test]
async fn snapshots_that_are_lost_are_listed_no_more() {
    let mut server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let snapshot = take_id(&server, &id).await;
    server.kill();
    // Snapshots of the mock end with the process.
    server.launch().await;
    server.until("the row is gone", async || server.get("/snapshots").await.ok() == json!([])).await;
    server.post("/sandboxes", json!({"snapshot": snapshot})).await.refused(404, "not_found", &snapshot);
    server.until("the event", async || actions(&server).await == ["snapshot_lost"]).await;
}

#[tokio::test]
async fn users_of_shared_boxes_have_no_snapshots() {
    let server = TestServer::start(&format!("{MOCK} pool.enabled=true")).await;
    let ask = async |method: Method, path: &str| {
        let request = server.request(method, path).header("x-user-id", "alice").json(&json!({}));
        crate::server::Answer::read(request.send().await.unwrap()).await
    };
    let spawned = ask(Method::POST, "/sandboxes").await.ok();
    let id = spawned["id"].as_str().unwrap();
    for path in ["snapshots", "fork"] {
        let answer = ask(Method::POST, &format!("/sandboxes/{id}/{path}")).await;
        answer.refused(400, "not_supported", "`pool.enabled`");
    }
    for method in [Method::GET, Method::DELETE] {
        ask(method, "/snapshots/snap-aaaaaaaaaaaaaaaa").await.refused(400, "not_supported", "`pool.enabled`");
    }
    let answer = server.request(Method::POST, "/sandboxes").header("x-user-id", "alice");
    let answer = answer.json(&json!({"snapshot": "snap-aaaaaaaaaaaaaaaa"})).send().await.unwrap();
    crate::server::Answer::read(answer).await.refused(400, "not_supported", "`pool.enabled`");
}

#[tokio::test]
async fn a_spawn_of_a_snapshot_takes_no_box_that_is_ready() {
    let server = TestServer::start(&format!("{MOCK} warm_pool.a.count=1")).await;
    let ready = async || server.get("/diagnostics").await.ok()["warm_pool"][0]["ready"] == 1;
    server.until("the pool is full", ready).await;
    let id = server.spawn().await;
    server.until("the pool is full", ready).await;
    server.write(&id, "/workspace/a", "one").await;
    let snapshot = take_id(&server, &id).await;
    let copy = server.spawn_with(json!({"snapshot": snapshot})).await;
    assert_eq!(read(&server, &copy, "/workspace/a").await, "one");
}

#[tokio::test]
async fn the_command_line_takes_uses_and_removes_snapshots_and_forks() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    server.write(&id, "/workspace/a", "one").await;
    let taken = succeeds(&server, &["snapshot", "create", &id, "--name", "first"]);
    let snapshot = taken.trim().to_owned();
    assert_eq!(ids(&server, "/snapshots").await, [snapshot.as_str()]);
    let listed = succeeds(&server, &["snapshot", "ls"]);
    assert!(listed.contains(&snapshot) && listed.contains("first"), "{listed}");
    let shown = succeeds(&server, &["snapshot", "get", &snapshot]);
    assert!(shown.contains(&id), "{shown}");
    let copy = succeeds(&server, &["spawn", "--snapshot", &snapshot]).trim().to_owned();
    assert_eq!(read(&server, &copy, "/workspace/a").await, "one");
    let forks = succeeds(&server, &["fork", &id, "--count", "2", "--ttl", "5m"]);
    for copy in forks.lines() {
        assert_eq!(read(&server, copy, "/workspace/a").await, "one");
    }
    assert_eq!(forks.lines().count(), 2);
    succeeds(&server, &["snapshot", "rm", &snapshot]);
    assert_eq!(server.get("/snapshots").await.ok(), json!([]));
    let missing = tidebox(&server, &["snapshot", "rm", &snapshot], b"");
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(missing.status.code() == Some(1) && said.contains("does not exist"), "{said}");
    let both = tidebox(&server, &["spawn", "--snapshot", &snapshot, "--image", "host"], b"");
    assert_eq!(both.status.code(), Some(2));
    let many = tidebox(&server, &["fork", &id, "--count", "101"], b"");
    assert_eq!(many.status.code(), Some(2));
}

/// Returns the states of the rows of snapshots.
async fn rows(store: &std::path::Path) -> Vec<String> {
    use sqlx::Connection;
    let url = format!("sqlite:{}?mode=ro", store.display());
    let mut connection = sqlx::sqlite::SqliteConnection::connect(&url).await.unwrap();
    let rows = sqlx::query_scalar("SELECT state FROM snapshots").fetch_all(&mut connection).await;
    connection.close().await.unwrap();
    rows.unwrap()
}
