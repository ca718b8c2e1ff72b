//! What must cost the same however many sandboxes there are.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::json;

use crate::server::{MOCK, TestServer};

/// Sandboxes of the smaller server.
const FEW: usize = 110;
/// Sandboxes of the larger server.
const MANY: usize = 10_000;
/// Calls of which the typical time is taken.
const CALLS: usize = 300;
/// How much longer a call may take on a machine that does other things as well;
/// one that looked at every sandbox would take ninety times as long.
const NOISE: f64 = 3.0;

/// The time that a fifth of the calls stay below: what else the machine does
/// makes calls slower, never faster.
async fn typical(mut call: impl AsyncFnMut()) -> Duration {
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let started = Instant::now();
        call().await;
        times.push(started.elapsed());
    }
    times.sort();
    times[CALLS / 5]
}

async fn grow_to(server: &TestServer, from: usize, to: usize) {
    let spawns = futures_util::stream::iter(from..to);
    spawns
        .for_each_concurrent(32, async |n| {
            let owner = format!("owner-{}", n % 1000);
            server.spawn_with(json!({"owner_id": owner, "ttl": "1h"})).await;
        })
        .await;
}

async fn costs(server: &TestServer) -> [(&'static str, Duration); 4] {
    let admission = json!({"owner_id": "owner-7"});
    let page = server.get("/sandboxes?limit=50").await;
    let next = page.headers.get("x-next-cursor").map(|cursor| cursor.to_str().unwrap().to_owned()).unwrap_or_default();
    let second = if next.is_empty() { String::new() } else { format!("&cursor={next}") };
    [
        (
            "the admission decision",
            typical(async || drop(server.post("/sandboxes/admission", admission.clone()).await.ok())).await,
        ),
        ("a page of the list", typical(async || drop(server.get("/sandboxes?limit=50").await.ok())).await),
        (
            "its second page",
            typical(async || drop(server.get(&format!("/sandboxes?limit=50{second}")).await.ok())).await,
        ),
        (
            "a spawn with caps and its end",
            typical(async || {
                let id = server.spawn_with(json!({"owner_id": "owner-7"})).await;
                server.delete(&format!("/sandboxes/{id}")).await.ok();
            })
            .await,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_and_pages_cost_the_same_with_ten_and_with_ten_thousand_sandboxes() {
    let settings = format!("{MOCK} defaults.max_sandboxes=20000 defaults.max_sandboxes_per_owner=100");
    let server = TestServer::start(&settings).await;
    // Two pages of fifty are full only if there are a hundred.
    grow_to(&server, 0, FEW).await;
    let few = costs(&server).await;
    grow_to(&server, FEW, MANY).await;
    assert_eq!(server.post("/sandboxes/admission", json!({})).await.ok()["active_sandboxes"], MANY as u64);
    let many = costs(&server).await;
    for ((what, few), (_, many)) in few.into_iter().zip(many) {
        eprintln!("{what}: {few:?} with few, {many:?} with {MANY}");
        assert!(many.as_secs_f64() < few.as_secs_f64() * NOISE, "{what}: {few:?} with few, {many:?} with {MANY}");
    }
    // The test would be done sooner than the sandboxes are destroyed one by one.
    let mut server = server;
    server.terminate();
}
