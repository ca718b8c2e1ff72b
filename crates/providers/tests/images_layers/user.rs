//! Every test once more as an ordinary user, where the tests run as root.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use crate::ground::is_root;

#[test]
fn every_other_test_holds_for_an_ordinary_user_too() {
    if !is_root() {
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
