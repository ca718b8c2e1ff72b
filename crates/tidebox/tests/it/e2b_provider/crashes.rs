//! Ends of either server at any moment: nothing is lost, and nothing is left in the account.

use futures_util::StreamExt as _;
use providers::{Attach, AttachFrom, Background, BackgroundStdin, Error, ProcessEvent, Provider as _};
use serde_json::{Value, json};

use super::{cloud, command, id, near, open, rest, settings_of, spec, there, until_followed};
use crate::server::{MOCK, NATIVE, TestServer, free_port};

/// Starts a cloud of real boxes that comes back at the same address.
async fn lasting_cloud() -> TestServer {
    cloud(&format!("{NATIVE} server.port={}", free_port())).await
}

async fn left(far: &TestServer, count: usize) {
    far.until("the account has what belongs to a sandbox", async || there(far).await.len() == count).await;
}

#[tokio::test]
async fn sandboxes_of_the_cloud_outlive_a_crash_of_ours() {
    let far = cloud(MOCK).await;
    let mut near = near(&far, "").await;
    let id = near.spawn().await;
    near.write(&id, "/workspace/kept", "kept").await;
    near.kill();
    near.launch().await;
    assert_eq!(near.output(&id, "cat /workspace/kept").await, "kept");
    near.delete(&format!("/sandboxes/{id}")).await.ok();
    assert_eq!(there(&far).await, [] as [Value; 0]);
}

#[tokio::test]
async fn sandboxes_of_the_cloud_outlive_a_crash_of_the_cloud() {
    let mut far = lasting_cloud().await;
    let near = near(&far, "").await;
    let id = near.spawn().await;
    near.write(&id, "/workspace/kept", "kept").await;
    far.kill();
    let exec = near.post(&format!("/sandboxes/{id}/exec"), json!({"command": "true"})).await;
    exec.refused(503, "unavailable", "cannot be reached");
    assert_eq!(near.post("/providers/test", json!({})).await.ok(), json!({"e2b": false}));
    far.launch().await;
    assert_eq!(near.output(&id, "cat /workspace/kept").await, "kept");
    near.delete(&format!("/sandboxes/{id}")).await.ok();
    assert_eq!(there(&far).await, [] as [Value; 0]);
}

#[tokio::test]
async fn a_crash_of_ours_at_any_moment_of_a_spawn_leaves_nothing_in_the_account() {
    let far = cloud(MOCK).await;
    let mut near = near(&far, "").await;
    for wait_ms in [0, 5, 20, 60, 150, 400] {
        let body = json!({"metadata": {"mock.start_delay": "100ms"}});
        let spawn = near.request(reqwest::Method::POST, "/sandboxes").json(&body).send();
        let _ = tokio::time::timeout(std::time::Duration::from_millis(wait_ms), spawn).await;
        near.kill();
        near.launch().await;
        let sandboxes = near.get("/sandboxes").await.ok();
        let running = sandboxes.as_array().unwrap().iter().filter(|it| it["state"] == "running");
        let running: Vec<String> = running.map(|it| it["id"].as_str().unwrap().to_owned()).collect();
        left(&far, running.len()).await;
        for id in running {
            near.delete(&format!("/sandboxes/{id}")).await.ok();
        }
        left(&far, 0).await;
    }
}

#[tokio::test]
async fn a_crash_of_ours_during_a_removal_leaves_nothing_in_the_account() {
    let far = cloud(MOCK).await;
    let mut near = near(&far, "").await;
    let id = near.spawn_with(json!({"metadata": {"mock.stop_delay": "1s"}})).await;
    let removal = near.request(reqwest::Method::DELETE, &format!("/sandboxes/{id}")).send();
    let _ = tokio::time::timeout(std::time::Duration::from_millis(200), removal).await;
    near.kill();
    near.launch().await;
    left(&far, 0).await;
    near.until("the row ends", async || near.get(&format!("/sandboxes/{id}")).await.status == 404).await;
}

