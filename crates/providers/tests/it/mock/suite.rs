//! The conformance suite, run on each provider.

use std::sync::Arc;
use std::time::Duration;

use conformance::{Need, Subject, run};
use domain::{Resources, Timestamp};
use providers::mock::Mock;
use providers::{Provider, Spec};

fn spec(image: &str) -> Spec {
    Spec {
        image: image.to_owned(),
        resources: Resources { memory_mb: 256, vcpus: 1, disk_mb: 0, pids: 256 },
        entrypoint: false,
        metadata: Default::default(),
        lifetime: Duration::from_secs(600),
        trust: None,
        snapshot: None,
        is_copy: false,
        egress: Vec::new(),
        asker: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mock_provider_keeps_every_promise() {
    let mock = Mock::new(|| Timestamp::UNIX_EPOCH);
    let killer = mock.clone();
    let subject = Subject::new(Arc::new(mock.clone()), spec(mock.default_image()))
        .kill(move |id| {
            killer.die(&id);
            Box::pin(async {})
        })
        .without(Need::Processes, "a mock box runs no real program")
        .without(Need::Users, "a mock box has no users")
        .without(Need::Terminals, "a mock box has no terminals")
        .without(Need::Watchers, "mock watches no files")
        .without(Need::Images, "mock takes every image")
        .without(Need::Reopen, "mock boxes end with the process")
        .without(Need::Deadlines, "mock boxes end with the process");
    run(subject).await;
}
