//! `/sandboxes/admission`.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Answer, MOCK, TestServer};

async fn decide(server: &TestServer, owner: Option<&str>, body: Value) -> Answer {
    let mut request = server.request(Method::POST, "/sandboxes/admission").json(&body);
    if let Some(owner) = owner {
        request = request.header("X-User-ID", owner);
    }
    Answer::read(request.send().await.unwrap()).await
}

#[tokio::test]
async fn the_decision_has_exactly_the_specified_keys_and_makes_nothing() {
    let server =
        TestServer::start(&format!("{MOCK} defaults.max_sandboxes=2 defaults.max_sandboxes_per_owner=1")).await;
    let decision = decide(&server, Some("alice"), json!({"owner_id": "bob"})).await.ok();
    let expected = json!({"allowed": true, "queueable": false, "active_sandboxes": 0, "max_sandboxes": 2,
        "active_owner_sandboxes": 0, "max_owner_sandboxes": 1, "max_ttl": "24h0m0s"});
    assert_eq!(decision, expected);
    assert_eq!(server.get("/sandboxes").await.ok(), json!([]));
}

#[tokio::test]
async fn the_first_reason_that_applies_is_given() {
    let settings = format!("{MOCK} defaults.max_sandboxes=2 defaults.max_sandboxes_per_owner=1 defaults.max_ttl=1h");
    let server = TestServer::start(&settings).await;
    let reason = async |owner: Option<&str>, body: Value| decide(&server, owner, body).await.ok()["reason"].clone();
    server.post("/sandboxes", json!({"owner_id": "alice"})).await.ok();
    assert_eq!(reason(Some("alice"), json!({})).await, "max_sandboxes_per_owner");
    assert_eq!(reason(None, json!({"owner_id": "alice"})).await, "max_sandboxes_per_owner");
    assert_eq!(reason(Some("bob"), json!({"owner_id": "alice"})).await, Value::Null, "the header overrides");
    assert_eq!(reason(None, json!({})).await, Value::Null, "without an owner there is no owner's cap");
    server.post("/sandboxes", json!({"metadata": {"mock.health": "broken"}})).await.ok();
    server.post("/providers/test", json!({})).await.ok();
    assert_eq!(reason(Some("alice"), json!({})).await, "max_sandboxes", "before the owner's cap and the provider");
    assert_eq!(reason(Some("alice"), json!({"ttl": "2h"})).await, "max_ttl", "before all others");
}

#[tokio::test]
async fn no_provider_that_works_is_no_eligible_worker() {
    let server = TestServer::start(&format!("{MOCK} defaults.spawn_overflow=queue")).await;
    server.post("/sandboxes", json!({"metadata": {"mock.health": "broken"}})).await.ok();
    server.post("/providers/test", json!({})).await.ok();
    let decision = decide(&server, None, json!({})).await.ok();
    assert_eq!((&decision["allowed"], &decision["reason"]), (&json!(false), &json!("no_eligible_worker")));
    assert_eq!(decision["queueable"], false, "waiting for room does not cure it");
    server.post("/sandboxes", json!({})).await.refused(503, "unavailable", "broken");
}

#[tokio::test]
async fn capacity_is_queueable_only_with_a_queue_and_a_lifetime_never() {
    for (overflow, queueable) in [("reject", false), ("queue", true)] {
        let settings =
            format!("{MOCK} defaults.max_sandboxes=1 defaults.max_ttl=1h defaults.spawn_overflow={overflow}");
        let server = TestServer::start(&settings).await;
        server.spawn().await;
        let full = decide(&server, None, json!({})).await.ok();
        assert_eq!((&full["reason"], &full["queueable"]), (&json!("max_sandboxes"), &json!(queueable)));
        let long = decide(&server, None, json!({"ttl": "2h"})).await.ok();
        assert_eq!((&long["reason"], &long["queueable"]), (&json!("max_ttl"), &json!(false)));
        assert_eq!(long["allowed"], false);
    }
}

#[tokio::test]
async fn an_owners_quota_is_what_the_decision_shows() {
    let server = TestServer::start(MOCK).await;
    server.put("/quotas/alice", json!({"max_sandboxes": 5, "max_ttl": "10s"})).await.ok();
    let decision = decide(&server, Some("alice"), json!({})).await.ok();
    assert_eq!((&decision["max_owner_sandboxes"], &decision["max_ttl"]), (&json!(5), &json!("10s")));
}

#[tokio::test]
async fn what_no_spawn_could_be_is_refused_like_a_spawn() {
    let server = TestServer::start(MOCK).await;
    for (body, status, code) in [
        (json!({"ttl": "0s"}), 400, "bad_request"),
        (json!({"provider": "nope"}), 404, "not_found"),
        (json!({"provider": "nope", "ttl": "9000h"}), 404, "not_found"),
        (json!({"memory_mb": 0}), 400, "bad_request"),
        (json!({"memory_mb": 0, "ttl": "9000h"}), 400, "bad_request"),
        (json!({"owner_id": "a b"}), 400, "bad_request"),
        (json!({"imag": "x"}), 400, "bad_request"),
        (json!({"template": "nope"}), 404, "not_found"),
    ] {
        decide(&server, None, body.clone()).await.refused(status, code, "");
        server.post("/sandboxes", body).await.json();
    }
    decide(&server, Some("a/b"), json!({})).await.refused(400, "bad_request", "X-User-ID");
}
