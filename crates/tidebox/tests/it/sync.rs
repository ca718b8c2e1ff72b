//! `tidebox sync` both ways, with real trees.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cli::tidebox;
use crate::server::{NATIVE, TestServer};

/// Lists a tree with types, modes, sizes, times, targets and numbers of names. Directories have no size that
/// means something.
const LIST: &str =
    "find . -type d -printf 'd %m %T@ %P\\n' -o -type p -o -printf '%y %m %s %T@ %n %l %P\\n' | LC_ALL=C sort";
const DIGESTS: &str = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum";

fn sh(dir: &Path, line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).current_dir(dir).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `tidebox sync` and returns its account.
#[track_caller]
fn sync(server: &TestServer, arguments: &[&str]) -> Value {
    let output = tidebox(server, &[&["--output", "json", "sync"], arguments].concat(), b"");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn refused(server: &TestServer, arguments: &[&str], words: &str) {
    let output = tidebox(server, &[&["sync"], arguments].concat(), b"");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
}

/// Returns the numbers of what was sent, removed and changed.
fn did(account: &Value) -> (u64, u64, u64) {
    let number = |field: &str| account[field].as_u64().unwrap();
    (number("sent"), number("removed"), number("changed"))
}

async fn with_box(work: impl FnOnce(&TestServer, &str, &Path) + Send + 'static) {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    tokio::task::spawn_blocking(move || {
        let dir = tempfile::tempdir().unwrap();
        work(&server, &id, dir.path());
    })
    .await
    .unwrap();
}

