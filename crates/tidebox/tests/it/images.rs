//! Images over HTTP and by the command line, with real registries and archives.

mod archive;
mod command_line;
mod engine;
mod full_disk;
mod pull;

use fixtures::image::Image;
use fixtures::registry::Registry;
use serde_json::{Value, json};

use crate::server::{Answer, MOCK, NATIVE, TestServer};

/// Returns settings with which a server may ask this registry.
fn asking(registry: &Registry, more: &str) -> String {
    let host = registry.address().replace('.', "_").replace(':', "__");
    format!("{NATIVE} images.pull=missing images.registries.{host}.plain_http=true {more}")
}

/// Starts a registry with a small system as `team/like-alpine:3.20` and a server that may ask it,
/// and returns them with the image's full name; `None` if this machine has no registry.
async fn registry_and_server(more: &str) -> Option<(Registry, String, TestServer)> {
    let registry = Registry::start()?;
    let name = registry.push(&Image::alpine_like()?, "team/like-alpine", "3.20");
    let server = TestServer::start(&asking(&registry, more)).await;
    Some((registry, name, server))
}

/// Returns the events of these types so far.
async fn events(server: &TestServer, types: &str) -> Vec<Value> {
    read_events(server.get(&format!("/events?last_event_id=0&follow=false&type={types}")).await)
}

fn read_events(answer: Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let text = String::from_utf8(answer.bytes).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn an_image_is_pulled_listed_inspected_used_and_removed() {
    let Some((_registry, name, server)) = registry_and_server("").await else { return };
    let pulled = server.post("/images/pull", json!({"name": name})).await.ok();
    assert_eq!((&pulled["names"], &pulled["in_use"]), (&json!([name]), &json!(0)), "{pulled}");
    let digest = pulled["digest"].as_str().unwrap();
    assert!(digest.starts_with("sha256:") && pulled["unpacked_bytes"].as_u64().unwrap() > 0, "{pulled}");
    let listed = server.get("/images").await.ok();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["digest"]), (1, &pulled["digest"]), "{listed}");
    for path in [name.clone(), name.replace('/', "%2F"), digest.to_owned()] {
        let detail = server.get(&format!("/images/{path}")).await.ok();
        assert_eq!((&detail["digest"], &detail["entrypoint"]), (&pulled["digest"], &json!(["/bin/sh"])), "{detail}");
        assert_eq!(detail["layers"].as_array().unwrap().len(), 1, "{detail}");
    }
    let id = server.spawn_with(json!({"image": name})).await;
    assert!(server.output(&id, "cat /etc/os-release").await.contains("like Alpine"));
    assert_eq!(server.get("/images").await.ok()[0]["in_use"], 1);
    server.delete(&format!("/images/{name}")).await.refused(409, "conflict", "");
    assert_eq!(server.post("/images/prune", json!({"all": true})).await.ok()["removed"], json!([]));
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    server
        .until("the removal", async || {
            let answer = server.delete(&format!("/images/{name}")).await;
            assert!(matches!(answer.status.as_u16(), 200 | 409), "{answer:?}");
            answer.status == 200
        })
        .await;
    server.get(&format!("/images/{name}")).await.refused(404, "not_found", &name);
    server.delete(&format!("/images/{name}")).await.refused(404, "not_found", &name);
    assert_eq!(server.get("/images").await.ok(), json!([]));
    let told = events(&server, "image.pulling,image.pulled,image.failed,image.removed").await;
    assert_eq!(types(&told), ["image.pulling", "image.pulled", "image.removed"], "{told:?}");
    assert_eq!((&told[1]["data"]["image"], &told[1]["data"]["digest"]), (&json!(name), &pulled["digest"]));
}

#[tokio::test]
async fn a_prune_removes_what_nobody_uses() {
    let Some((_registry, name, server)) = registry_and_server("").await else { return };
    let pulled = server.post("/images/pull", json!({"name": name})).await.ok();
    assert_eq!(server.post("/images/prune", json!({})).await.ok()["removed"], json!([]), "it has a name");
    let pruned = server.post("/images/prune", json!({"all": true})).await.ok();
    assert_eq!(pruned["removed"], json!([pulled["digest"]]), "{pruned}");
    assert!(pruned["freed_bytes"].as_u64().unwrap() > 0, "{pruned}");
    assert_eq!(server.get("/images").await.ok(), json!([]));
}

#[tokio::test]
async fn images_are_there_where_no_provider_uses_them() {
    let server = TestServer::start(MOCK).await;
    assert_eq!(server.get("/images").await.ok(), json!([]));
    assert_eq!(server.post("/images/prune", json!({})).await.ok(), json!({"removed": [], "freed_bytes": 0}));
    server.get("/images/python:3.12").await.refused(404, "not_found", "python:3.12");
    // Names of routes are valid names of images.
    for name in ["pull", "import", "prune"] {
        server.get(&format!("/images/{name}")).await.refused(404, "not_found", name);
        server.delete(&format!("/images/{name}")).await.refused(404, "not_found", name);
    }
}

