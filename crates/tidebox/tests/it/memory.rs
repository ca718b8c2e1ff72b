//! The memory that all requests share: no caller can make it exceed its budget, and the requests
//! of others are answered.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::server::{Answer, MOCK, NATIVE, TestServer};

/// Memory that the server may take beside the budget: buffers of the connections of a test, what
/// the allocator keeps for a moment, caches that fill.
const ALLOWANCE_MIB: u64 = 48;

/// Sends a request in the name of an owner on a new connection, and reads nothing.
async fn send(server: &TestServer, owner: &str, line: &str, announced: usize, body: &[u8]) -> TcpStream {
    let address = server.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "{line} HTTP/1.1\r\nHost: {address}\r\nX-User-ID: {owner}\r\nContent-Type: application/json\r\n\
         Content-Length: {announced}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server stops reading from a refused client after a while.
    let _ = stream.write_all(body).await;
    stream
}

async fn ask(server: &TestServer, owner: &str, method: Method, path: &str, body: Option<Value>) -> Answer {
    let request = server.request(method, path).header("x-user-id", owner);
    let request = match body {
        Some(body) => request.json(&body),
        None => request,
    };
    Answer::read(request.send().await.unwrap()).await
}

/// Makes every kind of request as another owner and expects the usual answers.
async fn is_served(server: &TestServer, id: &str) {
    let content = "x".repeat(100_000);
    let file = json!({"path": "/workspace/honest", "content": content});
    ask(server, "honest", Method::POST, &format!("/sandboxes/{id}/files"), Some(file)).await.ok();
    let path = format!("/sandboxes/{id}/files?path=/workspace/honest");
    let read = ask(server, "honest", Method::GET, &path, None).await;
    assert_eq!(read.bytes.len(), content.len(), "{}", String::from_utf8_lossy(&read.bytes));
    let listed = ask(server, "honest", Method::GET, &format!("/sandboxes/{id}/files/list?path=/workspace"), None).await;
    assert!(listed.ok().as_array().is_some_and(|entries| !entries.is_empty()));
    for stream in [false, true] {
        let exec = json!({"command": "echo honest", "stream": stream});
        let answer = ask(server, "honest", Method::POST, &format!("/sandboxes/{id}/exec"), Some(exec)).await;
        let text = String::from_utf8_lossy(&answer.bytes);
        assert_eq!(answer.status, 200, "{text}");
        assert!(text.contains("honest"), "{text}");
    }
    assert_eq!(ask(server, "honest", Method::GET, "/sandboxes", None).await.status, 200);
}

/// Returns the budget's figures, requested by the owner who holds too much.
async fn figures(server: &TestServer) -> Value {
    ask(server, "greedy", Method::GET, "/diagnostics", None).await.ok()["request_memory"].clone()
}

async fn used(server: &TestServer) -> u64 {
    figures(server).await["used_bytes"].as_u64().unwrap()
}

/// Checks that the routes for monitoring answer.
async fn is_watched(server: &TestServer) {
    for path in ["/health", "/live", "/ready", "/metrics", "/metrics/prometheus", "/diagnostics"] {
        assert_eq!(ask(server, "greedy", Method::GET, path, None).await.status, 200, "{path}");
    }
}

#[track_caller]
fn stays_within(server: &TestServer, before: u64, budget_mib: u64) {
    let grown = server.resident_kib().saturating_sub(before) / 1024;
    assert!(grown < budget_mib + ALLOWANCE_MIB, "the server grew by {grown} MiB with a budget of {budget_mib}");
}

