//! Pool mode: users share boxes, and nothing else.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Answer, MOCK, NATIVE, TestServer};

/// Two boxes of two users each.
const POOL: &str = "pool.enabled=true pool.max_vms=2 pool.max_users_per_vm=2";

fn with(provider: &str, more: &str) -> String {
    format!("{provider} {POOL} {more}")
}

/// A client that sends its name as `X-User-ID`.
struct User<'a> {
    server: &'a TestServer,
    name: &'a str,
}

impl<'a> User<'a> {
    fn of(server: &'a TestServer, name: &'a str) -> Self {
        Self { server, name }
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let mut request = self.server.request(method, path).header("X-User-ID", self.name);
        if let Some(body) = body {
            request = request.json(&body);
        }
        Answer::read(request.send().await.unwrap()).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, None).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(Method::POST, path, Some(body)).await
    }

    async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, None).await
    }

    async fn spawn(&self, body: Value) -> String {
        let answer = self.post("/sandboxes", body).await;
        assert_eq!(answer.status, 201, "{}", answer.json());
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    async fn output(&self, id: &str, line: &str) -> String {
        let result = self.post(&format!("/sandboxes/{id}/exec"), json!({"command": line})).await.ok();
        assert_eq!(result["exit_code"], 0, "{line}: {result}");
        result["stdout"].as_str().unwrap().to_owned()
    }

    async fn destroy(&self, id: &str) {
        self.delete(&format!("/sandboxes/{id}")).await.ok();
    }

    /// Returns the ids in the list.
    async fn listed(&self) -> BTreeSet<String> {
        let listed = self.get("/sandboxes").await.ok();
        listed.as_array().unwrap().iter().map(|sandbox| sandbox["id"].as_str().unwrap().to_owned()).collect()
    }

    async fn destroy_all(&self) {
        for id in self.listed().await {
            self.destroy(&id).await;
        }
    }
}

async fn status(server: &TestServer) -> (u64, u64) {
    let status = server.get("/pool/status").await.ok();
    assert_eq!(
        (&status["enabled"], &status["max_vms"], &status["max_users_per_vm"]),
        (&json!(true), &json!(2), &json!(2))
    );
    (status["vms"].as_u64().unwrap(), status["total_users"].as_u64().unwrap())
}

/// Returns the folders of the boxes on disk.
fn boxes(server: &TestServer) -> Vec<std::path::PathBuf> {
    let boxes = std::fs::read_dir(server.data_dir().join("native/boxes")).unwrap();
    boxes.flatten().map(|entry| entry.path()).collect()
}

