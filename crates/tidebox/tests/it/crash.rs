//! kill -9, restart, and nothing left.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::server::{MOCK, NATIVE, TestServer};

/// Returns the mounts and control groups of the host.
fn host_state() -> (BTreeSet<String>, BTreeSet<String>) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().map(|line| line.split(' ').skip(4).collect::<Vec<_>>().join(" ")).collect();
    let mut groups = BTreeSet::new();
    let mut waiting = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(entry.path());
            }
        }
        groups.insert(dir.display().to_string());
    }
    (mounts, groups)
}

/// Returns the processes that run the agent.
fn agents() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let link = std::fs::read_link(entry.path().join("exe")).unwrap_or_default();
        if name.bytes().all(|b| b.is_ascii_digit()) && link.to_string_lossy().contains("memfd:tidebox") {
            found.insert(name);
        }
    }
    found
}

/// Returns the first process of a box, as the host numbers it.
fn first_process(server: &TestServer, id: &str) -> String {
    let text = std::fs::read_to_string(server.data_dir().join("native/boxes").join(id).join("pid")).unwrap();
    text.split(' ').next().unwrap().to_owned()
}

#[tokio::test]
async fn twenty_boxes_outlive_a_crash_and_leave_nothing_when_destroyed() {
    let mut server = TestServer::start(NATIVE).await;
    let (mut ids, mut expiring) = (Vec::new(), String::new());
    for n in 0..21 {
        let id = server.spawn().await;
        server.write(&id, "/workspace/mine", &id).await;
        server.exec(&id, "(while :; do date +%N > /workspace/beat; sleep 0.05; done) & true").await;
        if n == 20 { expiring = id } else { ids.push(id) }
    }
    let pids: Vec<String> = ids.iter().map(|id| first_process(&server, id)).collect();
    server.post(&format!("/sandboxes/{expiring}/extend"), json!({"ttl": "1s"})).await.ok();
    let expires = Instant::now() + Duration::from_secs(1);
    server.kill();
    let alive = agents();
    assert!(pids.iter().all(|pid| alive.contains(pid)), "boxes outlive the server");
    tokio::time::sleep_until(expires.into()).await;
    server.launch().await;
    server.get(&format!("/sandboxes/{expiring}")).await.refused(404, "not_found", &expiring);
    for id in &ids {
        let seen = server.get(&format!("/sandboxes/{id}")).await.ok();
        assert_eq!(seen["state"], "running");
        assert_eq!(server.output(id, "cat /workspace/mine").await, *id);
        let beat = server.output(id, "cat /workspace/beat").await;
        server.until("the command goes on", async || server.output(id, "cat /workspace/beat").await != beat).await;
    }
    let waited = server.get(&format!("/sandboxes/{expiring}/wait?state=destroyed")).await.ok();
    assert_eq!(waited["state"], "destroyed");
    let alive = agents();
    assert!(pids.iter().all(|pid| alive.contains(pid)), "{pids:?}");
    for id in &ids {
        server.delete(&format!("/sandboxes/{id}")).await.ok();
    }
    // Boxes of a server that crashed are children of the machine's first process, which reaps
    // them in its own time.
    server
        .until("no process is left", async || pids.iter().all(|pid| !std::path::Path::new("/proc").join(pid).exists()))
        .await;
    server
        .until("the clean-up", async || {
            ["boxes", "trash"].iter().all(|dir| {
                std::fs::read_dir(server.data_dir().join("native").join(dir))
                    .map_or(true, |mut dir| dir.next().is_none())
            })
        })
        .await;
    let (mounts, groups) = host_state();
    let root = server.data_dir().display().to_string();
    assert!(!mounts.iter().any(|mount| mount.contains(&root)), "a mount is left");
    for id in &ids {
        assert!(!groups.iter().any(|group| group.contains(id.as_str())), "a control group of {id} is left");
    }
}

#[tokio::test]
async fn what_a_crash_left_half_made_or_half_removed_is_finished() {
    let mut server = TestServer::start(NATIVE).await;
    for round in 0..8u64 {
        let spawns: Vec<_> = (0..6)
            .map(|_| tokio::spawn(server.request(reqwest::Method::POST, "/sandboxes").json(&json!({})).send()))
            .collect();
        // A moment that differs from round to round, while the boxes are being made.
        tokio::time::sleep(Duration::from_micros(700 * round)).await;
        server.kill();
        for spawn in spawns {
            let _ = spawn.await;
        }
        server.launch().await;
    }
    server
        .until("every row is settled", async || {
            let listed = server.get("/sandboxes").await.ok();
            listed.as_array().unwrap().iter().all(|sandbox| sandbox["state"] == "running")
        })
        .await;
    let listed = server.get("/sandboxes").await.ok();
    let ids: BTreeSet<String> =
        listed.as_array().unwrap().iter().map(|sandbox| sandbox["id"].as_str().unwrap().to_owned()).collect();
    for id in &ids {
        assert_eq!(server.output(id, "echo up").await, "up\n");
    }
    server
        .until("boxes without a sandbox are gone", async || {
            let boxes = std::fs::read_dir(server.data_dir().join("native/boxes")).unwrap();
            let boxes: BTreeSet<String> =
                boxes.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            boxes == ids
        })
        .await;
}

