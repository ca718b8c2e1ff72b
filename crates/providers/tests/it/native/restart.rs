//! Boxes that outlive the server.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use domain::{SandboxId, StoreId};
use providers::Provider;
use providers::native::{Native, NativeConfig};

use crate::native::harness::{TestBox, TestProvider, cgroups_named, eventually, new_id, spec};

/// Data folder of the server that is killed.
const FOLDER: &str = "TIDEBOX_TEST_DOOMED_FOLDER";
/// Id of that server's store.
const STORE: &str = "TIDEBOX_TEST_DOOMED_STORE";
const DOOMED: &str = "a_server_that_is_going_to_be_killed";

/// Runs in a process of its own, started by the next test; does nothing otherwise.
#[tokio::test]
async fn a_server_that_is_going_to_be_killed() {
    let (Ok(folder), Ok(store)) = (std::env::var(FOLDER), std::env::var(STORE)) else { return };
    let store_id = StoreId::parse(&store).unwrap();
    let native = Native::open(NativeConfig {
        data_dir: folder.into(),
        store_id,
        cgroup_parent: None,
        subids: None,
        images: None,
        transparent_egress: false,
        fsync: false,
    })
    .await
    .unwrap();
    for _ in 0..3 {
        let id = new_id();
        native.start(&id, &spec()).await.unwrap();
        println!("started {id}");
    }
    println!("started all");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn boxes_of_a_server_that_was_killed_are_found_and_go_on() {
    let provider = TestProvider::new().await;
    let mut server = fixtures::again(module_path!(), DOOMED)
        .env(FOLDER, provider.config().data_dir)
        .env(STORE, provider.store())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut started = Vec::new();
    for line in lines.map_while(Result::ok) {
        match line.split_once("started ").map(|(_, what)| what) {
            Some("all") => break,
            Some(id) => started.push(SandboxId::parse(id).unwrap()),
            None => {}
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(started.len(), 3);

    let later = provider.reopen().await;
    let mut found = later.inventory().await.unwrap();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    started.sort();
    assert_eq!(found.iter().map(|found| &found.id).collect::<Vec<_>>(), started.iter().collect::<Vec<_>>());
    assert!(found.iter().all(|found| found.alive));
    for id in &started {
        let sandbox = TestBox::of(&provider, id.clone());
        assert_eq!(sandbox.text("echo on").await, "on\n");
        // Finds the same box, and makes no new one.
        later.start(id, &spec()).await.unwrap();
        let pid = sandbox.pid();
        later.stop(id).await.unwrap();
        eventually("init has taken its exit", async || !std::path::Path::new(&format!("/proc/{pid}")).exists()).await;
        assert!(cgroups_named(id.as_str()).is_empty() && !provider.folder_of(id).exists());
    }
}

#[tokio::test]
async fn a_new_box_does_not_get_the_ids_of_one_that_was_found() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let before = sandbox.text("cat /proc/self/uid_map").await;
    let later = provider.reopen().await;
    let id = new_id();
    later.start(&id, &spec()).await.unwrap();
    let other = TestBox::of(&provider, id);
    if crate::native::harness::is_root() {
        assert_ne!(other.text("cat /proc/self/uid_map").await, before);
    }
}

#[tokio::test]
async fn a_start_that_was_cut_off_is_found_dead_and_removed() {
    let provider = TestProvider::new().await;
    let id = new_id();
    // Remains of a crash before anything was written, and after a torn write.
    for content in [None, Some(""), Some("{\"format\":1,")] {
        std::fs::create_dir(provider.folder_of(&id)).unwrap();
        if let Some(content) = content {
            std::fs::write(provider.folder_of(&id).join("box.json"), content).unwrap();
            std::fs::write(provider.folder_of(&id).join("pid"), "").unwrap();
        }
        let later = provider.reopen().await;
        let found = later.inventory().await.unwrap();
        assert!(found.len() == 1 && !found[0].alive && found[0].id == id);
        later.stop(&id).await.unwrap();
        assert!(!provider.folder_of(&id).exists());
        later.idle().await;
    }
}

#[tokio::test]
async fn a_number_that_is_another_processes_by_now_is_left_alone() {
    let provider = TestProvider::new().await;
    let id = new_id();
    std::fs::create_dir(provider.folder_of(&id)).unwrap();
    // The test's own process id, with another start time.
    std::fs::write(provider.folder_of(&id).join("pid"), format!("{} 1\n", std::process::id())).unwrap();
    let later = provider.reopen().await;
    assert!(!later.inventory().await.unwrap()[0].alive);
    later.stop(&id).await.unwrap();
}

#[tokio::test]
async fn what_was_being_deleted_is_deleted_by_the_next_server() {
    let provider = TestProvider::new().await;
    let left = provider.folder().join("trash/sb-aaaaaaaaaaaaaaaa.1.0/a/b");
    std::fs::create_dir_all(&left).unwrap();
    let later = provider.reopen().await;
    later.idle().await;
    assert_eq!(std::fs::read_dir(provider.folder().join("trash")).unwrap().count(), 0);
}
