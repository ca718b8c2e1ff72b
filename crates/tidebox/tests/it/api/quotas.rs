//! `/quotas`, and the effects of a quota.

use reqwest::Method;
use serde_json::{Value, json};

use super::lifetime;
use crate::server::{Answer, MOCK, TestServer};

async fn spawn_as(server: &TestServer, owner: &str, body: Value) -> Answer {
    let request = server.request(Method::POST, "/sandboxes").header("X-User-ID", owner).json(&body);
    Answer::read(request.send().await.unwrap()).await
}

#[tokio::test]
async fn a_quota_is_saved_whole_and_comes_back_normalized() {
    let server = TestServer::start(MOCK).await;
    let body = json!({"max_sandboxes": 3, "max_ttl": "90m", "max_exec_timeout": "75s"});
    let saved = server.put("/quotas/alice", body).await.ok();
    assert_eq!((&saved["owner_id"], &saved["max_sandboxes"]), (&json!("alice"), &json!(3)));
    assert_eq!((&saved["max_ttl"], &saved["max_exec_timeout"]), (&json!("1h30m0s"), &json!("1m15s")));
    assert!(saved["created_at"].as_str().unwrap().ends_with('Z') && saved["updated_at"] == saved["created_at"]);
    assert_eq!(server.get("/quotas/alice").await.ok(), saved);
    let replaced = server.put("/quotas/alice", json!({"max_ttl": "0s"})).await.ok();
    assert_eq!((&replaced["max_sandboxes"], &replaced["max_ttl"]), (&json!(0), &json!("0s")));
    assert_eq!((&replaced["max_exec_timeout"], &replaced["created_at"]), (&json!("0s"), &saved["created_at"]));
    assert_eq!(server.get("/quotas").await.ok(), json!([replaced]));
    assert_eq!(server.delete("/quotas/alice").await.ok(), json!({"status": "deleted"}));
    server.get("/quotas/alice").await.refused(404, "not_found", "alice");
    server.delete("/quotas/alice").await.refused(404, "not_found", "alice");
    assert_eq!(server.get("/quotas").await.ok(), json!([]));
}

#[tokio::test]
async fn the_admin_paths_of_quotas_are_the_same_resource() {
    let server = TestServer::start(MOCK).await;
    let saved = server.put("/admin/quotas/alice", json!({"max_sandboxes": 1})).await.ok();
    assert_eq!(server.get("/quotas/alice").await.ok(), saved);
    assert_eq!(server.get("/admin/quotas").await.ok(), json!([saved]));
    assert_eq!(server.get("/admin/quotas/alice").await.ok(), saved);
    assert_eq!(server.get("/admin/quotas/alice/usage").await.ok(), server.get("/quotas/alice/usage").await.ok());
    assert_eq!(server.get("/admin/quotas/summary").await.ok(), server.get("/quotas/summary").await.ok());
    assert_eq!(server.delete("/admin/quotas/alice").await.ok(), json!({"status": "deleted"}));
    server.get("/quotas/alice").await.refused(404, "not_found", "alice");
}

#[tokio::test]
async fn the_summary_counts_and_names_nobody() {
    let server = TestServer::start(MOCK).await;
    server.put("/quotas/secret-owner", json!({"max_sandboxes": 3, "max_ttl": "1m"})).await.ok();
    server.put("/quotas/other", json!({"max_exec_timeout": "1m"})).await.ok();
    server.put("/quotas/third", json!({})).await.ok();
    let summary = server.get("/quotas/summary").await.ok();
    let expected = json!({"total": 3, "with_max_sandboxes": 1, "with_max_ttl": 1, "with_max_exec_timeout": 1});
    assert_eq!(summary, expected, "exactly these keys");
}

#[tokio::test]
async fn usage_shows_what_holds_with_and_without_a_quota() {
    let server = TestServer::start(&format!(
        "{MOCK} defaults.max_sandboxes_per_owner=7 defaults.max_ttl=2h defaults.max_memory_mb=600 \
         defaults.max_vcpus=1 defaults.max_disk_mb=70"
    ))
    .await;
    spawn_as(&server, "alice", json!({})).await.ok();
    let expected = |active, max, ttl, configured| {
        json!({"owner_id": "alice", "active_sandboxes": active, "max_sandboxes": max, "max_ttl": ttl,
               "max_exec_timeout": "10m0s", "max_memory_mb": 600, "max_vcpus": 1, "max_disk_mb": 70,
               "quota_configured": configured})
    };
    assert_eq!(server.get("/quotas/alice/usage").await.ok(), expected(1, 7, "2h0m0s", false));
    server.put("/quotas/alice", json!({"max_sandboxes": 2, "max_ttl": "1h"})).await.ok();
    assert_eq!(server.get("/quotas/alice/usage").await.ok(), expected(1, 2, "1h0m0s", true));
}

