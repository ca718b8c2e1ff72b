//! `Idempotency-Key`.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Answer, MOCK, TestServer};

async fn spawn(server: &TestServer, key: &str, owner: &str, body: Value) -> Answer {
    let request = server.request(Method::POST, "/sandboxes").header("Idempotency-Key", key);
    Answer::read(request.header("X-User-ID", owner).json(&body).send().await.unwrap()).await
}

#[tokio::test]
async fn the_same_key_and_owner_give_the_same_sandbox_back() {
    let server = TestServer::start(MOCK).await;
    let first = spawn(&server, "k", "alice", json!({"ttl": "1m", "metadata": {"a": "1", "b": "2"}})).await;
    let reordered = json!({"metadata": {"b": "2", "a": "1"}, "ttl": "1m"});
    let again = spawn(&server, "k", "alice", reordered.clone()).await;
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (201, 201));
    assert_eq!(again.json(), first.json());
    let other = spawn(&server, "k", "bob", reordered).await.ok();
    assert_ne!(other["id"], first.json()["id"], "owners have keys of their own");
    spawn(&server, "k", "alice", json!({"ttl": "2m"})).await.refused(409, "conflict", "another request");
    assert_eq!(server.get("/sandboxes").await.ok().as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn twenty_at_once_with_one_key_make_one_sandbox() {
    let server = TestServer::start(MOCK).await;
    let body = json!({"metadata": {"mock.start_delay": "100ms"}});
    let spawns = (0..20).map(|_| spawn(&server, "k", "alice", body.clone()));
    let answers = futures_util::future::join_all(spawns).await;
    let ids: std::collections::BTreeSet<String> =
        answers.iter().map(|answer| answer.ok()["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(server.get("/sandboxes").await.ok().as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_key_outlives_a_crash_of_the_server() {
    let mut server = TestServer::start("").await;
    let first = spawn(&server, "k", "alice", json!({})).await.ok();
    server.kill();
    server.launch().await;
    assert_eq!(spawn(&server, "k", "alice", json!({})).await.ok()["id"], first["id"]);
}

#[tokio::test]
async fn a_key_is_free_again_when_its_sandbox_could_not_be_made() {
    let server = TestServer::builder(MOCK).expecting("a request failed").start().await;
    let body = json!({"metadata": {"mock.start_fail": "1"}});
    spawn(&server, "k", "alice", body.clone()).await.refused(500, "provider_error", "");
    // The mock counts failures for each box, so a second failure shows that a new box was tried.
    spawn(&server, "k", "alice", body).await.refused(500, "provider_error", "");
    spawn(&server, "k", "alice", json!({})).await.ok();
}

#[tokio::test]
async fn the_key_of_a_sandbox_that_has_ended_says_so() {
    let server = TestServer::start(MOCK).await;
    let made = spawn(&server, "k", "alice", json!({})).await.ok();
    server.delete(&format!("/sandboxes/{}", made["id"].as_str().unwrap())).await.ok();
    spawn(&server, "k", "alice", json!({})).await.refused(409, "conflict", "has ended");
}

#[tokio::test]
async fn a_refused_spawn_takes_no_key() {
    let server = TestServer::start(&format!("{MOCK} defaults.max_sandboxes=1")).await;
    let held = server.spawn().await;
    spawn(&server, "k", "alice", json!({})).await.refused(429, "resource_limit", "");
    server.delete(&format!("/sandboxes/{held}")).await.ok();
    spawn(&server, "k", "alice", json!({"ttl": "1m"})).await.ok();
}

#[tokio::test]
async fn a_spawn_from_a_template_has_keys_as_well() {
    let server = TestServer::start(MOCK).await;
    for name in ["a", "b"] {
        server.post("/templates", json!({"name": name})).await.ok();
    }
    let spawn = async |name: &str| {
        let request = server.request(Method::POST, &format!("/templates/{name}/spawn")).header("Idempotency-Key", "k");
        Answer::read(request.json(&json!({})).send().await.unwrap()).await
    };
    let first = spawn("a").await.ok();
    assert_eq!(spawn("a").await.ok()["id"], first["id"]);
    spawn("b").await.refused(409, "conflict", "another request");
}

#[tokio::test]
async fn a_key_that_is_none_is_refused() {
    let server = TestServer::start(MOCK).await;
    for key in ["", &"x".repeat(256)] {
        spawn(&server, key, "alice", json!({})).await.refused(400, "bad_request", "Idempotency-Key");
    }
    let twice =
        server.request(Method::POST, "/sandboxes").header("Idempotency-Key", "a").header("Idempotency-Key", "b");
    Answer::read(twice.json(&json!({})).send().await.unwrap()).await.refused(400, "bad_request", "twice");
}
