//! The provider `e2b`: one server that makes its boxes in another, by the wire of E2B's SDKs.

mod crashes;
mod lives;
mod suite;

use std::time::Duration;

use domain::{Resources, SandboxId, Timestamp};
use futures_util::StreamExt as _;
use providers::e2b::{E2b, E2bConfig};
use providers::{Command, ProcessEvent, ProcessEvents, Spec};
use serde_json::Value;

use crate::server::TestServer;

/// Key of the account.
const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

/// Starts the cloud: a server whose key is that of the account.
async fn cloud(settings: &str) -> TestServer {
    TestServer::builder(settings).key(KEY).start().await
}

/// Returns the settings of a server whose only provider is the cloud at `url`.
fn settings_of(url: &str, more: &str) -> String {
    format!(
        "providers.native.enabled=false providers.e2b.enabled=true providers.e2b.api_key={KEY} providers.e2b.base_url={url} \
         providers.e2b.sandbox_url={url} providers.default=e2b {more}"
    )
}

/// Starts a server whose only provider is the cloud.
async fn near(far: &TestServer, more: &str) -> TestServer {
    TestServer::start(&settings_of(&far.url, more)).await
}

fn config(url: &str, label: &str) -> E2bConfig {
    E2bConfig {
        api_key: KEY.into(),
        domain: "e2b.app".to_owned(),
        base_url: Some(url.to_owned()),
        sandbox_url: Some(url.to_owned()),
        ca_file: None,
        timeout: Duration::from_secs(30),
        user: "root".to_owned(),
        templates: Default::default(),
        lifetime_max: Duration::from_secs(24 * 3600),
        grace: Duration::from_secs(3600),
        usual: spec().resources,
        label: label.to_owned(),
    }
}

fn open(url: &str, label: &str) -> E2b {
    E2b::open(config(url, label), now).unwrap()
}

fn now() -> Timestamp {
    let elapsed = std::time::UNIX_EPOCH.elapsed().unwrap();
    Timestamp::from_millisecond(i64::try_from(elapsed.as_millis()).unwrap()).unwrap()
}

fn spec() -> Spec {
    Spec {
        image: "base".to_owned(),
        resources: Resources { memory_mb: 256, vcpus: 1, disk_mb: 0, pids: 256 },
        entrypoint: false,
        metadata: [("team".to_owned(), "blue".to_owned())].into(),
        lifetime: Duration::from_secs(600),
        trust: None,
        snapshot: None,
        is_copy: false,
        egress: Vec::new(),
        asker: None,
    }
}

fn id(n: u8) -> SandboxId {
    SandboxId::from_entropy([n; 10])
}

/// Returns the sandboxes of the cloud.
async fn there(far: &TestServer) -> Vec<Value> {
    let listed = far.get("/sandboxes").await.ok();
    listed.as_array().unwrap().iter().filter(|it| it["state"] != "failed").cloned().collect()
}

/// Makes a command without a deadline.
fn command(argv: &[&str]) -> Command {
    Command {
        argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
        env: Default::default(),
        workdir: None,
        user: None,
        timeout: Duration::MAX,
        stdin: None,
        terminal: None,
    }
}

/// Reads the output of a process to its end. Returns it with the exit code.
async fn rest(events: &mut ProcessEvents) -> (String, i32) {
    let mut text = Vec::new();
    loop {
        match events.next().await.unwrap().unwrap() {
            ProcessEvent::Stdout(bytes) => text.extend_from_slice(&bytes),
            ProcessEvent::Exit(exit) => return (String::from_utf8(text).unwrap(), exit.code),
            ProcessEvent::Position(_) => {}
            event @ (ProcessEvent::Screen(_) | ProcessEvent::Stderr(_)) => panic!("{event:?}"),
        }
    }
}

/// Waits until the only process of the only box of the cloud has a reader.
async fn until_followed(far: &TestServer) {
    let remote = there(far).await[0]["id"].as_str().unwrap().to_owned();
    far.until("the process has a reader", async || {
        let processes = far.get(&format!("/sandboxes/{remote}/processes")).await;
        processes.status.is_success() && processes.json()[0]["readers"] == 1
    })
    .await;
}
