//! Lifetimes, pauses, environments, snapshots and forks, on boxes that are real.

use jiff::Timestamp;
use reqwest::Method;
use rustix::process::geteuid;
use serde_json::{Value, json};

use super::{E2b, Sandbox, answer, refused};
use crate::server::NATIVE;

fn end(shown: &Value) -> Timestamp {
    shown["endAt"].as_str().unwrap().parse().unwrap()
}

async fn shown(e2b: &E2b, id: &str) -> Value {
    e2b.get(&format!("/sandboxes/{id}")).await.ok()
}

async fn health(e2b: &E2b, sandbox: &Sandbox) -> u16 {
    answer(e2b.bare(Method::GET, "/health").header("E2b-Sandbox-Id", &sandbox.id)).await.status.as_u16()
}

#[tokio::test]
async fn a_timeout_may_shorten_or_lengthen_and_connect_never_shortens() {
    let e2b = E2b::mock().await;
    let made = e2b.create(json!({"timeout": 600})).await;
    let left = async || end(&shown(&e2b, &made.id).await).duration_since(Timestamp::now()).as_secs();
    let set = async |seconds: u64| {
        let path = format!("/sandboxes/{}/timeout", made.id);
        assert_eq!(e2b.post(&path, json!({"timeout": seconds})).await.status, 204);
    };
    let connect = async |body: Value| {
        let answered = e2b.post(&format!("/v2/sandboxes/{}/connect", made.id), body).await;
        assert_eq!(answered.status, 200, "{}", answered.json());
        assert_eq!(answered.json()["envdAccessToken"], made.token.as_str());
    };
    assert!((595..=600).contains(&left().await));
    set(60).await;
    assert!((55..=60).contains(&left().await));
    connect(json!({"timeout": 10})).await;
    assert!((50..=60).contains(&left().await));
    connect(json!({})).await;
    assert!((295..=300).contains(&left().await));
    set(1000).await;
    assert!((990..=1000).contains(&left().await));
    set(0).await;
    refused(&e2b.get(&format!("/sandboxes/{}", made.id)).await, 404, &made.id);
}

#[tokio::test]
async fn variables_of_a_sandbox_reach_every_process_and_are_not_listed() {
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({"envVars": {"SECRET": "s3cret", "A": "1"}})).await;
    assert_eq!(e2b.server.output(&made.id, "echo $SECRET $A").await, "s3cret 1\n");
    let over = json!({"command": "echo $SECRET $A", "env": {"A": "2"}});
    let over = e2b.server.post(&format!("/sandboxes/{}/exec", made.id), over).await.ok();
    assert_eq!(over["stdout"], "s3cret 2\n");
    for text in
        [e2b.server.get("/sandboxes").await.ok(), e2b.get("/v2/sandboxes").await.ok(), shown(&e2b, &made.id).await]
    {
        assert!(!text.to_string().contains("s3cret"), "{text}");
    }
}

#[tokio::test]
async fn a_sandbox_is_paused_and_taken_up_again() {
    if !geteuid().is_root() {
        return;
    }
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({"timeout": 60})).await;
    e2b.server.output(&made.id, "echo kept >/tmp/file").await;
    let pause = format!("/sandboxes/{}/pause", made.id);
    assert_eq!(e2b.post(&pause, json!({})).await.status, 204);
    refused(&e2b.post(&pause, json!({})).await, 409, "paused");
    let paused = shown(&e2b, &made.id).await;
    assert_eq!(paused["state"], "paused");
    // It is kept for as long as a sandbox may live.
    assert!(end(&paused).duration_since(Timestamp::now()).as_secs() > 3600, "{paused}");
    assert_eq!(health(&e2b, &made).await, 502);
    assert_eq!(e2b.get("/v2/sandboxes?state=paused").await.ok()[0]["sandboxID"], made.id.as_str());
    let connected = e2b.post(&format!("/v2/sandboxes/{}/connect", made.id), json!({"timeout": 30})).await;
    assert_eq!(connected.status, 201, "{}", connected.json());
    assert_eq!(connected.json()["envdAccessToken"], made.token.as_str());
    assert_eq!(health(&e2b, &made).await, 204);
    let left = end(&shown(&e2b, &made.id).await).duration_since(Timestamp::now()).as_secs();
    assert!((20..=30).contains(&left), "{left}");
    assert_eq!(e2b.server.output(&made.id, "cat /tmp/file").await, "kept\n");
    refused(&e2b.post(&format!("/sandboxes/{}/resume", made.id), json!({})).await, 409, "paused");
}

