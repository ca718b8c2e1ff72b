//! Statements of the specification that no other test holds: crates/tidebox/tests/api-conformance.md lists them
//! all.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use reqwest::Method;
use serde_json::{Value, json};

use super::disk::SmallDisk;
use crate::server::{Answer, MOCK, NATIVE, PATIENCE, TestServer};

const KEY: &str = "api-key-0123456789abcdef0123456789abcdef";

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Returns the types of all events that are kept about this sandbox.
async fn told_of(server: &TestServer, id: &str) -> Vec<String> {
    let answer = server.get(&format!("/events?follow=false&last_event_id=0&sandbox_id={id}")).await;
    let text = String::from_utf8(answer.bytes).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("event: ")).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_version_is_told_by_health_live_ready_and_diagnostics() {
    let server = TestServer::start(MOCK).await;
    let version = json!(env!("CARGO_PKG_VERSION"));
    for path in ["/health", "/live", "/ready"] {
        let answer = server.get(path).await;
        assert_eq!(answer.headers["content-type"], "application/json");
        let body = answer.ok();
        assert_eq!(body["version"], version, "{path}");
        let mut expected = BTreeSet::from(["status", "version", "uptime"]);
        if path == "/ready" {
            expected.extend(["ready_providers", "total_providers", "providers"]);
        }
        assert_eq!(keys(&body), expected, "{path}");
    }
    assert_eq!(server.get("/diagnostics").await.ok()["build"]["version"], version);
}

#[tokio::test]
async fn snapshots_are_a_list_that_is_empty_at_first() {
    let server = TestServer::start(MOCK).await;
    let provider = &server.get("/providers").await.ok()[0];
    assert!(provider["capabilities"].as_array().unwrap().contains(&json!("snapshots")));
    assert_eq!(server.get("/snapshots").await.ok(), json!([]));
}

