//! `/sandboxes`.

use serde_json::json;

use crate::server::{MOCK, TestServer};

#[tokio::test]
async fn a_spawn_answers_with_the_whole_sandbox() {
    let server = TestServer::start(&format!("{MOCK} defaults.max_vcpus=2")).await;
    let answer = server
        .post(
            "/sandboxes",
            json!({"memory_mb": 64, "vcpus": 2, "ttl": "90s", "metadata": {"a": "b"}, "owner_id": "alice"}),
        )
        .await;
    assert_eq!(answer.status, 201);
    let body = answer.json();
    let id = body["id"].as_str().unwrap();
    assert!(id.starts_with("sb-") && id.len() == 19, "{id}");
    for (key, value) in [
        ("state", json!("running")),
        ("provider", json!("mock")),
        ("memory_mb", json!(64)),
        ("vcpus", json!(2)),
        ("metadata", json!({"a": "b"})),
        ("owner_id", json!("alice")),
        ("worker_id", json!("local")),
        ("preview_domain", json!("localhost")),
    ] {
        assert_eq!(body[key], value, "{key}");
    }
    let timing = answer.headers["server-timing"].to_str().unwrap();
    let names: Vec<&str> = timing.split(", ").filter_map(|part| part.split(';').next()).collect();
    assert!(names.starts_with(&["admission", "store"]) && names.contains(&"box"), "{timing}");

    let mut seen = server.get(&format!("/sandboxes/{id}")).await.ok();
    seen["preview_domain"] = json!("localhost");
    assert_eq!(seen, body, "GET shows the same but the domain for previews");
}

#[tokio::test]
async fn an_empty_body_means_the_defaults() {
    let server = TestServer::start(MOCK).await;
    let answer = server.request(reqwest::Method::POST, "/sandboxes").send().await.unwrap();
    assert_eq!(answer.status(), 201);
    let body: serde_json::Value = answer.json().await.unwrap();
    assert_eq!((&body["memory_mb"], &body["vcpus"]), (&json!(512), &json!(1)));
}

#[tokio::test]
async fn the_header_overrides_the_owner_of_the_body() {
    let server = TestServer::start(MOCK).await;
    let spawn = server
        .request(reqwest::Method::POST, "/sandboxes")
        .header("X-User-ID", " bob ")
        .json(&json!({"owner_id": "alice"}));
    let body: serde_json::Value = spawn.send().await.unwrap().json().await.unwrap();
    assert_eq!(body["owner_id"], "bob");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_says_why() {
    let server = TestServer::start(MOCK).await;
    for (body, code, words) in [
        (json!({"ttl": "0s"}), "bad_request", "`ttl` must be longer than zero"),
        (json!({"ttl": "-5m"}), "bad_request", "`ttl`: `-5m` is negative"),
        (json!({"ttl": "soon"}), "bad_request", "is not a duration"),
        (json!({"memory_mb": 1}), "bad_request", "memory_mb must be between"),
        (json!({"vcpus": 0}), "bad_request", "vcpus must be between"),
        (json!({"image": ""}), "bad_request", "`image`"),
        (json!({"owner_id": "a/b"}), "bad_request", "`owner_id`"),
        (json!({"metadata": {"": "x"}}), "bad_request", "metadata keys"),
    ] {
        server.post("/sandboxes", body).await.refused(400, code, words);
    }
    server.post("/sandboxes", json!({"ttl": "25h"})).await.refused(429, "resource_limit", "maximum of 24h0m0s");
    server.post("/sandboxes", json!({"template": "nope"})).await.refused(404, "not_found", "template `nope`");
    let known = "there is no provider `nope`; this server has `mock`";
    server.post("/sandboxes", json!({"provider": "nope"})).await.refused(404, "not_found", known);
    assert_eq!(server.get("/sandboxes").await.ok(), json!([]), "nothing was made");
}

#[tokio::test]
async fn the_list_is_newest_first() {
    let server = TestServer::start(MOCK).await;
    let (first, second) = (server.spawn().await, server.spawn().await);
    let listed = server.get("/sandboxes").await.ok();
    let ids: Vec<&str> = listed.as_array().unwrap().iter().map(|sandbox| sandbox["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [second, first]);
}

#[tokio::test]
async fn destroy_is_idempotent_and_what_is_destroyed_is_gone() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}");
    for _ in 0..2 {
        assert_eq!(server.delete(&path).await.ok(), json!({"status": "destroyed"}));
    }
    server.get(&path).await.refused(404, "not_found", &id);
    server.post(&format!("{path}/exec"), json!({"command": "true"})).await.refused(404, "not_found", &id);
    server.post(&format!("{path}/extend"), json!({"ttl": "1m"})).await.refused(404, "not_found", &id);
    assert_eq!(server.get("/sandboxes").await.ok(), json!([]));
}

#[tokio::test]
async fn an_id_that_is_not_known_is_not_found_prefixes_too() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    for unknown in ["sb-aaaaaaaaaaaaaaaa", &id[..10], "nope", "..%2f..", "%00"] {
        server.get(&format!("/sandboxes/{unknown}")).await.refused(404, "not_found", "sandbox");
        server.delete(&format!("/sandboxes/{unknown}")).await.refused(404, "not_found", "sandbox");
    }
}