#[tokio::test]
async fn a_quota_that_makes_no_sense_is_refused_and_the_field_is_named() {
    let server = TestServer::start(MOCK).await;
    for (body, words) in [
        (json!({"max_sandboxes": -1}), "max_sandboxes"),
        (json!({"max_sandboxes": 1.5}), "max_sandboxes"),
        (json!({"max_sandboxes": 1_000_000_001}), "max_sandboxes"),
        (json!({"max_ttl": "soon"}), "`max_ttl`"),
        (json!({"max_ttl": ""}), "`max_ttl`"),
        (json!({"max_ttl": "-1s"}), "`max_ttl`"),
        (json!({"max_ttl": "999ms"}), "whole seconds"),
        (json!({"max_ttl": "1.5s"}), "whole seconds"),
        (json!({"max_exec_timeout": "1s500ms"}), "whole seconds"),
        (json!({"max_exec_timeout": 5}), "max_exec_timeout"),
        (json!({"max_sandbox": 1}), "unknown field"),
    ] {
        server.put("/quotas/alice", body).await.refused(400, "bad_request", words);
    }
    server.get("/quotas/alice").await.refused(404, "not_found", "alice");
}

#[tokio::test]
async fn an_owner_id_is_percent_decoded_before_it_is_checked() {
    let server = TestServer::start(MOCK).await;
    for (path, owner) in [
        ("al%69ce", "alice"),
        ("%20bob%20", "bob"),
        ("%D0%98%D0%B2%D0%B0%D0%BD", "Иван"),
        ("%E6%9D%B1%E4%BA%AC", "東京"),
        ("%F0%9F%A6%80", "🦀"),
        ("%D7%A9%D7%9C%D7%95%D7%9D", "שלום"),
        ("a%2Bb@c.d:e", "a+b@c.d:e"),
        ("%25", "%"),
    ] {
        let saved = server.put(&format!("/quotas/{path}"), json!({"max_sandboxes": 1})).await.ok();
        assert_eq!(saved["owner_id"], owner);
        assert_eq!(server.get(&format!("/quotas/{path}/usage")).await.ok()["quota_configured"], true);
    }
    let long = "x".repeat(129);
    for path in ["a%2Fb", "a%5Cb", "a%20b", "a%00b", "a%0Ab", "%20", "a%C2%85b", "a%E2%80%83b", "%FF", &long] {
        server.put(&format!("/quotas/{path}"), json!({})).await.refused(400, "bad_request", "");
        server.get(&format!("/quotas/{path}/usage")).await.refused(400, "bad_request", "");
        server.delete(&format!("/quotas/{path}")).await.refused(400, "bad_request", "");
    }
    let longest = "é".repeat(128);
    server.put(&format!("/quotas/{longest}"), json!({})).await.ok();
}

#[tokio::test]
async fn no_owner_can_be_called_like_a_route_of_the_quotas() {
    let server = TestServer::start(MOCK).await;
    let reserved = "the owner id cannot be `summary`";
    for base in ["/quotas", "/admin/quotas"] {
        server.put(&format!("{base}/summary"), json!({})).await.refused(405, "method_not_allowed", "");
        server.delete(&format!("{base}/summary")).await.refused(405, "method_not_allowed", "");
        server.get(&format!("{base}/summary/usage")).await.refused(400, "bad_request", reserved);
    }
    server.post("/sandboxes", json!({"owner_id": "summary"})).await.refused(400, "bad_request", reserved);
    server.spawn_with(json!({"owner_id": "summary2"})).await;
}

#[tokio::test]
async fn a_quota_caps_the_sandboxes_of_its_owner_and_of_nobody_else() {
    let server = TestServer::start(MOCK).await;
    server.put("/quotas/alice", json!({"max_sandboxes": 1})).await.ok();
    let first = spawn_as(&server, "alice", json!({})).await.ok();
    spawn_as(&server, "alice", json!({})).await.refused(429, "resource_limit", "maximum of 1");
    spawn_as(&server, "bob", json!({})).await.ok();
    server.post("/sandboxes", json!({})).await.ok();
    server.delete(&format!("/sandboxes/{}", first["id"].as_str().unwrap())).await.ok();
    spawn_as(&server, "alice", json!({})).await.ok();
    server.put("/quotas/alice", json!({"max_sandboxes": 2})).await.ok();
    spawn_as(&server, "alice", json!({})).await.ok();
    server.delete("/quotas/alice").await.ok();
    spawn_as(&server, "alice", json!({})).await.ok();
}