#[tokio::test]
async fn buffered_answers_that_are_not_read_stay_within_the_budget() {
    let server = TestServer::start(&format!("{NATIVE} limits.request_memory_mb=64")).await;
    let (id, other) = (server.spawn().await, server.spawn().await);
    is_served(&server, &other).await;
    let before = server.resident_kib();
    // Each byte of the output becomes six.
    let command = json!({"command": "head -c 8388608 /dev/zero | tee /dev/stderr"}).to_string();
    let line = format!("POST /api/v1/sandboxes/{id}/exec");
    let attack = (0..10).map(|_| send(&server, "greedy", &line, command.len(), command.as_bytes()));
    let stalled = join_all(attack).await;
    server
        .until("the end of the commands", async || {
            is_served(&server, &other).await;
            stays_within(&server, before, 64);
            let operations = server.get("/diagnostics").await.ok()["operations"].clone();
            let exec = operations.as_array().unwrap().iter().find(|found| found["operation"] == "exec").cloned();
            // The other commands are those of the second box.
            exec.is_some_and(|exec| exec["success_total"].as_u64() >= Some(12))
                && server.exec(&other, "true").await["exit_code"] == 0
                && figures(&server).await["truncated_total"].as_u64() >= Some(5)
        })
        .await;
    assert!(used(&server).await > 30 << 20, "{}", figures(&server).await);
    is_watched(&server).await;
    stays_within(&server, before, 64);
    drop(stalled);
    server.until("all is given back", async || used(&server).await == 0).await;
}

#[tokio::test]
async fn output_that_cannot_be_held_is_cut_and_whoever_reads_gets_the_rest() {
    let server =
        TestServer::start(&format!("{NATIVE} limits.request_memory_mb=16 limits.max_output_bytes=64MiB")).await;
    let id = server.spawn().await;
    let result = server.exec(&id, "head -c 33554432 /dev/zero; echo err >&2").await;
    assert_eq!(
        (&result["exit_code"], &result["truncated"], &result["stderr"]),
        (&json!(0), &json!(true), &json!("err\n"))
    );
    let len = result["stdout"].as_str().unwrap().len();
    assert!((8 << 20..16 << 20).contains(&len), "{len}");
    let result = server.exec(&id, "head -c 8388608 /dev/zero | tr '\\0' x").await;
    assert_eq!((result["truncated"].as_bool(), result["stdout"].as_str().unwrap().len()), (None, 8 << 20));
    server.until("all is given back", async || used(&server).await == 0).await;
}