#[tokio::test]
async fn extend_counts_from_now_may_shorten_and_obeys_the_maximum() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn_with(json!({"ttl": "1h"})).await;
    let path = format!("/sandboxes/{id}/extend");
    let ends = |body: serde_json::Value| body["expires_at"].as_str().unwrap().to_owned();
    let before = ends(server.get(&format!("/sandboxes/{id}")).await.ok());
    let shorter = ends(server.post(&path, json!({"ttl": "10m"})).await.ok());
    assert!(shorter < before, "{shorter} {before}");
    let longer = ends(server.post(&path, json!({"ttl": "24h"})).await.ok());
    assert!(longer > before, "{longer} {before}");
    server.post(&path, json!({"ttl": "24h0m1s"})).await.refused(429, "resource_limit", "24h0m0s");
    server.post(&path, json!({"ttl": "0s"})).await.refused(400, "bad_request", "`ttl`");
    server.post(&path, json!({})).await.refused(400, "bad_request", "missing field `ttl`");
}

#[tokio::test]
async fn an_expired_sandbox_is_gone_at_the_instant_and_cleaned_up_soon() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn_with(json!({"ttl": "300ms"})).await;
    server.until("the end", async || server.get(&format!("/sandboxes/{id}")).await.status == 404).await;
    server.post(&format!("/sandboxes/{id}/extend"), json!({"ttl": "1h"})).await.refused(404, "not_found", &id);
    let waited = server.get(&format!("/sandboxes/{id}/wait?state=destroyed")).await.ok();
    assert_eq!(waited["state"], "destroyed");
    assert_eq!(server.delete(&format!("/sandboxes/{id}")).await.ok(), json!({"status": "destroyed"}));
}

#[tokio::test]
async fn prune_answers_with_a_number() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    assert_eq!(server.delete("/sandboxes").await.ok(), json!({"pruned": 0}));
    assert_eq!(server.get(&format!("/sandboxes/{id}")).await.status, 200, "what has not expired stays");
}

#[tokio::test]
async fn wait_answers_when_the_state_is_reached_else_408() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/wait");
    assert_eq!(server.get(&path).await.ok()["state"], "running");
    server.get(&format!("{path}?state=destroyed&timeout=50ms")).await.refused(408, "timeout", "50ms");
    let waiting =
        tokio::spawn(server.request(reqwest::Method::GET, &format!("{path}?state=destroyed&timeout=20s")).send());
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    let waited: serde_json::Value = waiting.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(waited["state"], "destroyed");
    server.get(&format!("{path}?state=running")).await.refused(409, "conflict", "never");
    server.get(&format!("{path}?state=paused")).await.refused(400, "bad_request", "`state`");
    server.get(&format!("{path}?timeout=11m")).await.refused(400, "bad_request", "10m0s");
    server.get(&format!("{path}?until=running")).await.refused(400, "bad_request", "until");
}

