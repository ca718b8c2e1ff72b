//! The provider `custom`: one service that makes its boxes in another.

use std::sync::Arc;
use std::time::Duration;

use domain::{Resources, SandboxId};
use providers::conformance::{Lab, Need, run};
use providers::custom::{Custom, CustomConfig};
use providers::{Command, Error, OutputEvent, Provider, Spec};
use serde_json::json;

use crate::server::{MOCK, NATIVE, TestServer};

/// Why some cases of the suite cannot hold.
const IMAGES: &str = "which images there are, the other service knows, and is asked only by the start";
const STDIN: &str = "stdin is sent in the request, which has a bound";

fn config(url: &str, label: &str) -> CustomConfig {
    CustomConfig {
        name: "custom".to_owned(),
        base_url: url.to_owned(),
        api_key: None,
        ca_file: None,
        timeout: Duration::from_secs(30),
        remote_provider: None,
        label: label.to_owned(),
    }
}

fn open(url: &str, label: &str) -> Custom {
    Custom::open(config(url, label)).unwrap()
}

fn spec() -> Spec {
    Spec {
        image: "default".to_owned(),
        resources: Resources { memory_mb: 256, vcpus: 1, disk_mb: 0, pids: 256 },
        metadata: [("team".to_owned(), "blue".to_owned())].into(),
        lifetime: Duration::from_secs(600),
    }
}

fn id(n: u8) -> SandboxId {
    SandboxId::from_entropy([n; 10])
}

/// A lab over a service, with everything that any service allows.
fn lab(far: &TestServer, label: &'static str) -> Lab {
    let url = far.url.clone();
    Lab::new(Arc::new(open(&far.url, label)), spec())
        .reopen(move || {
            let again: Arc<dyn Provider> = Arc::new(open(&url, label));
            Box::pin(async move { again })
        })
        .without(Need::Images, IMAGES)
        .without(Need::Stdin, STDIN)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_passes_the_suite_over_a_service_of_real_boxes() {
    let far = TestServer::start(NATIVE).await;
    let (url, folder) = (far.url.clone(), far.data_dir().join("native/boxes"));
    let lab = lab(&far, "suite").kill(move |id| {
        let (url, folder) = (url.clone(), folder.clone());
        Box::pin(async move {
            let remote = remote_id(&url, &id).await;
            let text = std::fs::read_to_string(folder.join(remote).join("pid")).unwrap();
            let pid = text.split_whitespace().next().unwrap().parse().unwrap();
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        })
    });
    let lab = if rustix::process::geteuid().is_root() {
        lab
    } else {
        lab.without(Need::Users, "without privileges a box has one user only")
    };
    run(lab).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_passes_the_suite_over_a_service_of_boxes_in_memory() {
    let far = TestServer::start(MOCK).await;
    let lab = lab(&far, "suite")
        .without(Need::Processes, "a mock box runs no real program")
        .without(Need::Users, "a mock box has no users")
        .without(Need::Kill, "a mock box has no process that could be killed from outside");
    run(lab).await;
}

/// What a box of ours is called over there.
async fn remote_id(url: &str, id: &SandboxId) -> String {
    let client = client::Client::new(url, None, None).unwrap();
    let all = client.list().await.unwrap();
    let found = all.iter().find(|sandbox| sandbox.metadata.0.get("tidebox.id").is_some_and(|it| it == id.as_str()));
    found.unwrap_or_else(|| panic!("{id} is not there")).id.clone()
}