#[tokio::test]
async fn the_limits_on_time_are_those_of_the_sandboxes_owner_whoever_asks() {
    let server = TestServer::start(MOCK).await;
    server.put("/quotas/alice", json!({"max_ttl": "50s", "max_exec_timeout": "1s"})).await.ok();
    spawn_as(&server, "alice", json!({"ttl": "51s"})).await.refused(429, "resource_limit", "50s");
    let made = spawn_as(&server, "alice", json!({})).await.ok();
    assert_eq!(lifetime(&made), 50, "an omitted lifetime is lowered");
    let path = format!("/sandboxes/{}", made["id"].as_str().unwrap());
    // A request without an owner, and one of another owner: the owner of the sandbox counts.
    let answer = server.post(&format!("{path}/extend"), json!({"ttl": "51s"})).await;
    answer.refused(429, "resource_limit", "50s");
    assert!(!answer.headers.contains_key("retry-after"), "waiting does not cure it");
    server.post(&format!("{path}/extend"), json!({"ttl": "50s"})).await.ok();
    for stream in [false, true] {
        let body = json!({"command": "true", "timeout": "2s", "stream": stream});
        server.post(&format!("{path}/exec"), body).await.refused(429, "resource_limit", "1s");
    }
    let slow = server.post(&format!("{path}/exec"), json!({"command": "sleep 30"})).await.ok();
    assert_eq!((&slow["exit_code"], &slow["timed_out"]), (&json!(124), &json!(true)));
    // A quota may also allow more than the global maximum.
    server.put("/quotas/alice", json!({"max_ttl": "48h"})).await.ok();
    server.post(&format!("{path}/extend"), json!({"ttl": "48h"})).await.ok();
}

#[tokio::test]
async fn a_template_above_an_owners_limit_is_lowered_and_an_override_above_it_is_refused() {
    let server = TestServer::start(MOCK).await;
    server.put("/quotas/alice", json!({"max_ttl": "10s"})).await.ok();
    server.post("/templates", json!({"name": "long", "ttl": "1h"})).await.ok();
    let spawn = |body: Value| {
        let request = server.request(Method::POST, "/templates/long/spawn").header("X-User-ID", "alice").json(&body);
        async { Answer::read(request.send().await.unwrap()).await }
    };
    let made = spawn(json!({})).await.ok();
    assert_eq!((&made["owner_id"], lifetime(&made)), (&json!("alice"), 10));
    spawn(json!({"ttl": "11s"})).await.refused(429, "resource_limit", "10s");
}

#[tokio::test]
async fn hundreds_of_owners_take_no_place_when_they_are_gone() {
    let server = TestServer::start(&format!("{MOCK} defaults.max_sandboxes_per_owner=1")).await;
    let http = &server;
    let round = |n: usize| async move {
        for k in 0..20 {
            let made = spawn_as(http, &format!("owner-{n}-{k}"), json!({})).await.ok();
            http.delete(&format!("/sandboxes/{}", made["id"].as_str().unwrap())).await.ok();
        }
    };
    futures_util::future::join_all((0..20).map(round)).await;
    let usage = server.get("/quotas/owner-3-3/usage").await.ok();
    assert_eq!((&usage["active_sandboxes"], &usage["quota_configured"]), (&json!(0), &json!(false)));
}

#[tokio::test]
async fn an_owner_at_its_cap_does_not_fill_the_queue() {
    let queue = "defaults.spawn_overflow=queue defaults.spawn_queue_timeout=1m defaults.max_spawn_queue=4";
    let server = TestServer::start(&format!("{MOCK} {queue} defaults.max_sandboxes_per_owner=1")).await;
    for owner in ["greedy", "modest"] {
        assert_eq!(spawn_as(&server, owner, json!({})).await.status, 201);
    }
    let depth = async || server.get("/metrics").await.ok()["scheduler"]["spawn_queue_depth"].clone();
    let waits = |owner| server.request(Method::POST, "/sandboxes").header("X-User-ID", owner).json(&json!({})).send();
    let mut waiting = Vec::new();
    for (owner, expected) in [("greedy", 1), ("greedy", 2), ("modest", 3)] {
        waiting.push(tokio::spawn(waits(owner)));
        server.until("it waits", async || depth().await == expected).await;
    }
    let refused = spawn_as(&server, "greedy", json!({})).await;
    refused.refused(429, "resource_limit", "its full share of the queue (`defaults.max_spawn_queue_per_owner`)");
    for waiting in waiting {
        waiting.abort();
    }
    server.until("they left", async || depth().await == 0).await;
}
