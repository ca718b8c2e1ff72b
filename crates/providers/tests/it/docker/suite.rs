//! The conformance suite, on each runtime that works here.

use std::sync::Arc;

use conformance::{Coverage, Need, Subject, run};
use fixtures::suite::{FULL, NO_BASH, SCRATCH};
use providers::docker::Docker;
use providers::{Chain, Provider};

use crate::docker::harness::{TestProvider, new_id, spec};

fn subject(provider: &TestProvider, pids: u32) -> Subject {
    // The suite runs many commands at once.
    let mut roomy = spec();
    roomy.resources.pids = pids;
    let config = provider.config.clone();
    let (engine, store) = (provider.engine, provider.config.store_id.clone());
    Subject::new(Arc::new(provider.docker.clone()), roomy)
        // Whether the Engine or a registry has another image is only known when a box is made.
        .unknown_image("host")
        .images(FULL, SCRATCH)
        .without(Need::Bash, NO_BASH)
        .reopen(move || {
            let config = config.clone();
            Box::pin(async move { Arc::new(Docker::open(config).await.unwrap()) as Arc<dyn Provider> })
        })
        .kill(move |id| {
            let path = format!("/containers/tidebox-{}-{id}/kill", store.as_str());
            Box::pin(async move {
                let (status, answer) = engine.api("POST", &path, b"");
                assert_eq!(status, 204, "{}", String::from_utf8_lossy(&answer));
            })
        })
}

/// Returns a subject for a runtime that uses the kernel of the host.
fn shared_kernel(subject: Subject) -> Subject {
    subject.without(Need::OwnTerminals, "the Engine has no bound of a box's terminals")
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_with_runc_passes_the_suite() {
    let Some(provider) = TestProvider::new().await else { return };
    run(shared_kernel(subject(&provider, 512)).covered_by("docker", Coverage::Provider)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_with_runsc_passes_the_suite() {
    if fixtures::found("runsc", &["/usr/bin/runsc".into()]).is_none() {
        return;
    }
    let Some(provider) = TestProvider::with(|config| config.runtime = "runsc".to_owned()).await else { return };
    // The kernel of such a box is a process of the host with threads of its own, which the limit
    // counts.
    let subject = subject(&provider, 4096)
        .covered_by("docker-runsc", Coverage::Variant)
        // gVisor's own memory counts for the box, and so does the host's for the inodes of its files.
        .with_small_memory_mb(256)
        .without(Need::Terminals, "gVisor has no terminals that control anything")
        .without(Need::HostKernel, "gVisor is a kernel of the box's own")
        .without(Need::HeldFiles, "gVisor keeps the table of open files to itself")
        // Files of the root are parts of one file there.
        .without(Need::Disk, "gVisor keeps entries to itself");
    run(subject).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_with_crun_passes_the_suite() {
    if fixtures::found("crun", &["/usr/bin/crun".into()]).is_none() {
        return;
    }
    let Some(provider) = TestProvider::with(|config| config.runtime = "crun".to_owned()).await else { return };
    let id = new_id();
    if let Err(error) = provider.docker.start(&id, &spec()).await {
        let error = Chain(&error).to_string();
        assert!(error.contains("hybrid mode"), "{error}");
        // Requiring the runtime would be of no use: the program is installed, and the machine is
        // the wrong one.
        fixtures::skip(
            "crun-on-mixed-groups",
            "crun takes no control groups of versions 1 and 2 mixed, as they are here",
        );
        return;
    }
    provider.docker.stop(&id).await.unwrap();
    run(shared_kernel(subject(&provider, 512)).covered_by("docker-crun", Coverage::Variant)).await;
}
