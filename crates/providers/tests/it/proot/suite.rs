//! The conformance suite, as root and as an ordinary user.

use std::sync::Arc;

use bytes::Bytes;
use conformance::{Coverage, Need, Subject, run};
use fixtures::suite::{FULL, SCRATCH};
use futures_util::{StreamExt, stream};
use images::{Images, ImagesConfig, PullPolicy};
use providers::proot::Proot;

use crate::proot::harness::{TestProvider, has_proot, is_root, spec};

#[tokio::test(flavor = "multi_thread")]
async fn proot_passes_the_suite() {
    let folder = tempfile::tempdir().unwrap();
    let config = ImagesConfig { pull: PullPolicy::Never, ..ImagesConfig::new(folder.path().join("images")) };
    let images = Images::open(config).unwrap();
    for (name, image) in [(FULL, fixtures::suite::full()), (SCRATCH, fixtures::suite::scratch())] {
        let Some(image) = image else { return };
        let archive = Bytes::from(image.docker_save(&[name]));
        images.import(None, stream::iter([Ok(archive)]).boxed()).await.unwrap();
    }
    let Some(provider) = TestProvider::with(Some(images)).await else { return };
    let provider = Arc::new(provider);
    let (config, folder) = (provider.config(), provider.folder());
    // The suite runs many commands at once.
    let mut roomy = spec();
    roomy.resources.pids = 512;
    let subject = Subject::new(Arc::new(provider.proot.clone()), roomy)
        .unknown_image("ubuntu:24.04")
        .images(FULL, SCRATCH)
        .reopen(move || {
            let config = config.clone();
            Box::pin(async move { Arc::new(Proot::open(config).await.unwrap()) as Arc<dyn providers::Provider> })
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
        .covered_by("proot", if is_root() { Coverage::Provider } else { Coverage::Variant })
        .without(Need::Users, "below PRoot a box has one user only")
        .without(Need::Stops, "PRoot 5.1 lets a process go on that a signal has stopped")
        .without(Need::Depth, "PRoot makes whole paths of all, so none is longer than 4,096 bytes")
        .without(Need::OwnTerminals, "the terminals of a box are the host's")
        .without(Need::OwnDevices, "the devices of a box are the host's")
        .without(Need::Listen, "a box shares the host's network")
        .without(Need::OwnGroups, "a box sees the processes of the host");
    run(subject).await;
}

/// Runs all other tests as an ordinary user, if these run as root.
#[test]
fn every_other_test_holds_for_an_ordinary_user_too() {
    if !is_root() || !has_proot() {
        return;
    }
    fixtures::run_as_nobody("proot");
}
