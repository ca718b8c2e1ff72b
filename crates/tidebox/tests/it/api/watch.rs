//! `/sandboxes/{id}/files/watch`, on real boxes.

use std::time::{Duration, Instant};

use client::{Client, FileChangeStream};
use serde_json::json;

use crate::server::{NATIVE, PATIENCE, TestServer};

async fn boxed() -> (TestServer, String, Client) {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let client = Client::new(&server.url, None, None).unwrap();
    (server, id, client)
}

/// Returns the changes up to the first one of `path`, each as its type and its path.
async fn until(stream: &mut FileChangeStream, path: &str) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        let change = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap_or_else(|_| panic!("{seen:?}"));
        let change = change.unwrap().unwrap_or_else(|| panic!("ended after {seen:?}"));
        let at = change.path.clone().unwrap_or_default();
        seen.push(format!("{} {at}", change.kind));
        if at == path {
            return seen;
        }
    }
}

#[tokio::test]
async fn changes_are_reported_as_they_happen() {
    let (server, id, client) = boxed().await;
    server.output(&id, "mkdir d; echo 1 > d/old").await;
    let mut changes = client.watch_files(&id, "/workspace/d", false).await.unwrap();
    server
        .output(
            &id,
            "cd d; echo 2 > new; chmod 600 old; mv new moved; rm old; mkdir sub; echo 3 > sub/unseen; touch end",
        )
        .await;
    let seen = until(&mut changes, "/workspace/d/end").await;
    let expected = [
        "created /workspace/d/new",
        "modified /workspace/d/new",
        "attributes /workspace/d/old",
        "deleted /workspace/d/new",
        "created /workspace/d/moved",
        "attributes /workspace/d/old",
        "deleted /workspace/d/old",
        "created /workspace/d/sub",
        "created /workspace/d/end",
    ];
    let seen: Vec<&str> = seen.iter().map(String::as_str).filter(|line| expected.contains(line)).collect();
    let mut wanted = expected.to_vec();
    // The kernel reports the last link of a file that goes as a change of its links, if it comes to it.
    if !seen[4..].contains(&"attributes /workspace/d/old") {
        wanted.remove(5);
    }
    assert_eq!(seen, wanted);
}

#[tokio::test]
async fn a_recursive_watch_follows_directories_that_come_and_go() {
    let (server, id, client) = boxed().await;
    server.output(&id, "mkdir -p d/a/b out").await;
    let mut changes = client.watch_files(&id, "/workspace/d", true).await.unwrap();
    server.output(&id, "echo 1 > d/a/b/deep; mkdir -p d/x/y/z; echo 2 > d/x/y/z/fast").await;
    let seen = until(&mut changes, "/workspace/d/x/y/z/fast").await;
    for wanted in ["created /workspace/d/a/b/deep", "created /workspace/d/x", "created /workspace/d/x/y/z"] {
        assert!(seen.iter().any(|line| line == wanted), "{wanted}: {seen:?}");
    }
    server.output(&id, "echo 3 > d/x/y/z/later; mv d/x d/renamed; echo 4 > d/renamed/y/z/here").await;
    until(&mut changes, "/workspace/d/renamed/y/z/here").await;
    server.output(&id, "mv d/renamed out; echo 5 > out/renamed/y/z/unseen; touch d/end").await;
    let seen = until(&mut changes, "/workspace/d/end").await;
    assert!(seen.contains(&"deleted /workspace/d/renamed".to_owned()), "{seen:?}");
    assert!(!seen.iter().any(|line| line.contains("unseen")), "{seen:?}");
    server.output(&id, "rm -r d").await;
    until(&mut changes, "/workspace/d").await;
    assert!(tokio::time::timeout(PATIENCE, changes.next()).await.unwrap().unwrap().is_none(), "the path is gone");
}

#[tokio::test]
async fn a_hundred_thousand_changes_overflow_honestly() {
    let (server, id, client) = boxed().await;
    let line = json!({"command": "mkdir d; cd d; seq 100000 | xargs touch", "timeout": "300s"});
    assert_eq!(server.post(&format!("/sandboxes/{id}/exec"), line).await.ok()["exit_code"], 0);
    let mut changes = client.watch_files(&id, "/workspace/d", true).await.unwrap();
    // The reader stands still meanwhile.
    let line = json!({"command": "cd d; seq 100000 | xargs touch; seq 100000 | xargs rm", "timeout": "300s"});
    let ran = server.post(&format!("/sandboxes/{id}/exec"), line).await.ok();
    assert_eq!(ran["exit_code"], 0, "{ran}");
    let begun = Instant::now();
    let mut seen = 0_u64;
    loop {
        let change = tokio::time::timeout(PATIENCE, changes.next()).await.unwrap().unwrap().unwrap();
        seen += 1;
        if change.kind == "overflow" {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(180), "{seen} changes");
    }
    assert!(seen < 300_000);
    // After it, what happens is reported again.
    server.output(&id, "touch d/end").await;
    until(&mut changes, "/workspace/d/end").await;
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_watch_and_what_is_too_much_is_refused() {
    let (server, id, client) = boxed().await;
    let url = format!("/sandboxes/{id}/files/watch");
    server.get(&format!("{url}?path=/none")).await.refused(404, "not_found", "/none");
    server.get(&format!("{url}?path=d")).await.refused(400, "bad_request", "absolute");
    server.get(&format!("{url}?path=/workspace&depth=1")).await.refused(400, "bad_request", "depth");
    server.output(&id, "mkdir d; cd d; for n in $(seq 90); do mkdir $n; (cd $n; seq 100 | xargs mkdir); done").await;
    server.get(&format!("{url}?path=/workspace/d&recursive=true")).await.refused(400, "bad_request", "directories");
    server.output(&id, "rm -r d; mkdir d").await;
    // The refused watch above ends at once.
    let mut watches = Vec::new();
    for _ in 0..8 {
        watches.push(client.watch_files(&id, "/workspace/d", false).await.unwrap());
    }
    server.get(&format!("{url}?path=/workspace/d")).await.refused(429, "resource_limit", "watches");
    drop(watches);
    server.until("a watch is free", async || client.watch_files(&id, "/workspace/d", false).await.is_ok()).await;
}

#[tokio::test]
async fn a_watch_rests_with_its_sandbox_and_ends_with_it() {
    let (server, id, client) = boxed().await;
    let mut changes = client.watch_files(&id, "/workspace", false).await.unwrap();
    // Another user than root has no freezer.
    if rustix::process::geteuid().is_root() {
        server.post(&format!("/sandboxes/{id}/pause"), json!({})).await.ok();
    }
    // It goes on for this one.
    server.output(&id, "touch first").await;
    until(&mut changes, "/workspace/first").await;
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    let end = async { while changes.next().await.unwrap().is_some() {} };
    tokio::time::timeout(PATIENCE, end).await.expect("it ends with the sandbox");
}

#[tokio::test]
async fn a_server_that_stops_does_not_wait_for_a_watch() {
    let (mut server, id, client) = boxed().await;
    let mut changes = client.watch_files(&id, "/workspace", false).await.unwrap();
    let begun = Instant::now();
    assert_eq!(server.terminate(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(changes.next().await.unwrap().is_none());
    server.launch().await;
    server.delete(&format!("/sandboxes/{id}")).await.ok();
}