#[tokio::test]
async fn a_sandbox_pauses_at_its_end_and_traffic_wakes_it_if_both_were_asked_for() {
    if !geteuid().is_root() {
        return;
    }
    let e2b = E2b::start(NATIVE).await;
    let asleep = e2b.create(json!({"timeout": 1, "autoPause": true})).await;
    let wakes = e2b.create(json!({"timeout": 1, "autoPause": true, "autoResume": {"enabled": true}})).await;
    let killed = e2b.create(json!({"timeout": 1})).await;
    for sandbox in [&asleep, &wakes] {
        let paused = async || {
            let state = &shown(&e2b, &sandbox.id).await["state"];
            assert!(state == "running" || state == "paused", "it is never gone");
            state == "paused"
        };
        e2b.server.until("the sandbox is paused", paused).await;
    }
    let of_killed = format!("/sandboxes/{}", killed.id);
    e2b.server.until("the other is gone", async || e2b.get(&of_killed).await.status == 404).await;
    assert_eq!((health(&e2b, &asleep).await, health(&e2b, &wakes).await), (502, 204));
    assert_eq!(shown(&e2b, &wakes.id).await["lifecycle"], json!({"onTimeout": "pause", "autoResume": true}));
    assert_eq!(shown(&e2b, &asleep.id).await["state"], "paused");
    let path = format!("/sandboxes/{}/timeout", asleep.id);
    refused(&e2b.post(&path, json!({"timeout": 5})).await, 409, "paused");
}

#[tokio::test]
async fn a_sandbox_that_traffic_wakes_runs_for_its_timeout() {
    if !geteuid().is_root() {
        return;
    }
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({"timeout": 60, "autoPause": true, "autoResume": {"enabled": true}})).await;
    assert_eq!(e2b.post(&format!("/sandboxes/{}/pause", made.id), json!({})).await.status, 204);
    let left = async || end(&shown(&e2b, &made.id).await).duration_since(Timestamp::now()).as_secs();
    assert!(left().await > 3600, "it is kept for long");
    assert_eq!(health(&e2b, &made).await, 204);
    assert!((40..=60).contains(&left().await), "{}", left().await);
}

#[tokio::test]
async fn metrics_are_one_sample_of_now() {
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({})).await;
    let path = format!("/sandboxes/{}/metrics", made.id);
    let samples = e2b.get(&path).await.ok();
    let sample = &samples.as_array().unwrap()[0];
    for field in ["timestampUnix", "cpuCount", "cpuUsedPct", "memUsed", "memTotal", "memCache", "diskUsed", "diskTotal"]
    {
        assert!(sample[field].is_number(), "{field}: {sample}");
    }
    assert!(sample["timestamp"].as_str().unwrap().ends_with('Z'));
    assert_eq!(e2b.get(&format!("{path}?start=1&end=2")).await.ok(), json!([]));
    refused(&e2b.get(&format!("{path}?start=x")).await, 400, "`start`");
}

#[tokio::test]
async fn a_snapshot_is_a_template_and_forks_are_apart() {
    if !geteuid().is_root() {
        return;
    }
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({"envVars": {"A": "1"}})).await;
    e2b.server.output(&made.id, "echo first >/tmp/file").await;
    let taken = e2b.post(&format!("/sandboxes/{}/snapshots", made.id), json!({"name": "mine"})).await;
    if taken.status == 400 {
        // This host keeps no snapshots.
        return refused(&taken, 400, "snapshots");
    }
    assert_eq!(taken.status, 201, "{}", taken.json());
    let id = taken.json()["snapshotID"].as_str().unwrap().to_owned();
    assert_eq!(taken.json()["names"], json!(["mine"]));
    let listed = e2b.get(&format!("/snapshots?sandboxID={}", made.id)).await.ok();
    assert_eq!(listed, json!([{"snapshotID": id, "names": ["mine"]}]));
    assert_eq!(e2b.get("/snapshots?name=other").await.ok(), json!([]));
    let forked = e2b.post(&format!("/sandboxes/{}/fork", made.id), json!({"count": 2, "timeout": 60})).await;
    assert_eq!(forked.status, 201, "{}", forked.json());
    let copies: Vec<Sandbox> =
        forked.json().as_array().unwrap().iter().map(|copy| Sandbox::of(copy["sandbox"].clone())).collect();
    assert_eq!(copies.len(), 2);
    e2b.server.output(&made.id, "echo changed >/tmp/file").await;
    e2b.delete(&format!("/sandboxes/{}", made.id)).await;
    let of_snapshot = e2b.create(json!({"templateID": id})).await;
    let of_name = e2b.create(json!({"templateID": "mine"})).await;
    for copy in copies.iter().chain([&of_snapshot, &of_name]) {
        assert_eq!(e2b.server.output(&copy.id, "cat /tmp/file").await, "first\n");
    }
    assert_eq!(e2b.server.output(&copies[0].id, "echo $A").await, "1\n", "a copy has the variables");
    refused(&e2b.post(&format!("/sandboxes/{}/fork", copies[0].id), json!({"count": 0})).await, 400, "`count`");
    assert_eq!(e2b.delete(&format!("/templates/{id}")).await.status, 204);
    refused(&e2b.delete(&format!("/templates/{id}")).await, 404, &id);
}
