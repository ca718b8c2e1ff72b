//! Cleanup after a stop.

use std::path::Path;

use providers::{Error, Provider};

use crate::ground::{Ground, cgroups_named, eventually, is_root, processes_with, spec};

#[tokio::test]
async fn after_a_stop_nothing_of_a_box_is_left() {
    let ground = Ground::new().await;
    let inside = ground.start().await;
    let id = inside.id.clone();
    let pid = inside.pid();
    inside.text("(setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000' > /dev/null 2>&1 &); sleep 1000 > /dev/null 2>&1 & kill -STOP $!; echo > /workspace/x").await;
    let map = std::fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap();
    if is_root() {
        assert!(!cgroups_named(id.as_str()).is_empty(), "a box has control groups");
    }
    assert!(!processes_with("uid_map", map.trim_end()).is_empty());
    ground.native.stop(&id).await.unwrap();
    // At once, not later.
    assert!(cgroups_named(id.as_str()).is_empty());
    assert!(!ground.folder_of(&id).exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "no zombie either");
    if is_root() {
        assert_eq!(processes_with("uid_map", map.trim_end()), Vec::<String>::new());
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(id.as_str()) && !mounts.contains(&ground.folder().display().to_string()));
    assert!(matches!(ground.native.guest(&id).await, Err(Error::Gone)));
    assert!(ground.native.inventory().await.unwrap().is_empty());
    ground.native.idle().await;
    assert_eq!(std::fs::read_dir(ground.folder().join("trash")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_bounded_disk_leaves_no_loop_device() {
    let ground = Ground::new().await;
    let mut spec = spec();
    spec.resources.disk_mb = 16;
    let inside = ground.start_with(spec).await;
    inside.text("echo > /workspace/file").await;
    let folder = ground.folder().display().to_string();
    let attached = || {
        let files =
            (0..256).filter_map(|n| std::fs::read_to_string(format!("/sys/block/loop{n}/loop/backing_file")).ok());
        files.filter(|file| file.contains(&folder)).count()
    };
    if is_root() {
        assert_eq!(attached(), 1);
    }
    ground.native.stop(&inside.id).await.unwrap();
    eventually("the loop device is free", async || attached() == 0).await;
}

#[tokio::test]
async fn stops_at_once_and_again_are_successes() {
    let ground = Ground::new().await;
    let inside = ground.start().await;
    let (a, b, c) =
        tokio::join!(ground.native.stop(&inside.id), ground.native.stop(&inside.id), ground.native.stop(&inside.id));
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    ground.native.stop(&inside.id).await.unwrap();
    ground.native.stop(&crate::ground::new_id()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_during_a_start_or_stop_leaves_nothing_lost() {
    let ground = Ground::new().await;
    for micros in [0, 100, 300, 600, 1000, 1500, 2000, 3000, 5000] {
        let id = crate::ground::new_id();
        let wait = std::time::Duration::from_micros(micros);
        let _ = tokio::time::timeout(wait, ground.native.start(&id, &spec())).await;
        let _ = tokio::time::timeout(wait, ground.native.stop(&id)).await;
        ground.native.stop(&id).await.unwrap();
        assert!(!ground.folder_of(&id).exists() && cgroups_named(id.as_str()).is_empty());
    }
    assert!(ground.native.inventory().await.unwrap().is_empty());
    ground.native.idle().await;
    let folder = ground.folder().display().to_string();
    assert_eq!(processes_with("cmdline", &folder), Vec::<String>::new());
}

#[tokio::test]
async fn a_tree_too_deep_for_any_path_goes_with_its_box() {
    let ground = Ground::new().await;
    let inside = ground.start().await;
    let deep =
        "import os\nos.chdir('/workspace')\nfor _ in range(10000):\n  os.mkdir('d'); os.chdir('d')\nopen('f', 'w')\n";
    assert_eq!(inside.python(deep).await.exit.code, 0);
    inside.text("mkdir -p /tmp/a/b/c && touch /tmp/a/b/c/f && chmod 000 /tmp/a/b/c /tmp/a/b /tmp/a; ln -s / /tmp/root; mkfifo /tmp/fifo; touch \"/tmp/$(printf '\\n\\377')\"").await;
    ground.native.stop(&inside.id).await.unwrap();
    ground.native.idle().await;
    assert_eq!(std::fs::read_dir(ground.folder().join("trash")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_box_whose_first_process_died_is_known_as_dead_and_can_be_stopped() {
    let ground = Ground::new().await;
    let inside = ground.start().await;
    let pid = inside.pid();
    let raw = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(raw, rustix::process::Signal::KILL).unwrap();
    eventually("the process has been reaped", async || !Path::new(&format!("/proc/{pid}")).exists()).await;
    let found = ground.native.inventory().await.unwrap();
    assert_eq!(
        found.iter().map(|found| (found.id.clone(), found.alive)).collect::<Vec<_>>(),
        [(inside.id.clone(), false)]
    );
    assert!(matches!(ground.native.guest(&inside.id).await, Err(Error::Gone)));
    // A start with the same id finds no box and makes one.
    ground.native.start(&inside.id, &spec()).await.unwrap();
    inside.text("true").await;
    ground.native.stop(&inside.id).await.unwrap();
    assert!(ground.native.inventory().await.unwrap().is_empty());
}

#[tokio::test]
async fn boxes_hold_nothing_of_the_server_open() {
    let ground = Ground::new().await;
    let inside = ground.start().await;
    let fds = std::fs::read_dir(format!("/proc/{}/fd", inside.pid()));
    // An ordinary user may not look, since the agent hides itself.
    let Ok(fds) = fds else { return };
    for fd in fds.flatten() {
        let target = std::fs::read_link(fd.path()).unwrap().display().to_string();
        let allowed = ["/dev/null", "socket:", "anon_inode:", "pipe:"].iter().any(|start| target.starts_with(start))
            || target.contains("memory.oom_control")
            || target.contains("memory.events")
            || target.contains("/proc");
        assert!(allowed, "{target}");
        let number: u32 = fd.file_name().to_string_lossy().parse().unwrap();
        assert!(number > 2 || target == "/dev/null", "{number} is {target}");
    }
}