#[tokio::test]
async fn logs_are_the_last_hundred_lines_unless_another_number_is_asked_for() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    server.exec(&id, "(sleep 0.4; seq 1 150; touch /tmp/done) & true").await;
    server.until("the child's work", async || server.exec(&id, "test -e /tmp/done").await["exit_code"] == 0).await;
    let lines = async |query: &str| {
        let body = server.get(&format!("/sandboxes/{id}/logs{query}")).await.ok();
        body.as_array().unwrap().iter().map(|line| line.as_str().unwrap().parse().unwrap()).collect::<Vec<u32>>()
    };
    server.until("all lines", async || lines("?lines=1").await == [150]).await;
    assert_eq!(lines("").await, (51..=150).collect::<Vec<_>>());
    assert_eq!(lines("?lines=150").await, (1..=150).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_sandbox_can_be_sent_to_a_provider_and_says_when_it_ends() {
    let server = TestServer::start(MOCK).await;
    let body = json!({"image": "any:1", "provider": "mock", "ttl": "1h30m"});
    let made = server.post("/sandboxes", body).await.ok();
    assert_eq!((&made["image"], &made["provider"]), (&json!("any:1"), &json!("mock")));
    let at = |key: &str| made[key].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert_eq!(at("expires_at").duration_since(at("created_at")).as_secs(), 5400);
    assert!(made["created_at"].as_str().unwrap().ends_with('Z') && made["expires_at"].as_str().unwrap().ends_with('Z'));
    let extend = format!("/sandboxes/{}/extend", made["id"].as_str().unwrap());
    let extended = server.post(&extend, json!({"ttl": "2h"})).await.ok();
    assert_eq!(
        keys(&extended),
        keys(&made).into_iter().filter(|key| *key != "preview_domain").collect(),
        "the full sandbox"
    );
    assert!(extended["expires_at"].as_str() > made["expires_at"].as_str());
}

#[tokio::test]
async fn prune_removes_what_has_expired_and_counts_it() {
    let server = TestServer::start(MOCK).await;
    let kept = server.spawn().await;
    // The server's clean-up runs too, once a second: the request prunes at least one of them.
    for n in 1..=6 {
        server.spawn_with(json!({"ttl": format!("{}ms", 300 + 250 * n)})).await;
    }
    let mut pruned = 0;
    server
        .until("the end of all six", async || {
            pruned += server.delete("/sandboxes").await.ok()["pruned"].as_u64().unwrap();
            server.get("/sandboxes").await.ok().as_array().unwrap().len() == 1
        })
        .await;
    assert!((1..=6).contains(&pruned), "{pruned}");
    assert_eq!(server.get("/sandboxes").await.ok()[0]["id"], *kept);
}

#[tokio::test]
async fn a_provider_is_described_with_the_specified_keys() {
    let server = TestServer::start(MOCK).await;
    let entry = &server.get("/providers").await.ok()[0];
    let must = BTreeSet::from(["name", "healthy", "default", "latency_ms", "last_checked", "capabilities"]);
    assert_eq!(keys(entry), must, "`error` only when it is not healthy");
    assert!(entry["latency_ms"].is_u64() && entry["last_checked"].as_str().unwrap().ends_with('Z'));
    for capability in ["spawn", "exec", "exec_stream", "files", "console", "health"] {
        assert!(entry["capabilities"].as_array().unwrap().contains(&json!(capability)), "{entry}");
    }
    let detail = server.get("/providers/mock").await.ok();
    let must = BTreeSet::from(["name", "healthy", "default", "sandbox_count", "health", "config"]);
    assert!(keys(&detail).is_superset(&must), "{detail}");
    assert_eq!((&detail["health"]["name"], &detail["sandbox_count"]), (&json!("mock"), &json!(0)));
    assert!(detail["config"].is_object());
    server.spawn_with(json!({"metadata": {"mock.health": "out of tape"}})).await;
    assert_eq!(server.post("/providers/test", json!({})).await.ok(), json!({"mock": false}));
    let entry = &server.get("/providers").await.ok()[0];
    assert_eq!((&entry["healthy"], &entry["error"]), (&json!(false), &json!("out of tape")));
}

#[tokio::test]
async fn readiness_follows_the_health_of_the_providers() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn_with(json!({"metadata": {"mock.health": "out of tape"}})).await;
    server.post("/providers/test", json!({})).await.ok();
    server.get("/ready").await.refused(503, "unavailable", "out of tape");
    assert_eq!(server.get("/live").await.ok()["status"], "alive");
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    server.post("/providers/test", json!({})).await.ok();
    assert_eq!(server.get("/ready").await.ok()["status"], "ready");
}

#[tokio::test]
async fn every_code_of_the_table_of_errors_is_given_in_the_one_shape() {
    let auth = format!("auth.enabled=true auth.api_key={KEY}");
    let mut server = TestServer::builder(&format!("{MOCK} {auth} defaults.max_sandboxes=2"))
        .expecting("a request failed")
        .start()
        .await;
    server.get("/sandboxes").await.refused(401, "unauthorized", "X-API-Key");
    server.key = Some(KEY.to_owned());
    let malformed = server.request(Method::POST, "/sandboxes").header("Content-Type", "application/json").body("{");
    Answer::read(malformed.send().await.unwrap()).await.refused(400, "bad_request", "");
    let id = server.spawn().await;
    server.post(&format!("/sandboxes/{id}/exec"), json!({})).await.refused(400, "bad_request", "`command`");
    for missing in ["/sandboxes/sb-aaaaaaaaaaaaaaaa", "/templates/nope", "/providers/nope", "/quotas/nope"] {
        server.get(missing).await.refused(404, "not_found", "");
    }
    server.post("/templates", json!({"name": "py"})).await.ok();
    server.post("/templates", json!({"name": "py"})).await.refused(409, "conflict", "py");
    let failing = json!({"metadata": {"mock.start_fail": "1"}});
    server.post("/sandboxes", failing).await.refused(500, "provider_error", "");
    server.spawn().await;
    server.post("/sandboxes", json!({})).await.refused(429, "resource_limit", "maximum of 2");
    let none = TestServer::start("providers.native.enabled=false").await;
    none.post("/sandboxes", json!({})).await.refused(503, "unavailable", "");
}

