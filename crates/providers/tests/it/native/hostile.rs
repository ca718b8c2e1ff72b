//! Images whose files obstruct the launcher. None of them leads out of the box, and the box works
//! nevertheless.

use fixtures::image::{Entry, Image};
use providers::Error;

use crate::native::harness::{TestBox, TestProvider, spec_of};

const NAME: &str = "docker.io/tidebox/hostile:1";

/// Makes a folder of the host that no box may touch, with a file in it.
fn canary() -> tempfile::TempDir {
    let canary = tempfile::Builder::new().prefix("tidebox-canary-").tempdir().unwrap();
    std::fs::write(canary.path().join("file"), "of the host").unwrap();
    canary
}

/// Returns the names in the canary, and the content of its file.
fn state(canary: &tempfile::TempDir) -> (Vec<String>, String) {
    let entries = std::fs::read_dir(canary.path()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    (names, std::fs::read_to_string(canary.path().join("file")).unwrap())
}

/// Checks the basic parts of a box, as its programs see them.
async fn works(sandbox: &TestBox<'_>) {
    assert_eq!(sandbox.text("test -c /dev/null && test -d /dev/shm && echo dev").await, "dev\n");
    assert_eq!(sandbox.text("readlink /proc/self/exe >/dev/null && test -d /proc/1 && echo proc").await, "proc\n");
    assert_eq!(sandbox.text("grep -c ' /proc proc ' /proc/self/mounts").await, "1\n");
    sandbox.refuses("echo 0 > /proc/sys/kernel/randomize_va_space").await;
}

/// Starts a box of an image with these entries on top, whose links lead to the host, and checks
/// that the host stays unchanged.
async fn survives(entries: impl Fn(&str) -> Vec<Entry>) {
    let Some(image) = Image::alpine_like() else { return };
    let canary = canary();
    let before = state(&canary);
    let image = image.and(&entries(canary.path().to_str().unwrap()));
    let provider = TestProvider::with_images(&[(NAME, image)]).await;
    let sandbox = provider.start_with(spec_of(NAME)).await;
    works(&sandbox).await;
    for dir in ["/workspace", "/tmp"] {
        assert_eq!(sandbox.text(&format!("test -d {dir}/. && echo dir")).await, "dir\n", "{dir}");
    }
    // The calls of the server's clients.
    let (guest, content) = (sandbox.guest().await, futures_util::stream::iter([Ok("x".into())]));
    guest.write_file("/workspace/file", None, Box::pin(content)).await.unwrap();
    assert_eq!(state(&canary), before, "the host is untouched");
    assert_eq!(sandbox.sh(&format!("cat {}/file", canary.path().display())).await.exit.code, 1, "and not seen");
}

#[tokio::test]
async fn a_link_in_the_place_of_proc_leads_nowhere() {
    survives(|host| vec![Entry::whiteout("", "proc"), Entry::symlink("proc", host)]).await;
}

#[tokio::test]
async fn a_relative_link_in_the_place_of_proc_leads_nowhere() {
    survives(|host| vec![Entry::whiteout("", "proc"), Entry::symlink("proc", format!("../../../../../..{host}"))])
        .await;
}

#[tokio::test]
async fn a_link_in_the_place_of_dev_leads_nowhere() {
    survives(|host| vec![Entry::whiteout("", "dev"), Entry::symlink("dev", host)]).await;
}

#[tokio::test]
async fn a_file_in_the_place_of_dev_makes_way() {
    survives(|_| vec![Entry::whiteout("", "dev"), Entry::file("dev", "no directory")]).await;
}

#[tokio::test]
async fn a_pipe_in_the_place_of_proc_makes_way() {
    survives(|_| vec![Entry::whiteout("", "proc"), Entry::fifo("proc")]).await;
}

#[tokio::test]
async fn links_within_dev_and_proc_are_covered_and_not_followed() {
    survives(|host| {
        vec![
            Entry::symlink("dev/null", format!("{host}/file")),
            Entry::symlink("dev/pts", host),
            Entry::symlink("dev/shm", host),
            Entry::symlink("proc/sys", host),
            Entry::symlink("proc/self", host),
        ]
    })
    .await;
}

#[tokio::test]
async fn etc_as_a_link_to_the_root_of_the_first_process_stays_in_the_box() {
    survives(|_| vec![Entry::whiteout("", "etc"), Entry::symlink("etc", "/proc/1/root")]).await;
}

#[tokio::test]
async fn etc_as_a_link_to_the_host_leads_nowhere() {
    survives(|host| vec![Entry::whiteout("", "etc"), Entry::symlink("etc", host)]).await;
}

#[tokio::test]
async fn the_files_that_are_written_for_an_image_follow_no_link() {
    survives(|host| {
        let file = format!("{host}/file");
        let names = ["etc/hosts", "etc/hostname", "etc/resolv.conf"];
        names.map(|name| Entry::symlink(name, &file)).into()
    })
    .await;
}

#[tokio::test]
async fn pipes_in_the_place_of_the_files_of_etc_hold_nobody_up() {
    let names = ["etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/passwd", "etc/group"];
    survives(|_| names.map(Entry::fifo).into()).await;
}

#[tokio::test]
async fn the_workspace_as_a_link_leads_nowhere() {
    survives(|host| vec![Entry::symlink("workspace", host), Entry::dir("srv/app")]).await;
}

#[tokio::test]
async fn tmp_as_a_link_leads_nowhere() {
    survives(|host| vec![Entry::whiteout("", "tmp"), Entry::symlink("tmp", host)]).await;
}

#[tokio::test]
async fn attributes_that_mean_something_to_overlays_lead_nowhere() {
    survives(|host| {
        let redirect = Entry::dir("opt").xattr("user.overlay.redirect", host);
        vec![redirect.xattr("user.overlay.opaque", "y"), Entry::dir("srv").xattr("trusted.overlay.redirect", host)]
    })
    .await;
}

#[tokio::test]
async fn a_user_who_is_nobody_in_the_image_is_said_at_the_command_and_on_the_console() {
    let Some(image) = Image::alpine_like() else { return };
    let image = image.with("User", "ghost".into());
    let provider = TestProvider::with_images(&[(NAME, image)]).await;
    let sandbox = provider.start_with(spec_of(NAME)).await;
    let guest = sandbox.guest().await;
    let command = |user: Option<&str>| providers::Command {
        argv: vec!["true".to_owned()],
        env: Default::default(),
        workdir: None,
        user: user.map(str::to_owned),
        timeout: std::time::Duration::from_secs(30),
        stdin: None,
        terminal: None,
    };
    if !crate::native::harness::is_root() {
        assert!(guest.exec(command(None)).await.is_ok(), "a box with a single user asks for none");
        return;
    }
    let Err(Error::Invalid(message)) = guest.exec(command(None)).await.map(drop) else { panic!("it runs") };
    assert!(message.contains("image") && message.contains("ghost"), "{message}");
    assert!(guest.exec(command(Some("root"))).await.is_ok());
    let console = guest.console(10).await.unwrap();
    assert!(console.iter().any(|line| line.contains("ghost")), "{console:?}");
}
