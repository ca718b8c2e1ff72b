//! A sandbox on another worker, which behaves as a local one.

use reqwest::Method;
use serde_json::{Value, json};

use super::pair::Pair;
use crate::server::{Answer, MOCK, NATIVE, TestServer};

const NOTHING: &str = "providers.native.enabled=false";

async fn mock_pair() -> Pair {
    Pair::start(MOCK, MOCK).await
}

#[tokio::test]
async fn a_worker_is_another_tidebox_that_beats() {
    let pair = mock_pair().await;
    let seen = pair.plane.get("/workers/w1").await.ok();
    assert_eq!((&seen["status"], &seen["stale"]), (&json!("online"), &json!(false)));
    assert_eq!(seen["providers"], json!(["mock"]));
    assert_eq!(seen["capabilities"], json!(["spawn", "exec", "files"]));
    assert!(!seen["hostname"].as_str().unwrap().is_empty());
    pair.plane
        .until("it goes on beating", async || {
            pair.plane.get("/workers/w1").await.ok()["last_heartbeat"] != seen["last_heartbeat"]
        })
        .await;
    // The heartbeat that drained it named none; its own next one does.
    pair.plane
        .until("the control plane names what it does, and is no single node", async || {
            pair.plane.get("/workers/local").await.ok()["capabilities"] == json!(["api", "spawn", "exec", "files"])
        })
        .await;
}

#[tokio::test]
async fn a_sandbox_on_another_worker_has_no_snapshots_and_no_copies() {
    let pair = Pair::start(NOTHING, NATIVE).await;
    let id = pair.plane.spawn().await;
    for path in ["snapshots", "fork"] {
        let answer = pair.plane.post(&format!("/sandboxes/{id}/{path}"), json!({})).await;
        answer.refused(400, "not_supported", "w1");
    }
    assert_eq!(pair.plane.get("/snapshots").await.ok(), json!([]));
}

#[tokio::test]
async fn every_verb_works_on_a_sandbox_on_another_worker() {
    let pair = Pair::start(NOTHING, NATIVE).await;
    let plane = &pair.plane;
    let made = plane.post("/sandboxes", json!({"metadata": {"mine": "x"}, "ttl": "5m"})).await;
    assert_eq!(made.status, 201, "{}", made.json());
    let made = made.json();
    assert_eq!((&made["worker_id"], &made["provider"]), (&json!("w1"), &json!("native")));
    assert_eq!(made["metadata"], json!({"mine": "x"}), "our labels are not shown");
    let id = made["id"].as_str().unwrap();
    assert_ne!(pair.box_of(id).await.unwrap(), id);

    assert_eq!(plane.output(id, "echo hello; id -u").await, "hello\n0\n");
    assert_eq!(plane.exec(id, "exit 7").await["exit_code"], 7);
    let body = json!({"command": "echo out; echo err >&2; exit 3", "stream": true, "exit_event": true});
    let streamed = plane.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&body).send().await.unwrap();
    let streamed = String::from_utf8(Answer::read(streamed).await.bytes).unwrap();
    let lines: Vec<Value> = streamed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.contains(&json!({"stream": "stdout", "data": "out\n"})), "{streamed}");
    assert!(lines.contains(&json!({"stream": "stderr", "data": "err\n"})), "{streamed}");
    assert_eq!(lines.last().unwrap(), &json!({"stream": "exit", "data": "3"}));

    let stats = plane.get(&format!("/sandboxes/{id}/stats")).await.ok();
    assert!(stats["memory"]["used_bytes"].as_u64().unwrap() > 0 && stats["sandbox_id"] == id, "{stats}");
    assert_eq!(stats["egress"], json!({"sent_bytes": 0, "received_bytes": 0}), "as the worker says");
    let all = plane.get("/sandboxes/stats").await.ok();
    assert!(all[0]["processes"]["count"].as_u64().unwrap() > 0 && all[0]["sandbox_id"] == id, "{all}");

    let files = format!("/sandboxes/{id}/files");
    plane.write(id, "/workspace/a/f", "content").await;
    assert_eq!(plane.get(&format!("{files}?path=/workspace/a/f")).await.bytes, b"content");
    assert_eq!(plane.get(&format!("{files}/stat?path=/workspace/a/f")).await.ok()["size"], 7);
    let chmod = json!({"path": "/workspace/a/f", "mode": "600"});
    plane.post(&format!("{files}/chmod"), chmod).await.ok();
    let moved = json!({"old_path": "/workspace/a/f", "new_path": "/workspace/a/g"});
    plane.post(&format!("{files}/move"), moved).await.ok();
    assert_eq!(plane.get(&format!("{files}/list?path=/workspace/a")).await.ok()[0]["mode"], "0600");
    assert_eq!(plane.get(&format!("{files}/glob?pattern=/workspace/a/*")).await.ok(), json!(["/workspace/a/g"]));
    plane.delete(&format!("{files}?path=/workspace/a&recursive=true")).await.ok();
    plane.get(&format!("{files}?path=/workspace/a/g")).await.refused(404, "not_found", "/workspace/a/g");
    plane.get(&format!("/sandboxes/{id}/logs")).await.ok();

    let extended = plane.post(&format!("/sandboxes/{id}/extend"), json!({"ttl": "20m"})).await.ok();
    assert!(extended["expires_at"].as_str().unwrap() > made["expires_at"].as_str().unwrap());
    assert_eq!(plane.delete(&format!("/sandboxes/{id}")).await.ok(), json!({"status": "destroyed"}));
    assert_eq!(pair.boxes().await, Vec::<Value>::new());
    plane.get(&format!("/sandboxes/{id}")).await.refused(404, "not_found", id);
}

