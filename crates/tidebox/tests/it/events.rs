//! `/events`: the events, streamed to their subscribers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::server::{Answer, MOCK, PATIENCE, TestServer, free_port};

/// A listener that parses the stream as a browser would.
pub struct Listener {
    response: Response,
    buffer: Vec<u8>,
    /// The id that a browser would resume from.
    last_id: Option<u64>,
    comments: Vec<String>,
}

impl Listener {
    pub async fn begin(server: &TestServer, query: &str) -> Self {
        Self::resume(server, query, None).await
    }

    async fn resume(server: &TestServer, query: &str, last_id: Option<u64>) -> Self {
        let mut request = server.request(Method::GET, &format!("/events{query}"));
        if let Some(id) = last_id {
            request = request.header("Last-Event-ID", id);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{query}");
        let mut listener = Self { response, buffer: Vec::new(), last_id, comments: Vec::new() };
        // After the first comment no event is missed.
        let block = listener.block().await.unwrap();
        assert!(block.starts_with(':'), "{block}");
        listener
    }

    /// Returns the next block; `None` at the end of the stream.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..at + 2).collect();
                return Some(String::from_utf8(block).unwrap());
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk()).await.expect("the stream goes on");
            self.buffer.extend_from_slice(&chunk.ok()??);
        }
    }

    /// Returns the next event; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            let block = self.block().await?;
            let mut fields = BTreeMap::new();
            for line in block.lines().filter(|line| !line.is_empty()) {
                let (name, value) = line.split_once(": ").unwrap();
                if name.is_empty() {
                    self.comments.push(value.to_owned());
                } else {
                    fields.insert(name.to_owned(), value.to_owned());
                }
            }
            if let Some(comment) = block.strip_prefix(": ") {
                self.comments.push(comment.trim().to_owned());
                fields.remove("");
            }
            if let Some(id) = fields.get("id") {
                self.last_id = Some(id.parse().unwrap());
            }
            let Some(data) = fields.get("data") else { continue };
            let event: Value = serde_json::from_str(data).unwrap();
            let keys: Vec<&String> = event.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["data", "id", "sandbox_id", "timestamp", "type"], "{event}");
            assert_eq!((fields["id"].clone(), fields["event"].as_str()), (event["id"].to_string(), kind(&event)));
            assert!(event["timestamp"].as_str().unwrap().ends_with('Z') && event["data"].is_object(), "{event}");
            return Some(event);
        }
    }

    /// Reads events up to one of this type, which is among them.
    async fn up_to(&mut self, wanted: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("no {wanted} came: {events:#?}"));
            events.push(event);
            if kind(events.last().unwrap()) == wanted {
                return events;
            }
        }
    }

    /// Reads everything up to the end of the stream.
    async fn rest(mut self) -> Vec<Value> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

fn kind(event: &Value) -> &str {
    event["type"].as_str().unwrap()
}

fn ids(events: &[Value]) -> Vec<u64> {
    events.iter().map(|event| event["id"].as_u64().unwrap()).collect()
}

/// Returns all events that the server keeps now.
pub async fn history(server: &TestServer) -> Vec<Value> {
    Listener::begin(server, "?follow=false&last_event_id=0").await.rest().await
}

