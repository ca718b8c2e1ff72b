//! Boxes outlive servers and connections, and the provider notices changes that are made to
//! containers behind its back.

use std::time::Duration;

use futures_util::StreamExt;
use providers::{Error, OutputEvent, Provider};

use crate::docker::doomed::{self, Doomed};
use crate::docker::harness::{IMAGE, TestBox, TestProvider, command, new_id, spec};
use crate::test_box::eventually;

const DOOMED: &str = "a_server_that_is_going_to_be_killed";

/// Runs in a process of its own, started by the next test; does nothing otherwise.
#[tokio::test]
async fn a_server_that_is_going_to_be_killed() {
    let Some(docker) = doomed::provider().await else { return };
    let id = new_id();
    docker.start(&id, &spec()).await.unwrap();
    let sandbox = TestBox::of(&docker, id.clone());
    sandbox.text("(sleep 1; echo on > /tmp/later) & true").await;
    // Frames that are incomplete when the server is killed: a file without an end, and a command
    // whose output is never read.
    let guest = sandbox.guest().await;
    let endless = futures_util::stream::repeat_with(|| Ok(bytes::Bytes::from_static(&[b'x'; 60_000]))).boxed();
    let endless_command =
        providers::Command { timeout: Duration::from_secs(600), ..command(&["/bin/cat", "/dev/zero"]) };
    let mut flood = guest.exec(endless_command).await.unwrap();
    assert!(matches!(flood.next().await, Some(Ok(OutputEvent::Stdout(_)))));
    doomed::say_started(&id);
    let drain = async { while flood.next().await.is_some() {} };
    let _ = tokio::join!(guest.write_file("/tmp/endless", None, endless), drain);
}

#[tokio::test]
async fn a_box_of_a_server_that_was_killed_in_the_middle_of_transfers_goes_on() {
    let Some(provider) = TestProvider::new().await else { return };
    let server = Doomed::start(module_path!(), DOOMED, &provider);
    let id = server.id.clone();
    let watching = TestBox::of(&provider.reopen().await, id.clone());
    eventually("the endless file comes in", || async { watching.sh("test -s /tmp/.tidebox-*").await.exit.code == 0 })
        .await;
    server.kill();

    let later = provider.reopen().await;
    let found = later.inventory().await.unwrap();
    assert!(found.len() == 1 && found[0].alive && found[0].id == id, "{found:?}");
    let sandbox = TestBox::of(&later, id.clone());
    eventually("the background process goes on", || async { sandbox.sh("cat /tmp/later").await.stdout == "on\n" })
        .await;
    // Finds the same box, and makes no new one.
    later.start(&id, &spec()).await.unwrap();
    assert_eq!(sandbox.text("cat /tmp/later").await, "on\n");
    // The flooding command has lost its reader.
    eventually("the command of the dead server has ended", || async {
        sandbox.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep '/dev/[z]ero'").await.exit.code == 1
    })
    .await;
    later.stop(&id).await.unwrap();
    assert_eq!(later.inventory().await.unwrap(), []);
}

#[tokio::test]
async fn a_connection_that_broke_is_dialled_again_again_and_again() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    sandbox.text("echo kept > /tmp/kept").await;
    for _ in 0..5 {
        let later = TestBox::of(&provider.reopen().await, sandbox.id.clone());
        assert_eq!(later.text("cat /tmp/kept").await, "kept\n");
        // Bytes of every value, in both directions.
        let round =
            later.text("i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %03o $i)\"; i=$((i+1)); done | md5sum");
        assert!(round.await.starts_with("e2c865db4162bed963bfaa9ef6ac18f0"));
    }
    // Output from before the restart is still complete.
    assert_eq!(sandbox.text("cat /tmp/kept").await, "kept\n");
}

#[tokio::test]
async fn a_container_removed_behind_our_back_is_gone() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    let guest = sandbox.guest().await;
    let mut output = guest.exec(command(&["/bin/sleep", "1000"])).await.unwrap();
    let path = format!("/containers/{}?force=1&v=1", provider.container(&sandbox.id));
    assert_eq!(provider.engine.api("DELETE", &path, b"").0, 204);
    let last = tokio::time::timeout(Duration::from_secs(10), output.next()).await.unwrap();
    assert!(matches!(last, Some(Err(Error::Gone))), "{last:?}");
    assert!(matches!(guest.stat("/").await, Err(Error::Gone)));
    assert!(matches!(provider.docker.guest(&sandbox.id).await, Err(Error::Gone)));
    assert_eq!(provider.docker.inventory().await.unwrap(), []);
    provider.docker.stop(&sandbox.id).await.unwrap();
}

#[tokio::test]
async fn a_start_that_was_cut_off_is_found_dead_and_can_be_begun_anew() {
    let Some(provider) = TestProvider::new().await else { return };
    let id = new_id();
    let store = provider.config.store_id.as_str();
    let body = format!(
        r#"{{"Image": "{IMAGE}", "Cmd": ["/bin/true"],
            "Labels": {{"tidebox.store": "{store}", "tidebox.sandbox": "{id}"}}}}"#
    );
    let path = format!("/containers/create?name={}", provider.container(&id));
    assert_eq!(provider.engine.api("POST", &path, body.as_bytes()).0, 201);
    let found = provider.docker.inventory().await.unwrap();
    assert!(found.len() == 1 && !found[0].alive && found[0].id == id, "{found:?}");
    assert!(matches!(provider.docker.guest(&id).await, Err(Error::Gone)));
    provider.docker.start(&id, &spec()).await.unwrap();
    TestBox::of(&provider.docker, id).text("true").await;
}

#[tokio::test]
async fn two_stores_on_one_engine_leave_each_other_alone() {
    let (Some(one), Some(other)) = (TestProvider::new().await, TestProvider::new().await) else { return };
    let sandbox = one.start().await;
    assert_eq!(other.docker.inventory().await.unwrap(), []);
    assert!(matches!(other.docker.guest(&sandbox.id).await, Err(Error::Gone)));
    other.docker.stop(&sandbox.id).await.unwrap();
    // The same id in two stores means two boxes.
    other.docker.start(&sandbox.id, &spec()).await.unwrap();
    sandbox.text("echo one > /tmp/whose").await;
    TestBox::of(&other.docker, sandbox.id.clone()).refuses("test -e /tmp/whose").await;
    other.docker.stop(&sandbox.id).await.unwrap();
    sandbox.text("cat /tmp/whose").await;
}