#[tokio::test]
async fn a_context_on_another_worker_keeps_its_state_also_when_the_control_plane_restarts() {
    let mut pair = Pair::start(NOTHING, NATIVE).await;
    let id = pair.plane.spawn().await;
    let code = "print('x' * 3_000_000)\nn = 41";
    let printed = crate::contexts::run(&pair.plane, &id, "python", code).await;
    assert_eq!(printed.stdout().len(), 3_000_001, "nothing of a fast output is lost");
    let slow = json!({"code": "while True: n += 0", "timeout": "300ms"});
    let late = crate::contexts::run_in(&pair.plane, &id, "python", slow).await;
    assert_eq!(late.outcome(), "timed_out", "{late:?}");
    pair.plane.kill();
    pair.plane.launch().await;
    pair.heard().await;
    assert_eq!(crate::contexts::run(&pair.plane, &id, "python", "n + 1").await.value(), "42");
}

#[tokio::test]
async fn a_control_plane_is_ready_while_a_worker_offers_a_provider() {
    let mut pair = Pair::start(NOTHING, MOCK).await;
    let ready = pair.plane.get("/ready").await.ok();
    assert_eq!((&ready["status"], &ready["ready_providers"]), (&json!("ready"), &json!(1)));
    assert_eq!((&ready["total_providers"], &ready["providers"]), (&json!(1), &json!([])), "those here are listed");
    pair.worker.kill();
    pair.plane.until("it is not", async || pair.plane.get("/ready").await.status == 503).await;
    let words = "no other worker with a provider is online and reachable";
    pair.plane.get("/ready").await.refused(503, "unavailable", words);
    pair.worker.launch().await;
    pair.plane.until("it is again", async || pair.plane.get("/ready").await.status == 200).await;
}

#[tokio::test]
async fn a_sandbox_on_another_worker_expires_like_any() {
    let pair = mock_pair().await;
    let id = pair.plane.spawn_with(json!({"ttl": "2s"})).await;
    pair.box_of(&id).await.unwrap();
    pair.plane.until("nothing is left", async || pair.boxes().await.is_empty()).await;
    pair.plane.get(&format!("/sandboxes/{id}")).await.refused(404, "not_found", &id);
}