/// Returns the first process of a box, as the host numbers it.
fn first_process(folder: &std::path::Path) -> i32 {
    let text = std::fs::read_to_string(folder.join("pid")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns every method and path of the API about sandboxes, with `id` where one is named.
async fn routes(server: &TestServer, id: &str) -> Vec<(Method, String, bool)> {
    let document = server.get("/openapi.json").await.ok();
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.strip_prefix("/api/v1").unwrap();
        if !path.starts_with("/sandboxes") && path != "/templates/{name}/spawn" {
            continue;
        }
        let names_one = path.starts_with("/sandboxes/{id}");
        let path = path.replace("{id}", id).replace("{name}", "nope").replace("{path}", "etc/passwd");
        for method in methods.as_object().unwrap().keys().filter(|key| key.as_str() != "parameters") {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            found.push((method, path.replace("{port}", "80"), names_one));
        }
    }
    assert!(found.iter().filter(|(_, _, names_one)| *names_one).count() > 10, "{found:?}");
    found
}

#[tokio::test]
async fn every_request_about_sandboxes_says_whose_it_is() {
    let server = TestServer::start(&with(MOCK, "")).await;
    let id = User::of(&server, "alice").spawn(json!({})).await;
    for (method, path, _) in routes(&server, &id).await {
        let answer = Answer::read(server.request(method.clone(), &path).json(&json!({})).send().await.unwrap()).await;
        answer.refused(400, "bad_request", "`X-User-ID` is missing");
        let request = server.request(method, &path).header("X-User-ID", "a b").json(&json!({}));
        Answer::read(request.send().await.unwrap()).await.refused(400, "bad_request", "X-User-ID");
    }
    // Routes without a sandbox need no user.
    for path in ["/providers", "/templates", "/health", "/pool/status"] {
        server.get(path).await.ok();
    }
    let named = json!({"owner_id": "alice"});
    server.post("/sandboxes", named).await.refused(400, "bad_request", "`X-User-ID` is missing");
    let unreadable = User::of(&server, "alice").get("/sandboxes/%FF").await;
    unreadable.refused(400, "bad_request", "the path");
}

#[tokio::test]
async fn the_sandbox_of_another_user_is_not_there_on_any_route() {
    let server = TestServer::start(&with(MOCK, "")).await;
    let (alice, eve) = (User::of(&server, "alice"), User::of(&server, "eve"));
    let id = alice.spawn(json!({})).await;
    for id in [id.clone(), format!("%73b{}", id.strip_prefix("sb").unwrap())] {
        for (method, path, names_one) in routes(&server, &id).await {
            if names_one {
                let answer = eve.send(method.clone(), &path, Some(json!({}))).await;
                answer.refused(404, "not_found", "does not exist");
            }
        }
    }
    let unknown = "sb-aaaaaaaaaaaaaaaa";
    let words = |answer: &Answer| answer.json()["message"].as_str().unwrap().to_owned();
    let of_another = words(&eve.get(&format!("/sandboxes/{id}")).await);
    assert_eq!(of_another.replace(&id, unknown), words(&eve.get(&format!("/sandboxes/{unknown}")).await));
    assert!(eve.listed().await.is_empty());
    assert_eq!(eve.get("/sandboxes?owner_id=alice").await.ok(), json!([]));
    assert_eq!(alice.get("/sandboxes?owner_id=alice").await.ok().as_array().unwrap().len(), 1);
    eve.get("/events?follow=false").await.refused(400, "bad_request", "`sandbox_id` is missing");
    eve.get(&format!("/events?follow=false&sandbox_id={id}")).await.refused(404, "not_found", "does not exist");
    let heard = alice.get(&format!("/events?follow=false&last_event_id=0&sandbox_id={id}")).await;
    assert!(String::from_utf8_lossy(&heard.bytes).contains("sandbox.running"));
    // The sandbox is unharmed, and stays unknown to the other user once it is gone.
    assert_eq!(alice.output(&id, "echo here").await, "here\n");
    alice.destroy(&id).await;
    eve.delete(&format!("/sandboxes/{id}")).await.refused(404, "not_found", "does not exist");
    alice.destroy(&id).await;
}

#[tokio::test]
async fn a_stranger_neither_fences_a_sandbox_nor_learns_from_the_fence_that_it_is_there() {
    let server = TestServer::start(&with(MOCK, "")).await;
    let (alice, eve) = (User::of(&server, "alice"), User::of(&server, "eve"));
    let id = alice.spawn(json!({})).await;
    let send = async |user: &User<'_>, method: Method, path: &str, generation: &str| {
        let request = server.request(method, path).header("X-User-ID", user.name);
        let request = request.header("X-Lease-Generation", generation).json(&json!({"command": "true"}));
        Answer::read(request.send().await.unwrap()).await
    };
    let exec = format!("/sandboxes/{id}/exec");
    send(&alice, Method::POST, &exec, "7").await.ok();
    for (method, path, names_one) in routes(&server, &id).await {
        if names_one {
            // Both older and newer than the generation that its owner sent.
            for generation in ["3", "9000"] {
                let answer = send(&eve, method.clone(), &path, generation).await;
                answer.refused(404, "not_found", "does not exist");
            }
        }
    }
    let of_none = send(&eve, Method::POST, "/sandboxes/sb-aaaaaaaaaaaaaaaa/exec", "3").await;
    of_none.refused(404, "not_found", "does not exist");
    assert_eq!(send(&alice, Method::POST, &exec, "7").await.status, 200, "a stranger's generation was not stored");
    send(&alice, Method::POST, &exec, "6").await.refused(409, "conflict", "a higher one was seen");
    let encoded = exec.replace("sb-", "%73b-");
    send(&alice, Method::POST, &encoded, "6").await.refused(409, "conflict", "a higher one was seen");
}

