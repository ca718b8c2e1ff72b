//! A control plane or a worker that is killed, hangs, or comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::pair::Pair;
use crate::server::{Answer, MOCK, NATIVE};

/// Starts a control plane without a provider, and a worker with real boxes.
async fn native_pair() -> Pair {
    Pair::start("providers.native.enabled=false", NATIVE).await
}

/// Starts the same with leases that outlive a restart on a busy machine.
async fn patient_pair() -> Pair {
    let terms = "leases.ttl=20s leases.grace=5s";
    Pair::start(&format!("providers.native.enabled=false {terms}"), &format!("{NATIVE} {terms}")).await
}

#[tokio::test]
async fn a_worker_that_was_killed_comes_back_with_its_sandboxes() {
    let mut pair = patient_pair().await;
    pair.plane.expect_trouble("a request failed");
    let id = pair.plane.spawn().await;
    pair.plane.write(&id, "/workspace/f", "kept").await;
    pair.worker.kill();
    let exec = pair.plane.post(&format!("/sandboxes/{id}/exec"), json!({"command": "true"})).await;
    exec.refused(503, "unavailable", "w1");
    let seen = pair.plane.get(&format!("/sandboxes/{id}")).await.ok();
    assert_eq!(seen["state"], "running", "it is away, and not given up yet");
    pair.worker.launch().await;
    assert_eq!(pair.plane.output(&id, "cat /workspace/f").await, "kept");
    pair.heard().await;
}

#[tokio::test]
async fn a_control_plane_that_was_killed_finds_everything_again() {
    let mut pair = patient_pair().await;
    let id = pair.plane.spawn().await;
    pair.plane.write(&id, "/workspace/f", "kept").await;
    let its_id = pair.box_of(&id).await.unwrap();
    pair.plane.kill();
    pair.plane.launch().await;
    assert_eq!(pair.plane.output(&id, "cat /workspace/f").await, "kept");
    assert_eq!(pair.box_of(&id).await.unwrap(), its_id, "nothing was made anew");
    pair.heard().await;
    assert_eq!(pair.plane.get(&format!("/sandboxes/{id}")).await.ok()["state"], "running");
}

#[tokio::test]
async fn a_worker_that_hangs_is_stale_and_its_sandboxes_are_given_up_by_the_lease_rules() {
    let mut pair = Pair::start(MOCK, MOCK).await;
    pair.plane.expect_trouble("a request failed");
    let id = pair.plane.spawn().await;
    pair.stop_worker();
    pair.plane.until("it is stale", async || pair.plane.get("/workers/w1").await.ok()["stale"] == true).await;
    pair.plane.post("/sandboxes", json!({})).await.refused(503, "unavailable", "no worker can run this sandbox");
    let failed = pair.plane.get(&format!("/sandboxes/{id}/wait?state=failed&timeout=60s")).await.ok();
    assert_eq!(failed["state"], "failed");
    assert!(failed["error"].as_str().unwrap().contains("`w1` was unreachable"), "{failed}");
    pair.continue_worker();
    pair.heard().await;
    pair.plane.until("the worker has ended it", async || pair.boxes().await.is_empty()).await;
    let log = pair.plane.log_text();
    assert!(log.contains("worker went silent"), "{log}");
    // A new spawn is not affected by the end of the old one.
    let other = pair.plane.spawn().await;
    assert_eq!(pair.plane.exec(&other, "true").await["exit_code"], 0);
    assert_eq!(pair.plane.delete(&format!("/sandboxes/{id}")).await.status, 200, "a failed one can be deleted");
}

/// Settings by which no worker becomes stale and no lease expires during a test.
const LONG_TERMS: &str = "leases.ttl=5m leases.stale_after=5m";