#[tokio::test]
async fn readers_that_stop_stay_within_the_budget() {
    let server = TestServer::start(&format!("{NATIVE} limits.request_memory_mb=32")).await;
    let (id, other) = (server.spawn().await, server.spawn().await);
    is_served(&server, &other).await;
    let before = server.resident_kib();
    let command = json!({"command": "exec cat /dev/zero", "stream": true}).to_string();
    let line = format!("POST /api/v1/sandboxes/{id}/exec");
    let attack = (0..60).map(|_| send(&server, "greedy", &line, command.len(), command.as_bytes()));
    let mut stalled = join_all(attack).await;
    let heads = stalled.iter_mut().map(|stream| async move {
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        String::from_utf8(head.to_vec()).unwrap()
    });
    let heads: Vec<String> = tokio::join!(join_all(heads), is_served(&server, &other)).0;
    let count = |status: &str| heads.iter().filter(|head| head.ends_with(status)).count();
    assert!(count("200") >= 20 && count("503") >= 10 && count("200") + count("503") == 60, "{heads:?}");
    let answer = ask(&server, "greedy", Method::GET, &format!("/sandboxes/{id}/files/list?path=/"), None).await;
    assert_eq!(answer.headers["retry-after"], "1");
    answer.refused(503, "unavailable", "limits.request_memory_mb");
    let running = count("200").to_string();
    let asleep = "cat /proc/[0-9]*/stat | grep -c '(cat) S' || true";
    server.until("the stall", async || server.output(&id, asleep).await.trim() == running).await;
    is_served(&server, &other).await;
    is_watched(&server).await;
    stays_within(&server, before, 32);
    drop(stalled);
    server.until("all is given back", async || used(&server).await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_sent_half_way_stay_within_the_budget() {
    let server = TestServer::start(&format!("{MOCK} limits.request_memory_mb=64")).await;
    let other = server.spawn().await;
    is_served(&server, &other).await;
    let before = server.resident_kib();
    let half = vec![b' '; 1_000_000];
    let line = "POST /api/v1/sandboxes";
    let attack = async { join_all((0..400).map(|_| send(&server, "greedy", line, 1 << 20, &half))).await };
    let (stalled, ()) = tokio::join!(attack, is_served(&server, &other));
    server
        .until("the refusal of what is too much", async || {
            is_served(&server, &other).await;
            stays_within(&server, before, 64);
            figures(&server).await["refused_total"].as_u64() >= Some(100)
        })
        .await;
    assert!(used(&server).await > 20 << 20, "{}", figures(&server).await);
    is_watched(&server).await;
    stays_within(&server, before, 64);
    drop(stalled);
    server.until("all is given back", async || used(&server).await == 0).await;
}

#[tokio::test]
async fn messages_sent_half_way_over_a_websocket_stay_within_the_budget() {
    let server = TestServer::start(&format!("{NATIVE} limits.request_memory_mb=64")).await;
    let (id, other) = (server.spawn().await, server.spawn().await);
    is_served(&server, &other).await;
    let before = server.resident_kib();
    // The head of a masked text frame of a million bytes, and most of it.
    let mut frame = vec![0x81, 0x80 | 127, 0, 0, 0, 0, 0, 0x0F, 0x42, 0x40, 0, 0, 0, 0];
    frame.resize(900_000, b' ');
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    let address = server.url.strip_prefix("http://").unwrap();
    let attack = (0..80).map(|_| async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "GET /api/v1/sandboxes/{id}/exec/ws HTTP/1.1\r\nHost: {address}\r\nX-User-ID: greedy\r\n{upgrade}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_exact(&mut [0; 12])).await;
        let _ = tokio::time::timeout(Duration::from_secs(5), stream.write_all(&frame)).await;
        stream
    });
    let (stalled, ()) = tokio::join!(join_all(attack), is_served(&server, &other));
    stays_within(&server, before, 64);
    is_served(&server, &other).await;
    drop(stalled);
    server.until("all is given back", async || used(&server).await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_sent_half_way_stay_within_the_budget() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let server = TestServer::start(&format!("{MOCK} limits.request_memory_mb=16")).await;
    let other = server.spawn().await;
    is_served(&server, &other).await;
    let before = server.resident_kib();
    let address = server.url.strip_prefix("http://").unwrap();
    let half = format!("GET /api/v1/health HTTP/1.1\r\nHost: {address}\r\nX-Long: {}", "x".repeat(60_000));
    let attack = (0..1_500).map(|_| async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // Without memory for it, the server ends the connection.
        let _ = stream.write_all(half.as_bytes()).await;
        stream
    });
    let stalled = join_all(attack).await;
    server.until("what was sent is read", async || used(&server).await > 8 << 20).await;
    is_served(&server, &other).await;
    is_watched(&server).await;
    stays_within(&server, before, 16);
    drop(stalled);
    server.until("all is given back", async || used(&server).await == 0).await;
}

#[tokio::test]
async fn lists_that_are_not_read_stay_within_the_budget() {
    let server = TestServer::start(&format!("{MOCK} limits.request_memory_mb=16 defaults.max_sandboxes=0")).await;
    // Each byte of these labels becomes six.
    let labels: serde_json::Map<String, Value> =
        (0..3).map(|n| (n.to_string(), Value::String("\u{1}".repeat(4096)))).collect();
    for _ in 0..100 {
        server.spawn_with(json!({"metadata": labels, "owner_id": "greedy"})).await;
    }
    let other = server.spawn_with(json!({"owner_id": "honest"})).await;
    ask(&server, "honest", Method::GET, "/sandboxes?limit=2&owner_id=honest", None).await.ok();
    let before = server.resident_kib();
    for line in ["GET /api/v1/sandboxes", "GET /api/v1/sandboxes?limit=100"] {
        let stalled = join_all((0..60).map(|_| send(&server, "greedy", line, 0, b""))).await;
        server
            .until("the lists are held up", async || {
                stays_within(&server, before, 16);
                let path = format!("/sandboxes/{other}");
                assert_eq!(ask(&server, "honest", Method::GET, &path, None).await.status, 200);
                figures(&server).await["refused_total"].as_u64() > Some(0) || used(&server).await > 4 << 20
            })
            .await;
        stays_within(&server, before, 16);
        is_watched(&server).await;
        drop(stalled);
        server.until("all is given back", async || used(&server).await == 0).await;
    }
}
