//! Calls whose cost must not grow with the number of sandboxes.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::json;

use crate::server::{MOCK, TestServer};

/// Sandboxes of the smaller server: two pages of fifty are full only if there are a hundred.
const FEW: usize = 110;
/// Sandboxes of the larger server.
const MANY: usize = 10_000;
/// Calls of which the typical time is taken.
const CALLS: usize = 300;
/// Factor by which a call may be slower on a machine that does other things as well; one that
/// looked at every sandbox would take ninety times as long.
const NOISE: f64 = 3.0;

/// Returns the shortest time of the calls to each of two servers: other work of the machine makes
/// calls slower, never faster. The servers take turns, so that both see the same load.
async fn shortest(servers: [&TestServer; 2], mut call: impl AsyncFnMut(&TestServer)) -> [Duration; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..CALLS {
        for (server, times) in servers.into_iter().zip(&mut times) {
            let started = Instant::now();
            call(server).await;
            times.push(started.elapsed());
        }
    }
    times.map(|times| times.into_iter().min().expect("calls were made"))
}

async fn with_sandboxes(count: usize) -> TestServer {
    let settings = format!("{MOCK} defaults.max_sandboxes=20000 defaults.max_sandboxes_per_owner=100");
    let server = TestServer::start(&settings).await;
    futures_util::stream::iter(0..count)
        .for_each_concurrent(32, async |n| {
            let owner = format!("owner-{}", n % 1000);
            server.spawn_with(json!({"owner_id": owner, "ttl": "1h"})).await;
        })
        .await;
    server
}

/// Returns the path of the second page.
async fn second(server: &TestServer) -> String {
    let page = server.get("/sandboxes?limit=50").await;
    format!("/sandboxes?limit=50&cursor={}", page.headers["x-next-cursor"].to_str().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_and_pages_cost_the_same_with_ten_and_with_ten_thousand_sandboxes() {
    let (mut small, mut large) = (with_sandboxes(FEW).await, with_sandboxes(MANY).await);
    assert_eq!(large.post("/sandboxes/admission", json!({})).await.ok()["active_sandboxes"], MANY as u64);
    let both = [&small, &large];
    let second = [second(&small).await, second(&large).await];
    let admission = json!({"owner_id": "owner-7"});
    for (what, [few, many]) in [
        (
            "the admission decision",
            shortest(both, async |server| drop(server.post("/sandboxes/admission", admission.clone()).await.ok()))
                .await,
        ),
        ("a page of the list", shortest(both, async |server| drop(server.get("/sandboxes?limit=50").await.ok())).await),
        (
            "its second page",
            shortest(both, async |server| {
                let path = if server.url == small.url { &second[0] } else { &second[1] };
                drop(server.get(path).await.ok());
            })
            .await,
        ),
        (
            "a spawn with caps and its end",
            shortest(both, async |server| {
                let id = server.spawn_with(json!({"owner_id": "owner-7"})).await;
                server.delete(&format!("/sandboxes/{id}")).await.ok();
            })
            .await,
        ),
    ] {
        eprintln!("{what}: {few:?} with {FEW}, {many:?} with {MANY}");
        assert!(many.as_secs_f64() < few.as_secs_f64() * NOISE, "{what}: {few:?} with {FEW}, {many:?} with {MANY}");
    }
    // Destroying the sandboxes one by one would take longer than the test.
    small.terminate();
    large.terminate();
}
