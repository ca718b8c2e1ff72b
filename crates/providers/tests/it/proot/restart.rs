//! Boxes that outlive the server.

use providers::Provider;

use crate::proot::harness::{TestBox, TestProvider, eventually, is_root, new_id, spec};

#[tokio::test]
async fn a_later_server_finds_uses_and_removes_the_boxes_of_an_earlier_one() {
    let Some(provider) = TestProvider::new().await else { return };
    let mut started = Vec::new();
    for _ in 0..3 {
        started.push(provider.start().await.id);
    }
    let later = provider.reopen().await;
    let mut found = later.inventory().await.unwrap();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    started.sort();
    assert_eq!(found.iter().map(|found| &found.id).collect::<Vec<_>>(), started.iter().collect::<Vec<_>>());
    assert!(found.iter().all(|found| found.alive));
    for id in &started {
        let sandbox = TestBox::of(&provider, id.clone());
        assert_eq!(sandbox.text("echo on").await, "on\n");
        let before = sandbox.pids();
        // Finds the same box, and makes no new one.
        later.start(id, &spec()).await.unwrap();
        assert_eq!(sandbox.pids(), before);
        later.stop(id).await.unwrap();
        assert!(!provider.folder_of(id).exists());
        eventually("its exit is taken", async || !std::path::Path::new(&format!("/proc/{}", before[0])).exists()).await;
    }
}

#[tokio::test]
async fn a_new_box_does_not_get_the_id_of_one_that_was_found() {
    let Some(provider) = TestProvider::new().await else { return };
    if !is_root() {
        return;
    }
    let uid = |pid: u32| std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{pid}")).unwrap());
    let sandbox = provider.start().await;
    let later = provider.reopen().await;
    let id = new_id();
    later.start(&id, &spec()).await.unwrap();
    let other = TestBox::of(&provider, id);
    assert_ne!(uid(sandbox.pids()[1]), uid(other.pids()[1]));
    assert_ne!(uid(sandbox.pids()[1]), 0);
}

#[tokio::test]
async fn a_start_that_was_cut_off_is_found_dead_and_removed() {
    let Some(provider) = TestProvider::new().await else { return };
    let id = new_id();
    // Remains of a crash before anything was written, and after a torn write.
    for content in [None, Some(""), Some("{\"format\":1,")] {
        std::fs::create_dir(provider.folder_of(&id)).unwrap();
        if let Some(content) = content {
            std::fs::write(provider.folder_of(&id).join("box.json"), content).unwrap();
            std::fs::write(provider.folder_of(&id).join("pid"), "12 ").unwrap();
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
    let Some(provider) = TestProvider::new().await else { return };
    let id = new_id();
    std::fs::create_dir(provider.folder_of(&id)).unwrap();
    // The test's own process id, with another start time.
    std::fs::write(provider.folder_of(&id).join("pid"), format!("{0} 1\n{0} 1\n", std::process::id())).unwrap();
    let later = provider.reopen().await;
    assert!(!later.inventory().await.unwrap()[0].alive);
    later.stop(&id).await.unwrap();
}

#[tokio::test]
async fn what_was_being_deleted_is_deleted_by_the_next_server() {
    let Some(provider) = TestProvider::new().await else { return };
    let left = provider.folder().join("trash/sb-aaaaaaaaaaaaaaaa.1.0/a/b");
    std::fs::create_dir_all(&left).unwrap();
    let later = provider.reopen().await;
    later.idle().await;
    assert_eq!(std::fs::read_dir(provider.folder().join("trash")).unwrap().count(), 0);
}
