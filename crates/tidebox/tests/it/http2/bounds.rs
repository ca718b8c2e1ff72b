//! Clients that are slow, or read nothing, and the end of the server.

use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::*;
use crate::server::{Answer, MOCK, NATIVE};

/// A server's limit of half a minute, with room for a busy machine.
const HALF_A_MINUTE: Duration = Duration::from_secs(50);
/// A small budget for requests that come through a proxy.
const BUDGET: &str = "limits.request_memory_mb=64 server.trusted_proxies=127.0.0.1";
/// Addresses of a client that takes what it can, and of another one, behind a proxy.
const GREEDY: &str = "203.0.113.9";
const HONEST: &str = "198.51.100.7";
/// A server's limit of a minute, with room for a busy machine.
const A_MINUTE: Duration = Duration::from_secs(90);

fn post(path: &str) -> Request<()> {
    let request = Request::builder().method("POST").uri(format!("http://localhost/api/v1/sandboxes{path}"));
    request.header("content-type", "application/json").header("x-forwarded-for", GREEDY).body(()).unwrap()
}

#[tokio::test]
async fn a_connection_is_not_kept_for_what_is_no_request() {
    let server = TestServer::start(MOCK).await;
    let begun = Instant::now();
    let settings = Raw::open(&server).await;
    let mut half = Raw::open(&server).await;
    let block = block("GET", "/api/v1/health", &[]);
    half.send(&frame(HEADERS, END_STREAM, 1, &block[..10])).await;
    let mut torn = Raw::open(&server).await;
    torn.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &block)[..20]).await;
    let mut used = Client::to(&server).await;
    used.is_healthy().await;
    let mut pinging = Raw::open(&server).await;
    let flood = async {
        while pinging.send(&frame(PING, 0, 0, &[0; 8])).await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        pinging.frames(PATIENCE).await;
    };
    let mut preface = tcp(&server).await;
    preface.write_all(&PREFACE[..20]).await.unwrap();
    let mut answer = Vec::new();
    let (one, two, three, four, _, _) = tokio::join!(
        settings.reason(HALF_A_MINUTE),
        half.reason(HALF_A_MINUTE),
        torn.reason(HALF_A_MINUTE),
        used.end(HALF_A_MINUTE),
        timeout(HALF_A_MINUTE, flood),
        timeout(HALF_A_MINUTE, preface.read_to_end(&mut answer)),
    );
    assert_eq!((one, two, three, four), (Some(NO_ERROR), Some(NO_ERROR), Some(NO_ERROR), None));
    let took = begun.elapsed();
    assert!((Duration::from_secs(20)..HALF_A_MINUTE).contains(&took), "{took:?}");
}

#[tokio::test]
async fn a_body_that_stalls_is_408_and_the_other_requests_go_on() {
    let server = TestServer::start(MOCK).await;
    let mut client = Client::to(&server).await;
    let (response, mut stream) = client.send(post(""), false).await.unwrap();
    let trickle = async {
        loop {
            write(&mut stream, b" ", false).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    };
    let others = async {
        loop {
            client.is_healthy().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        reply = timeout(A_MINUTE, response) => assert_eq!(reply.unwrap().unwrap().status(), 408),
        () = trickle => {}
        () = others => {}
    }
}

/// Checks that another client is answered.
async fn is_served(server: &TestServer) {
    let listed = server.request(reqwest::Method::GET, "/sandboxes").header("x-forwarded-for", HONEST);
    let listed = listed.send().await.unwrap();
    assert_eq!(Answer::read(listed).await.status, 200);
}

/// Returns the budget's figures, requested by the owner who holds too much.
async fn used(server: &TestServer) -> u64 {
    let figures = server.get("/diagnostics").await.ok()["request_memory"].clone();
    figures["used_bytes"].as_u64().unwrap()
}

#[tokio::test]
async fn bodies_sent_half_way_stay_within_the_budget_and_others_are_answered() {
    let server = TestServer::start(&format!("{NATIVE} {BUDGET}")).await;
    let before = server.resident_kib();
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = Client::to(&server).await;
        let mut streams = Vec::new();
        for _ in 0..120 {
            let Ok((response, mut stream)) = client.send(post(""), false).await else { break };
            // As much as the server takes of it at once.
            let _ = timeout(Duration::from_millis(20), write(&mut stream, &[b' '; 1 << 18], false)).await;
            streams.push((response, stream));
        }
        clients.push((client, streams));
        is_served(&server).await;
    }
    let grown = server.resident_kib().saturating_sub(before) / 1024;
    assert!(grown < 64 + 48, "the server grew by {grown} MiB");
    assert!(used(&server).await > 20 << 20);
    drop(clients);
    server.until("all is given back", async || used(&server).await == 0).await;
}

#[tokio::test]
async fn answers_that_no_window_is_opened_for_stay_within_the_budget() {
    let server = TestServer::start(&format!("{NATIVE} {BUDGET}")).await;
    let id = server.spawn().await;
    server.output(&id, "head -c 8388608 /dev/zero | tr '\\0' x > /workspace/large").await;
    let before = server.resident_kib();
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = Client::built(Builder::new().initial_window_size(0), tcp(&server).await).await;
        let mut responses = Vec::new();
        for at in 0..100 {
            let path = if at % 2 == 0 { "files?path=/workspace/large" } else { "files/workspace/large" };
            let uri = format!("http://localhost/api/v1/sandboxes/{id}/{path}");
            let request = Request::builder().uri(uri).header("x-forwarded-for", GREEDY).body(()).unwrap();
            responses.push(client.send(request, true).await.unwrap());
        }
        clients.push((client, responses));
    }
    for (_, responses) in &mut clients {
        for (response, _) in responses {
            // Some are refused, and each is answered as far as it may.
            let _ = timeout(Duration::from_millis(50), response).await;
        }
    }
    is_served(&server).await;
    let grown = server.resident_kib().saturating_sub(before) / 1024;
    assert!(grown < 64 + 48, "the server grew by {grown} MiB");
    drop(clients);
    server.until("all is given back", async || used(&server).await == 0).await;
}