#[tokio::test]
async fn the_administrator_sees_everybodys_sandboxes_and_says_whose_a_new_one_is() {
    let server = TestServer::start(&with(MOCK, "auth.admin_api_key=an-admin-key-of-thirty-two-bytes!")).await;
    let ids = BTreeSet::from([
        User::of(&server, "alice").spawn(json!({})).await,
        User::of(&server, "bob").spawn(json!({})).await,
    ]);
    let asked = |method: Method, path: &str| {
        server.request(method, path).header("X-Admin-API-Key", "an-admin-key-of-thirty-two-bytes!")
    };
    let answer = |request: reqwest::RequestBuilder| async { Answer::read(request.send().await.unwrap()).await };
    let listed = answer(asked(Method::GET, "/sandboxes")).await.ok();
    let seen: BTreeSet<String> =
        listed.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(seen, ids);
    for id in &ids {
        answer(asked(Method::GET, &format!("/sandboxes/{id}"))).await.ok();
    }
    let spawn = answer(asked(Method::POST, "/sandboxes").json(&json!({}))).await;
    spawn.refused(400, "bad_request", "`X-User-ID` is missing");
    let spawn = asked(Method::POST, "/sandboxes").header("X-User-ID", "alice").json(&json!({}));
    assert_eq!(answer(spawn).await.ok()["owner_id"], "alice");
    let wrong = server.request(Method::GET, "/sandboxes").header("X-Admin-API-Key", "wrong");
    assert!(answer(wrong).await.status.is_client_error());
}

#[tokio::test]
async fn boxes_are_filled_one_after_the_other_up_to_their_number() {
    let server = TestServer::start(&with(MOCK, "")).await;
    let users = ["a", "b", "c", "d", "e"].map(|name| User::of(&server, name));
    assert_eq!(status(&server).await, (0, 0));
    let mut ids = Vec::new();
    for (user, expected) in users.iter().zip([(1, 1), (1, 2), (2, 3), (2, 4)]) {
        ids.push(user.spawn(json!({})).await);
        assert_eq!(status(&server).await, expected);
    }
    let full = users[4].post("/sandboxes", json!({})).await;
    full.refused(503, "unavailable", "the pool is full: 2 boxes for 2 users each");
    assert!(users[4].listed().await.is_empty(), "who was refused has left nothing");
    let decision = users[4].post("/sandboxes/admission", json!({})).await.ok();
    assert_eq!((&decision["allowed"], &decision["reason"]), (&json!(false), &json!("no_eligible_worker")));
    // Another size needs another box, and there is none.
    users[0].destroy(&ids[0]).await;
    assert_eq!(status(&server).await, (2, 3));
    users[4].post("/sandboxes", json!({"memory_mb": 64})).await.refused(503, "unavailable", "none of this size");
    ids[0] = users[4].spawn(json!({})).await;
    assert_eq!(status(&server).await, (2, 4));
    // A box is removed with its last slot, and not before.
    users[4].destroy(&ids[0]).await;
    users[1].destroy(&ids[1]).await;
    assert_eq!(status(&server).await, (1, 2));
    assert_eq!(users[2].output(&ids[2], "echo still here").await, "still here\n");
    users[4].spawn(json!({"memory_mb": 64})).await;
    assert_eq!(status(&server).await, (2, 3));
}