#[tokio::test]
async fn the_caps_are_never_exceeded_by_concurrent_spawns() {
    let server =
        TestServer::start(&format!("{MOCK} defaults.max_sandboxes=3 defaults.max_sandboxes_per_owner=2")).await;
    let spawns = (0..20).map(|n| server.post("/sandboxes", json!({"owner_id": if n % 2 == 0 { "a" } else { "b" }})));
    let answers = futures_util::future::join_all(spawns).await;
    let made = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!(made, 3);
    for answer in answers.iter().filter(|answer| answer.status != 201) {
        answer.refused(429, "resource_limit", "maximum of");
    }
    let listed = server.get("/sandboxes").await.ok();
    let id = listed[0]["id"].as_str().unwrap().to_owned();
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    server.spawn_with(json!({"owner_id": "c"})).await;
}

#[tokio::test]
async fn a_caller_that_leaves_while_its_box_is_made_leaves_nothing() {
    let server = TestServer::start(MOCK).await;
    let body = json!({"metadata": {"mock.start_delay": "6s"}});
    let spawn = tokio::spawn(server.request(reqwest::Method::POST, "/sandboxes").json(&body).send());
    let state = async || server.get("/sandboxes").await.ok()[0]["state"].clone();
    server.until("the box is in the making", async || state().await == "creating").await;
    spawn.abort();
    server.until("it is given up", async || server.log_text().contains("Abandoned")).await;
    server.until("its removal", async || server.get("/sandboxes").await.ok() == json!([])).await;
}

#[tokio::test]
async fn a_provider_that_fails_is_told_in_our_words_and_the_reason_is_kept() {
    let server = TestServer::builder(MOCK).expecting("a request failed").start().await;
    let answer = server.post("/sandboxes", json!({"metadata": {"mock.start_fail": "1"}})).await;
    answer.refused(500, "provider_error", "the provider `mock` failed to");
    let listed = server.get("/sandboxes").await.ok();
    assert_eq!(listed[0]["state"], "failed");
    assert!(listed[0]["error"].as_str().unwrap().contains("mock"), "{listed}");
    let id = listed[0]["id"].as_str().unwrap();
    server.post(&format!("/sandboxes/{id}/exec"), json!({"command": "true"})).await.refused(
        409,
        "conflict",
        "has failed",
    );
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    assert_eq!(server.get("/sandboxes").await.ok(), json!([]));
}

#[tokio::test]
async fn a_removal_that_fails_is_tried_again() {
    let server = TestServer::builder(MOCK).expecting("a request failed").start().await;
    let id = server.spawn_with(json!({"metadata": {"mock.stop_fail": "3"}})).await;
    server.delete(&format!("/sandboxes/{id}")).await.refused(500, "provider_error", "stop");
    assert_eq!(server.get(&format!("/sandboxes/{id}")).await.ok()["state"], "destroying");
    let waited = server.get(&format!("/sandboxes/{id}/wait?state=destroyed&timeout=1m")).await.ok();
    assert_eq!(waited["state"], "destroyed");
}

#[tokio::test]
async fn a_box_that_ends_by_itself_is_destroyed() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn_with(json!({"metadata": {"mock.vanish_after": "50ms"}})).await;
    let waited = server.get(&format!("/sandboxes/{id}/wait?state=destroyed&timeout=20s")).await.ok();
    assert_eq!(waited["state"], "destroyed");
    server.get(&format!("/sandboxes/{id}")).await.refused(404, "not_found", &id);
}