#[tokio::test]
async fn every_event_that_a_client_can_cause_is_told_in_its_order_and_shape() {
    let mut server = TestServer::start(MOCK).await;
    let mut listener = Listener::begin(&server, "").await;
    assert_eq!(listener.response.headers()["content-type"], "text/event-stream");
    assert_eq!(listener.response.headers()["cache-control"], "no-store");
    assert_eq!(listener.response.headers()["x-accel-buffering"], "no");

    let id = server.spawn().await;
    server.exec(&id, "true").await;
    server.exec(&id, "exit 3").await;
    let timed = json!({"command": "sleep 60", "timeout": "1s", "stream": true});
    assert_eq!(server.post(&format!("/sandboxes/{id}/exec"), timed).await.status, 200);
    server.write(&id, "/workspace/f", "x").await;
    server.delete(&format!("/sandboxes/{id}/files?path=/workspace/f")).await.ok();
    server.post(&format!("/sandboxes/{id}/extend"), json!({"ttl": "10m"})).await.ok();
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    let mine = listener.up_to("sandbox.destroyed").await;
    let kinds: Vec<&str> = mine.iter().map(kind).collect();
    assert_eq!(
        kinds,
        [
            "sandbox.created",
            "sandbox.running",
            "exec.started",
            "exec.completed",
            "exec.started",
            "exec.failed",
            "exec.started",
            "exec.timeout",
            "file.written",
            "file.deleted",
            "sandbox.extended",
            "sandbox.destroyed"
        ]
    );
    assert!(mine.iter().all(|event| event["sandbox_id"] == *id), "{mine:#?}");
    let failed = mine.iter().find(|event| kind(event) == "exec.failed").unwrap();
    assert_eq!(failed["data"]["exit_code"], 3);

    server.post("/templates", json!({"name": "py"})).await.ok();
    server.put("/templates/py", json!({"ttl": "1m"})).await.ok();
    server.delete("/templates/py").await.ok();
    let templates = listener.up_to("template.deleted").await;
    let told: Vec<_> =
        templates.iter().map(|event| (kind(event), &event["sandbox_id"], &event["data"]["name"])).collect();
    let (none, name) = (Value::Null, json!("py"));
    assert_eq!(
        told,
        [("template.saved", &none, &name), ("template.saved", &none, &name), ("template.deleted", &none, &name)]
    );

    server.put("/quotas/alice", json!({"max_sandboxes": 1})).await.ok();
    let first = server.spawn_with(json!({"owner_id": "alice"})).await;
    server.post("/sandboxes", json!({"owner_id": "alice"})).await.refused(429, "resource_limit", "");
    server.delete("/quotas/alice").await.ok();
    server.delete(&format!("/sandboxes/{first}")).await.ok();
    let told = listener.up_to("sandbox.destroyed").await;
    let kinds: Vec<&str> = told.iter().map(kind).collect();
    assert_eq!(
        kinds,
        ["quota.saved", "sandbox.created", "sandbox.running", "resource.limit", "quota.deleted", "sandbox.destroyed"]
    );
    assert_eq!(told[0]["data"], json!({"owner_id": "alice"}));

    server.post("/sandboxes", json!({"metadata": {"mock.start_fail": "1"}})).await.refused(500, "provider_error", "");
    assert!(listener.up_to("sandbox.failed").await.last().unwrap()["data"]["error"].is_string());

    let ill = server.spawn_with(json!({"metadata": {"mock.health": "out of tape"}})).await;
    server.post("/providers/test", json!({})).await.ok();
    let told = listener.up_to("provider.unhealthy").await.pop().unwrap();
    assert_eq!(told["data"], json!({"provider": "mock", "error": "out of tape"}));
    server.delete(&format!("/sandboxes/{ill}")).await.ok();
    server.post("/providers/test", json!({})).await.ok();
    listener.up_to("provider.healthy").await;

    let short = server.spawn_with(json!({"ttl": "1s"})).await;
    let expired = listener.up_to("sandbox.expired").await.pop().unwrap();
    assert_eq!(expired["sandbox_id"], *short);
    listener.up_to("sandbox.destroyed").await;

    server.expect_trouble("mock.start_fail");
    server.expect_trouble("a request failed");
    let lost = server.spawn().await;
    server.kill();
    server.launch().await;
    server
        .until("the reconciler acts", async || {
            history(&server).await.iter().any(|event| {
                kind(event) == "reconcile.action"
                    && event["sandbox_id"] == *lost
                    && event["data"] == json!({"action": "vanished_removed", "provider": "mock"})
            })
        })
        .await;
}