#[tokio::test]
async fn many_at_once_get_as_many_places_as_there_are() {
    let server = TestServer::start(&with(MOCK, "")).await;
    let names: Vec<String> = (0..20).map(|n| format!("user-{n}")).collect();
    let spawns = names.iter().map(|name| {
        let user = User::of(&server, name);
        async move { user.post("/sandboxes", json!({})).await.status.as_u16() }
    });
    let answers = futures_util::future::join_all(spawns).await;
    assert_eq!(answers.iter().filter(|status| **status == 201).count(), 4, "{answers:?}");
    assert!(answers.iter().all(|status| [201, 503].contains(status)), "{answers:?}");
    assert_eq!(status(&server).await, (2, 4));
}

#[tokio::test]
async fn a_spawn_can_wait_for_a_place() {
    let server = TestServer::start(&with(
        MOCK,
        "pool.overflow=queue defaults.spawn_queue_timeout=4s defaults.max_sandboxes=100",
    ))
    .await;
    let users = ["a", "b", "c", "d", "e"].map(|name| User::of(&server, name));
    let mut ids = Vec::new();
    for user in &users[..4] {
        ids.push(user.spawn(json!({})).await);
    }
    users[4].post("/sandboxes", json!({})).await.refused(429, "resource_limit", "no place became free within 4s");
    let waiting = users[4].spawn(json!({}));
    let leaving = async {
        let depth = async || server.get("/metrics").await.ok()["scheduler"]["spawn_queue_depth"].clone();
        server.until("it waits", async || depth().await == 1).await;
        users[0].destroy(&ids[0]).await;
    };
    let (id, ()) = tokio::join!(waiting, leaving);
    assert_eq!(users[4].output(&id, "echo up").await, "up\n");
    assert_eq!(status(&server).await, (2, 4));
}

#[tokio::test]
async fn a_spawn_that_fails_gives_its_place_back() {
    let server = TestServer::builder(&with(MOCK, "")).expecting("a request failed").start().await;
    let user = User::of(&server, "alice");
    for _ in 0..5 {
        let failed = user.post("/sandboxes", json!({"metadata": {"mock.start_fail": "1"}})).await;
        failed.refused(500, "provider_error", "failed to");
        assert_eq!(status(&server).await, (0, 0));
    }
    let id = user.spawn(json!({})).await;
    assert_eq!(status(&server).await, (1, 1));
    user.post(&format!("/sandboxes/{id}/extend"), json!({"ttl": "1s"})).await.ok();
    server.until("an expired slot is gone with its box", async || status(&server).await == (0, 0)).await;
    user.get(&format!("/sandboxes/{id}")).await.refused(404, "not_found", "does not exist");
}

#[tokio::test]
async fn without_pool_mode_the_status_says_so_and_nobody_must_say_who_it_is() {
    let server = TestServer::start(MOCK).await;
    assert_eq!(server.get("/pool/status").await.ok(), json!({"enabled": false}));
    let id = server.spawn().await;
    User::of(&server, "somebody").get(&format!("/sandboxes/{id}")).await.ok();
}

#[tokio::test]
async fn a_provider_that_cannot_keep_users_apart_is_refused() {
    if !is_root() {
        return;
    }
    const NOBODY: u32 = 65_534;
    let server = TestServer::builder(&with(NATIVE, "")).user(NOBODY).start().await;
    let refused = User::of(&server, "alice").post("/sandboxes", json!({})).await;
    refused.refused(400, "not_supported", "one user id only");
    assert_eq!(status(&server).await, (0, 0));
}