#[tokio::test]
async fn the_worker_with_fewer_sandboxes_gets_the_next_one() {
    let pair = mock_pair().await;
    pair.plane.post("/admin/workers/local/heartbeat", json!({"status": "online", "providers": ["mock"]})).await.ok();
    let mut holders = Vec::new();
    for _ in 0..4 {
        let made = pair.plane.post("/sandboxes", json!({})).await.ok();
        holders.push(made["worker_id"].as_str().unwrap().to_owned());
    }
    assert_eq!(holders, ["local", "w1", "local", "w1"], "ties are broken by id");
    assert_eq!(pair.boxes().await.len(), 2);
}

#[tokio::test]
async fn a_worker_above_its_capacity_gets_no_more_and_the_spawn_is_told_so() {
    let pair = Pair::start(MOCK, &format!("{MOCK} defaults.max_sandboxes=1")).await;
    pair.plane.spawn().await;
    let admission = pair.plane.post("/sandboxes/admission", json!({})).await.ok();
    assert_eq!((&admission["allowed"], &admission["reason"]), (&json!(false), &json!("no_eligible_worker")));
    assert_eq!(admission["queueable"], false);
    pair.plane.post("/sandboxes", json!({})).await.refused(503, "unavailable", "no worker can run this sandbox");
    pair.plane.delete("/admin/workers/w1").await.refused(409, "conflict", "holds 1 active sandboxes");
}

#[tokio::test]
async fn the_ceilings_of_a_worker_and_of_its_control_plane_both_hold() {
    let (plane, worker) = ("defaults.max_memory_mb=900", "defaults.max_memory_mb=700");
    let pair = Pair::start(&format!("{MOCK} {plane}"), &format!("{MOCK} {worker}")).await;
    pair.plane.post("/sandboxes", json!({"memory_mb": 901})).await.refused(429, "resource_limit", "maximum of 900");
    pair.plane.post("/sandboxes", json!({"memory_mb": 701})).await.refused(429, "resource_limit", "maximum of 700");
    let made = pair.plane.post("/sandboxes", json!({"memory_mb": 700})).await.ok();
    assert_eq!((&made["worker_id"], &made["memory_mb"]), (&json!("w1"), &json!(700)));
}

#[tokio::test]
async fn the_size_of_a_control_planes_machine_does_not_bound_its_workers() {
    let pair = Pair::start(MOCK, &format!("{MOCK} defaults.max_vcpus=1024")).await;
    pair.plane.post("/admin/workers/local/heartbeat", json!({"status": "online"})).await.ok();
    let made = pair.plane.post("/sandboxes", json!({"vcpus": 1024})).await.ok();
    assert_eq!(made["worker_id"], "w1", "one that is too large for the one goes to the other");
}

#[tokio::test]
async fn a_provider_that_nobody_has_is_a_mistake_and_one_of_a_worker_is_not() {
    let pair = Pair::start(NOTHING, MOCK).await;
    let id = pair.plane.spawn_with(json!({"provider": "mock"})).await;
    assert_eq!(pair.plane.get(&format!("/sandboxes/{id}")).await.ok()["provider"], "mock");
    let nobody = json!({"provider": "docker"});
    pair.plane.post("/sandboxes", nobody).await.refused(404, "not_found", "there is no provider `docker`");
    let impossible = json!({"provider": "mock", "metadata": {"mock.start": "fail"}});
    assert!(pair.plane.post("/sandboxes", impossible).await.status.as_u16() >= 400 || !pair.boxes().await.is_empty());
}

#[tokio::test]
async fn a_worker_that_is_not_configured_gets_nothing_whatever_it_says() {
    let server = TestServer::start(&format!("{MOCK} auth.worker_token=t")).await;
    server.post("/admin/workers/local/heartbeat", json!({"status": "draining", "providers": ["mock"]})).await.ok();
    let beat = json!({"hostname": "evil.example", "providers": ["mock"]});
    let request = server.request(Method::POST, "/worker/evil/heartbeat").json(&beat);
    let request = request.header("X-Worker-ID", "evil").header("X-Worker-Token", "t");
    Answer::read(request.send().await.unwrap()).await.ok();
    server.post("/sandboxes", json!({})).await.refused(503, "unavailable", "no worker can run this sandbox");
}