#[tokio::test]
async fn every_request_above_a_maximum_is_told_of() {
    let server = TestServer::start(&format!(
        "{MOCK} defaults.ttl=1m defaults.max_ttl=1m defaults.default_exec_timeout=1s defaults.max_exec_timeout=1s"
    ))
    .await;
    let id = server.spawn().await;
    let exec = |stream: bool| json!({"command": "true", "timeout": "2s", "stream": stream});
    server.post("/sandboxes", json!({"ttl": "2m"})).await.refused(429, "resource_limit", "`ttl`");
    server.post(&format!("/sandboxes/{id}/extend"), json!({"ttl": "2m"})).await.refused(429, "resource_limit", "`ttl`");
    server.post(&format!("/sandboxes/{id}/exec"), exec(false)).await.refused(429, "resource_limit", "`timeout`");
    server.post(&format!("/sandboxes/{id}/exec"), exec(true)).await.refused(429, "resource_limit", "`timeout`");
    let told = Listener::begin(&server, "?type=resource.limit&follow=false&last_event_id=0").await.rest().await;
    let told: Vec<_> = told.iter().map(|event| event["data"].clone()).collect();
    let of = |operation: &str, provider: Value| json!({"operation": operation, "provider": provider});
    let mock = || json!("mock");
    assert_eq!(told, [of("spawn", Value::Null), of("extend", mock()), of("exec", mock()), of("exec_stream", mock())]);
}

#[tokio::test]
async fn a_spawn_that_waits_for_room_is_told_of() {
    let settings = "defaults.max_sandboxes=1 defaults.spawn_overflow=queue defaults.spawn_queue_timeout=4s";
    let server = TestServer::start(&format!("{MOCK} {settings}")).await;
    let mut listener = Listener::begin(&server, "?type=spawn.queued,spawn.dequeued,spawn.queue_timeout").await;
    let first = server.spawn().await;
    assert_eq!(server.post("/sandboxes", json!({})).await.status, 429);
    assert_eq!(kind(&listener.next().await.unwrap()), "spawn.queued");
    assert_eq!(kind(&listener.next().await.unwrap()), "spawn.queue_timeout");
    let waiting = tokio::spawn(server.request(Method::POST, "/sandboxes").json(&json!({})).send());
    assert_eq!(kind(&listener.next().await.unwrap()), "spawn.queued");
    server.delete(&format!("/sandboxes/{first}")).await.ok();
    assert_eq!(kind(&listener.next().await.unwrap()), "spawn.dequeued");
    assert_eq!(waiting.await.unwrap().unwrap().status(), 201);
}

#[tokio::test]
async fn no_event_tells_a_command_its_environment_its_output_or_a_key() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn_with(json!({"metadata": {"note": "s3cret-label"}})).await;
    for stream in [false, true] {
        let body = json!({"command": "echo s3cret-command $S", "env": {"S": "s3cret-env"}, "stdin": "s3cret-stdin",
            "stream": stream});
        let request = server.request(Method::POST, &format!("/sandboxes/{id}/exec")).header("X-API-Key", "s3cret-key");
        assert_eq!(Answer::read(request.json(&body).send().await.unwrap()).await.status, 200);
    }
    server.write(&id, "/workspace/f", "s3cret-content").await;
    server.post("/templates", json!({"name": "t", "metadata": {"k": "s3cret-template"}})).await.ok();
    let told = history(&server).await;
    assert!(told.len() >= 7, "{told:#?}");
    assert!(!json!(told).to_string().contains("s3cret"), "{told:#?}");
}

#[tokio::test]
async fn a_filter_shows_one_sandbox_or_some_types_and_a_type_that_is_none_is_refused() {
    let server = TestServer::start(MOCK).await;
    let (one, other) = (server.spawn().await, server.spawn().await);
    server.write(&one, "/workspace/f", "x").await;
    server.write(&other, "/workspace/f", "x").await;
    server.exec(&one, "true").await;
    let seen = async |query: &str| {
        let events = Listener::begin(&server, &format!("?follow=false&last_event_id=0&{query}")).await.rest().await;
        events.iter().map(|event| (kind(event).to_owned(), event["sandbox_id"] == *one)).collect::<Vec<_>>()
    };
    let pair = |kind: &str, of_one| (kind.to_owned(), of_one);
    assert_eq!(seen("type=file.written").await, [pair("file.written", true), pair("file.written", false)]);
    let both = [pair("file.written", true), pair("exec.completed", true)];
    assert_eq!(seen(&format!("type=file.written,exec.completed&sandbox_id={one}")).await, both);
    assert_eq!(seen(&format!("type=file.written&type=exec.completed&sandbox_id={one}")).await, both);
    assert!(seen(&format!("sandbox_id={other}")).await.iter().all(|(_, of_one)| !of_one));
    server.get("/events?type=file.writen").await.refused(400, "bad_request", "file.written");
    server.get("/events?type=").await.refused(400, "bad_request", "file.written");
    server.get("/events?sandbox_id=x").await.refused(400, "bad_request", "sandbox_id");
    server.get("/events?last_event_id=x").await.refused(400, "bad_request", "whole number");
    server.get("/events?kind=x").await.refused(400, "bad_request", "`kind`");
}

