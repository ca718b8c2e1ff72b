//! Ten thousand keys: neither the start nor a request is slower.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::{ADMIN, Key, server};
use crate::server::TestServer;

const MANY: usize = 10_000;

/// Returns the shortest of several requests, which the other work of the machine disturbs least.
async fn quickest(key: &Key<'_>, path: &str) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..200 {
        let started = Instant::now();
        key.request(Method::GET, path).send().await.unwrap().bytes().await.unwrap();
        best = best.min(started.elapsed());
    }
    best
}

async fn restart(server: &mut TestServer) -> Duration {
    assert_eq!(server.terminate(), Some(0));
    let started = Instant::now();
    server.launch().await;
    started.elapsed()
}

#[tokio::test]
async fn ten_thousand_keys_slow_neither_the_start_nor_a_request() {
    let mut server = server("auth.max_keys=10000").await;
    let few = restart(&mut server).await;
    let (id, secret) = {
        let first = Key::of(&server, "ann").await;
        (first.id, first.secret)
    };
    let first = Key { server: &server, id: id.clone(), secret: secret.clone() };
    let sandbox = first.spawn().await;
    let path = format!("/sandboxes/{sandbox}");
    let before = quickest(&first, &path).await;
    let create = async |n: usize| {
        let body = json!({"owner_id": format!("team-{}", n % 100)});
        let request = server.http.post(format!("{}/api/v1/admin/keys", server.url)).header("X-API-Key", ADMIN);
        assert_eq!(request.json(&body).send().await.unwrap().status(), 201);
    };
    for batch in 0..MANY / 100 {
        let numbers = (batch * 100..(batch + 1) * 100).filter(|n| *n + 1 < MANY);
        futures_util::future::join_all(numbers.map(create)).await;
    }
    let listed = server.get("/admin/keys").await.ok();
    assert_eq!(listed.as_array().unwrap().len(), MANY);
    assert_eq!(server.get("/admin/keys?owner_id=team-7").await.ok().as_array().unwrap().len(), 100);
    server.post("/admin/keys", json!({"owner_id": "ann"})).await.refused(429, "resource_limit", "`auth.max_keys`");
    let after = quickest(&first, &path).await;
    let many = restart(&mut server).await;
    let first = Key { server: &server, id, secret };
    first.get("/sandboxes").await.ok();
    println!("start: {few:?} without keys, {many:?} with {MANY}; a request: {before:?}, {after:?}");
    assert!(after < before * 3 + Duration::from_millis(1), "a request took {before:?}, and now takes {after:?}");
    assert!(many < few + Duration::from_secs(2), "the start took {few:?}, and now takes {many:?}");
}
