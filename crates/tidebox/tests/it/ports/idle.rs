//! Connections that are idle.

use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::{connect, serving, start};
use crate::server::{NATIVE, PATIENCE, TestServer};

/// A server that keeps its connections.
const KEEPER: &str = include_str!("keeper.py");

/// Number of connections to each of two boxes: together what one caller is to have open.
const EACH: usize = 500;
/// Resident memory of the server that an idle connection may take.
const KIB_MAX: u64 = 20;

#[tokio::test]
async fn a_thousand_idle_connections_are_alive_and_take_little_memory() {
    let server = TestServer::start(NATIVE).await;
    let mut boxes = Vec::new();
    for _ in 0..2 {
        let id = server.spawn().await;
        server.write(&id, "/tmp/keeper.py", KEEPER).await;
        start(&server, &id, "exec python3 /tmp/keeper.py", 3000).await;
        // What the server allocates for the first of them.
        drop(connect(&server, &id, 3000).await.ok().unwrap());
        boxes.push(id);
    }
    let before = server.resident_kib();
    let mut sockets = Vec::new();
    for id in &boxes {
        for n in 0..EACH {
            let socket = connect(&server, id, 3000).await;
            sockets.push(socket.unwrap_or_else(|refused| panic!("connection {n}: {refused:?}")));
        }
    }
    let taken = server.resident_kib().saturating_sub(before);
    assert!(taken < KIB_MAX * sockets.len() as u64, "{taken} KiB");
    for of_one in sockets.chunks_mut(EACH) {
        of_one[0].send(Message::binary("hello")).await;
        for socket in of_one {
            assert_eq!(timeout(PATIENCE, socket.next()).await.unwrap().unwrap(), Message::binary("hello"));
        }
    }
}

#[tokio::test]
async fn clients_that_stop_reading_what_a_box_floods_hold_no_more_than_the_budget() {
    let server = TestServer::start(&format!("{NATIVE} limits.request_memory_mb=16")).await;
    let id = serving(&server, "flood", 3000).await;
    drop(connect(&server, &id, 3000).await.ok().unwrap());
    let before = server.resident_kib();
    // Ten times as much as the budget would wait for them. Some find no memory at the start.
    let mut sockets = Vec::new();
    for _ in 0..150 {
        sockets.extend(connect(&server, &id, 3000).await);
    }
    let memory = server.get("/diagnostics").await.ok()["request_memory"].clone();
    assert!(memory["peak_bytes"].as_u64() <= memory["budget_bytes"].as_u64(), "{memory}");
    let taken_mib = server.resident_kib().saturating_sub(before) / 1024;
    assert!(taken_mib < 40, "{taken_mib} MiB");
}
