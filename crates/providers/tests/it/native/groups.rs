//! Places of the control groups of boxes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use domain::Resources;
use providers::{Provider, Spec};

use crate::native::harness::{TestProvider, cgroups_named, eventually, is_root, new_id, spec};

/// Name of [`a_server_in_a_group_with_a_shell`].
const SERVER: &str = "a_server_in_a_group_with_a_shell";
/// Group that this test puts such a server into.
const GROUP: &str = "TIDEBOX_TEST_SHARED_GROUP";
/// Hierarchy of version 2 on a host that has no other.
const TOP: &str = "/sys/fs/cgroup";
const CONTROLLERS: &str = "cgroup.controllers";

/// Control group with a process, such as the shell of a session. Both are gone at its end.
struct SharedGroup {
    dir: PathBuf,
    shell: Child,
}

impl SharedGroup {
    fn new() -> SharedGroup {
        let dir = Path::new(TOP).join(format!("test-session-{}", new_id().as_str()));
        fs::create_dir(&dir).unwrap();
        let shell = Command::new("sleep").arg("3600").stdin(Stdio::null()).spawn().unwrap();
        fs::write(dir.join("cgroup.procs"), shell.id().to_string()).unwrap();
        SharedGroup { dir, shell }
    }
}

impl Drop for SharedGroup {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        // The kernel releases it a little later.
        let released = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            fs::remove_dir(&self.dir).is_ok()
        });
        assert!(released || std::thread::panicking(), "the group is empty");
    }
}

/// Returns whether this host has control groups of version 2 alone, and this is root.
fn has_only_version_2() -> bool {
    let listed = fs::read_to_string(Path::new(TOP).join(CONTROLLERS)).unwrap_or_default();
    let can =
        is_root() && ["cpu", "memory", "pids"].iter().all(|name| listed.split_whitespace().any(|one| one == *name));
    if !can {
        fixtures::skip("control-groups-v2", "it takes root and control groups of version 2");
    }
    can
}

/// Runs in a process that shares its group with a shell, as a server does that was started there.
#[tokio::test]
async fn a_server_in_a_group_with_a_shell() {
    let Some(group) = std::env::var_os(GROUP) else { return };
    fs::write(Path::new(&group).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    let provider = TestProvider::new().await;
    let missing = provider.native.facts().missing;
    assert!(provider.has_hard_limits(), "{missing:?}");
    assert!(!missing.iter().any(|text| text.to_lowercase().contains("control group")), "{missing:?}");
    assert!(provider.native.snapshots().is_some(), "{missing:?}");
    let sandbox = provider.start().await;
    provider.native.pauses().expect("boxes can be paused").pause(&sandbox.id).await.unwrap();
    provider.native.pauses().unwrap().resume(&sandbox.id).await.unwrap();
    assert_eq!(sandbox.text("echo on").await, "on\n");
    let groups = cgroups_named(sandbox.id.as_str());
    assert_eq!(groups.len(), 1, "{groups:?}");
    assert_ne!(fs::read_to_string(groups[0].join("memory.max")).unwrap().trim(), "max");
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let scope = format!("tidebox-{}.scope", provider.store());
    assert_eq!(own.contains(&scope), Path::new("/run/systemd/system").exists(), "{own}");
    assert_eq!(groups[0].to_string_lossy().contains(&scope), own.contains(&scope), "{groups:?}");
    // A later server of the same store is in the shell's group at first, and finds the boxes.
    fs::write(Path::new(&group).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    let later = provider.reopen().await;
    assert!(later.facts().limits.iter().all(|(_, kind)| *kind == providers::LimitKind::Hard));
    assert_eq!(later.inventory().await.unwrap().len(), 1);
    println!("limits are hard");
}

#[test]
fn a_server_in_a_group_with_a_shell_has_hard_limits() {
    if !has_only_version_2() {
        return;
    }
    let group = SharedGroup::new();
    let output = fixtures::again(module_path!(), SERVER).env(GROUP, &group.dir).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let all = format!("{out}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("limits are hard"), "{all}");
}

#[tokio::test]
async fn boxes_that_compute_get_as_much_together_as_containers_beside_them() {
    let provider = TestProvider::new().await;
    if !provider.has_hard_limits() {
        fixtures::skip("control-groups", "processors are shared by control groups");
        return;
    }
    let processors = std::thread::available_parallelism().unwrap().get();
    let vcpus = u32::try_from(processors).unwrap();
    let wide = || Spec { resources: Resources { vcpus, ..spec().resources }, ..spec() };
    let (one, other) = (provider.start_with(wide()).await, provider.start_with(wide()).await);
    let compute = format!("for i in $(seq {processors}); do (timeout 60 sh -c 'while :; do :; done') & done");
    for sandbox in [&one, &other] {
        sandbox.text(&format!("({compute}) >/dev/null 2>&1 </dev/null")).await;
    }
    let weight = |dir: &Path| {
        let read = |file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
        read("cpu.shares").map(|shares| shares / 1024).or_else(|| Some(read("cpu.weight")? / 100))
    };
    let groups = cgroups_named(provider.store());
    let store = groups.iter().find(|dir| weight(dir).is_some()).expect("one holds processors");
    eventually("the boxes of the store weigh as two", async || {
        weight(store) == Some(2) && weight(store.parent().unwrap()) >= Some(2)
    })
    .await;
}