#[tokio::test]
async fn a_spawn_that_waited_too_long_is_429() {
    let queue = "defaults.max_sandboxes=1 defaults.spawn_overflow=queue defaults.spawn_queue_timeout=300ms";
    let server = TestServer::start(&format!("{MOCK} {queue}")).await;
    server.spawn().await;
    let started = Instant::now();
    server.post("/sandboxes", json!({})).await.refused(429, "resource_limit", "300ms");
    assert!(started.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn the_wait_for_a_place_is_told_as_time_of_the_admission() {
    let queue = "defaults.max_sandboxes=1 defaults.spawn_overflow=queue defaults.spawn_queue_timeout=1m";
    let server = TestServer::start(&format!("{MOCK} {queue}")).await;
    let held = server.spawn().await;
    let waiting = tokio::spawn(server.request(Method::POST, "/sandboxes").send());
    let scheduler = async || server.get("/metrics").await.ok()["scheduler"].clone();
    server.until("it waits", async || scheduler().await["spawn_queue_depth"] == 1).await;
    let since = Instant::now();
    server.until("it has waited", async || since.elapsed() >= Duration::from_millis(100)).await;
    server.delete(&format!("/sandboxes/{held}")).await.ok();
    let answer = tokio::time::timeout(PATIENCE, waiting).await.expect("it goes on").unwrap().unwrap();
    let timing = answer.headers()["server-timing"].to_str().unwrap().to_owned();
    let admission = timing.split(", ").find_map(|part| part.strip_prefix("admission;dur=")).unwrap();
    let waited = scheduler().await["spawn_queue_wait_total_ms"].as_f64().unwrap();
    // Two clocks are read, one after the other.
    assert!(waited >= 99.0 && admission.parse::<f64>().unwrap() >= waited - 10.0, "{waited} ms of {timing}");
}

#[tokio::test]
async fn a_spawn_that_waits_goes_on_when_its_owners_quota_changes() {
    let queue = "defaults.spawn_overflow=queue defaults.spawn_queue_timeout=1m";
    let server = TestServer::start(&format!("{MOCK} {queue}")).await;
    let body = json!({"owner_id": "alice"});
    server.put("/quotas/alice", json!({"max_sandboxes": 1})).await.ok();
    server.spawn_with(body.clone()).await;
    for way in [Method::PUT, Method::DELETE] {
        let waiting = tokio::spawn(server.request(Method::POST, "/sandboxes").json(&body).send());
        let depth = async || server.get("/metrics").await.ok()["scheduler"]["spawn_queue_depth"].clone();
        server.until("it waits", async || depth().await == 1).await;
        let change = server.request(way.clone(), "/quotas/alice");
        let change = if way == Method::PUT { change.json(&json!({"max_sandboxes": 2})) } else { change };
        assert_eq!(change.send().await.unwrap().status(), 200);
        let answer = tokio::time::timeout(PATIENCE, waiting).await.expect("it goes on").unwrap().unwrap();
        assert_eq!(answer.status(), 201, "after {way}");
    }
}

#[tokio::test]
async fn what_a_provider_said_is_told_to_no_caller() {
    let server = TestServer::builder(MOCK).expecting("mock.").expecting("a request failed").start().await;
    let label = |name: &str| json!({"metadata": {name: "2"}});
    let private = |answer: &Answer| {
        answer.refused(500, "provider_error", "the provider `mock` failed to");
        let text = String::from_utf8_lossy(&answer.bytes).into_owned();
        assert!(!text.contains("requested by the label") && !text.contains("mock."), "{text}");
    };
    private(&server.post("/sandboxes", label("mock.start_fail")).await);
    let id = server.spawn_with(label("mock.exec_fail")).await;
    for stream in [false, true] {
        let body = json!({"command": "true", "stream": stream});
        private(&server.post(&format!("/sandboxes/{id}/exec"), body).await);
    }
    let id = server.spawn_with(label("mock.stop_fail")).await;
    private(&server.delete(&format!("/sandboxes/{id}")).await);
    server.until("its removal", async || server.delete(&format!("/sandboxes/{id}")).await.status == 200).await;
    let causes = |message: &str| {
        let lines: Vec<Value> = server.log_text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let causes = lines.iter().filter(|line| line["message"] == message).map(|line| line["error"].to_string());
        causes.collect::<Vec<_>>()
    };
    let failed = causes("a request failed");
    assert!(failed.len() >= 3 && failed.iter().all(|cause| cause.contains("requested by the label")), "{failed:?}");
}

#[tokio::test]
async fn what_fails_beside_all_requests_is_logged_with_its_cause() {
    let server = TestServer::builder(MOCK).expecting("mock.").expecting("a request failed").start().await;
    let id = server.spawn_with(json!({"metadata": {"mock.stop_fail": "2"}})).await;
    server.delete(&format!("/sandboxes/{id}")).await.refused(500, "provider_error", "");
    let logged = || {
        let log = server.log_text();
        let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["message"] == "cannot remove a sandbox; retrying later").collect::<Vec<_>>()
    };
    server.until("the reconciler has tried", async || !logged().is_empty()).await;
    assert!(logged()[0]["error"].as_str().unwrap().contains("requested by the label"), "{:?}", logged());
}

#[tokio::test]
async fn a_caller_that_hangs_up_is_no_timeout() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let exec = format!("/sandboxes/{id}/exec");
    for stream in [false, true] {
        let before = told_of(&server, &id).await.len();
        let body = json!({"command": "sleep 60", "timeout": "30s", "stream": stream});
        let call = server.request(Method::POST, &exec).json(&body).send();
        let caller = tokio::spawn(async move { call.await.unwrap().bytes().await });
        server.until("the start", async || told_of(&server, &id).await.len() > before).await;
        caller.abort();
        server.until("its end", async || told_of(&server, &id).await.len() > before + 1).await;
    }
    let told = told_of(&server, &id).await;
    assert!(!told.contains(&"exec.timeout".to_owned()), "{told:?}");
    // The same command is reported when it does run into its deadline.
    let late = json!({"command": "sleep 60", "timeout": "100ms", "stream": true});
    let said = server.post(&exec, late).await;
    assert!(String::from_utf8_lossy(&said.bytes).contains("\"stderr\""));
    server.until("the event", async || told_of(&server, &id).await.contains(&"exec.timeout".to_owned())).await;
}