#[tokio::test]
async fn a_worker_that_was_killed_swallows_no_spawn_and_gets_some_again_once_it_beats() {
    let mut pair = Pair::start(&format!("{MOCK} {LONG_TERMS}"), &format!("{MOCK} {LONG_TERMS}")).await;
    pair.plane.post("/admin/workers/local/heartbeat", json!({"status": "online", "providers": ["mock"]})).await.ok();
    pair.worker.kill();
    for _ in 0..6 {
        let admission = pair.plane.post("/sandboxes/admission", json!({})).await.ok();
        assert_eq!(admission["allowed"], true, "{admission}");
        let made = pair.plane.post("/sandboxes", json!({"owner_id": "ann"})).await.ok();
        assert_eq!((&made["worker_id"], &made["state"]), (&json!("local"), &json!("running")));
        assert_eq!(pair.plane.exec(made["id"].as_str().unwrap(), "true").await["exit_code"], 0);
    }
    let listed = pair.plane.get("/sandboxes").await.ok();
    assert!(listed.as_array().unwrap().iter().all(|sandbox| sandbox["state"] == "running"), "{listed}");
    assert_eq!(told_of(&pair.plane, "/scheduler/eligible_workers").await, 1, "`w1` is left out");
    assert_eq!(told_of(&pair.plane, "/sandboxes/by_worker/local").await, 6);
    assert_eq!(told_of(&pair.plane, "/leases/by_holder/local").await, 6);
    assert_eq!(pair.plane.log_text().matches("worker unreachable; not placing").count(), 1, "it is asked once");

    pair.worker.launch().await;
    let plane = &pair.plane;
    plane.until("it comes into question", async || told_of(plane, "/scheduler/eligible_workers").await == 2).await;
    let made = pair.plane.post("/sandboxes", json!({})).await.ok();
    assert_eq!(made["worker_id"], "w1");
    assert_eq!(pair.boxes().await.len(), 1, "nothing was made there before");
}

#[tokio::test]
async fn where_only_a_killed_worker_is_left_one_spawn_finds_out_and_the_admission_knows() {
    let mut pair = Pair::start(&format!("{MOCK} {LONG_TERMS}"), &format!("{MOCK} {LONG_TERMS}")).await;
    pair.worker.kill();
    pair.plane.post("/sandboxes", json!({})).await.refused(503, "unavailable", "w1");
    let admission = pair.plane.post("/sandboxes/admission", json!({})).await.ok();
    assert_eq!((&admission["allowed"], &admission["reason"]), (&json!(false), &json!("no_eligible_worker")));
    for _ in 0..3 {
        pair.plane.post("/sandboxes", json!({})).await.refused(503, "unavailable", "no worker can run this sandbox");
    }
    let listed = pair.plane.get("/sandboxes").await.ok();
    assert_eq!(listed.as_array().unwrap().len(), 1, "one failed: {listed}");
    pair.worker.launch().await;
    pair.plane.until("it is asked again", async || pair.plane.post("/sandboxes", json!({})).await.status == 201).await;
}

/// Starts a control plane without a provider of its own, and a worker that offers `mock`.
async fn plane_without_a_provider() -> Pair {
    let plane = format!("providers.native.enabled=false {LONG_TERMS}");
    Pair::start(&plane, &format!("{MOCK} {LONG_TERMS}")).await
}

#[tokio::test]
async fn a_worker_that_was_killed_counts_as_ready_for_a_few_seconds_at_most() {
    let mut pair = plane_without_a_provider().await;
    assert_eq!(pair.plane.get("/ready").await.status, 200);
    let killed = std::time::Instant::now();
    pair.worker.kill();
    pair.plane.until("it is not ready", async || pair.plane.get("/ready").await.status == 503).await;
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    pair.plane.post("/sandboxes", json!({"provider": "mock"})).await.refused(
        503,
        "unavailable",
        "no worker can run this sandbox",
    );
    assert_eq!(pair.plane.get("/sandboxes").await.ok(), json!([]), "no spawn had to find out");
    pair.worker.launch().await;
    pair.plane.until("it is ready again", async || pair.plane.get("/ready").await.status == 200).await;
    pair.plane.post("/sandboxes", json!({"provider": "mock"})).await.ok();
}

#[tokio::test]
async fn a_worker_that_hangs_costs_a_spawn_a_few_seconds_at_most() {
    let pair = plane_without_a_provider().await;
    pair.stop_worker();
    let asked = std::time::Instant::now();
    pair.plane.post("/sandboxes", json!({"provider": "mock"})).await.refused(
        503,
        "unavailable",
        "does not answer; try again",
    );
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    let asked = std::time::Instant::now();
    pair.plane.post("/sandboxes", json!({"provider": "mock"})).await.refused(
        503,
        "unavailable",
        "no worker can run this sandbox",
    );
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    assert_eq!(pair.plane.get("/ready").await.status, 503);
    pair.continue_worker();
    pair.plane.until("it is ready again", async || pair.plane.get("/ready").await.status == 200).await;
    pair.plane.until("nothing is left there", async || pair.boxes().await.is_empty()).await;
}

