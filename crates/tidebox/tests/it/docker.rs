//! Boxes of a Docker Engine that stops, and containers that are removed behind the server's back,
//! as a caller sees them.

use fixtures::Engine;
use fixtures::image::Image;
use serde_json::json;

use crate::server::TestServer;

/// Image that every Engine of these tests has.
const IMAGE: &str = "team/system:1";

/// Starts an Engine with an image, and a server that uses it.
async fn engine_and_server() -> Option<(Engine, TestServer)> {
    engine_and_server_with("").await
}

/// Does the same, with further settings of the server.
async fn engine_and_server_with(more: &str) -> Option<(Engine, TestServer)> {
    let (engine, settings) = engine_with(&Image::alpine_like()?)?;
    let server = TestServer::start(&format!("{settings} {more}")).await;
    Some((engine, server))
}

/// Starts an Engine with an image. Returns it with the settings of a server that uses both.
pub fn engine_with(image: &Image) -> Option<(Engine, String)> {
    let engine = Engine::start()?;
    engine.load(IMAGE, image);
    let settings = format!(
        "providers.native.enabled=false providers.docker.enabled=true providers.default=docker \
         providers.docker.pull=never defaults.image={IMAGE} providers.docker.socket={}",
        engine.socket().display()
    );
    Some((engine, settings))
}

/// Spawns a sandbox.
async fn spawn(server: &TestServer) -> String {
    until_healthy(server).await;
    server.spawn().await
}

/// Waits for the Engine, which may seem to be unreachable at first on a busy machine.
pub async fn until_healthy(server: &TestServer) {
    let healthy = async || {
        server.post("/providers/test", json!({})).await.ok();
        server.get("/providers/docker").await.ok()["healthy"] == true
    };
    server.until("the Engine is healthy", healthy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_stops_and_starts_again_loses_no_word_of_its_boxes() {
    let Some((mut engine, server)) = engine_and_server().await else { return };
    let id = spawn(&server).await;
    assert_eq!(server.output(&id, "echo here").await, "here\n");
    engine.stop();
    server
        .until("commands are refused for want of an Engine", async || {
            let answer = server.post(&format!("/sandboxes/{id}/exec"), json!({"command": "true"})).await;
            if answer.status == 503 {
                answer.refused(503, "unavailable", "");
            }
            answer.status == 503
        })
        .await;
    // The state of the box is unknown, so it is not reported as gone.
    assert_eq!(server.get(&format!("/sandboxes/{id}")).await.ok()["state"], "running");
    server.post("/providers/test", json!({})).await.ok();
    server.post("/sandboxes", json!({})).await.refused(503, "unavailable", "docker");

    engine.start_again();
    let waited = server.get(&format!("/sandboxes/{id}/wait?state=destroyed&timeout=60s")).await.ok();
    assert_eq!(waited["state"], "destroyed");
    let next = spawn(&server).await;
    assert_eq!(server.output(&next, "echo here again").await, "here again\n");
    server.delete(&format!("/sandboxes/{next}")).await.ok();
    assert_eq!(engine.api("GET", "/containers/json?all=1", b"").1.trim_ascii(), b"[]");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_is_removed_or_killed_behind_the_servers_back_is_noticed() {
    let Some((engine, server)) = engine_and_server().await else { return };
    for request in [("DELETE", "?force=1&v=1"), ("POST", "/kill")] {
        let id = spawn(&server).await;
        let listed: serde_json::Value = serde_json::from_slice(&engine.api("GET", "/containers/json", b"").1).unwrap();
        let container = listed[0]["Id"].as_str().unwrap().to_owned();
        let (status, _) = engine.api(request.0, &format!("/containers/{container}{}", request.1), b"");
        assert_eq!(status, 204);
        let waited = server.get(&format!("/sandboxes/{id}/wait?state=destroyed&timeout=30s")).await.ok();
        assert_eq!(waited["state"], "destroyed", "{request:?}");
        server.post(&format!("/sandboxes/{id}/exec"), json!({"command": "true"})).await.refused(404, "not_found", &id);
        assert_eq!(engine.api("GET", "/containers/json?all=1", b"").1.trim_ascii(), b"[]", "{request:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boxes_are_kept_ready_and_what_was_prepared_rests_until_it_is_taken() {
    let settings = "warm_pool.a.template=py warm_pool.a.count=1 warm_pool.b.count=2";
    let Some((engine, server)) = engine_and_server_with(settings).await else { return };
    let prepare = json!([
        {"command": "echo made > /tmp/made"},
        {"command": "while :; do sleep 0.1; done", "background": true, "name": "loop"},
    ]);
    server.post("/templates", json!({"name": "py", "prepare": prepare})).await.ok();
    let filled = async || {
        let entries = server.get("/diagnostics").await.ok()["warm_pool"].clone();
        entries.as_array().unwrap().iter().all(|entry| entry["ready"] == entry["count"])
    };
    server.until("the pool is full", filled).await;
    let (status, paused) = engine.api("GET", "/containers/json?filters=%7B%22status%22:%5B%22paused%22%5D%7D", b"");
    let paused: serde_json::Value = serde_json::from_slice(&paused).unwrap();
    assert_eq!((status, paused.as_array().unwrap().len()), (200, 1), "the prepared one: {paused}");
    let (prepared, plain) = (server.spawn_with(json!({"template": "py"})).await, server.spawn().await);
    assert_eq!(server.output(&prepared, "cat /tmp/made").await, "made\n");
    assert_eq!(server.output(&plain, "echo here; cat /tmp/made 2>/dev/null || true").await, "here\n");
    let entries = server.get("/diagnostics").await.ok()["warm_pool"].clone();
    assert_eq!((&entries[0]["hits_total"], &entries[1]["hits_total"]), (&json!(1), &json!(1)), "{entries}");
    server.until("the pool is full again", filled).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_a_container_is_started_as_a_box_of_this_server() {
    let Some((_engine, server)) = engine_and_server_with("providers.native.enabled=true").await else { return };
    let id = spawn(&server).await;
    server
        .output(
            &id,
            "echo kept > /etc/kept; echo w > /workspace/f; chown 7:8 /etc/kept; ln /etc/kept /etc/too; rm -r /opt",
        )
        .await;
    let taken = server.post(&format!("/sandboxes/{id}/snapshots"), json!({})).await.json();
    let copy = server.spawn_with(json!({"snapshot": taken["id"], "provider": "native"})).await;
    let shown =
        server.output(&copy, "cat /etc/kept /workspace/f; stat -c %u:%g /etc/too; ls -d /opt 2>&1 | wc -l").await;
    assert_eq!(shown, "kept\nw\n7:8\n1\n");
    let body = json!({"snapshot": taken["id"], "provider": "docker"});
    server.spawn_with(body).await;
    let native = server.post(&format!("/sandboxes/{copy}/snapshots"), json!({})).await.json();
    let body = json!({"snapshot": native["id"], "provider": "docker"});
    server.post("/sandboxes", body).await.refused(
        400,
        "not_supported",
        "`docker` cannot use the images of this server",
    );
}
