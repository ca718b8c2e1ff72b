//! Snapshots of boxes without a control group that could be frozen.

use std::path::PathBuf;
use std::process::Stdio;

use domain::{SandboxId, SnapshotId, StoreId};
use providers::proot::{Proot, ProotConfig};
use providers::{Provider, Snapshots, Spec};

use crate::proot::harness::{TestBox, TestProvider, eventually, has_proot, spec};
use crate::test_box::new_snapshot_id;

/// Environment variable with the data folder of the server that is killed.
const DATA: &str = "TIDEBOX_TEST_PROOT_DATA";
/// Environment variable with the id of its store.
const STORE: &str = "TIDEBOX_TEST_PROOT_STORE";
/// Environment variable with the id of the box.
const BOX: &str = "TIDEBOX_TEST_PROOT_BOX";
const DOOMED: &str = "a_server_that_is_going_to_be_killed";

fn snapshots(proot: &Proot) -> &dyn Snapshots {
    proot.snapshots().expect("boxes can be made here")
}

fn of(snapshot: &SnapshotId) -> Spec {
    Spec { snapshot: Some(snapshot.clone()), ..spec() }
}

/// Returns the state of a process, as a letter of `proc(5)`.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Writes a number to one open file and then to another, again and again, in four threads.
const WRITER: &str = "import os, signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
def write(name):
    a, b = (os.open(f'/workspace/{x}{name}', os.O_RDWR | os.O_CREAT) for x in 'ab')
    number = 0
    while True:
        text = b'%020d' % number
        os.pwrite(a, text, 0)
        os.pwrite(b, text, 0)
        number += 1
for name in range(4): threading.Thread(target=write, args=(name,)).start()
";

#[tokio::test]
async fn what_threads_that_block_every_signal_write_to_open_files_is_that_of_one_moment() {
    let Some(provider) = TestProvider::new().await else { return };
    if fixtures::found("python3", &[PathBuf::from("/usr/bin/python3")]).is_none() {
        return;
    }
    let origin = provider.start().await;
    origin
        .text(&format!("cat > /tmp/writer <<'END'\n{WRITER}END\n/usr/bin/python3 /tmp/writer >/dev/null 2>&1 &"))
        .await;
    eventually("all write", async || origin.sh("test -s /workspace/b3").await.exit.code == 0).await;
    for _ in 0..3 {
        let snapshot = new_snapshot_id();
        snapshots(&provider.proot).take(&origin.id, &snapshot).await.unwrap();
        let made = provider.start_with(of(&snapshot)).await;
        for name in 0..4 {
            let text = made.text(&format!("cat /workspace/a{name}; echo; cat /workspace/b{name}")).await;
            let numbers: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
            assert!(numbers[0] == numbers[1] || numbers[0] == numbers[1] + 1, "{numbers:?}");
        }
        let before = origin.text("cat /workspace/a0").await;
        eventually("they go on", async || origin.text("cat /workspace/a0").await != before).await;
        provider.proot.stop(&made.id).await.unwrap();
    }
}

/// Runs in a process of its own, started by the next test; does nothing otherwise.
#[tokio::test]
async fn a_server_that_is_going_to_be_killed() {
    let variable = |name: &str| std::env::var(name).ok();
    let (Some(data), Some(store), Some(id)) = (variable(DATA), variable(STORE), variable(BOX)) else { return };
    let config = ProotConfig {
        binary: PathBuf::from("proot"),
        data_dir: data.into(),
        store_id: StoreId::parse(&store).unwrap(),
        images: None,
        subids: None,
        api_is_open: false,
    };
    let proot = Proot::open(config).await.unwrap();
    let id = SandboxId::parse(&id).unwrap();
    loop {
        snapshots(&proot).take(&id, &new_snapshot_id()).await.unwrap();
    }
}

#[tokio::test]
async fn a_box_goes_on_whose_server_is_killed_while_it_stands_still() {
    if !has_proot() {
        return;
    }
    let Some(provider) = TestProvider::new().await else { return };
    let origin = provider.start().await;
    let [_, tracer] = origin.pids();
    let mut server = fixtures::again(module_path!(), DOOMED)
        .env(DATA, provider.data_dir())
        .env(STORE, provider.config().store_id.as_str())
        .env(BOX, origin.id.as_str())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the box stands still", async || state(tracer) == Some('T')).await;
    server.kill().unwrap();
    server.wait().unwrap();
    eventually("the box goes on", async || state(tracer).is_some_and(|state| state != 'T')).await;
    assert_eq!(TestBox::of(&provider, origin.id.clone()).text("echo on").await, "on\n");
    let later = provider.reopen().await;
    for left in snapshots(&later).list().await.unwrap() {
        snapshots(&later).remove(&left).await.unwrap();
    }
    later.idle().await;
    assert_eq!(std::fs::read_dir(provider.folder().join("snapshots")).unwrap().count(), 0);
}
