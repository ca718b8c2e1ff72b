//! Cleanup after a stop.

use std::path::Path;

use providers::{Error, Provider};

use crate::native::harness::{TestProvider, cgroups_named, eventually, is_root, processes_with, spec};
use crate::native::isolation::OWN_EVENTS;

#[tokio::test]
async fn after_a_stop_nothing_of_a_box_is_left() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let id = sandbox.id.clone();
    let pid = sandbox.pid();
    sandbox.text("(setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000' > /dev/null 2>&1 &); sleep 1000 > /dev/null 2>&1 & kill -STOP $!; echo > /workspace/x").await;
    let map = std::fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap();
    if is_root() {
        assert!(!cgroups_named(id.as_str()).is_empty(), "a box has control groups");
    }
    assert!(!processes_with("uid_map", map.trim_end()).is_empty());
    provider.native.stop(&id).await.unwrap();
    // At once, not later.
    assert!(cgroups_named(id.as_str()).is_empty());
    assert!(!provider.folder_of(&id).exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "no zombie either");
    if is_root() {
        assert_eq!(processes_with("uid_map", map.trim_end()), Vec::<String>::new());
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(id.as_str()) && !mounts.contains(&provider.folder().display().to_string()));
    assert!(matches!(provider.native.guest(&id).await, Err(Error::Gone)));
    assert!(provider.native.inventory().await.unwrap().is_empty());
    provider.native.idle().await;
    assert_eq!(std::fs::read_dir(provider.folder().join("trash")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_bounded_disk_leaves_no_loop_device() {
    let provider = TestProvider::new().await;
    let mut spec = spec();
    spec.resources.disk_mb = 16;
    let sandbox = provider.start_with(spec).await;
    sandbox.text("echo > /workspace/file").await;
    let folder = provider.folder().display().to_string();
    let attached = || {
        let files =
            (0..256).filter_map(|n| std::fs::read_to_string(format!("/sys/block/loop{n}/loop/backing_file")).ok());
        files.filter(|file| file.contains(&folder)).count()
    };
    if is_root() {
        assert_eq!(attached(), 1);
    }
    provider.native.stop(&sandbox.id).await.unwrap();
    eventually("the loop device is free", async || attached() == 0).await;
}

#[tokio::test]
async fn stops_at_once_and_again_are_successes() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let (a, b, c) = tokio::join!(
        provider.native.stop(&sandbox.id),
        provider.native.stop(&sandbox.id),
        provider.native.stop(&sandbox.id)
    );
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    provider.native.stop(&sandbox.id).await.unwrap();
    provider.native.stop(&crate::native::harness::new_id()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_during_a_start_or_stop_leaves_nothing_lost() {
    let provider = TestProvider::new().await;
    for micros in [0, 100, 300, 600, 1000, 1500, 2000, 3000, 5000] {
        let id = crate::native::harness::new_id();
        let wait = std::time::Duration::from_micros(micros);
        let _ = tokio::time::timeout(wait, provider.native.start(&id, &spec())).await;
        let _ = tokio::time::timeout(wait, provider.native.stop(&id)).await;
        provider.native.stop(&id).await.unwrap();
        assert!(!provider.folder_of(&id).exists() && cgroups_named(id.as_str()).is_empty());
    }
    assert!(provider.native.inventory().await.unwrap().is_empty());
    provider.native.idle().await;
    let folder = provider.folder().display().to_string();
    assert_eq!(processes_with("cmdline", &folder), Vec::<String>::new());
}

#[tokio::test]
async fn a_tree_too_deep_for_any_path_goes_with_its_box() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let deep =
        "import os\nos.chdir('/workspace')\nfor _ in range(10000):\n  os.mkdir('d'); os.chdir('d')\nopen('f', 'w')\n";
    assert_eq!(sandbox.python(deep).await.exit.code, 0);
    sandbox.text("mkdir -p /tmp/a/b/c && touch /tmp/a/b/c/f && chmod 000 /tmp/a/b/c /tmp/a/b /tmp/a; ln -s / /tmp/root; mkfifo /tmp/fifo; touch \"/tmp/$(printf '\\n\\377')\"").await;
    provider.native.stop(&sandbox.id).await.unwrap();
    provider.native.idle().await;
    assert_eq!(std::fs::read_dir(provider.folder().join("trash")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_box_whose_first_process_died_is_known_as_dead_and_can_be_stopped() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let pid = sandbox.pid();
    let raw = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(raw, rustix::process::Signal::KILL).unwrap();
    eventually("the process has been reaped", async || !Path::new(&format!("/proc/{pid}")).exists()).await;
    let found = provider.native.inventory().await.unwrap();
    assert_eq!(
        found.iter().map(|found| (found.id.clone(), found.alive)).collect::<Vec<_>>(),
        [(sandbox.id.clone(), false)]
    );
    assert!(matches!(provider.native.guest(&sandbox.id).await, Err(Error::Gone)));
    // A start with the same id finds no box and makes one.
    provider.native.start(&sandbox.id, &spec()).await.unwrap();
    sandbox.text("true").await;
    provider.native.stop(&sandbox.id).await.unwrap();
    assert!(provider.native.inventory().await.unwrap().is_empty());
}

#[tokio::test]
async fn boxes_hold_nothing_of_the_server_open() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let fds = std::fs::read_dir(format!("/proc/{}/fd", sandbox.pid()));
    // An ordinary user may not look, since the agent hides itself.
    let Ok(fds) = fds else { return };
    for fd in fds.flatten() {
        let target = std::fs::read_link(fd.path()).unwrap().display().to_string();
        let allowed = ["/dev/null", "socket:", "anon_inode:", "pipe:"].iter().any(|start| target.starts_with(start))
            || target.contains("memory.oom_control")
            || target.contains("memory.events")
            || target.contains("/proc")
            || target.starts_with("/size/")
            || OWN_EVENTS.contains(&target.as_str());
        assert!(allowed, "{target}");
        let number: u32 = fd.file_name().to_string_lossy().parse().unwrap();
        assert!(number > 2 || target == "/dev/null", "{number} is {target}");
    }
}