#[tokio::test]
async fn a_quiet_stream_shows_that_it_lives() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let body = json!({"command": "sleep 40; echo late", "stream": true, "timeout": "2m"});
    let started = Instant::now();
    let answer = server.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&body).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
    let mut bytes = answer.bytes_stream();
    let first = tokio::time::timeout(PATIENCE, bytes.next()).await.expect("a quiet stream says something");
    assert_eq!(first.unwrap().unwrap(), "{\"stream\":\"stdout\",\"data\":\"\"}\n");
    assert!(started.elapsed() >= Duration::from_secs(14), "{:?}", started.elapsed());
}

#[tokio::test]
async fn with_destroy_on_exit_no_box_outlives_the_server() {
    let mut server = TestServer::builder(NATIVE).command("serve --destroy-on-exit").start().await;
    let id = server.spawn().await;
    let boxes = server.data_dir().join("native/boxes");
    assert!(boxes.join(&id).exists());
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(std::fs::read_dir(&boxes).unwrap().count(), 0, "nothing is left");
    server.launch().await;
    server.get(&format!("/sandboxes/{id}")).await.refused(404, "not_found", &id);
}

#[tokio::test]
async fn with_destroy_on_exit_boxes_are_removed_some_at_a_time_and_a_second_signal_ends_it() {
    let settings = format!("{MOCK} defaults.max_sandboxes=0");
    let mut server = TestServer::builder(&settings).command("serve --destroy-on-exit").start().await;
    for _ in 0..33 {
        server.spawn_with(json!({"metadata": {"mock.stop_delay": "300ms"}})).await;
    }
    let begun = Instant::now();
    assert_eq!(server.terminate(), Some(0));
    assert!(begun.elapsed() >= Duration::from_millis(900), "three times 16 at most: {:?}", begun.elapsed());

    server.launch().await;
    server.spawn_with(json!({"metadata": {"mock.stop_delay": "10m"}})).await;
    let pid = rustix::process::Pid::from_raw(server.pid().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let destroys = async || server.log_text().matches("destroying a sandbox").count() == 34;
    server.until("it stops", destroys).await;
    let begun = Instant::now();
    assert_eq!(server.terminate(), Some(1));
    assert!(begun.elapsed() < Duration::from_secs(9), "it did not wait for the box: {:?}", begun.elapsed());
}

#[tokio::test]
async fn the_box_that_takes_the_last_of_the_disk_is_ended_and_its_neighbours_are_not() {
    // The reserve is met again once the hog's files are gone; many files take long to delete.
    let disk = SmallDisk::of_megabytes(600);
    let data = disk.path().join("data");
    let settings = format!("{NATIVE} limits.reserve_disk_mb=350 data_dir={}", data.display());
    let server = TestServer::start(&settings).await;
    let bounded = server.spawn_with(json!({"disk_mb": 64})).await;
    let [small, large, hog] = [server.spawn().await, server.spawn().await, server.spawn().await];
    for id in [&bounded, &large] {
        server.output(id, "head -c 40000000 /dev/zero > f").await;
    }
    // The box may be ended while the command still writes.
    let command = json!({"command": "head -c 300000000 /dev/zero | split -b 4096 -a 6 - f"});
    server.post(&format!("/sandboxes/{hog}/exec"), command).await;
    let failed = server.get(&format!("/sandboxes/{hog}/wait?state=failed&timeout=30s")).await.ok();
    assert!(failed["error"].as_str().unwrap().contains("spawn with `disk_mb` to limit it"), "{failed}");
    server
        .until("its files are gone", async || {
            let stat = rustix::fs::statvfs(disk.path()).unwrap();
            stat.f_bavail * stat.f_frsize > 350 << 20
        })
        .await;
    for id in [&bounded, &small, &large] {
        assert_eq!(server.output(id, "echo still here").await, "still here\n");
    }
}

/// C source of a library that adds the seconds in a file to the wall clock.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *at) {
    int result = syscall(SYS_clock_gettime, id, at);
    const char *path = getenv("TEST_CLOCK");
    FILE *file = id == CLOCK_REALTIME && path ? fopen(path, "r") : NULL;
    long seconds = 0;
    if (file && fscanf(file, "%ld", &seconds) == 1) at->tv_sec += seconds;
    if (file) fclose(file);
    return result;
}
"#;