#[tokio::test]
async fn an_older_generation_is_refused_by_the_worker() {
    let mut pair = mock_pair().await;
    let id = pair.plane.spawn().await;
    pair.plane.exec(&id, "true").await;
    let its_id = pair.box_of(&id).await.unwrap();
    pair.write_with_generation(&its_id, "0").await.refused(409, "conflict", "generation 0");
    pair.write_with_generation(&its_id, "x").await.refused(400, "bad_request", "X-Lease-Generation");
    // A holder of a later lease writes; from then on the control plane's lease is the older one.
    pair.write_with_generation(&its_id, "1000000").await.ok();
    let refused = pair.plane.post(&format!("/sandboxes/{id}/exec"), json!({"command": "true"})).await;
    refused.refused(409, "conflict", "another holder may now have this sandbox");
    pair.worker.kill();
    pair.worker.launch().await;
    pair.worker.expect_trouble("a request failed");
}

#[tokio::test]
async fn a_lease_is_renewed_by_its_worker_and_by_nobody_else() {
    let pair = mock_pair().await;
    let id = pair.plane.spawn().await;
    let renew = async |who: &str, resource: &str| {
        let request = pair.plane.request(Method::POST, &format!("/worker/{who}/leases/{resource}/renew"));
        let request = request.header("X-Worker-ID", who).header("X-Worker-Token", "of-the-pair");
        Answer::read(request.json(&json!({"ttl": "1m"})).send().await.unwrap()).await
    };
    let lease = renew("w1", &id).await.ok()["lease"].clone();
    assert_eq!((&lease["resource_id"], &lease["holder_id"]), (&json!(id), &json!("w1")));
    assert!(lease["generation"].as_u64().unwrap() >= 2);
    let keys: Vec<&String> = lease.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["expires_at", "generation", "holder_id", "resource_id"]);
    let next = renew("w1", &id).await.ok()["lease"].clone();
    assert!(next["generation"].as_u64() > lease["generation"].as_u64());
    renew("w2", &id).await.refused(409, "conflict", "held by another");
    renew("w1", "sb-aaaaaaaaaaaaaaaa").await.refused(404, "not_found", "sb-aaaaaaaaaaaaaaaa");
    pair.plane.delete(&format!("/sandboxes/{id}")).await.ok();
    renew("w1", &id).await.refused(404, "not_found", &id);
}

#[tokio::test]
async fn a_worker_says_what_it_lacks_before_it_starts() {
    for (arguments, settings, words) in [
        ("worker", "worker.token=t", "no control plane is set"),
        ("worker --control-plane http://127.0.0.1:9", "", "no credential"),
        ("worker --control-plane http://127.0.0.1:9 --id a/b", "worker.token=t", "`a/b` cannot be this worker's id"),
        ("worker --control-plane http://127.0.0.1:9 --id local", "worker.token=t", "`local` cannot be"),
        ("worker --control-plane nonsense --id w1", "worker.token=t", "the connection to the control plane"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tidebox"));
        command.args(arguments.split(' ')).env_clear().env("HOME", dir.path()).current_dir(dir.path());
        command.env("TIDEBOX_DATA_DIR", dir.path().join("data")).env("TIDEBOX_SERVER_PORT", "0");
        command.env("TIDEBOX_PROVIDERS_NATIVE_ENABLED", "false");
        for (key, value) in settings.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            command.env(format!("TIDEBOX_{}", key.replace('.', "_").to_uppercase()), value);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {text}");
        assert!(text.contains(words), "{arguments}: {text}");
    }
}

#[tokio::test]
async fn the_boxes_that_users_share_stay_on_the_server_itself() {
    let pair = Pair::start(&format!("{MOCK} pool.enabled=true"), MOCK).await;
    let spawn = pair.plane.request(Method::POST, "/sandboxes").header("X-User-ID", "ann").json(&json!({}));
    let spawned = Answer::read(spawn.send().await.unwrap()).await;
    spawned.refused(503, "unavailable", "no worker can run this sandbox");
    assert_eq!(pair.boxes().await, Vec::<Value>::new());
}