#[tokio::test]
async fn requests_under_way_are_finished_when_the_server_stops_and_idle_connections_hold_up_nothing() {
    let mut server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let mut idle = Client::to(&server).await;
    idle.is_healthy().await;
    let mute = Raw::open(&server).await;
    let mut client = Client::to(&server).await;
    let (response, mut stream) = client.send(post(&format!("/{id}/exec")), false).await.unwrap();
    let exec = json!({"command": "sh", "args": ["-c", "echo first; sleep 4; echo last"], "stream": true});
    write(&mut stream, exec.to_string().as_bytes(), true).await;
    let mut output = response.await.unwrap().into_body();
    let mut text = String::new();
    while !text.contains("first") {
        let piece = timeout(PATIENCE, output.data()).await.unwrap().unwrap().unwrap();
        text.push_str(&String::from_utf8_lossy(&piece));
    }
    kill_process(Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap(), Signal::TERM).unwrap();
    let stopped = Instant::now();
    assert_eq!(idle.end(PATIENCE).await, None);
    assert_eq!(mute.reason(PATIENCE).await, Some(NO_ERROR));
    assert!(stopped.elapsed() < Duration::from_secs(3), "{:?}", stopped.elapsed());
    while let Some(piece) = timeout(PATIENCE, output.data()).await.unwrap() {
        text.push_str(&String::from_utf8_lossy(&piece.unwrap()));
    }
    assert!(text.contains("last"), "{text}");
    assert_eq!(client.end(PATIENCE).await, None);
    let code = tokio::task::spawn_blocking(move || server.end()).await.unwrap();
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn heads_have_the_bounds_of_those_over_http_1() {
    let server = TestServer::start(MOCK).await;
    let mut client = Client::to(&server).await;
    let health = || Request::builder().uri("http://localhost/api/v1/health");
    let many = |name: fn(usize) -> String, count| {
        (0..count).fold(health(), |request, at| request.header(name(at), "a=1")).body(()).unwrap()
    };
    for (request, status) in [
        (many(|at| format!("x-{at}"), 90), 200),
        (many(|at| format!("x-{at}"), 101), 431),
        // A browser sends each cookie in a header of its own.
        (many(|_| "cookie".to_owned(), 500), 200),
        (health().header("x-long", "x".repeat(60_000)).body(()).unwrap(), 200),
        (health().header("x-long", "x".repeat(70_000)).body(()).unwrap(), 431),
    ] {
        let (response, _) = client.send(request, true).await.unwrap();
        let response = timeout(PATIENCE, response).await.unwrap().unwrap();
        assert_eq!(response.status(), status);
    }
    client.is_healthy().await;
    let figures: Value = server.get("/diagnostics").await.ok();
    assert_eq!(figures["request_memory"]["used_bytes"], 0, "{figures}");
}