#[tokio::test]
async fn the_ends_of_sandboxes_move_with_a_wall_clock_that_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let (source, library, hands) = (dir.path().join("clock.c"), dir.path().join("clock.so"), dir.path().join("hands"));
    std::fs::write(&source, CLOCK).unwrap();
    std::fs::write(&hands, "0").unwrap();
    let made = std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(made.unwrap().success(), "a C compiler, as the build needs one too");
    let server = TestServer::builder(MOCK).env("LD_PRELOAD", &library).env("TEST_CLOCK", &hands).start().await;
    let id = server.spawn_with(json!({"ttl": "1h"})).await;
    let end = async || {
        let seen = server.get(&format!("/sandboxes/{id}")).await.ok();
        seen["expires_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap()
    };
    let first = end().await;
    // Forward by two days, and back again: the remaining lifetime stays the same.
    for (set_to, moved) in [("172800", 172_800), ("-86400", -86_400)] {
        std::fs::write(&hands, set_to).unwrap();
        server.until("it follows", async || end().await != first).await;
        server.until("it is exact", async || (end().await.duration_since(first).as_secs() - moved).abs() <= 5).await;
    }
    assert!(server.log_text().contains("the wall clock was set"));
    assert_eq!(server.exec(&id, "true").await["exit_code"], 0);
}
