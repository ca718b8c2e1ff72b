//! Cleanup after a stop, against boxes that resist it.

use std::path::Path;
use std::time::Duration;

use providers::{Error, Provider};

use crate::proot::harness::{TestProvider, eventually, is_root, lives, new_id, processes_with, spec};

/// Returns a command line whose processes have a mark in their environment, and the mark, so that
/// they are found regardless of their parents.
fn marked(provider: &TestProvider, script: &str) -> (String, String) {
    let mark = format!("mark-{}", new_id());
    let _ = provider;
    (format!("MARK={mark} sh -c '{script}' > /dev/null 2>&1"), mark)
}

#[tokio::test]
async fn after_a_stop_nothing_of_a_box_is_left() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    let id = sandbox.id.clone();
    let pids = sandbox.pids();
    let mut marks = Vec::new();
    for script in [
        // In a session of its own, without its parents, ignoring signals, stopped.
        "setsid sh -c \"trap : TERM HUP INT QUIT; while :; do sleep 1; done\" & exit",
        "(setsid setsid sleep 1000 &) & exit",
        "sleep 1000 & kill -STOP $!",
        "while :; do :; done & exit",
    ] {
        let (command, mark) = marked(&provider, script);
        sandbox.sh(&command).await;
        // Between two programs, a process has no environment to read.
        eventually(script, async || !processes_with("environ", &mark).is_empty()).await;
        marks.push(mark);
    }
    provider.proot.stop(&id).await.unwrap();
    // At once, not later.
    assert!(!provider.folder_of(&id).exists());
    assert!(pids.iter().all(|pid| !lives(*pid)));
    for mark in marks {
        let left = processes_with("environ", &mark);
        assert_eq!(left, Vec::<String>::new());
    }
    eventually("no zombie either", async || !Path::new(&format!("/proc/{}", pids[0])).exists()).await;
    assert!(matches!(provider.proot.guest(&id).await, Err(Error::Gone)));
    assert!(provider.proot.inventory().await.unwrap().is_empty());
    provider.proot.idle().await;
    assert_eq!(std::fs::read_dir(provider.folder().join("trash")).unwrap().count(), 0);
    let of_proot = |name: &str| pids.iter().any(|pid| name.contains(&format!("-{pid}-")) && name.starts_with("proot"));
    let left =
        std::fs::read_dir("/tmp").unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    assert_eq!(left.filter(|name| of_proot(name)).collect::<Vec<_>>(), Vec::<String>::new());
}

#[tokio::test]
async fn processes_that_fork_faster_than_anybody_looks_end_with_their_box() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    let (command, mark) = marked(&provider, "hop() { (hop &) ; }; hop & hop & hop & sleep 0.1");
    sandbox.sh(&command).await;
    provider.proot.stop(&sandbox.id).await.unwrap();
    assert_eq!(processes_with("environ", &mark), Vec::<String>::new());
}

#[tokio::test]
async fn when_the_tracer_dies_the_whole_box_dies() {
    let Some(provider) = TestProvider::new().await else { return };
    for victim in [0, 1] {
        let sandbox = provider.start().await;
        let (command, mark) = marked(&provider, "(setsid sleep 1000 &) & sleep 1000 & exit");
        sandbox.sh(&command).await;
        let pid = sandbox.pids()[victim];
        let raw = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(raw, rustix::process::Signal::KILL).unwrap();
        // A process that is no longer traced would continue as a process of the host.
        eventually("nothing of the box runs", async || processes_with("environ", &mark).is_empty()).await;
        eventually("it is known as dead", async || !sandbox.pids().iter().any(|pid| lives(*pid))).await;
        let gone = async {
            while !matches!(provider.proot.guest(&sandbox.id).await, Err(Error::Gone)) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.expect("its inside is gone");
        // A start with the same id finds no box and makes one.
        provider.proot.start(&sandbox.id, &spec()).await.unwrap();
        sandbox.text("true").await;
        provider.proot.stop(&sandbox.id).await.unwrap();
    }
}

#[tokio::test]
async fn a_box_that_ends_its_own_agent_ends_itself() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    let (command, mark) = marked(&provider, "sleep 1000 & exit");
    sandbox.sh(&command).await;
    let guest = sandbox.guest().await;
    // Found through its parents, since a box of an ordinary user sees the agents of all other
    // boxes too.
    let script = r"kill -9 $(sed -n 's/^PPid:\t//p' /proc/$PPID/status); sleep 60";
    let command = providers::Command {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: Default::default(),
        workdir: None,
        user: None,
        timeout: Duration::from_secs(60),
        stdin: None,
        terminal: None,
    };
    let output = guest.exec(command).await.unwrap();
    eventually("nothing of the box runs", async || processes_with("environ", &mark).is_empty()).await;
    drop(output);
    eventually("its first process has ended", async || !lives(sandbox.pids()[0])).await;
    assert!(provider.proot.inventory().await.unwrap().iter().all(|found| !found.alive));
    provider.proot.stop(&sandbox.id).await.unwrap();
}

