//! Ceilings on the size of a sandbox.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Answer, MOCK, TestServer};

const SMALL: &str = "defaults.max_memory_mb=1024 defaults.max_vcpus=2 defaults.max_disk_mb=100 defaults.max_pids=300";

async fn spawn_as(server: &TestServer, owner: &str, body: Value) -> Answer {
    let request = server.request(Method::POST, "/sandboxes").header("X-User-ID", owner).json(&body);
    Answer::read(request.send().await.unwrap()).await
}

#[tokio::test]
async fn a_size_above_the_ceiling_is_refused_wherever_it_is_asked_for() {
    let server = TestServer::start(&format!("{MOCK} {SMALL}")).await;
    server.post("/templates", json!({"name": "plain"})).await.ok();
    for (body, words) in [
        (json!({"memory_mb": 1025}), "`memory_mb` is above the maximum of 1024"),
        (json!({"vcpus": 3}), "`vcpus` is above the maximum of 2"),
        (json!({"disk_mb": 101}), "`disk_mb` is above the maximum of 100"),
        (json!({"disk_mb": 0}), "`disk_mb` is above the maximum of 100"),
        (json!({"pids": 301}), "`pids` is above the maximum of 300"),
    ] {
        for route in ["/sandboxes", "/sandboxes/admission", "/templates/plain/spawn"] {
            let answer = server.post(route, body.clone()).await;
            answer.refused(429, "resource_limit", words);
            assert!(!answer.headers.contains_key("retry-after"), "waiting does not cure it");
        }
    }
    let most = json!({"memory_mb": 1024, "vcpus": 2, "disk_mb": 100, "pids": 300});
    let made = server.post("/sandboxes", most.clone()).await;
    assert_eq!((made.status.as_u16(), &made.json()["pids"]), (201, &json!(300)));
    assert_eq!(server.post("/sandboxes/admission", most).await.ok()["allowed"], true);
    assert_eq!(server.get("/sandboxes").await.ok().as_array().unwrap().len(), 1, "refused ones leave nothing");
}

#[tokio::test]
async fn a_size_that_is_left_out_or_is_a_templates_is_lowered_to_the_ceiling() {
    let server = TestServer::start(&format!("{MOCK} defaults.max_memory_mb=600 defaults.max_disk_mb=100")).await;
    server.post("/templates", json!({"name": "big", "memory_mb": 16_777_216, "disk_mb": 5000})).await.ok();
    let made = server.post("/templates/big/spawn", json!({})).await.ok();
    assert_eq!((&made["memory_mb"], &made["disk_mb"]), (&json!(600), &json!(100)));
    let made = spawn_as(&server, "ada", json!({})).await.ok();
    assert_eq!((&made["memory_mb"], &made["disk_mb"]), (&json!(512), &json!(100)), "none is without a bound");
    server.put("/quotas/ada", json!({"max_memory_mb": 64})).await.ok();
    assert_eq!(spawn_as(&server, "ada", json!({})).await.ok()["memory_mb"], 64);
}

#[tokio::test]
async fn the_machine_bounds_a_sandbox_where_nothing_is_configured() {
    let server = TestServer::start(MOCK).await;
    for body in [json!({"memory_mb": 16_777_216}), json!({"vcpus": 1024}), json!({"disk_mb": 16_777_216})] {
        server.post("/sandboxes", body).await.refused(429, "resource_limit", "is above the maximum of");
    }
    let limits = server.get("/diagnostics").await.ok()["limits"].clone();
    let own = std::thread::available_parallelism().unwrap().get() as u64;
    assert_eq!(limits["max_vcpus"], own);
    assert!(limits["max_memory_mb"].as_u64().is_some_and(|mb| (16..16_777_216).contains(&mb)), "{limits}");
    assert_eq!(server.post("/sandboxes", json!({"vcpus": own})).await.status, 201);
    let made = server.post("/sandboxes", json!({"disk_mb": 0})).await.ok();
    assert_eq!(made["disk_mb"].as_u64().unwrap_or(0), 0, "it shares the disk with others then");
}

#[tokio::test]
async fn an_owners_ceilings_override_the_servers_but_make_no_machine_larger() {
    let server = TestServer::start(&format!("{MOCK} {SMALL}")).await;
    let quota = json!({"max_memory_mb": 2000, "max_vcpus": 1, "max_disk_mb": 50});
    let saved = server.put("/quotas/ada", quota.clone()).await.ok();
    for key in ["max_memory_mb", "max_vcpus", "max_disk_mb"] {
        assert_eq!(saved[key], quota[key], "{key}");
        assert_eq!(server.get("/quotas/ada/usage").await.ok()[key], quota[key], "{key}");
    }
    assert_eq!(spawn_as(&server, "ada", json!({"memory_mb": 2000})).await.status, 201);
    for (body, words) in [
        (json!({"memory_mb": 2001}), "maximum of 2000"),
        (json!({"vcpus": 2}), "maximum of 1"),
        (json!({"disk_mb": 51}), "maximum of 50"),
    ] {
        spawn_as(&server, "ada", body).await.refused(429, "resource_limit", words);
    }
    spawn_as(&server, "bob", json!({"memory_mb": 2000})).await.refused(429, "resource_limit", "maximum of 1024");

    server.put("/quotas/ada", json!({"max_memory_mb": 16_777_216, "max_vcpus": 1024})).await.ok();
    let huge = spawn_as(&server, "ada", json!({"memory_mb": 16_777_216})).await;
    huge.refused(429, "resource_limit", "`memory_mb`");
    spawn_as(&server, "ada", json!({"vcpus": 1024})).await.refused(429, "resource_limit", "`vcpus`");
    for (body, words) in [
        (json!({"max_memory_mb": 15}), "`max_memory_mb` must be 0, to inherit, or from 16 to 16777216"),
        (json!({"max_vcpus": 1025}), "from 1 to 1024"),
        (json!({"max_disk_mb": 16_777_217}), "`max_disk_mb`"),
        (json!({"max_disk_mb": -1}), "max_disk_mb"),
    ] {
        server.put("/quotas/ada", body).await.refused(400, "bad_request", words);
    }
}