#[tokio::test]
async fn a_worker_that_hangs_is_said_not_to_answer_whatever_it_is_asked_for() {
    let pair = Pair::start(&format!("{MOCK} {LONG_TERMS}"), &format!("{MOCK} {LONG_TERMS}")).await;
    let (kept, removed) = (pair.plane.spawn().await, pair.plane.spawn().await);
    pair.stop_worker();
    let (exec, removed_path) = (format!("/sandboxes/{kept}/exec"), format!("/sandboxes/{removed}"));
    let answers = tokio::join!(
        pair.plane.post("/sandboxes", json!({})),
        pair.plane.delete(&removed_path),
        pair.plane.post(&exec, json!({"command": "true"})),
    );
    pair.continue_worker();
    for answer in [answers.0, answers.1, answers.2] {
        answer.refused(503, "unavailable", "the worker `w1` of sandbox `");
        assert!(answer.json()["message"].as_str().unwrap().ends_with("does not answer; try again"), "{answer:?}");
    }
    pair.plane.until("it is removed", async || pair.plane.delete(&removed_path).await.status == 200).await;
    assert_eq!(pair.plane.exec(&kept, "true").await["exit_code"], 0);
    pair.plane.until("nothing else is left", async || pair.boxes().await.len() == 1).await;
}

#[tokio::test]
async fn a_failed_sandbox_can_be_deleted_while_its_worker_is_gone() {
    let mut pair = Pair::start(MOCK, MOCK).await;
    let id = pair.plane.spawn().await;
    pair.worker.kill();
    pair.plane.get(&format!("/sandboxes/{id}/wait?state=failed&timeout=60s")).await.ok();
    assert_eq!(pair.plane.delete(&format!("/sandboxes/{id}")).await.ok(), json!({"status": "destroyed"}));
    assert_eq!(pair.plane.delete("/admin/workers/w1").await.ok(), json!({"status": "deleted"}));
    pair.worker.launch().await;
    pair.heard().await;
}

#[tokio::test]
async fn what_is_being_destroyed_when_its_worker_goes_for_good_takes_no_place_for_ever() {
    let mut pair = Pair::start(&format!("{MOCK} defaults.max_sandboxes=1"), MOCK).await;
    let id = pair.plane.spawn().await;
    pair.worker.kill();
    let deleted = pair.plane.delete(&format!("/sandboxes/{id}")).await;
    deleted.refused(503, "unavailable", "w1");
    let waited = pair.plane.get(&format!("/sandboxes/{id}/wait?state=destroyed&timeout=60s")).await.ok();
    assert_eq!(waited["state"], "destroyed");
    pair.worker.launch().await;
    pair.heard().await;
    pair.plane.spawn().await;
}

#[tokio::test]
async fn a_worker_that_has_lost_a_lease_ends_that_box_itself() {
    let mut pair = native_pair().await;
    let id = pair.plane.spawn().await;
    let its_id = pair.box_of(&id).await.unwrap();
    pair.plane.kill();
    let gone = format!("/sandboxes/{its_id}/wait?state=destroyed&timeout=60s");
    assert_eq!(pair.worker.get(&gone).await.ok()["state"], "destroyed");
    let log = pair.worker.log_text();
    assert!(log.contains("ending a sandbox whose lease is lost"), "{log}");
    pair.plane.launch().await;
    let failed = pair.plane.get(&format!("/sandboxes/{id}/wait?state=failed&timeout=60s")).await.ok();
    assert_eq!(failed["state"], "failed");
}

