//! Many clients at once.

use serde_json::json;

use crate::server::{Answer, NATIVE, TestServer};

/// Returns the resident memory in KiB, descriptors and threads of a process.
fn footprint(pid: u32) -> (u64, usize, usize) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let count = |dir: &str| std::fs::read_dir(format!("/proc/{pid}/{dir}")).unwrap().count();
    (field("VmRSS:"), count("fd"), count("task"))
}

/// Does one client's round: every kind of call, with nothing left behind.
async fn round(server: &TestServer, n: usize) {
    let id = server.spawn_with(json!({"owner_id": format!("client-{n}")})).await;
    let file = format!("/sandboxes/{id}/files");
    server.write(&id, "/workspace/f", &id).await;
    assert_eq!(server.output(&id, "cat /workspace/f").await, id);
    assert_eq!(server.get(&format!("{file}?path=/workspace/f")).await.bytes, id.as_bytes());
    let body = json!({"command": "seq 1 2000", "stream": true});
    let streamed = server.request(reqwest::Method::POST, &format!("/sandboxes/{id}/exec")).json(&body).send().await;
    assert!(Answer::read(streamed.unwrap()).await.bytes.len() > 8_000);
    server.delete(&format!("/sandboxes/{id}")).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clients_at_once_leave_the_server_as_it_was() {
    let server = TestServer::start(NATIVE).await;
    // The first rounds fill pools, caches and arenas, which stay.
    for _ in 0..2 {
        futures_util::future::join_all((0..50).map(|n| round(&server, n))).await;
    }
    let before = footprint(server.pid());
    for _ in 0..4 {
        futures_util::future::join_all((0..50).map(|n| round(&server, n))).await;
    }
    // The threads of a burst depend on the machine; idle ones end by themselves.
    server
        .until("descriptors, threads and memory (KiB) are given back", async || {
            let after = footprint(server.pid());
            after.0 < before.0 + 16 * 1024 && after.1 <= before.1 + 8 && after.2 <= before.2 + 8
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_boxes_stand_at_once() {
    let server = TestServer::start(NATIVE).await;
    let ids = futures_util::future::join_all((0..200).map(|_| server.spawn_with(json!({"memory_mb": 32})))).await;
    let outputs =
        futures_util::future::join_all(ids.iter().map(|id| server.output(id, "echo $PPID >/dev/null; hostname"))).await;
    assert_eq!(outputs.len(), 200);
    assert_eq!(server.get("/providers/native").await.ok()["sandbox_count"], 200);
    let gone = futures_util::future::join_all(ids.iter().map(|id| format!("/sandboxes/{id}")).map(|path| {
        let server = &server;
        async move { server.delete(&path).await.ok() }
    }))
    .await;
    assert_eq!(gone.len(), 200);
}