#[tokio::test]
async fn a_signal_to_everybody_reaches_nobody() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    sandbox.refuses("kill -9 -1").await;
    assert_eq!(sandbox.text("echo alive").await, "alive\n");
}

#[tokio::test]
async fn stops_at_once_and_again_are_successes() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    let (a, b, c) = tokio::join!(
        provider.proot.stop(&sandbox.id),
        provider.proot.stop(&sandbox.id),
        provider.proot.stop(&sandbox.id)
    );
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    provider.proot.stop(&sandbox.id).await.unwrap();
    provider.proot.stop(&new_id()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_during_a_start_or_stop_leaves_nothing_lost() {
    let Some(provider) = TestProvider::new().await else { return };
    for millis in [0, 1, 3, 6, 10, 20, 40] {
        let id = new_id();
        let wait = Duration::from_millis(millis);
        let _ = tokio::time::timeout(wait, provider.proot.start(&id, &spec())).await;
        let _ = tokio::time::timeout(wait, provider.proot.stop(&id)).await;
        provider.proot.stop(&id).await.unwrap();
        assert!(!provider.folder_of(&id).exists());
    }
    assert!(provider.proot.inventory().await.unwrap().is_empty());
    provider.proot.idle().await;
    let folder = provider.folder().display().to_string();
    assert_eq!(processes_with("cmdline", &folder), Vec::<String>::new());
}

#[tokio::test]
async fn a_hostile_tree_goes_with_its_box_and_no_link_in_it_is_followed() {
    let Some(provider) = TestProvider::new().await else { return };
    let kept = provider.data_dir().join("kept");
    std::fs::write(&kept, "kept").unwrap();
    let sandbox = provider.start().await;
    let deep = "chdir '/workspace'; for (1..200) { mkdir 'd' or last; chdir 'd' or last } open F, '>', 'f'";
    sandbox.run(&["/usr/bin/perl", "-e", deep]).await;
    sandbox
        .text("mkdir -p /tmp/a/b/c && touch /tmp/a/b/c/f && chmod 000 /tmp/a/b/c /tmp/a/b /tmp/a; ln -s / /tmp/root; mkfifo /tmp/fifo; touch \"/tmp/$(printf '\\n\\377')\"")
        .await;
    // As if a process had left its root: links out of it, in places that the server touches.
    let root = provider.folder_of(&sandbox.id).join("root");
    std::os::unix::fs::symlink(&kept, root.join("tmp/out")).unwrap();
    std::os::unix::fs::symlink(provider.data_dir(), root.join("workspace/out")).unwrap();
    assert!(provider.proot.disk_usage(&sandbox.id).await.is_some());
    provider.proot.stop(&sandbox.id).await.unwrap();
    provider.proot.idle().await;
    assert_eq!(std::fs::read_dir(provider.folder().join("trash")).unwrap().count(), 0);
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "kept");
}

#[tokio::test]
async fn a_root_that_became_a_link_leads_the_server_nowhere() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    let (folder, elsewhere) = (provider.folder_of(&sandbox.id), provider.data_dir().join("elsewhere"));
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("file"), vec![1; 20 << 20]).unwrap();
    std::fs::rename(folder.join("root"), folder.join("moved")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, folder.join("root")).unwrap();
    assert!(provider.proot.disk_usage(&sandbox.id).await.is_none_or(|used| used.bytes < 20 << 20));
    provider.proot.stop(&sandbox.id).await.unwrap();
    provider.proot.idle().await;
    assert_eq!(std::fs::metadata(elsewhere.join("file")).unwrap().len(), 20 << 20);
    assert!(!folder.exists());
}

#[tokio::test]
async fn what_belongs_to_the_server_cannot_be_written_by_a_box_with_an_id_of_its_own() {
    let Some(provider) = TestProvider::new().await else { return };
    if !is_root() {
        return;
    }
    use std::os::unix::fs::MetadataExt;
    let sandbox = provider.start().await;
    let folder = provider.folder_of(&sandbox.id);
    for name in ["", "box.json", "pid", "agent.sock", "events"] {
        let metadata = folder.join(name).symlink_metadata().unwrap();
        assert_eq!(
            (metadata.uid(), metadata.mode() & 0o022),
            (0, if name == "agent.sock" { metadata.mode() & 0o022 } else { 0 }),
            "{name}"
        );
    }
    assert_ne!(folder.join("root").metadata().unwrap().uid(), 0);
}