#[tokio::test]
async fn a_crash_of_the_cloud_during_a_spawn_leaves_no_row_and_no_sandbox() {
    let mut far = lasting_cloud().await;
    let near = TestServer::builder(&settings_of(&far.url, "")).expecting("a request failed").start().await;
    let spawn = near.request(reqwest::Method::POST, "/sandboxes").json(&json!({}));
    let spawning = tokio::spawn(async move { spawn.send().await.unwrap().status() });
    // It has begun, or is about to, or is done: each end is told.
    tokio::time::sleep(std::time::Duration::from_millis(15)).await;
    far.kill();
    let status = spawning.await.unwrap();
    far.launch().await;
    let running = if status.is_success() { 1 } else { 0 };
    left(&far, running).await;
    near.until("the rows are those of the account", async || {
        let rows = near.get("/sandboxes").await.ok();
        rows.as_array().unwrap().iter().filter(|it| it["state"] == "running").count() == running
    })
    .await;
    left(&far, running).await;
}

#[tokio::test]
async fn a_sandbox_that_the_cloud_lost_is_gone_here_too() {
    let far = cloud(MOCK).await;
    let near = near(&far, "").await;
    let id = near.spawn().await;
    let remote = there(&far).await[0]["id"].as_str().unwrap().to_owned();
    far.delete(&format!("/sandboxes/{remote}")).await.ok();
    let exec = near.post(&format!("/sandboxes/{id}/exec"), json!({"command": "true"})).await;
    exec.refused(404, "not_found", &id);
    near.until("the sandbox is destroyed", async || near.get(&format!("/sandboxes/{id}")).await.status == 404).await;
}

#[tokio::test]
async fn a_sandbox_that_the_cloud_lost_is_gone_here_without_a_request() {
    let far = cloud(MOCK).await;
    let near = near(&far, "").await;
    let id = near.spawn().await;
    let remote = there(&far).await[0]["id"].as_str().unwrap().to_owned();
    far.delete(&format!("/sandboxes/{remote}")).await.ok();
    near.until("the sandbox is destroyed", async || near.get(&format!("/sandboxes/{id}")).await.status == 404).await;
}

#[tokio::test]
async fn a_box_in_the_account_that_belongs_to_no_sandbox_is_removed_and_those_of_others_are_not() {
    let far = cloud(MOCK).await;
    let near = near(&far, "").await;
    near.spawn().await;
    let ours = there(&far).await[0]["metadata"].clone();
    let orphan = |store: &Value, id: &str| json!({"metadata": {"tidebox.e2b.id": id, "tidebox.e2b.store": store}});
    let foreign = far.spawn_with(orphan(&json!("another"), id(8).as_str())).await;
    far.spawn_with(orphan(&ours["tidebox.e2b.store"], id(7).as_str())).await;
    left(&far, 2).await;
    assert_eq!(far.get(&format!("/sandboxes/{foreign}")).await.ok()["state"], "running");
    // A second sandbox of a box that has one.
    far.spawn_with(json!({"metadata": ours})).await;
    left(&far, 2).await;
}

#[tokio::test]
async fn a_background_process_is_followed_through_a_crash_of_the_cloud() {
    let mut far = lasting_cloud().await;
    let e2b = open(&far.url, "ours");
    e2b.start(&id(1), &spec()).await.unwrap();
    let guest = e2b.guest(&id(1)).await.unwrap();
    let open = Background { stdin: BackgroundStdin::Open, ..Background::default() };
    let script = command(&["/bin/sh", "-c", "echo first; read line; echo \"second $line\"; exit 4"]);
    let begun = guest.start_process(script, open).await.unwrap().process;
    let attach = |from| Attach { from: AttachFrom::Position(from), follow: true, input: None };
    let mut events = guest.attach_process(begun, attach(0)).await.unwrap();
    while !matches!(events.next().await, Some(Ok(ProcessEvent::Stdout(_)))) {}
    far.kill();
    assert!(matches!(guest.stat("/").await, Err(Error::Unavailable(_))));
    far.launch().await;
    // What is written while its stream is opened again would be lost.
    until_followed(&far).await;
    let typed = || futures_util::stream::iter([Ok("line\n".into())]).boxed();
    guest.process_input(begun, typed(), false).await.unwrap();
    let (text, code) = rest(&mut events).await;
    assert_eq!((text.as_str(), code), ("second line\n", 4));
    e2b.stop(&id(1)).await.unwrap();
}