#[tokio::test]
async fn users_of_one_native_box_are_users_of_their_own() {
    if !is_root() {
        return;
    }
    let server = TestServer::start(&with(NATIVE, "")).await;
    let (alice, bob) = (User::of(&server, "alice"), User::of(&server, "bob"));
    let ids = [alice.spawn(json!({})).await, bob.spawn(json!({})).await];
    assert_eq!(boxes(&server).len(), 1, "they share a box");
    alice
        .post(&format!("/sandboxes/{}/files", ids[0]), json!({"path": "/workspace/mine", "content": "secret"}))
        .await
        .ok();
    alice.output(&ids[0], "echo secret > /tmp/mine; echo secret > ~/mine; sleep 1000 > /dev/null 2>&1 &").await;
    let (uid, other) = (alice.output(&ids[0], "id -u").await, bob.output(&ids[1], "id -u").await);
    assert!(uid != other && uid != "0\n" && other != "0\n", "{uid} {other}");
    assert_eq!(alice.output(&ids[0], "stat -c %u /workspace/mine").await, uid, "files are the user's own too");
    assert_eq!(bob.output(&ids[1], "ls -A /workspace /tmp ~ | grep mine; true").await, "");
    assert_eq!(bob.output(&ids[1], "cat /proc/[0-9]*/comm | grep sleep; true").await, "");
    let as_root = json!({"command": "id", "user": "root"});
    alice.post(&format!("/sandboxes/{}/exec", ids[0]), as_root).await.refused(400, "not_supported", "shared");
    // A slot has its own share of memory.
    let hog =
        json!({"command": "exec /usr/bin/python3", "args": ["-c", "x = []\nwhile True: x.append(bytearray(1 << 20))"]});
    let ran = bob.post(&format!("/sandboxes/{}/exec", ids[1]), hog).await.ok();
    assert_eq!((&ran["exit_code"], &ran["oom_killed"]), (&json!(137), &json!(true)), "{ran}");
    bob.destroy(&ids[1]).await;
    assert_eq!(alice.output(&ids[0], "cat /workspace/mine").await, "secret");
    assert_eq!(alice.output(&ids[0], "cat /proc/[0-9]*/comm | grep -c sleep").await, "1\n");
    alice.destroy(&ids[0]).await;
    assert_eq!(boxes(&server), Vec::<std::path::PathBuf>::new());
    assert_eq!(status(&server).await, (0, 0));
}

/// Returns the seconds until the agent of a box ends it by itself, from the kernel's view of its
/// timer.
fn deadline_secs(pid: i32) -> u64 {
    let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
    let texts = infos.filter_map(|info| std::fs::read_to_string(info.path()).ok());
    let values = texts.filter_map(|text| {
        let value = text.lines().find_map(|line| line.strip_prefix("it_value: ("))?;
        value.split(',').next()?.trim().parse::<u64>().ok()
    });
    values.max().expect("the agent has a timer")
}

#[tokio::test]
async fn a_box_lives_as_long_as_its_longest_slot() {
    if !is_root() {
        return;
    }
    const GRACE: u64 = 3600;
    let server = TestServer::start(&with(NATIVE, "")).await;
    let (alice, bob) = (User::of(&server, "alice"), User::of(&server, "bob"));
    let expect = |secs: u64| {
        let left = deadline_secs(first_process(&boxes(&server)[0]));
        assert!((secs + GRACE - 60..=secs + GRACE).contains(&left), "{left} instead of {secs} and an hour");
    };
    let first = alice.spawn(json!({"ttl": "10m"})).await;
    expect(600);
    let second = bob.spawn(json!({"ttl": "2h"})).await;
    expect(7200);
    alice.post(&format!("/sandboxes/{first}/extend"), json!({"ttl": "5h"})).await.ok();
    expect(18_000);
    alice.post(&format!("/sandboxes/{first}/extend"), json!({"ttl": "10m"})).await.ok();
    expect(7200);
    bob.destroy(&second).await;
    expect(600);
    alice.destroy(&first).await;
}