#[tokio::test]
async fn a_reader_that_comes_back_gets_what_it_missed_once_and_in_order() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let mut listener = Listener::begin(&server, "?last_event_id=0").await;
    listener.up_to("sandbox.running").await;
    let resume = listener.last_id;
    drop(listener);
    for n in 0..5 {
        server.write(&id, &format!("/workspace/{n}"), "x").await;
    }
    let mut listener = Listener::resume(&server, "", resume).await;
    let missed: Vec<Value> = [listener.next().await, listener.next().await].into_iter().flatten().collect();
    assert_eq!(ids(&missed), [resume.unwrap() + 1, resume.unwrap() + 2]);
    assert_eq!(missed[0]["data"]["path"], "/workspace/0");
    let all = history(&server).await;
    assert!(ids(&all).windows(2).all(|pair| pair[0] + 1 == pair[1]), "{all:#?}");
}

#[tokio::test]
async fn a_reader_that_has_fallen_behind_is_told_how_many_events_it_lost() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let resume = ids(&history(&server).await).pop().unwrap();
    for n in 0..1003 {
        server.write(&id, &format!("/workspace/{}", n % 7), "x").await;
    }
    let told = Listener::resume(&server, "?follow=false", Some(resume)).await.rest().await;
    assert_eq!(kind(&told[0]), "events.gap");
    assert_eq!(told[0]["data"], json!({"lost": 3, "exact": true, "reason": "behind"}));
    assert_eq!((told[0]["id"].as_u64().unwrap(), told.len()), (resume + 3, 1001));
    assert_eq!(ids(&told)[1], resume + 4);
}

#[tokio::test]
async fn ids_rise_across_a_crash_and_the_gap_is_told() {
    let mut server = TestServer::start(MOCK).await;
    let mut highest = 0;
    for _ in 0..3 {
        server.post("/templates", json!({"name": format!("t{highest}")})).await.ok();
        let told = ids(&history(&server).await);
        assert!(*told.iter().find(|id| **id > 0).unwrap() > highest, "{told:?} {highest}");
        highest = *told.last().unwrap();
        server.kill();
        server.launch().await;
        let told = Listener::resume(&server, "?follow=false", Some(highest)).await.rest().await;
        assert_eq!((kind(&told[0]), &told[0]["data"]["exact"]), ("events.gap", &json!(false)), "{told:?}");
        assert!(ids(&told).iter().all(|id| *id > highest), "{told:?}");
    }
    // An id that was not given yet, such as when the store is an older copy.
    let told = Listener::resume(&server, "?follow=false", Some((1 << 53) - 1)).await.rest().await;
    assert_eq!((kind(&told[0]), &told[0]["data"]["reason"]), ("events.gap", &json!("unknown_id")));
}