#[tokio::test]
async fn a_control_plane_on_an_old_copy_of_the_store_removes_no_box_of_the_true_one() {
    let mut pair = native_pair().await;
    let before = pair.plane.spawn().await;
    let mut stale = pair.restored("providers.native.enabled=false").await;
    let after = pair.plane.spawn().await;
    for id in [&before, &after] {
        pair.plane.write(id, "/workspace/f", "kept").await;
    }
    stale.expect_trouble("a request failed");
    // Once the true one has renewed the lease and written with it.
    stale
        .until("it is refused", async || {
            pair.plane.output(&before, "true").await;
            stale.post(&format!("/sandboxes/{before}/exec"), json!({"command": "true"})).await.status == 409
        })
        .await;
    // It does not know the one, and gives up the other, whose lease the worker renews elsewhere.
    let holds = |id: &str| format!("{id}: another control plane holds the sandbox, so it is not removed");
    for id in [&after, &before] {
        stale.until("it finds the box", async || stale.log_text().contains(&holds(id))).await;
    }
    let failed = stale.get(&format!("/sandboxes/{before}")).await.ok();
    assert_eq!(failed["state"], "failed");
    for id in [&before, &after] {
        assert_eq!(pair.plane.output(id, "cat /workspace/f").await, "kept");
    }
}

#[tokio::test]
async fn a_worker_that_was_away_for_too_long_ends_its_boxes_when_it_comes_back() {
    let mut pair = native_pair().await;
    let id = pair.plane.spawn().await;
    pair.worker.kill();
    pair.plane.get(&format!("/sandboxes/{id}/wait?state=failed&timeout=60s")).await.ok();
    pair.worker.launch().await;
    pair.plane.until("the box is ended", async || pair.boxes().await.is_empty()).await;
}

/// Calls that succeeded from a client's view.
#[derive(Debug, Default)]
struct Seen {
    made: BTreeMap<String, String>,
    deleted: BTreeSet<String>,
    /// Sandboxes whose deletion was requested and not confirmed.
    doubtful: BTreeSet<String>,
}