#[tokio::test]
async fn what_is_no_name_is_refused_on_every_route() {
    let server = TestServer::start(MOCK).await;
    let long = "a".repeat(600);
    let names = [
        "",
        "..",
        "../../etc/passwd",
        "/etc/passwd",
        "a b",
        "a//b",
        "http://docker.io/a",
        "a@sha256:zz",
        "a:b:c",
        "\u{202e}a",
        "a\nb",
        "-a",
        &long,
    ];
    for name in names {
        server.post("/images/pull", json!({"name": name})).await.refused(400, "bad_request", "");
        server.post("/images/pull", json!({"name": name, "stream": true})).await.refused(400, "bad_request", "");
        let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        if !name.is_empty() {
            for answer in
                [server.get(&format!("/images/{encoded}")).await, server.delete(&format!("/images/{encoded}")).await]
            {
                assert!(matches!(answer.status.as_u16(), 400 | 404), "{name:?}: {answer:?}");
            }
        }
    }
    for body in
        [json!({}), json!({"name": 1}), json!({"name": "a", "streams": true}), json!({"name": "a", "stream": 1})]
    {
        server.post("/images/pull", body).await.refused(400, "bad_request", "");
    }
    server.post("/images/prune", json!({"every": true})).await.refused(400, "bad_request", "every");
    assert_eq!(server.get("/images").await.ok(), json!([]));
}

#[tokio::test]
async fn only_the_administrator_has_images() {
    const API: &str = "api-key-0123456789abcdef0123456789abcdef";
    const ADMIN: &str = "admin-key-0123456789abcdef0123456789abcdef";
    let settings = format!("{MOCK} auth.enabled=true auth.api_key={API} auth.admin_api_key={ADMIN}");
    let mut server = TestServer::start(&settings).await;
    for key in [None, Some(API)] {
        server.key = key.map(str::to_owned);
        server.get("/images").await.refused(401, "unauthorized", "admin");
        server.get("/images/python").await.refused(401, "unauthorized", "admin");
        server.delete("/images/localhost:5000/a/b").await.refused(401, "unauthorized", "admin");
        for path in ["pull", "import", "prune"] {
            server.post(&format!("/images/{path}"), json!({})).await.refused(401, "unauthorized", "admin");
        }
    }
    server.key = Some(ADMIN.to_owned());
    assert_eq!(server.get("/images").await.ok(), json!([]));
    server.key = Some(API.to_owned());
}

#[tokio::test]
async fn every_change_of_images_is_in_the_audit_history() {
    let Some((_registry, name, server)) = registry_and_server("").await else { return };
    server.post("/images/pull", json!({"name": name})).await.ok();
    server.get("/images").await.ok();
    server.delete(&format!("/images/{name}")).await.ok();
    server.post("/images/prune", json!({})).await.ok();
    server.post("/images/import?name=x:1", json!({})).await.refused(415, "unsupported_media_type", "x-tar");
    let rows = server.get("/admin/audit").await.ok();
    let rows: Vec<_> = rows.as_array().unwrap().iter().rev().filter(|row| row["action"] != "audit.list").collect();
    let seen: Vec<_> =
        rows.iter().map(|row| (row["action"].as_str().unwrap(), row["status"].as_u64().unwrap())).collect();
    assert_eq!(seen, [("images.pull", 200), ("images.delete", 200), ("images.prune", 200), ("images.import", 415)]);
    for row in &rows[..2] {
        assert!(row["detail"].as_str().unwrap().contains(&format!("name={name}")), "{row}");
    }
}

/// Returns the console of a sandbox.
async fn console(server: &TestServer, id: &str) -> String {
    server.get(&format!("/sandboxes/{id}/logs")).await.ok().to_string()
}

#[tokio::test]
async fn an_entry_point_is_started_when_it_is_asked_for() {
    let Some(registry) = Registry::start() else { return };
    let Some(image) = Image::alpine_like() else { return };
    let image = image.with("Entrypoint", json!(["/bin/sh", "-c", "echo from the entry point; exec sleep 1000"]));
    let name = registry.push(&image, "team/service", "1");
    let server = TestServer::start(&asking(&registry, "")).await;
    let quiet = server.spawn_with(json!({"image": name})).await;
    let loud = server.spawn_with(json!({"image": name, "entrypoint": true})).await;
    server.until("its output", async || console(&server, &loud).await.contains("from the entry point")).await;
    let template = server.post("/templates", json!({"name": "service", "image": name, "entrypoint": true})).await.ok();
    assert_eq!(template["entrypoint"], true, "{template}");
    let made = server.post("/templates/service/spawn", json!({})).await.ok();
    let made = made["id"].as_str().unwrap();
    server.until("its output", async || console(&server, made).await.contains("from the entry point")).await;
    let made = server.post("/templates/service/spawn", json!({"entrypoint": false})).await.ok();
    let made = made["id"].as_str().unwrap();
    for id in [quiet.as_str(), made] {
        assert!(!console(&server, id).await.contains("from the entry point"), "it was not asked for");
    }
    server.post("/sandboxes", json!({"image": "host", "entrypoint": true})).await.refused(400, "bad_request", "host");
    server.post("/sandboxes", json!({"entrypoint": "yes"})).await.refused(400, "bad_request", "entrypoint");
}

#[tokio::test]
async fn an_entry_point_is_refused_where_users_share_a_box() {
    let server = TestServer::start(&format!("{NATIVE} pool.enabled=true")).await;
    let spawn = server.request(reqwest::Method::POST, "/sandboxes").header("x-user-id", "ada");
    let answer = spawn.json(&json!({"entrypoint": true})).send().await.unwrap();
    crate::server::Answer::read(answer).await.refused(400, "not_supported", "entrypoint");
}

#[tokio::test]
async fn the_same_key_with_another_wish_for_the_entry_point_is_another_request() {
    let server = TestServer::start(MOCK).await;
    let spawn = async |body: Value| {
        let request = server.request(reqwest::Method::POST, "/sandboxes").header("idempotency-key", "k");
        crate::server::Answer::read(request.json(&body).send().await.unwrap()).await
    };
    spawn(json!({"entrypoint": true})).await.ok();
    spawn(json!({"entrypoint": true})).await.ok();
    spawn(json!({})).await.refused(409, "conflict", "Idempotency-Key");
}