/// Opens a listener that never reads, so that its connection fills.
fn deaf(server: &TestServer) -> TcpStream {
    let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    stream.write_all(b"GET /api/v1/events?last_event_id=0 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_readers_and_some_that_never_read_hold_nobody_up() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let deaf: Vec<TcpStream> = (0..8).map(|_| deaf(&server)).collect();
    let mut listeners = Vec::new();
    for _ in 0..200 {
        listeners.push(Listener::begin(&server, "?type=file.written").await);
    }
    let before = server.resident_kib();
    let started = Instant::now();
    // A long name, so that those who do not read are soon behind.
    let name = "n".repeat(200);
    for n in 0..400 {
        server.write(&id, &format!("/workspace/{name}{}", n % 3), "x").await;
    }
    assert!(started.elapsed() < 3 * PATIENCE, "writes wait for readers: {:?}", started.elapsed());
    let mut seen = BTreeSet::new();
    for listener in &mut listeners {
        let mut told = Vec::new();
        while told.len() < 400 {
            told.push(listener.next().await.unwrap()["id"].as_u64().unwrap());
        }
        assert!(told.windows(2).all(|pair| pair[0] < pair[1]));
        seen.insert(told);
    }
    assert_eq!(seen.len(), 1, "every reader sees the same");
    let after = server.resident_kib();
    assert!(after < before + 32 * 1024, "memory in KiB: {before} {after}");
    drop(deaf);
}

#[tokio::test]
async fn readers_are_bounded_and_one_that_hangs_up_makes_room() {
    let server = TestServer::start(MOCK).await;
    let mut readers: Vec<TcpStream> = Vec::new();
    // One caller's share of the 512 places.
    for _ in 0..256 {
        let mut reader = deaf(&server);
        reader.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = [0; 12];
        reader.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        readers.push(reader);
    }
    server.get("/events?follow=false").await.refused(503, "unavailable", "share of the 512");
    let neighbour = server.request(Method::GET, "/events?follow=false").header("X-User-ID", "neighbour");
    assert_eq!(neighbour.send().await.unwrap().status(), 200);
    readers.pop();
    server.until("the place is free again", async || server.get("/events?follow=false").await.status == 200).await;
    readers.clear();
    server
        .until("all places are free again", async || {
            let asked = (0..200).map(|_| server.request(Method::GET, "/events").send());
            let answers = futures_util::future::join_all(asked).await;
            answers.into_iter().all(|answer| answer.unwrap().status() == 200)
        })
        .await;
}

#[tokio::test]
async fn a_stop_ends_the_streams_at_once() {
    let mut server = TestServer::start(MOCK).await;
    let listener = Listener::begin(&server, "").await;
    let started = Instant::now();
    let ended = tokio::spawn(listener.rest());
    let (code, server) = tokio::task::spawn_blocking(move || (server.terminate(), server)).await.unwrap();
    assert_eq!(code, Some(0));
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}: the streams held the stop up", started.elapsed());
    ended.await.unwrap();
    drop(server);
}

#[tokio::test]
async fn a_quiet_stream_shows_that_it_lives_and_from_where_to_resume() {
    let server = TestServer::start(MOCK).await;
    let mut listener = Listener::begin(&server, "?type=sandbox.failed").await;
    server.post("/templates", json!({"name": "t"})).await.ok();
    let block = listener.block().await.unwrap();
    assert!(block.starts_with(": ") && block.contains("\nid: ") && !block.contains("data"), "{block:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_prints_a_line_per_event_and_goes_on_after_a_restart() {
    let mut server = TestServer::start(&format!("{MOCK} server.port={}", free_port())).await;
    server.post("/templates", json!({"name": "one"})).await.ok();
    let url = server.url.clone();
    let tidebox = move |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tidebox"));
        command.args(arguments).env_clear().env("TIDEBOX_URL", &url);
        command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
        command
    };
    let kept = tidebox(&["events", "--type", "template.saved"]).output().unwrap();
    let kept = String::from_utf8(kept.stdout).unwrap();
    assert_eq!(kept.lines().count(), 1, "{kept}");
    assert!(kept.contains("template.saved") && kept.contains(r#"{"name":"one"}"#), "{kept}");

    let mut child =
        tidebox(&["events", "--follow", "--output", "json"]).stderr(std::process::Stdio::null()).spawn().unwrap();
    let (send, lines) = std::sync::mpsc::channel();
    let stdout = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        use std::io::BufRead as _;
        for line in std::io::BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = send.send(serde_json::from_str::<Value>(&line).unwrap());
        }
    });
    // The server publishes events of its own too, such as the registration of its worker.
    let next = || loop {
        let event: Value = tokio::task::block_in_place(|| lines.recv_timeout(PATIENCE)).unwrap();
        if matches!(kind(&event), "template.saved" | "events.gap") {
            break event;
        }
    };
    assert_eq!(next()["data"]["name"], "one");
    server.kill();
    server.launch().await;
    server.post("/templates", json!({"name": "two"})).await.ok();
    let gap = next();
    assert_eq!(kind(&gap), "events.gap", "{gap}");
    assert_eq!(next()["data"]["name"], "two");
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
}
