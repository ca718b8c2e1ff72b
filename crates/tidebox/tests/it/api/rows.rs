//! Limits on the rows that callers can make the store keep.

use std::collections::BTreeSet;

use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::server::{MOCK, TestServer};

/// Makes a spawn request with labels of about 15 KiB; every start of its box fails.
fn failing(owner: Option<&str>) -> Value {
    failing_with("x", owner)
}

/// Makes the same request with labels of this letter.
fn failing_with(letter: &str, owner: Option<&str>) -> Value {
    let mut metadata = json!({"mock.start_fail": "1"});
    for n in 0..4 {
        metadata[format!("k{n}")] = letter.repeat(3_800).into();
    }
    json!({"metadata": metadata, "owner_id": owner})
}

/// Returns the bytes of the store on the disk.
fn stored(server: &TestServer) -> u64 {
    ["tidebox.db", "tidebox.db-wal"].map(|name| server.data_dir().join(name).metadata().unwrap().len()).iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_spawns_fill_neither_the_list_nor_the_disk() {
    let settings = format!("{MOCK} retention.max_failed=40 retention.max_failed_per_owner=10");
    let server = TestServer::builder(&settings).expecting("a request failed").start().await;
    server.post("/sandboxes", failing(Some("honest"))).await.refused(500, "provider_error", "");
    futures_util::stream::iter(0..1200)
        .for_each_concurrent(16, async |n| {
            let owner = (n % 3 > 0).then(|| format!("flood-{}", n % 3));
            server.post("/sandboxes", failing(owner.as_deref())).await.refused(500, "provider_error", "");
        })
        .await;
    let list = server.get("/sandboxes").await.ok();
    let of = |owner: Value| list.as_array().unwrap().iter().filter(|row| row["owner_id"] == owner).count();
    assert_eq!(list.as_array().unwrap().len(), 40);
    assert_eq!((of(json!("honest")), of(json!("flood-1")), of(json!("flood-2"))), (1, 10, 10));
    // The write-ahead log, not yet copied into the file, has its own bound.
    server.until("space is given back", async || stored(&server) < 12 << 20).await;
}

#[tokio::test]
async fn labels_are_bounded_all_together() {
    let server = TestServer::start(MOCK).await;
    let large: Value =
        (0..5).map(|n| (format!("k{n}"), json!("x".repeat(4096)))).collect::<serde_json::Map<_, _>>().into();
    let body = json!({"name": "large", "metadata": large});
    server.post("/templates", body).await.refused(400, "bad_request", "16384 bytes");
    server.post("/sandboxes", json!({"metadata": large})).await.refused(400, "bad_request", "16384 bytes");
    let image = "x".repeat(513);
    server.post("/sandboxes", json!({"image": image})).await.refused(400, "bad_request", "`image`");
    server.post("/templates", json!({"name": "x", "image": image})).await.refused(400, "bad_request", "`image`");
    server.post("/templates", json!({"name": "x", "provider": image})).await.refused(400, "bad_request", "`provider`");
}

#[tokio::test]
async fn templates_and_quotas_are_bounded() {
    let server = TestServer::start(&format!("{MOCK} limits.max_templates=2 limits.max_quotas=2")).await;
    for name in ["a", "b"] {
        server.post("/templates", json!({"name": name})).await.ok();
        server.put(&format!("/quotas/{name}"), json!({"max_sandboxes": 1})).await.ok();
    }
    server.post("/templates", json!({"name": "c"})).await.refused(429, "resource_limit", "`limits.max_templates`");
    server.put("/quotas/c", json!({"max_sandboxes": 1})).await.refused(429, "resource_limit", "`limits.max_quotas`");
    server.put("/quotas/a", json!({"max_sandboxes": 2})).await.ok();
    server.delete("/templates/a").await.ok();
    server.post("/templates", json!({"name": "c"})).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_any_length_is_sent_in_constant_memory() {
    // Each takes 90 KiB as it is sent, since its labels are escaped.
    const ROWS: usize = 400;
    let settings = format!("{MOCK} retention.max_failed=100000");
    let server = TestServer::builder(&settings).expecting("a request failed").start().await;
    futures_util::stream::iter(0..ROWS)
        .for_each_concurrent(16, async |_| {
            server.post("/sandboxes", failing_with("\u{1}", None)).await.refused(500, "provider_error", "");
        })
        .await;
    // The allocator keeps the memory of a first list.
    server.get("/sandboxes?limit=64").await.ok();
    let before = server.resident_kib();
    let mut answer = server.request(reqwest::Method::GET, "/sandboxes").send().await.unwrap();
    let (mut body, mut most) = (Vec::new(), before);
    while let Some(chunk) = answer.chunk().await.unwrap() {
        body.extend_from_slice(&chunk);
        most = most.max(server.resident_kib());
    }
    let list: Value = serde_json::from_slice(&body).unwrap();
    let seen: BTreeSet<&str> = list.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!((seen.len(), list.as_array().unwrap().len()), (ROWS, ROWS));
    assert!(body.len() > 35_000_000, "{}", body.len());
    assert!(most < before + 10_000, "{before} KiB before, {most} KiB at most");
}

#[tokio::test]
async fn lists_of_several_parts_are_whole() {
    let server = TestServer::start(MOCK).await;
    let names: Vec<String> = (0..150).map(|n| format!("n{n:0>3}")).collect();
    for name in &names {
        server.post("/templates", json!({"name": name})).await.ok();
        server.put(&format!("/quotas/{name}"), json!({"max_sandboxes": 1})).await.ok();
    }
    let listed = |list: Value, field: &str| -> Vec<String> {
        list.as_array().unwrap().iter().map(|row| row[field].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(server.get("/templates").await.ok(), "name"), names);
    assert_eq!(listed(server.get("/quotas").await.ok(), "owner_id"), names);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_cannot_fill_the_log() {
    const FLOOD: usize = 1_500;
    let server = TestServer::builder(MOCK).expecting("a request failed").expecting("were dropped").start().await;
    let started = std::time::Instant::now();
    futures_util::stream::iter(0..FLOOD)
        .for_each_concurrent(16, async |_| {
            let spawn = json!({"metadata": {"mock.start_fail": "1"}});
            server.post("/sandboxes", spawn).await.refused(500, "provider_error", "");
        })
        .await;
    server.until("what is left out is counted", async || server.log_text().contains("were dropped")).await;
    let windows = usize::try_from(started.elapsed().as_secs() / 10).unwrap() + 2;
    let lines = server.log_text().matches("\"a request failed\"").count();
    assert!(lines <= 100 * windows, "{lines} lines in {windows} windows");
}
