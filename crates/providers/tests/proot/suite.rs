//! The suite of every provider, as root and as an ordinary user.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::sync::Arc;

use providers::conformance::{Lab, Need, run};
use providers::proot::Proot;

use crate::ground::{Ground, has_proot, is_root, spec};

#[tokio::test(flavor = "multi_thread")]
async fn proot_passes_the_suite() {
    let Some(ground) = Ground::new().await else { return };
    let ground = Arc::new(ground);
    let (config, folder) = (ground.config(), ground.folder());
    // The suite runs many commands at once.
    let mut roomy = spec();
    roomy.resources.pids = 512;
    let lab = Lab::new(Arc::new(ground.proot.clone()), roomy)
        .unknown_image("ubuntu:24.04")
        .reopen(move || {
            let config = config.clone();
            Box::pin(async move { Arc::new(Proot::open(config).await.unwrap()) as Arc<dyn providers::Provider> })
        })
        .kill(move |id| {
            let pid = folder.join("boxes").join(id.as_str()).join("pid");
            Box::pin(async move {
                let text = std::fs::read_to_string(pid).unwrap();
                let pid = text.split_whitespace().next().unwrap().parse().unwrap();
                let pid = rustix::process::Pid::from_raw(pid).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            })
        })
        .without(Need::Users, "below PRoot a box has one user only")
        .without(Need::Stops, "PRoot 5.1 lets a process go on that a signal has stopped")
        .without(Need::Depth, "PRoot makes whole paths of all, so none is longer than 4,096 bytes");
    run(lab).await;
}

/// Where boxes of an ordinary user can be tried: what root can do, its tests do.
#[test]
fn every_other_test_holds_for_an_ordinary_user_too() {
    if !is_root() || !has_proot() {
        return;
    }
    const NOBODY: u32 = 65_534;
    let folder = tempfile::Builder::new().prefix("tidebox-user-").tempdir().unwrap();
    // Nobody may read where this program lies, and nobody else may write there.
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (program, temp) = (folder.path().join("tests"), folder.path().join("tmp"));
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(&temp).unwrap();
    std::os::unix::fs::chown(&temp, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = std::process::Command::new(&program);
    command.uid(NOBODY).gid(NOBODY).env("TMPDIR", &temp).env("HOME", &temp).current_dir(&temp);
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
}
