//! The suite of all providers, over a cloud of real boxes and over one of boxes in memory.

use std::sync::Arc;

use conformance::{Coverage, Need, Subject, run};
use domain::SandboxId;
use providers::Provider;

use super::{KEY, cloud, open, spec};
use crate::server::{MOCK, NATIVE, TestServer};

/// Reason for cases about what the API of E2B has no call for.
const NO_CALL: &str = "E2B's API has no call for it";

/// Makes a subject over a cloud.
fn subject(far: &TestServer) -> Subject {
    let url = far.url.clone();
    Subject::new(Arc::new(open(&far.url, "suite")), spec())
        .reopen(move || {
            let again: Arc<dyn Provider> = Arc::new(open(&url, "suite"));
            Box::pin(async move { again })
        })
        .without(Need::Images, "which templates there are, the cloud knows, and is asked only by the start")
        .without(Need::Egress, "the cloud makes the connections out of its boxes")
        .without(Need::PortWatch, NO_CALL)
        .without(Need::Listen, NO_CALL)
        .without(Need::Accounts, NO_CALL)
        .without(Need::Watchers, NO_CALL)
        .without(Need::Console, NO_CALL)
        .without(Need::Search, NO_CALL)
        .without(Need::Archives, NO_CALL)
        .without(Need::Pauses, "a pause of the cloud ends what is open to the box")
        .without(Need::Measures, NO_CALL)
        .without(Need::PortOwners, NO_CALL)
        .without(Need::LinkTexts, "the cloud tells where a link leads")
        .without(Need::SpecialBits, "the cloud tells the permissions of a file alone")
        .without(Need::KeptOutput, "the server keeps the output of background processes, in its memory")
        .without(Need::Users, "the cloud knows users by their names alone")
        .without(Need::Sessions, "what left the session of a command goes on in the cloud")
        .without(Need::OwnTerminals, "the cloud bounds them")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e2b_passes_the_suite_over_a_cloud_of_real_boxes() {
    let far = cloud(NATIVE).await;
    let (url, folder) = (far.url.clone(), far.data_dir().join("native/boxes"));
    let subject = subject(&far).covered_by("e2b", Coverage::Provider).kill(move |id| {
        let (url, folder) = (url.clone(), folder.clone());
        Box::pin(async move {
            let remote = remote_id(&url, &id).await;
            let text = std::fs::read_to_string(folder.join(remote).join("pid")).unwrap();
            let pid = text.split_whitespace().next().unwrap().parse().unwrap();
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        })
    });
    run(subject).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e2b_passes_the_suite_over_a_cloud_of_boxes_in_memory() {
    let far = cloud(MOCK).await;
    let subject = subject(&far)
        .covered_by("e2b", Coverage::Provider)
        .without(Need::Processes, "a mock box runs no real program")
        .without(Need::Terminals, "a mock box has no terminals")
        .without(Need::Control, "a mock box has no shell that sends signals")
        .without(Need::Modes, "a mock box has no `chmod`")
        .without(Need::Kill, "a mock box has no process that could be killed from outside");
    run(subject).await;
}

/// Returns the id that the cloud gives to a box.
async fn remote_id(url: &str, id: &SandboxId) -> String {
    let client = client::Client::new(url, Some(KEY), None).unwrap();
    let all = client.list().await.unwrap();
    let found = all.iter().find(|it| it.metadata.0.get(providers::e2b::ID_LABEL).is_some_and(|it| it == id.as_str()));
    found.unwrap_or_else(|| panic!("{id} is not there")).id.clone()
}
