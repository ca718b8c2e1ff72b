//! Boxes outlive servers and connections, and the provider notices changes that are made to
//! containers behind its back.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use domain::{SandboxId, StoreId};
use futures_util::StreamExt;
use providers::docker::{Docker, DockerConfig};
use providers::{Error, OutputEvent, Provider};

use crate::ground::{Ground, IMAGE, Inside, command, eventually, new_id, spec};

/// Socket of the Engine of the server that is killed.
const SOCKET: &str = "TIDEBOX_TEST_DOOMED_SOCKET";
/// Id of that server's store.
const STORE: &str = "TIDEBOX_TEST_DOOMED_STORE";
const DOOMED: &str = "restart::a_server_that_is_going_to_be_killed";

/// Runs in a process of its own, started by the next test; does nothing otherwise.
#[tokio::test]
async fn a_server_that_is_going_to_be_killed() {
    let (Ok(socket), Ok(store)) = (std::env::var(SOCKET), std::env::var(STORE)) else { return };
    let config = DockerConfig { socket, ..DockerConfig::new(StoreId::parse(&store).unwrap()) };
    let docker = Docker::open(config).await.unwrap();
    let id = new_id();
    docker.start(&id, &spec()).await.unwrap();
    let inside = Inside::of(&docker, id.clone());
    inside.text("(sleep 1; echo on > /tmp/later) & true").await;
    // Frames that are incomplete when the server is killed: a file without an end, and a command
    // whose output is never read.
    let guest = inside.guest().await;
    let endless = futures_util::stream::repeat_with(|| Ok(bytes::Bytes::from_static(&[b'x'; 60_000]))).boxed();
    let endless_command =
        providers::Command { timeout: Duration::from_secs(600), ..command(&["/bin/cat", "/dev/zero"]) };
    let mut flood = guest.exec(endless_command).await.unwrap();
    assert!(matches!(flood.next().await, Some(Ok(OutputEvent::Stdout(_)))));
    println!("started {id}");
    let drain = async { while flood.next().await.is_some() {} };
    let _ = tokio::join!(guest.write_file("/tmp/endless", None, endless), drain);
}

#[tokio::test]
async fn a_box_of_a_server_that_was_killed_in_the_middle_of_transfers_goes_on() {
    let Some(ground) = Ground::new().await else { return };
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", DOOMED, "--nocapture"])
        .env(SOCKET, &ground.config.socket)
        .env(STORE, ground.config.store_id.as_str())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let id = lines.map_while(Result::ok).find_map(|line| line.split_once("started ").map(|(_, id)| id.to_owned()));
    let id = SandboxId::parse(&id.unwrap()).unwrap();
    let watching = Inside::of(&ground.reopen().await, id.clone());
    eventually("the endless file comes in", || async { watching.sh("test -s /tmp/.tidebox-*").await.exit.code == 0 })
        .await;
    server.kill().unwrap();
    server.wait().unwrap();

    let later = ground.reopen().await;
    let found = later.inventory().await.unwrap();
    assert!(found.len() == 1 && found[0].alive && found[0].id == id, "{found:?}");
    let inside = Inside::of(&later, id.clone());
    eventually("the background process goes on", || async { inside.sh("cat /tmp/later").await.stdout == "on\n" }).await;
    // Finds the same box, and makes no new one.
    later.start(&id, &spec()).await.unwrap();
    assert_eq!(inside.text("cat /tmp/later").await, "on\n");
    // The flooding command has lost its reader.
    eventually("the command of the dead server has ended", || async {
        inside.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep '/dev/[z]ero'").await.exit.code == 1
    })
    .await;
    later.stop(&id).await.unwrap();
    assert_eq!(later.inventory().await.unwrap(), []);
}

#[tokio::test]
async fn a_connection_that_broke_is_dialled_again_again_and_again() {
    let Some(ground) = Ground::new().await else { return };
    let inside = ground.start().await;
    inside.text("echo kept > /tmp/kept").await;
    for _ in 0..5 {
        let later = Inside::of(&ground.reopen().await, inside.id.clone());
        assert_eq!(later.text("cat /tmp/kept").await, "kept\n");
        // Bytes of every value, in both directions.
        let round =
            later.text("i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %03o $i)\"; i=$((i+1)); done | md5sum");
        assert!(round.await.starts_with("e2c865db4162bed963bfaa9ef6ac18f0"));
    }
    // Output from before the restart is still complete.
    assert_eq!(inside.text("cat /tmp/kept").await, "kept\n");
}

#[tokio::test]
async fn a_container_removed_behind_our_back_is_gone() {
    let Some(ground) = Ground::new().await else { return };
    let inside = ground.start().await;
    let guest = inside.guest().await;
    let mut output = guest.exec(command(&["/bin/sleep", "1000"])).await.unwrap();
    let path = format!("/containers/{}?force=1&v=1", ground.container(&inside.id));
    assert_eq!(ground.engine.api("DELETE", &path, b"").0, 204);
    let last = tokio::time::timeout(Duration::from_secs(10), output.next()).await.unwrap();
    assert!(matches!(last, Some(Err(Error::Gone))), "{last:?}");
    assert!(matches!(guest.stat("/").await, Err(Error::Gone)));
    assert!(matches!(ground.docker.guest(&inside.id).await, Err(Error::Gone)));
    assert_eq!(ground.docker.inventory().await.unwrap(), []);
    ground.docker.stop(&inside.id).await.unwrap();
}

#[tokio::test]
async fn a_start_that_was_cut_off_is_found_dead_and_can_be_begun_anew() {
    let Some(ground) = Ground::new().await else { return };
    let id = new_id();
    let store = ground.config.store_id.as_str();
    let body = format!(
        r#"{{"Image": "{IMAGE}", "Cmd": ["/bin/true"],
            "Labels": {{"tidebox.store": "{store}", "tidebox.sandbox": "{id}"}}}}"#
    );
    let path = format!("/containers/create?name={}", ground.container(&id));
    assert_eq!(ground.engine.api("POST", &path, body.as_bytes()).0, 201);
    let found = ground.docker.inventory().await.unwrap();
    assert!(found.len() == 1 && !found[0].alive && found[0].id == id, "{found:?}");
    assert!(matches!(ground.docker.guest(&id).await, Err(Error::Gone)));
    ground.docker.start(&id, &spec()).await.unwrap();
    Inside::of(&ground.docker, id).text("true").await;
}

#[tokio::test]
async fn two_stores_on_one_engine_leave_each_other_alone() {
    let (Some(one), Some(other)) = (Ground::new().await, Ground::new().await) else { return };
    let inside = one.start().await;
    assert_eq!(other.docker.inventory().await.unwrap(), []);
    assert!(matches!(other.docker.guest(&inside.id).await, Err(Error::Gone)));
    other.docker.stop(&inside.id).await.unwrap();
    // The same id in two stores means two boxes.
    other.docker.start(&inside.id, &spec()).await.unwrap();
    inside.text("echo one > /tmp/whose").await;
    Inside::of(&other.docker, inside.id.clone()).refuses("test -e /tmp/whose").await;
    other.docker.stop(&inside.id).await.unwrap();
    inside.text("cat /tmp/whose").await;
}