#[tokio::test]
async fn slots_outlive_a_crash_of_the_server_and_leave_nothing_when_destroyed() {
    if !is_root() {
        return;
    }
    let mut server = TestServer::start(&with(NATIVE, "")).await;
    let names = ["a", "b", "c"];
    let mut ids = Vec::new();
    for name in names {
        let user = User::of(&server, name);
        let id = user.spawn(json!({})).await;
        user.output(&id, &format!("echo {name} > /workspace/mine; (while :; do date +%N > /workspace/beat; sleep 0.05; done) > /dev/null 2>&1 &")).await;
        ids.push(id);
    }
    let last = User::of(&server, "d");
    let brief = last.spawn(json!({})).await;
    let folders: Vec<_> =
        boxes(&server).iter().flat_map(|folder| std::fs::read_dir(folder.join("slots")).unwrap().flatten()).collect();
    let pids: Vec<i32> = folders.iter().map(|slot| first_process(&slot.path())).collect();
    assert_eq!(pids.len(), 4);
    last.post(&format!("/sandboxes/{brief}/extend"), json!({"ttl": "1s"})).await.ok();
    let brief_ends = Instant::now() + Duration::from_secs(1);
    server.kill();
    let runs = |pid: &i32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    assert!(pids.iter().filter(|pid| runs(pid)).count() >= 3, "slots outlive the server");
    tokio::time::sleep_until(brief_ends.into()).await;
    server.launch().await;
    User::of(&server, "d").get(&format!("/sandboxes/{brief}")).await.refused(404, "not_found", "does not exist");
    for (name, id) in names.iter().zip(&ids) {
        let user = User::of(&server, name);
        assert_eq!(user.output(id, "cat /workspace/mine").await, format!("{name}\n"));
        let beat = user.output(id, "cat /workspace/beat").await;
        server
            .until("the background process goes on", async || user.output(id, "cat /workspace/beat").await != beat)
            .await;
    }
    server.until("the expired slot is gone", async || status(&server).await == (2, 3)).await;
    // The slots are known again: one more fits beside the third.
    let fourth = User::of(&server, "e").spawn(json!({})).await;
    assert_eq!(status(&server).await, (2, 4));
    for (name, id) in names.iter().zip(&ids) {
        User::of(&server, name).destroy(id).await;
    }
    User::of(&server, "e").destroy(&fourth).await;
    assert_eq!(status(&server).await, (0, 0));
    assert_eq!(boxes(&server), Vec::<std::path::PathBuf>::new());
    server.until("no process is left", async || !pids.iter().any(runs)).await;
}