/// Returns the ids that a path lists.
async fn listed(server: &TestServer, path: &str) -> BTreeSet<String> {
    let listed = server.get(path).await.ok();
    listed.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

/// Returns the names in a folder of the provider.
fn names(server: &TestServer, folder: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(server.data_dir().join("native").join(folder)).unwrap();
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[tokio::test]
async fn a_crash_during_a_snapshot_leaves_no_half_one_and_no_box_that_stands_still() {
    if !rustix::process::geteuid().is_root() {
        fixtures::skip("snapshots", "only root has snapshots on `native`");
        return;
    }
    let mut server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    // So many that a snapshot of them takes longer than all rounds wait.
    server.output(&id, "for n in $(seq 3000); do echo $n > /workspace/$n; done").await;
    server.exec(&id, "(while :; do date +%N > /workspace/beat; sleep 0.05; done) & true").await;
    let mut kept = BTreeSet::new();
    for round in 0..10u64 {
        let path = if round % 2 == 0 { "snapshots" } else { "fork" };
        let request = server.request(reqwest::Method::POST, &format!("/sandboxes/{id}/{path}")).json(&json!({}));
        let taken = tokio::spawn(request.send());
        // A moment that differs from round to round, while the snapshot is being taken.
        tokio::time::sleep(Duration::from_millis(4 * round)).await;
        server.kill();
        if let Ok(answer) = taken.await.unwrap()
            && path == "snapshots"
            && let status = answer.status()
            && let Ok(answer) = answer.json::<serde_json::Value>().await
        {
            assert_eq!(status, 201, "{answer}");
            kept.insert(answer["id"].as_str().unwrap().to_owned());
        }
        server.launch().await;
        let beat = server.output(&id, "cat /workspace/beat").await;
        server.until("the box goes on", async || server.output(&id, "cat /workspace/beat").await != beat).await;
    }
    server
        .until("half snapshots and half copies are gone", async || {
            let (sandboxes, snapshots) = (listed(&server, "/sandboxes").await, listed(&server, "/snapshots").await);
            names(&server, "boxes") == sandboxes && names(&server, "snapshots") == snapshots
        })
        .await;
    let snapshots = listed(&server, "/snapshots").await;
    assert!(snapshots.is_superset(&kept), "{kept:?} were acknowledged, {snapshots:?} are there");
    // One of a crash just before its answer may be among them: it is whole then.
    for snapshot in &snapshots {
        let made = server.spawn_with(json!({"snapshot": snapshot})).await;
        assert_eq!(server.output(&made, "ls /workspace | wc -l; cat /workspace/3000").await, "3001\n3000\n");
    }
}

#[tokio::test]
async fn a_box_killed_from_outside_is_noticed() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let pid: i32 = first_process(&server, &id).parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
    let waited = server.get(&format!("/sandboxes/{id}/wait?state=destroyed&timeout=30s")).await.ok();
    assert_eq!(waited["state"], "destroyed");
}

#[tokio::test]
async fn boxes_of_the_mock_do_not_outlive_the_server_and_it_says_so() {
    let mut server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    server.kill();
    server.launch().await;
    let waited = server.get(&format!("/sandboxes/{id}/wait?state=destroyed&timeout=30s")).await.ok();
    assert_eq!(waited["state"], "destroyed");
}

#[tokio::test]
async fn sigterm_leaves_the_boxes_running() {
    let mut server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    server.write(&id, "/workspace/f", "x").await;
    assert_eq!(server.terminate(), Some(0));
    server.launch().await;
    assert_eq!(server.output(&id, "cat /workspace/f").await, "x");
}

#[tokio::test]
async fn a_second_server_on_the_same_data_is_refused() {
    let server = TestServer::start(MOCK).await;
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidebox"))
        .arg("serve")
        .env_clear()
        .env("HOME", server.data_dir())
        .env("TIDEBOX_SYSTEM_CONFIG", "")
        .env("TIDEBOX_DATA_DIR", server.data_dir())
        .env("TIDEBOX_SERVER_PORT", "0")
        .current_dir(server.data_dir())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("another tidebox server uses the data directory"), "{text}");
}