/// Runs a line in the box, in a directory of it.
fn inside(server: &TestServer, id: &str, dir: &str, line: &str) -> String {
    let line = format!("cd {dir} && {line}");
    let output = tidebox(server, &["exec", id, "--", "sh", "-c", &line], b"");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Clones this repository, or what there is of it.
fn repository(dir: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let tree = dir.join("repository");
    let here = here.display();
    sh(
        dir,
        &format!(
            "git -c safe.directory='*' clone -q --no-hardlinks '{here}' repository 2>/dev/null || {{ \
             mkdir repository && cp -r '{here}/crates' '{here}/docs' repository && cd repository && git init -q && \
             git add . && git -c user.name=a -c user.email=a@b commit -q -m all; }}"
        ),
    );
    tree
}

#[tokio::test]
async fn this_repository_goes_to_a_box_and_back_unchanged_and_a_second_run_sends_nothing() {
    with_box(|server, id, dir| {
        let tree = repository(dir);
        sh(
            &tree,
            "mkdir -p empty/er; ln -s ../README.md empty/l; ln README.md again; chmod 700 empty; chmod 555 empty/er; \
             touch -d '1969-12-31 23:59:58.25 UTC' old; echo x > \"$(printf 'odd\\377 \\033[31m%%41\\n')\"; mkfifo fifo",
        );
        let there = format!("{id}:/workspace/tree");
        let first = sync(server, &[tree.to_str().unwrap(), &there]);
        assert!(first["sent"].as_u64().unwrap() > 500 && first["left_out"] == 1, "{first}");
        let list = sh(&tree, LIST);
        assert_eq!(inside(server, id, "/workspace/tree", LIST), list);
        assert_eq!(inside(server, id, "/workspace/tree", DIGESTS), sh(&tree, DIGESTS));
        for arguments in [&[][..], &["--checksum"], &["--delete"]] {
            let again = sync(server, &[arguments, &[tree.to_str().unwrap(), &there]].concat());
            assert_eq!((did(&again), &again["bytes"]), ((0, 0, 0), &Value::from(0)), "{arguments:?}: {again}");
        }
        let back = dir.join("back");
        let returned = sync(server, &[&there, back.to_str().unwrap()]);
        assert_eq!(returned["bytes"], first["bytes"]);
        assert_eq!(sh(&back, LIST), list);
        assert_eq!(sh(&back, DIGESTS), sh(&tree, DIGESTS));
        for arguments in [&[][..], &["--checksum", "--delete"]] {
            let again = sync(server, &[arguments, &[&there, back.to_str().unwrap()]].concat());
            assert_eq!(did(&again), (0, 0, 0), "{arguments:?}: {again}");
        }
        // It rewrites its index, so at the end.
        assert_eq!(sh(&back, "git fsck --no-dangling 2>&1 && git status --porcelain -uno"), "");
        // Its mode would keep the test from removing it.
        sh(dir, "chmod -R u+w .");
    })
    .await;
}

#[tokio::test]
async fn only_what_differs_is_sent_into_a_box() {
    with_box(|server, id, dir| {
        sh(dir, "mkdir tree");
        let dir = dir.join("tree");
        let dir = dir.as_path();
        sh(dir, "mkdir -p d/e; echo 1 > d/a; echo 2 > d/e/b; echo 3 > c; ln c d/c");
        let (here, there) = (dir.to_str().unwrap(), format!("{id}:/workspace/t"));
        sync(server, &[here, &there]);
        // By size and time, this is not seen.
        sh(dir, "touch -r d/a ../stamp; echo 9 > d/a; touch -r ../stamp d/a; rm ../stamp");
        assert_eq!(did(&sync(server, &[here, &there])), (0, 0, 0));
        assert_eq!(sync(server, &["--checksum", "-n", here, &there])["changes"][0]["path"], "d/a");
        assert_eq!(did(&sync(server, &["--checksum", here, &there])).0, 1);
        assert_eq!(inside(server, id, "/workspace/t", "cat d/a"), "9\n");
        // A time alone sends no content if contents are compared.
        sh(dir, "touch -d 2001-01-01 d/a; chmod 750 d/e/b");
        let account = sync(server, &["--checksum", here, &there]);
        assert_eq!((did(&account), &account["bytes"]), ((0, 0, 2), &Value::from(0)));
        // Names of one file stay names of one file.
        sh(dir, "echo longer > c");
        assert_eq!(did(&sync(server, &[here, &there])).0, 2);
        assert_eq!(inside(server, id, "/workspace/t", "cat d/c; stat -c %h c"), "longer\n2\n");
        // What only the box has stays, until it may go.
        inside(server, id, "/workspace/t", "mkdir -p x/y && echo > x/y/z && ln -s /etc x/l && echo > d/more");
        let account = sync(server, &[here, &there]);
        assert_eq!((account["extra"].as_u64(), did(&account).1), (Some(5), 0));
        let tried = sync(server, &["--delete", "--dry-run", here, &there]);
        assert_eq!(
            (tried["removed"].as_u64(), inside(server, id, "/workspace/t", "ls x").as_str()),
            (Some(5), "l\ny\n")
        );
        assert_eq!(sync(server, &["--delete", here, &there])["removed"], 5);
        assert_eq!(inside(server, id, "/workspace/t", LIST), sh(dir, LIST));
        assert_eq!(did(&sync(server, &["--delete", here, &there])), (0, 0, 0));
        // A file there and a directory here, and the reverse.
        inside(server, id, "/workspace/t", "rm -r d && echo > d && rm c && mkdir c && echo > c/x");
        refused(server, &[here, &there], "--delete");
        sync(server, &["--delete", here, &there]);
        assert_eq!(inside(server, id, "/workspace/t", LIST), sh(dir, LIST));
        for (arguments, words) in [
            (["/none", there.as_str()], "/none"),
            ([here, "sb-none:/workspace/t"], "sb-none"),
            ([there.as_str(), there.as_str()], "both directories are in boxes"),
            ([here, here], "one of SRC and DST"),
        ] {
            refused(server, &arguments, words);
        }
        inside(server, id, "/workspace", "echo > file");
        refused(server, &[here, &format!("{id}:/workspace/file")], "not a directory");
    })
    .await;
}

#[tokio::test]
async fn what_comes_from_a_box_changes_nothing_outside_of_the_directory() {
    with_box(|server, id, dir| {
        let (outside, here) = (dir.join("outside"), dir.join("here"));
        std::fs::create_dir(&outside).unwrap();
        std::fs::create_dir(&here).unwrap();
        std::fs::write(outside.join("f"), "safe").unwrap();
        let before = sh(dir, "stat -c '%a %Y %Z' outside outside/f");
        inside(server, id, "/workspace", "mkdir -p t/d t/e; echo evil > t/d/f; echo evil > t/g; chmod 4755 t/g");
        inside(server, id, "/workspace", "ln -s /etc t/e/l; ln -s ../../outside/f t/h");
        symlink("../outside", here.join("d")).unwrap();
        symlink("../outside/f", here.join("g")).unwrap();
        symlink("../outside", here.join("extra")).unwrap();
        let (there, to) = (format!("{id}:/workspace/t"), here.to_str().unwrap());
        refused(server, &[&there, to], "--delete");
        sync(server, &["--delete", &there, to]);
        assert_eq!(sh(dir, "stat -c '%a %Y %Z' outside outside/f"), before);
        assert_eq!(std::fs::read_to_string(outside.join("f")).unwrap(), "safe");
        assert_eq!(sh(&here, "cat d/f g; readlink h e/l; ls"), "evil\nevil\n../../outside/f\n/etc\nd\ne\ng\nh\n");
        assert_eq!(here.join("g").metadata().unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(did(&sync(server, &["--delete", &there, to])), (0, 0, 0));
        // Text of the box that would move the cursor of a terminal.
        inside(server, id, "/workspace", "echo > \"$(printf 't/\\033[2J\\n')\"");
        let tried = tidebox(server, &["sync", "-n", &there, to], b"");
        assert!(!tried.stdout.contains(&0x1b), "{tried:?}");
        // What the sandbox cannot read is no reason to delete it here.
        inside(server, id, "/workspace", "mkdir t/locked && echo 1 > t/locked/x");
        sync(server, &[&there, to]);
        assert!(here.join("locked/x").exists());
    })
    .await;
}

#[tokio::test]
async fn an_interrupted_run_leaves_no_part_under_a_name_and_the_next_one_finishes_it() {
    with_box(|server, id, dir| {
        inside(server, id, "/workspace", "mkdir t && echo old > t/small && head -c 300M /dev/urandom > t/big");
        let (there, to) = (format!("{id}:/workspace/t"), dir.join("to"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidebox"))
            .args(["sync", &there, to.to_str().unwrap()])
            .env_clear()
            .env("TIDEBOX_URL", &server.url)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        let partial = |to: &Path| {
            let entries = to.read_dir().into_iter().flatten().flatten();
            entries.into_iter().any(|entry| entry.file_name().as_bytes().starts_with(b".tidebox-sync-"))
        };
        while !partial(&to) {
            assert!(begun.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(partial(&to) && !to.join("big").exists());
        sync(server, &[&there, to.to_str().unwrap()]);
        assert!(!partial(&to));
        assert_eq!(sh(&to, LIST), inside(server, id, "/workspace/t", LIST));
        assert_eq!(sh(&to, DIGESTS), inside(server, id, "/workspace/t", DIGESTS));
        assert_eq!(did(&sync(server, &[&there, to.to_str().unwrap()])), (0, 0, 0));
    })
    .await;
}
