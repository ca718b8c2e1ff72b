//! `/templates`.

use serde_json::json;

use super::lifetime;
use crate::server::{MOCK, TestServer};

#[tokio::test]
async fn a_template_is_created_read_replaced_and_removed() {
    let server = TestServer::start(MOCK).await;
    let made = server
        .post(
            "/templates",
            json!({"name": "py", "image": "host", "memory_mb": 128, "ttl": "90s", "metadata": {"a": "b"}}),
        )
        .await;
    assert_eq!(made.status, 201);
    let body = made.json();
    assert_eq!((&body["name"], &body["ttl"], &body["metadata"]), (&json!("py"), &json!("1m30s"), &json!({"a": "b"})));
    assert!(body.get("vcpus").is_none(), "what was left out is left out");
    server.post("/templates", json!({"name": "py"})).await.refused(409, "conflict", "template `py` already exists");
    assert_eq!(server.get("/templates/py").await.ok(), body);
    assert_eq!(server.get("/templates").await.ok(), json!([body]));
    let replaced = server.put("/templates/py", json!({"vcpus": 2, "pids": 77})).await.ok();
    assert!(replaced.get("memory_mb").is_none() && replaced["vcpus"] == 2, "{replaced}");
    assert_eq!(server.post("/templates/py/spawn", json!({})).await.ok()["pids"], 77);
    assert_eq!(server.delete("/templates/py").await.ok(), json!({"status": "deleted"}));
    for answer in [
        server.get("/templates/py").await,
        server.delete("/templates/py").await,
        server.put("/templates/py", json!({})).await,
        server.post("/templates/py/spawn", json!({})).await,
    ] {
        answer.refused(404, "not_found", "template `py`");
    }
}

#[tokio::test]
async fn a_template_that_nobody_could_spawn_is_refused() {
    let server = TestServer::start(MOCK).await;
    for (body, words) in [
        (json!({}), "missing field `name`"),
        (json!({"name": "../x"}), "`name`"),
        (json!({"name": "x", "ttl": "0s"}), "`ttl`"),
        (json!({"name": "x", "memory_mb": 1}), "memory_mb"),
        (json!({"name": "x", "image": ""}), "`image`"),
        (json!({"name": "x", "nam": "y"}), "unknown field `nam`"),
    ] {
        server.post("/templates", body).await.refused(400, "bad_request", words);
    }
}

#[tokio::test]
async fn explicit_fields_win_over_the_templates_and_its_name_is_a_label() {
    let server = TestServer::start(&format!("{MOCK} defaults.max_vcpus=2")).await;
    let template = json!({"name": "py", "memory_mb": 128, "vcpus": 2, "ttl": "1h", "metadata": {"a": "1", "b": "1"}});
    server.post("/templates", template).await.ok();
    let made =
        server.post("/templates/py/spawn", json!({"memory_mb": 64, "metadata": {"b": "2"}, "owner_id": "alice"})).await;
    assert_eq!(made.status, 201);
    let body = made.json();
    assert_eq!((&body["memory_mb"], &body["vcpus"]), (&json!(64), &json!(2)));
    assert_eq!(body["metadata"], json!({"a": "1", "b": "2", "template": "py"}));
    assert_eq!(body["owner_id"], "alice");
    let by_name = server.post("/sandboxes", json!({"template": "py"})).await.ok();
    assert_eq!((&by_name["memory_mb"], &by_name["metadata"]["template"]), (&json!(128), &json!("py")));
    server.delete("/templates/py").await.ok();
    assert_eq!(server.get("/sandboxes").await.ok().as_array().unwrap().len(), 2, "its sandboxes live on");
}

#[tokio::test]
async fn a_templates_lifetime_above_the_maximum_is_lowered_not_refused() {
    let server = TestServer::start(&format!("{MOCK} defaults.max_ttl=1h defaults.ttl=1h")).await;
    server.post("/templates", json!({"name": "long", "ttl": "10h"})).await.ok();
    let made = server.post("/templates/long/spawn", json!({})).await;
    assert_eq!(made.status, 201);
    assert_eq!(lifetime(&made.json()), 3600);
    server.post("/templates/long/spawn", json!({"ttl": "10h"})).await.refused(429, "resource_limit", "1h0m0s");
}
