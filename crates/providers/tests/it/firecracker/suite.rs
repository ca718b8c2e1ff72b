//! The conformance suite, in a jail and without one.

use std::sync::Arc;

use conformance::{Need, Subject, run};
use fixtures::suite::{FULL, NO_BASH, PLAIN, SCRATCH};
use providers::firecracker::Firecracker;

use super::harness::TestProvider;
use crate::test_box::spec_of;

/// Room for templates of a test's machines.
pub(crate) const TEMPLATES_MB: u64 = 8192;

/// Memory of a small box: with less no kernel of a distribution boots.
const SMALL_MB: u32 = 128;

#[tokio::test(flavor = "multi_thread")]
async fn firecracker_passes_the_suite_in_a_jail() {
    passes_the_suite(true, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn firecracker_passes_the_suite_in_a_jail_from_templates() {
    passes_the_suite(true, TEMPLATES_MB).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn firecracker_passes_the_suite_without_a_jail() {
    passes_the_suite(false, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn firecracker_passes_the_suite_without_a_jail_from_templates() {
    passes_the_suite(false, TEMPLATES_MB).await;
}

async fn passes_the_suite(jailed: bool, templates_mb: u64) {
    let Some(provider) = TestProvider::new(jailed, templates_mb).await else { return };
    let (config, folder) = (provider.config(), provider.folder());
    // The suite runs many commands at once.
    let mut roomy = spec_of(PLAIN);
    roomy.resources.pids = 512;
    let subject = Subject::new(Arc::new(provider.firecracker.clone()), roomy)
        .unknown_image("host")
        .images(FULL, SCRATCH)
        .without(Need::Bash, NO_BASH)
        .reopen(move || {
            let config = config.clone();
            Box::pin(async move { Arc::new(Firecracker::open(config).await.unwrap()) as Arc<dyn providers::Provider> })
        })
        .kill(move |id| {
            let pid = folder.join("boxes").join(id.as_str()).join("pid");
            Box::pin(async move {
                let text = std::fs::read_to_string(pid).unwrap();
                let pid = text.split_whitespace().next().unwrap().parse().unwrap();
                let pid = rustix::process::Pid::from_raw(pid).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            })
        })
        .without(Need::HostKernel, "a machine has a kernel of its own")
        .without(Need::HeldFiles, "a machine keeps the table of open files to itself")
        .without(Need::OwnGroups, "a machine has control groups of its own, and none of the host")
        .with_small_memory_mb(SMALL_MB)
        .without(Need::Disk, "a machine keeps the entries of its drive to itself");
    run(subject).await;
}
