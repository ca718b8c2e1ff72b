//! The events `ports.opened` and `ports.closed`.

use std::time::Duration;

use serde_json::{Value, json};

use super::start;
use crate::events::Listener;
use crate::server::{NATIVE, TestServer};

const PORTS: &str = "?type=ports.opened,ports.closed";

/// Starts a process that keeps the port, and returns its entry in the list.
async fn keep(server: &TestServer, id: &str, port: u16) -> Value {
    let line = "import socket, threading; s = socket.create_server((\"127.0.0.1\", PORT)); threading.Event().wait()";
    start(server, id, &format!("python3 -c '{}'", line.replace("PORT", &port.to_string())), port).await
}

#[track_caller]
fn check(event: &Value, kind: &str, id: &str, entry: &Value) {
    let found = (&event["type"], &event["sandbox_id"], &event["data"]);
    assert_eq!(found, (&json!(kind), &json!(id), entry), "{event}");
}

#[tokio::test]
async fn a_port_that_begins_and_ceases_to_listen_is_an_event_of_its_sandbox() {
    let server = TestServer::start(NATIVE).await;
    // The agent's proxy is no port of the box.
    let (other, id) = (server.spawn().await, server.spawn().await);
    let mut events = Listener::begin(&server, PORTS).await;
    let entry = keep(&server, &id, 3000).await;
    assert_eq!(entry["address"], "127.0.0.1");
    check(&events.next().await.unwrap(), "ports.opened", &id, &entry);
    let of_other = keep(&server, &other, 3000).await;
    check(&events.next().await.unwrap(), "ports.opened", &other, &of_other);
    server.output(&id, &format!("kill {}", entry["pid"])).await;
    check(&events.next().await.unwrap(), "ports.closed", &id, &entry);
    // The end of a sandbox says it of all its ports.
    server.delete(&format!("/sandboxes/{other}")).await.ok();
    let next = keep(&server, &id, 3001).await;
    check(&events.next().await.unwrap(), "ports.opened", &id, &next);
}

#[tokio::test]
async fn a_server_that_was_killed_repeats_no_event_of_a_port_and_misses_none() {
    let mut server = TestServer::start(&format!("{NATIVE} ports.watch_interval=100ms")).await;
    let id = server.spawn().await;
    let mut events = Listener::begin(&server, PORTS).await;
    let first = keep(&server, &id, 3000).await;
    check(&events.next().await.unwrap(), "ports.opened", &id, &first);
    server.kill();
    server.launch().await;
    let mut events = Listener::begin(&server, PORTS).await;
    let second = keep(&server, &id, 3001).await;
    check(&events.next().await.unwrap(), "ports.opened", &id, &second);
    server.output(&id, &format!("kill {}", first["pid"])).await;
    check(&events.next().await.unwrap(), "ports.closed", &id, &first);
}

#[tokio::test]
async fn an_operator_can_switch_the_events_of_ports_off() {
    let server = TestServer::start(&format!("{NATIVE} ports.watch_interval=0")).await;
    let id = server.spawn().await;
    keep(&server, &id, 3000).await;
    // With the default they would be there by now.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let events = server.get("/events?last_event_id=0&follow=false").await;
    let text = String::from_utf8(events.bytes).unwrap();
    assert!(text.contains("sandbox.running") && !text.contains("ports."), "{text}");
}

#[tokio::test]
async fn a_box_that_opens_hundreds_of_ports_fills_no_history() {
    let server = TestServer::start(&format!("{NATIVE} ports.watch_interval=10ms")).await;
    let id = server.spawn().await;
    let mut events = Listener::begin(&server, PORTS).await;
    let line = "import socket, threading; s = [socket.create_server((\"127.0.0.1\", 5000 + n)) for n in range(500)]; \
                threading.Event().wait()";
    start(&server, &id, &format!("python3 -c '{line}'"), 5499).await;
    for _ in 0..32 {
        assert_eq!(events.next().await.unwrap()["type"], "ports.opened");
    }
    let slow = std::time::Instant::now();
    for _ in 0..4 {
        assert_eq!(events.next().await.unwrap()["type"], "ports.opened");
    }
    assert!(slow.elapsed() > Duration::from_secs(1), "{:?}", slow.elapsed());
}
