//! Mounts of the host below `/usr`.

use std::path::Path;
use std::process::Command;

use crate::native::harness::{TestProvider, is_root};

/// Name of [`a_box_on_a_host_with_a_mount_below_usr`].
const INSIDE: &str = "a_box_on_a_host_with_a_mount_below_usr";
/// Folder that has such a mount.
const MOUNTED: &str = "TIDEBOX_TEST_MOUNTED";
/// Folders of Debian that hold nothing, one of which is mounted on.
const EMPTY: [&str; 3] = ["/usr/local/games", "/usr/local/src", "/usr/games"];

/// Runs in a mount namespace of its own, where something is mounted below `/usr`.
#[tokio::test]
async fn a_box_on_a_host_with_a_mount_below_usr() {
    let Ok(mounted) = std::env::var(MOUNTED) else { return };
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    assert_eq!(sandbox.text(&format!("cat {mounted}/file {mounted}/inner/file")).await, "outer\ninner\n");
    sandbox.refuses(&format!("echo changed > {mounted}/file")).await;
    sandbox.refuses(&format!("echo changed > {mounted}/inner/file")).await;
    // What lies around it can be changed as ever, and runs.
    sandbox.text("echo new > /usr/local/lib/new && echo new > /usr/share/new && rm /usr/share/new").await;
    sandbox.text("rm /usr/bin/true && ! /usr/bin/true && cp /usr/bin/false /usr/bin/true").await;
    assert!(Path::new("/usr/bin/true").exists() && !Path::new("/usr/local/lib/new").exists());
    let other = provider.start().await;
    other.text("/usr/bin/true && ! test -e /usr/local/lib/new").await;
    println!("it is shown");
}

/// Returns the words that run a program beside mounts below `/usr`, and where these are; `None` where
/// they cannot be made.
fn with_mounts() -> Option<([String; 5], &'static str)> {
    let is_empty = |dir: &&&str| std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
    let dir = EMPTY.iter().find(is_empty).filter(|_| is_root());
    let Some(dir) = dir else {
        fixtures::skip("mounts", "it takes root and an empty folder below /usr");
        return None;
    };
    let script = format!(
        "mount -t tmpfs outer {dir} && echo outer > {dir}/file && mkdir {dir}/inner && mount -t tmpfs inner {dir}/inner \
         && echo inner > {dir}/inner/file && exec \"$0\" \"$@\""
    );
    Some((["unshare".into(), "--mount".into(), "sh".into(), "-c".into(), script], dir))
}

fn passes(mut command: Command, dir: &str) {
    let output = command.args(fixtures::only(module_path!(), INSIDE)).env(MOUNTED, dir).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let all = format!("{out}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("it is shown"), "{all}");
}

#[test]
fn a_mount_below_usr_shows_read_only_in_boxes_of_root() {
    let Some((words, dir)) = with_mounts() else { return };
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(std::env::current_exe().unwrap());
    passes(command, dir);
}

#[test]
fn a_mount_below_usr_shows_read_only_in_boxes_of_an_ordinary_user() {
    let Some((words, dir)) = with_mounts() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["setpriv"]).collect();
    let Some((_folder, command)) = fixtures::as_nobody(&words) else { return };
    passes(command, dir);
}
