//! The conformance suite, as root and as an ordinary user.

use std::sync::Arc;

use conformance::{Coverage, Need, Subject, run};
use fixtures::suite::{FULL, SCRATCH};
use providers::native::Native;

use crate::native::harness::{TestProvider, is_root, spec};

#[tokio::test(flavor = "multi_thread")]
async fn native_passes_the_suite() {
    passes_the_suite(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn native_passes_the_suite_when_connections_are_led_to_the_agents() {
    if is_root() {
        passes_the_suite(true).await;
    }
}

async fn passes_the_suite(transparent: bool) {
    let images = fixtures::suite::full().zip(fixtures::suite::scratch());
    let list = images.clone().map(|(full, scratch)| vec![(FULL, full), (SCRATCH, scratch)]).unwrap_or_default();
    let provider = Arc::new(match transparent {
        true => TestProvider::transparent(&list).await,
        false => TestProvider::with_images(&list).await,
    });
    let (config, folder) = (provider.config(), provider.folder());
    // The suite runs many commands at once.
    let mut roomy = spec();
    roomy.resources.pids = 512;
    let mut subject = Subject::new(Arc::new(provider.native.clone()), roomy)
        .unknown_image("ubuntu:24.04")
        .reopen(move || {
            let config = config.clone();
            Box::pin(async move { Arc::new(Native::open(config).await.unwrap()) as Arc<dyn providers::Provider> })
        })
        .kill(move |id| {
            let pid = folder.join("boxes").join(id.as_str()).join("pid");
            Box::pin(async move {
                let text = std::fs::read_to_string(pid).unwrap();
                let pid = text.split_whitespace().next().unwrap().parse().unwrap();
                let pid = rustix::process::Pid::from_raw(pid).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            })
        });
    subject = match images {
        Some(_) => subject.images(FULL, SCRATCH),
        None => subject.without(Need::RealImages, "there is no busybox here to make them of"),
    };
    if !is_root() {
        subject = subject
            .without(Need::Users, "without privileges a box has one user only")
            .without(Need::OwnDevices, "without privileges no device can be made")
            .without(Need::BoundedCopies, "without privileges a bounded disk is in memory, where no snapshot fits");
    }
    let (suite, coverage) = match (transparent, is_root()) {
        (false, true) => ("native", Coverage::Whole),
        (true, true) => ("native-transparent", Coverage::Variant),
        (_, false) => ("native-user", Coverage::Provider),
    };
    run(subject.covered_by(suite, coverage)).await;
}

/// Runs all other tests as an ordinary user, if these run as root.
#[test]
fn every_other_test_holds_for_an_ordinary_user_too() {
    if !is_root() {
        return;
    }
    fixtures::run_as_nobody("native");
}
