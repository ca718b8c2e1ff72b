//! The service itself, and its providers.

use serde_json::json;

use crate::server::{MOCK, NATIVE, TestServer};

#[tokio::test]
async fn health_and_live_tell_version_and_uptime() {
    let server = TestServer::start(MOCK).await;
    for (path, status) in [("/health", "ok"), ("/live", "alive")] {
        let body = server.get(path).await.ok();
        assert_eq!((&body["status"], &body["version"]), (&json!(status), &json!(env!("CARGO_PKG_VERSION"))));
        assert!(body["uptime"].as_str().unwrap().ends_with('s'));
    }
}

#[tokio::test]
async fn ready_lists_the_providers_and_is_503_without_a_healthy_one() {
    let server = TestServer::start(MOCK).await;
    let body = server.get("/ready").await.ok();
    assert_eq!(
        (&body["status"], &body["ready_providers"], &body["total_providers"]),
        (&json!("ready"), &json!(1), &json!(1))
    );
    let none = TestServer::start("providers.native.enabled=false").await;
    none.get("/ready").await.refused(503, "unavailable", "no provider is healthy");
    none.post("/sandboxes", json!({})).await.refused(503, "unavailable", "doctor");
}

#[tokio::test]
async fn providers_are_listed_described_and_tested() {
    let server = TestServer::start(&format!("{NATIVE} providers.mock.enabled=true")).await;
    let listed = server.get("/providers").await.ok();
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["native", "mock"]);
    assert_eq!((&listed[0]["default"], &listed[1]["default"]), (&json!(true), &json!(false)));
    assert!(listed[0]["capabilities"].as_array().unwrap().contains(&json!("exec_stream")));
    server.spawn().await;
    let detail = server.get("/providers/native").await.ok();
    assert_eq!((&detail["sandbox_count"], &detail["config"]["isolation"]), (&json!(1), &json!("container")));
    server.get("/providers/docker").await.refused(404, "not_found", "provider `docker`");
    let tested = server.request(reqwest::Method::POST, "/providers/test").send().await.unwrap();
    assert_eq!(tested.json::<serde_json::Value>().await.unwrap(), json!({"native": true, "mock": true}));
}
