//! Boxes that are made before anybody asks for one.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use providers::Provider;
use providers::native::{Native, NativeConfig};

use crate::ground::{Ground, Inside, cgroups_named, eventually, is_root, new_id, spec};
use crate::restart::{DOOMED, FOLDER, STORE};

/// The folders of boxes that are nobody's and have a first process.
fn ready(ground: &Ground) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(ground.folder().join("ahead")).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| !pid_in(path).is_empty()).collect()
}

fn pid_in(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("pid")).unwrap_or_default();
    text.split_whitespace().next().unwrap_or_default().to_owned()
}

/// The control groups that are written down for a box.
fn groups_of(folder: &Path) -> Vec<PathBuf> {
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("box.json")).unwrap_or_default()).unwrap_or_default();
    let groups = record["cgroups"].as_array().cloned().unwrap_or_default();
    groups.iter().map(|group| PathBuf::from(group["path"].as_str().unwrap())).collect()
}

/// Starts boxes until one is another's that was made ahead. `None` where none ever is.
async fn taken(ground: &Ground) -> Option<Inside<'_>> {
    if !ground.has_hard_limits() {
        return None;
    }
    let mut before = HashSet::new();
    for _ in 0..50 {
        let inside = ground.start().await;
        if before.contains(&inside.pid().to_string()) {
            return Some(inside);
        }
        ground.native.stop(&inside.id).await.unwrap();
        let is_made = async {
            while ready(ground).is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // None is made if one that died was noticed only now; then the next start asks.
        let _ = tokio::time::timeout(Duration::from_secs(2), is_made).await;
        before.extend(ready(ground).iter().map(|folder| pid_in(folder)));
    }
    panic!("none of fifty boxes was made ahead");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_made_ahead_gets_the_limits_of_the_one_who_takes_it() {
    let ground = Ground::new().await;
    let Some(inside) = taken(&ground).await else { return };
    let groups = groups_of(&ground.folder_of(&inside.id));
    assert!(!groups.is_empty() && groups.iter().all(|group| group.is_dir() && !group.ends_with(inside.id.as_str())));
    let limits = [("memory.limit_in_bytes", "memory.max", "268435456"), ("pids.max", "pids.max", "64")];
    for (v1, v2, wanted) in limits {
        let read = |group: &PathBuf| {
            [v1, v2].iter().find_map(|file| std::fs::read_to_string(group.join(file)).ok()).unwrap_or_default()
        };
        assert!(groups.iter().any(|group| read(group).trim() == wanted), "{v1} is {wanted}");
    }
    assert_eq!(inside.text("cat /workspace/* 2>/dev/null; hostname; id -u").await, "tidebox\n0\n");
    ground.native.stop(&inside.id).await.unwrap();
    assert!(groups.iter().all(|group| !group.exists()) && !ground.folder_of(&inside.id).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_box_made_ahead_is_given_to_two() {
    const BOXES: usize = 24;
    let ground = Ground::new().await;
    let Some(first) = taken(&ground).await else { return };
    let mut ids = vec![first.id.clone()];
    let mut processes = HashSet::from([first.pid()]);
    let mut maps = HashSet::from([first.text("cat /proc/self/uid_map").await]);
    while ids.len() < BOXES {
        let more: Vec<_> = (0..4).map(|_| new_id()).collect();
        let spec = spec();
        let started = futures_util::future::join_all(more.iter().map(|id| ground.native.start(id, &spec))).await;
        assert!(started.iter().all(Result::is_ok), "{started:?}");
        ids.extend(more);
    }
    for id in &ids[1..] {
        let inside = Inside::of(&ground, id.clone());
        assert!(processes.insert(inside.pid()));
        assert!(maps.insert(inside.text("cat /proc/self/uid_map").await) || !is_root());
    }
    let listed: HashSet<_> = ground.native.inventory().await.unwrap().into_iter().map(|found| found.id).collect();
    assert_eq!(listed, ids.into_iter().collect(), "those that are nobody's are not listed");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_has_died_is_given_to_nobody() {
    let ground = Ground::new().await;
    for _ in 0..3 {
        // That some died does not count as demand, so others are asked for.
        let Some(first) = taken(&ground).await else { return };
        ground.native.stop(&first.id).await.unwrap();
        for folder in ready(&ground) {
            if let Some(pid) = pid_in(&folder).parse().ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let inside = ground.start().await;
        assert_eq!(inside.text("echo on").await, "on\n");
        ground.native.stop(&inside.id).await.unwrap();
    }
    ground.native.idle().await;
    assert_eq!(std::fs::read_dir(ground.folder().join("ahead")).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_done_leaves_no_box_that_is_nobodys() {
    let ground = Ground::new().await;
    let Some(first) = taken(&ground).await else { return };
    eventually("another is made", || !ready(&ground).is_empty()).await;
    let (pids, groups): (Vec<_>, Vec<_>) =
        ready(&ground).iter().map(|folder| (pid_in(folder), groups_of(folder))).unzip();
    ground.native.stop(&first.id).await.unwrap();
    ground.native.idle().await;
    for name in ["ahead", "boxes", "trash"] {
        assert_eq!(std::fs::read_dir(ground.folder().join(name)).unwrap().count(), 0, "{name}");
    }
    assert!(pids.iter().all(|pid| !Path::new("/proc").join(pid).exists()));
    assert!(groups.iter().flatten().all(|group| !group.exists()));
}

#[tokio::test]
async fn boxes_that_are_nobodys_end_with_a_server_that_is_killed_and_the_next_removes_them() {
    let ground = Ground::new().await;
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", DOOMED, "--nocapture"])
        .env(FOLDER, ground.config().data_dir)
        .env(STORE, ground.store())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.ends_with("started all")));
    if ground.has_hard_limits() {
        eventually("one is made ahead", || !ready(&ground).is_empty()).await;
    }
    server.kill().unwrap();
    server.wait().unwrap();
    let pids: Vec<_> = ready(&ground).iter().map(|folder| pid_in(folder)).collect();
    let gone = || pids.iter().all(|pid| !Path::new("/proc").join(pid).exists());
    eventually("they have ended without another server", gone).await;
    let groups: Vec<_> = ready(&ground).iter().flat_map(|folder| groups_of(folder)).collect();
    let later = ground.reopen().await;
    assert_eq!(std::fs::read_dir(ground.folder().join("ahead")).unwrap().count(), 0);
    assert!(groups.iter().all(|group| !group.exists()));
    assert_eq!(later.inventory().await.unwrap().len(), 3, "the boxes themselves go on");
}

#[tokio::test(flavor = "multi_thread")]
async fn boxes_that_are_nobodys_take_no_ids_from_others() {
    const RANGES: u32 = 20;
    let ground = Ground::new().await;
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = NativeConfig {
        data_dir: folder.path().to_owned(),
        subids: Some((0x6000_0000, RANGES * 65_536)),
        ..ground.config()
    };
    let native = Native::open(config).await.unwrap();
    native.idle().await;
    let ids: Vec<_> = (0..RANGES).map(|_| new_id()).collect();
    for (n, id) in ids.iter().enumerate() {
        let mut spec = spec();
        // From some on none that was made ahead will do.
        spec.resources.memory_mb = if n < 4 { 256 } else { 32 };
        native.start(id, &spec).await.unwrap_or_else(|error| panic!("box {n}: {error:?}"));
    }
    for id in &ids {
        native.stop(id).await.unwrap();
        assert!(cgroups_named(id.as_str()).is_empty());
    }
    native.idle().await;
}