/// Makes requests until `stop` is set and records their outcomes.
async fn work(http: reqwest::Client, url: String, stop: Arc<AtomicBool>) -> Seen {
    let mut seen = Seen::default();
    let base = format!("{url}/api/v1/sandboxes");
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let marker = format!("m{round}");
        let body = json!({"metadata": {"marker": marker}, "memory_mb": 32});
        let Ok(answer) = http.post(&base).json(&body).send().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if answer.status() != 201 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        let Ok(made) = answer.json::<Value>().await else { continue };
        let id = made["id"].as_str().unwrap().to_owned();
        seen.made.insert(id.clone(), marker.clone());
        let write = json!({"path": "/workspace/marker", "content": marker});
        let _ = http.post(format!("{base}/{id}/files")).json(&write).send().await;
        let exec = json!({"command": "hostname >/dev/null; cat /workspace/marker"});
        let _ = http.post(format!("{base}/{id}/exec")).json(&exec).send().await;
        if round % 3 == 0 {
            match http.delete(format!("{base}/{id}")).send().await {
                Ok(answer) if answer.status() == 200 => seen.deleted.insert(id),
                _ => seen.doubtful.insert(id),
            };
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_and_nothing_runs_twice_in_whatever_order_the_two_are_killed() {
    let mut pair = patient_pair().await;
    for words in ["a request failed", "a part of the service"] {
        pair.plane.expect_trouble(words);
        pair.worker.expect_trouble(words);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let client = tokio::spawn(work(pair.plane.http.clone(), pair.plane.url.clone(), Arc::clone(&stop)));
    let pause = || tokio::time::sleep(Duration::from_millis(150));
    for order in 0..6 {
        pause().await;
        match order {
            0 => {
                pair.plane.kill();
                pair.plane.launch().await;
            }
            1 => {
                pair.worker.kill();
                pair.worker.launch().await;
            }
            2 => {
                pair.plane.kill();
                pair.worker.kill();
                pair.plane.launch().await;
                pause().await;
                pair.worker.launch().await;
            }
            3 => {
                pair.plane.kill();
                pair.worker.kill();
                pair.worker.launch().await;
                pause().await;
                pair.plane.launch().await;
            }
            4 => {
                pair.worker.kill();
                pause().await;
                pair.plane.kill();
                pair.plane.launch().await;
                pair.worker.launch().await;
            }
            _ => {
                pair.worker.kill();
                pair.plane.kill();
                pair.worker.launch().await;
                pair.plane.launch().await;
            }
        }
    }
    pause().await;
    stop.store(true, Ordering::Relaxed);
    let seen = client.await.unwrap();
    pair.heard().await;

    assert!(!seen.made.is_empty(), "the client got something done");
    for (id, marker) in &seen.made {
        let found = pair.plane.get(&format!("/sandboxes/{id}")).await;
        if seen.deleted.contains(id) {
            found.refused(404, "not_found", id);
        } else if !seen.doubtful.contains(id) {
            let found = found.ok();
            assert_eq!(found["state"], "running", "{found}");
            assert_eq!(found["metadata"]["marker"], *marker, "{found}");
            assert_eq!(pair.plane.output(id, "echo up").await, "up\n");
        }
    }
    // Both sides come to list the same sandboxes, each once.
    let listed = async |of: Answer| -> Vec<Value> { of.ok().as_array().unwrap().clone() };
    pair.plane
        .until("both know the same", async || {
            let here = listed(pair.plane.get("/sandboxes").await).await;
            let there = pair.boxes().await;
            let settled =
                here.iter().chain(&there).all(|one| matches!(one["state"].as_str(), Some("running" | "failed")));
            let running = |all: &[Value]| all.iter().filter(|one| one["state"] == "running").count();
            let ids: BTreeSet<&str> =
                here.iter().filter(|one| one["state"] == "running").map(|one| one["id"].as_str().unwrap()).collect();
            let held: Vec<&str> = there
                .iter()
                .filter(|one| one["state"] == "running")
                .map(|one| one["metadata"]["tidebox.id"].as_str().unwrap())
                .collect();
            settled && running(&here) == running(&there) && held.iter().copied().collect::<BTreeSet<_>>() == ids
        })
        .await;
}

#[tokio::test]
async fn diagnostics_tell_the_truth_about_workers_and_leases_at_each_step() {
    let mut pair = Pair::start(MOCK, MOCK).await;
    let plane = &pair.plane;
    let told = async || {
        let all = plane.get("/diagnostics").await.ok();
        let workers = &all["workers"];
        let leases = &all["leases"];
        let counted = ["total", "online", "stale", "unhealthy"].map(|key| workers[key].as_u64().unwrap());
        let leased = ["total", "active", "expired"].map(|key| leases[key].as_u64().unwrap());
        (counted, leased, all)
    };
    let (workers, leases, all) = told().await;
    assert_eq!((workers, leases), ([2, 1, 0, 0], [0, 0, 0]), "`local` drains: {all}");
    let id = plane.spawn().await;
    let (_, leases, all) = told().await;
    assert_eq!((leases, &all["leases"]["by_holder"]), ([1, 1, 0], &json!({"w1": 1})));
    assert_eq!(all["sandboxes"]["by_worker"]["w1"], 1);
    assert_eq!((&all["scheduler"]["worker_id"], &all["scheduler"]["eligible_workers"]), (&json!("local"), &json!(1)));
    assert_eq!(all["scheduler"]["selected_worker_id"], "w1");
    let ids: Vec<&Value> = all["workers"]["items"].as_array().unwrap().iter().map(|item| &item["id"]).collect();
    assert_eq!(ids, ["local", "w1"]);

    pair.worker.kill();
    let plane = &pair.plane;
    plane.until("it is stale", async || told_of(plane, "/workers/stale").await == 1).await;
    assert_eq!(told_of(plane, "/workers/online").await, 0);
    assert_eq!(told_of(plane, "/scheduler/eligible_workers").await, 0);
    plane.until("the lease has ended", async || told_of(plane, "/leases/active").await == 0).await;
    plane.get(&format!("/sandboxes/{id}/wait?state=failed&timeout=60s")).await.ok();
    assert_eq!(told_of(plane, "/leases/total").await, 0, "it was given up");
    assert_eq!(told_of(plane, "/sandboxes/by_worker/w1").await, 0);

    pair.worker.launch().await;
    pair.heard().await;
    assert_eq!(told_of(&pair.plane, "/workers/online").await, 1);
    let beat = json!({"status": "unhealthy"});
    pair.plane.post("/admin/workers/w2/heartbeat", beat).await.ok();
    assert_eq!(told_of(&pair.plane, "/workers/unhealthy").await, 1);
}

/// Returns a number from the diagnostics.
async fn told_of(server: &crate::server::TestServer, pointer: &str) -> u64 {
    let all = server.get("/diagnostics").await.ok();
    all.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {pointer} in {all}"))
}
