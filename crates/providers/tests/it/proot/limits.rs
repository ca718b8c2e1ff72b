//! Limits of a box. The kernel alone enforces none of these, and the facts say so.

use std::time::Duration;

use futures_util::stream;
use providers::{LimitKind, Provider};

use crate::proot::harness::{TestProvider, is_root, spec};

#[tokio::test]
async fn every_limit_is_said_to_be_soft() {
    let Some(provider) = TestProvider::new().await else { return };
    let facts = provider.proot.facts();
    let limits: Vec<_> = facts.limits.iter().map(|(name, _)| *name).collect();
    assert_eq!(limits, ["memory_mb", "vcpus", "pids", "disk_mb"]);
    assert!(facts.limits.iter().all(|(_, kind)| *kind == LimitKind::Soft));
}

#[tokio::test]
async fn above_the_memory_limit_the_largest_process_is_killed_and_the_box_lives() {
    let Some(provider) = TestProvider::new().await else { return };
    let mut spec = spec();
    spec.resources.memory_mb = 96;
    let sandbox = provider.start_with(spec).await;
    // Fills memory slowly enough to be noticed, and then waits to be killed.
    let hog = "$x .= \"x\" x (8 << 20), select(undef, undef, undef, 0.05) for 1..40; sleep 60";
    let ran = sandbox.run(&["/usr/bin/perl", "-e", hog]).await;
    assert_eq!((ran.exit.code, ran.exit.oom_killed), (137, true), "{ran:?}");
    let after = sandbox.sh("echo alive").await;
    assert_eq!((after.stdout.as_str(), after.exit.oom_killed), ("alive\n", false));
    let console = sandbox.guest().await.console(10).await.unwrap().join("\n");
    assert!(console.contains("killed its largest process"), "{console}");
}

#[tokio::test]
async fn a_fork_bomb_stays_in_its_box() {
    let Some(provider) = TestProvider::new().await else { return };
    let mut spec = spec();
    spec.resources.pids = 40;
    let sandbox = provider.start_with(spec).await;
    // Forks until no process can be made. The processes that are left wait.
    let bomb = "f() { f & f & sleep 60; }; f; wait";
    let guest = sandbox.guest().await;
    let script = format!("({bomb}) 2>/dev/null & sleep 5; exit 0");
    let ran = tokio::time::timeout(Duration::from_secs(40), sandbox.sh(&script));
    let ran = ran.await.expect("the command ends, or is ended");
    assert!([0, 137].contains(&ran.exit.code), "{ran:?}");
    // Another box is not affected.
    assert_eq!(provider.start().await.text("echo fine").await, "fine\n");
    if !is_root() {
        let console = guest.console(50).await.unwrap().join("\n");
        assert!(console.contains("processes, more than its limit of 40"), "{console}");
    }
    provider.proot.stop(&sandbox.id).await.unwrap();
}

#[tokio::test]
async fn the_processors_are_as_many_as_were_asked_for() {
    let Some(provider) = TestProvider::new().await else { return };
    assert_eq!(provider.start().await.text("nproc").await, "1\n");
}

#[tokio::test]
async fn no_file_can_be_larger_than_the_disk_of_the_box() {
    let Some(provider) = TestProvider::new().await else { return };
    let mut spec = spec();
    spec.resources.disk_mb = 8;
    let sandbox = provider.start_with(spec).await;
    let ran = sandbox.sh("head -c 20000000 /dev/zero > /workspace/large; stat -c %s /workspace/large").await;
    assert_eq!(ran.stdout.trim(), (8 << 20).to_string(), "{ran:?}");
    assert_eq!(sandbox.text("echo alive").await, "alive\n");
}

#[tokio::test]
async fn above_the_disk_limit_commands_are_ended_until_files_are_deleted() {
    let Some(provider) = TestProvider::new().await else { return };
    let mut spec = spec();
    spec.resources.disk_mb = 8;
    let sandbox = provider.start_with(spec).await;
    let many = "i=0; while :; do head -c 4000000 /dev/zero > /workspace/$i; i=$((i+1)); sleep 0.2; done";
    let ran = sandbox.sh(many).await;
    assert_eq!(ran.exit.code, 137, "{ran:?}");
    let guest = sandbox.guest().await;
    let console = guest.console(50).await.unwrap().join("\n");
    assert!(console.contains("more than its limit of 8"), "{console}");
    // Files can still be deleted from outside, and then commands run again.
    for file in guest.list("/workspace").await.unwrap() {
        guest.delete(&file.path, false).await.unwrap();
    }
    let content = Box::pin(stream::iter([Ok(bytes::Bytes::from_static(b"small"))]));
    guest.write_file("/workspace/small", None, content).await.unwrap();
    assert_eq!(sandbox.text("sleep 2; cat /workspace/small").await, "small");
}