#[tokio::test]
async fn what_a_crash_left_half_made_or_half_removed_in_the_pool_is_finished() {
    if !is_root() {
        return;
    }
    let mut server =
        TestServer::start(&format!("{NATIVE} pool.enabled=true pool.max_vms=50 pool.max_users_per_vm=2")).await;
    let names = ["a", "b", "c", "d"];
    for round in 0..6u64 {
        let spawns: Vec<_> = names
            .iter()
            .map(|name| {
                let request = server.request(Method::POST, "/sandboxes").header("X-User-ID", *name);
                tokio::spawn(request.json(&json!({})).send())
            })
            .collect();
        let listed = User::of(&server, "a").listed().await;
        let removal = listed.first().map(|id| {
            let request = server.request(Method::DELETE, &format!("/sandboxes/{id}")).header("X-User-ID", "a");
            tokio::spawn(request.send())
        });
        // A moment that differs from round to round, while the boxes are being made.
        tokio::time::sleep(Duration::from_micros(1500 * round)).await;
        server.kill();
        for request in spawns.into_iter().chain(removal) {
            let _ = request.await;
        }
        server.launch().await;
    }
    let users = names.map(|name| User::of(&server, name));
    server
        .until("every row is settled, and every box is one of the pool's", async || {
            let mut live = 0;
            for user in &users {
                let listed = user.get("/sandboxes").await.ok();
                let listed = listed.as_array().unwrap();
                if listed.iter().any(|sandbox| sandbox["state"] != "running") {
                    return false;
                }
                live += listed.len() as u64;
            }
            let status = server.get("/pool/status").await.ok();
            let slots = boxes(&server)
                .iter()
                .map(|folder| std::fs::read_dir(folder.join("slots")).map_or(0, Iterator::count) as u64)
                .sum::<u64>();
            status["total_users"] == live && status["vms"] == boxes(&server).len() as u64 && slots == live
        })
        .await;
    for user in &users {
        for id in user.listed().await {
            assert_eq!(user.output(&id, "echo up").await, "up\n");
        }
        user.destroy_all().await;
    }
    assert_eq!(boxes(&server), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn a_box_killed_from_outside_ends_its_slots_and_no_others() {
    if !is_root() {
        return;
    }
    let server = TestServer::start(&with(NATIVE, "")).await;
    let users = ["a", "b", "c"].map(|name| User::of(&server, name));
    let mut ids = Vec::new();
    for user in &users[..2] {
        ids.push(user.spawn(json!({})).await);
    }
    let pid = first_process(&boxes(&server)[0]);
    ids.push(users[2].spawn(json!({})).await);
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
    for (user, id) in users.iter().zip(&ids).take(2) {
        let waited = user.get(&format!("/sandboxes/{id}/wait?state=destroyed&timeout=30s")).await.ok();
        assert_eq!(waited["state"], "destroyed");
    }
    assert_eq!(users[2].output(&ids[2], "echo here").await, "here\n");
    server.until("the box is gone", async || status(&server).await == (1, 1)).await;
    users[0].spawn(json!({})).await;
    assert_eq!(status(&server).await, (1, 2));
    for user in &users {
        user.destroy_all().await;
    }
}

#[tokio::test]
async fn without_pool_mode_its_slots_and_boxes_are_cleaned_up() {
    if !is_root() {
        return;
    }
    let mut server = TestServer::start(&with(NATIVE, "")).await;
    let id = User::of(&server, "alice").spawn(json!({})).await;
    server.kill();
    server.set("pool.enabled", "false");
    server.launch().await;
    let waited = server.get(&format!("/sandboxes/{id}/wait?state=destroyed&timeout=30s")).await.ok();
    assert_eq!(waited["state"], "destroyed");
    server.until("its box is gone", async || boxes(&server).is_empty()).await;
    server.kill();
    server.set("pool.enabled", "true");
    server.launch().await;
    server.until("its place is free", async || status(&server).await == (0, 0)).await;
}

#[tokio::test]
async fn who_waits_for_a_place_of_one_size_does_not_hold_up_who_wants_another() {
    let server = TestServer::start(&with(MOCK, "pool.overflow=queue defaults.spawn_queue_timeout=1m")).await;
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(|name| User::of(&server, name));
    let held = a.spawn(json!({"memory_mb": 512})).await;
    b.spawn(json!({"memory_mb": 512})).await;
    c.spawn(json!({"memory_mb": 256})).await;
    let depth = async || server.get("/metrics").await.ok()["scheduler"]["spawn_queue_depth"].as_u64().unwrap();
    let waits = async { d.spawn(json!({"memory_mb": 512})).await };
    let others = async {
        server.until("it waits", async || depth().await == 1).await;
        let small = json!({"memory_mb": 256});
        let preview = e.post("/sandboxes/admission", small.clone()).await.ok();
        assert_eq!(preview["allowed"], true, "{preview}");
        e.spawn(small).await;
        assert_eq!(depth().await, 1, "the other waits still");
        a.destroy(&held).await;
    };
    tokio::join!(waits, others);
    for user in [b, c, d, e] {
        user.destroy_all().await;
    }
}

#[tokio::test]
async fn who_asks_for_many_sizes_leaves_boxes_of_the_pool_to_others() {
    let server = TestServer::start(&format!("{MOCK} pool.enabled=true pool.max_vms=10 pool.max_users_per_vm=5")).await;
    let users = ["a", "b", "c"].map(|name| User::of(&server, name));
    let mut size = 64;
    for (user, boxes) in users[..2].iter().zip([5, 3]) {
        for _ in 0..boxes {
            user.spawn(json!({"memory_mb": size})).await;
            size += 1;
        }
        let more = user.post("/sandboxes", json!({"memory_mb": size})).await;
        more.refused(429, "resource_limit", "use a size that you already have");
        let decision = user.post("/sandboxes/admission", json!({"memory_mb": size})).await.ok();
        assert_eq!(decision["allowed"], false, "{decision}");
        user.spawn(json!({"memory_mb": size - 1})).await;
    }
    users[2].spawn(json!({"memory_mb": 512})).await;
}
