//! The command line against a real server, as a person would use it.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::server::{NATIVE, TestServer};

/// Runs `tidebox` with `arguments` and `stdin`.
pub fn tidebox(server: &TestServer, arguments: &[&str], stdin: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidebox"))
        .args(arguments)
        .env_clear()
        .env("TIDEBOX_URL", &server.url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes = stdin.to_vec();
    let feeder = std::thread::spawn(move || input.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    let _ = feeder.join();
    output
}

#[track_caller]
pub fn succeeds(server: &TestServer, arguments: &[&str]) -> String {
    let output = tidebox(server, arguments, b"");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn on_its_own(work: impl FnOnce(&TestServer) + Send + 'static) {
    let server = TestServer::start(NATIVE).await;
    tokio::task::spawn_blocking(move || work(&server)).await.unwrap();
}

#[tokio::test]
async fn run_prints_what_the_command_prints_and_leaves_no_box() {
    on_its_own(|server| {
        assert_eq!(succeeds(server, &["run", "host", "--", "python3", "-c", "print(6*7)"]), "42\n");
        let failed = tidebox(server, &["run", "host", "--", "sh", "-c", "echo no >&2; exit 9"], b"");
        assert_eq!((failed.status.code(), &failed.stderr[..]), (Some(9), &b"no\n"[..]));
        let missing = tidebox(server, &["run", "no-such-image", "--", "true"], b"");
        assert_eq!(missing.status.code(), Some(125));
        assert!(String::from_utf8_lossy(&missing.stderr).contains("tidebox image pull"), "{missing:?}");
        assert_eq!(succeeds(server, &["--output", "json", "list"]).trim(), "[]");
    })
    .await;
}

#[tokio::test]
async fn run_leaves_no_sandbox_where_none_could_be_made() {
    let server = TestServer::builder(NATIVE).expecting("a request failed").start().await;
    tokio::task::spawn_blocking(move || {
        // A registry that nothing listens for.
        let failed = tidebox(&server, &["run", "127.0.0.1:9/none:1", "--", "true"], b"");
        assert_eq!(failed.status.code(), Some(125), "{failed:?}");
        assert_eq!(succeeds(&server, &["--output", "json", "list"]).trim(), "[]");
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn doctor_says_why_a_server_that_answers_cannot_make_boxes() {
    let server = TestServer::start("providers.native.enabled=false").await;
    tokio::task::spawn_blocking(move || {
        let output = tidebox(&server, &["doctor"], b"");
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stdout).unwrap();
        let (_, of_server) = text.split_once("The server at").unwrap();
        for expected in
            [concat!("version ", env!("CARGO_PKG_VERSION")), "cannot make boxes", "this server has no provider"]
        {
            assert!(of_server.contains(expected), "{expected}: {of_server}");
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn exec_passes_stdin_and_the_exit_code_and_every_byte() {
    on_its_own(|server| {
        let id = succeeds(server, &["spawn", "--ttl", "10m"]).trim().to_owned();
        // More than one request takes, and more than is kept of output that nobody reads.
        let bytes: Vec<u8> = (0..=255u8).cycle().take(12_000_000).collect();
        let echoed = tidebox(server, &["exec", "-i", &id, "cat"], &bytes);
        assert_eq!((echoed.status.code(), echoed.stdout == bytes), (Some(0), true));
        let counted = tidebox(server, &["run", "-i", "host", "wc", "-c"], &bytes);
        assert_eq!(String::from_utf8(counted.stdout).unwrap().trim(), "12000000");
        let unread = tidebox(server, &["exec", "-i", &id, "true"], &bytes);
        assert_eq!(unread.status.code(), Some(0), "{unread:?}");
        let code = tidebox(server, &["exec", &id, "-c", "exit 77"], b"").status.code();
        assert_eq!(code, Some(77));
        let gone = tidebox(server, &["exec", "sb-aaaaaaaaaaaaaaaa", "--", "true"], b"");
        assert_eq!(gone.status.code(), Some(125));
        succeeds(server, &["destroy", &id]);
    })
    .await;
}

#[tokio::test]
async fn a_stdin_that_does_not_end_does_not_outlast_the_deadline() {
    on_its_own(|server| {
        let id = succeeds(server, &["spawn", "--ttl", "10m"]).trim().to_owned();
        let (stdin, _open) = std::io::pipe().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidebox"));
        command.args(["--url", &server.url, "exec", "-i", "--timeout", "300ms", &id, "cat"]).stdin(stdin);
        assert_eq!(command.status().unwrap().code(), Some(124));
        assert_eq!(succeeds(server, &["ps", &id]).lines().count(), 1, "nothing is left of it");
    })
    .await;
}

#[tokio::test]
async fn cp_goes_both_ways_and_logs_extend_and_templates_work() {
    on_its_own(|server| {
        let dir = tempfile::tempdir().unwrap();
        let (up, down) = (dir.path().join("up"), dir.path().join("down"));
        let bytes: Vec<u8> = (0..5_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(&up, &bytes).unwrap();
        let id = succeeds(server, &["spawn"]).trim().to_owned();
        succeeds(server, &["cp", up.to_str().unwrap(), &format!("{id}:/workspace/a b")]);
        succeeds(server, &["cp", &format!("{id}:/workspace/a b"), down.to_str().unwrap()]);
        assert!(std::fs::read(&down).unwrap() == bytes, "what came back differs");
        succeeds(server, &["exec", &id, "-c", "(sleep 0.4; echo later; touch /tmp/done) & true"]);
        succeeds(server, &["exec", &id, "-c", "until test -e /tmp/done; do sleep 0.05; done"]);
        assert_eq!(succeeds(server, &["logs", &id]), "later\n");
        succeeds(server, &["extend", &id, "1h"]);
        succeeds(server, &["template", "create", "py", "--image", "host", "--memory-mb", "128"]);
        let spawned = succeeds(server, &["--output", "json", "template", "spawn", "py"]);
        let spawned: Value = serde_json::from_str(&spawned).unwrap();
        assert_eq!((&spawned["memory_mb"], &spawned["metadata"]["template"]), (&128.into(), &"py".into()));
        let listed = succeeds(server, &["list"]);
        assert!(listed.contains(&id), "{listed}");
    })
    .await;
}

#[tokio::test]
async fn a_faulty_configuration_is_refused_with_a_line_for_each_fault() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("tidebox.yaml"),
        "server:\n  prot: 1\ndefaults:\n  ttl: soon\nauth:\n  enabled: true\n",
    )
    .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidebox"))
        .arg("serve")
        .env_clear()
        .env("HOME", dir.path())
        .env("TIDEBOX_SYSTEM_CONFIG", "")
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    for (key, words) in [("server.prot", "server.port"), ("defaults.ttl", "duration"), ("auth.enabled", "needs a key")]
    {
        assert!(
            lines.iter().any(|line| line.contains(key) && line.contains(words) && line.contains("tidebox.yaml")),
            "{key}: {text}"
        );
    }
}

/// Returns what `line` prints here, with `dir` as its folder.
fn here(dir: &std::path::Path, line: &str) -> String {
    let output = Command::new("/bin/sh").args(["-c", line]).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Kind, mode, time, link and sum of each file below a directory.
const LISTING: &str = "find . -mindepth 1 -printf '%P %y %m %Ts %l\\n' | sort; \
                       find . -type f -print0 | sort -z | xargs -0 cksum";

#[tokio::test]
async fn cp_keeps_a_name_that_is_no_utf8() {
    on_its_own(|server| {
        use std::os::unix::ffi::OsStrExt as _;
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
        std::fs::write(&odd, "content").unwrap();
        let id = succeeds(server, &["spawn"]).trim().to_owned();
        let mut up = Command::new(env!("CARGO_BIN_EXE_tidebox"));
        up.args(["--url", &server.url, "cp"]).arg(&odd).arg(format!("{id}:/workspace/"));
        assert!(up.status().unwrap().success());
        std::fs::remove_file(&odd).unwrap();
        succeeds(server, &["cp", &format!(r"{id}:/workspace/caf\xe9"), dir.path().to_str().unwrap()]);
        assert_eq!(std::fs::read_to_string(&odd).unwrap(), "content");
    })
    .await;
}

#[tokio::test]
async fn cp_r_takes_a_tree_to_a_sandbox_and_back_as_it_is() {
    on_its_own(|server| {
        let dir = tempfile::tempdir().unwrap();
        let id = succeeds(server, &["spawn"]).trim().to_owned();
        // The sources of this repository, and what they have none of.
        let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        here(dir.path(), &format!("cp -a {} src", sources.display()));
        let odd = "mkdir -p src/empty src/closed && ln -s ../nowhere src/link && echo x > 'src/a b' && ln 'src/a b' src/again \
                   && chmod 751 'src/a b' && echo y > src/closed/y && chmod 555 src/closed && touch -d 2001-02-03 src/empty";
        here(dir.path(), odd);
        let before = here(&dir.path().join("src"), LISTING);
        let (src, there) = (dir.path().join("src"), format!("{id}:/workspace"));
        let src = src.to_str().unwrap();
        succeeds(server, &["cp", "-r", src, &there]);
        let in_box = succeeds(server, &["exec", &id, "-c", &format!("cd src && {LISTING}")]);
        assert_eq!(in_box, before);
        let back = dir.path().join("back");
        succeeds(server, &["cp", "-r", &format!("{there}/src"), back.to_str().unwrap()]);
        assert_eq!(here(&back, LISTING), before);
        // Into a directory that is there, under its name; and only what is in it.
        succeeds(server, &["cp", "-r", &format!("{there}/src"), back.to_str().unwrap()]);
        assert_eq!(here(&back.join("src"), LISTING), before);
        succeeds(server, &["cp", "-r", &format!("{src}/."), &format!("{there}/deep/er")]);
        assert_eq!(succeeds(server, &["exec", &id, "-c", &format!("cd deep/er && {LISTING}")]), before);
        here(dir.path(), "chmod -R u+w .");
    })
    .await;
}

#[tokio::test]
async fn cp_says_what_a_directory_needs_and_leaves_out_what_is_no_file() {
    on_its_own(|server| {
        let dir = tempfile::tempdir().unwrap();
        let id = succeeds(server, &["spawn"]).trim().to_owned();
        here(dir.path(), "mkdir -p src && mkfifo src/fifo && echo x > src/x");
        let src = dir.path().join("src").to_str().unwrap().to_owned();
        let refused = tidebox(server, &["cp", &src, &format!("{id}:/workspace/new")], b"");
        assert_eq!(refused.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("cp -r"), "{refused:?}");
        let sent = tidebox(server, &["cp", "-r", &src, &format!("{id}:/workspace/new")], b"");
        assert!(
            sent.status.success() && String::from_utf8_lossy(&sent.stderr).contains("1 devices, FIFOs"),
            "{sent:?}"
        );
        assert_eq!(succeeds(server, &["exec", &id, "-c", "ls -A new"]), "x\n");
        // What is in the way there, and here.
        succeeds(server, &["exec", &id, "-c", "mkdir -p taken/src/x"]);
        let refused = tidebox(server, &["cp", "-r", &src, &format!("{id}:/workspace/taken")], b"");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("remove it first"), "{refused:?}");
        let refused = tidebox(server, &["cp", "-r", &format!("{id}:/workspace/new"), &format!("{src}/x")], b"");
        assert!(!refused.status.success());
        assert_eq!(std::fs::read_to_string(format!("{src}/x")).unwrap(), "x\n");
        let file = dir.path().join("file").to_str().unwrap().to_owned();
        succeeds(server, &["cp", "-r", &format!("{id}:/workspace/new/x"), &file]);
        assert_eq!(std::fs::read_to_string(file).unwrap(), "x\n", "a file goes as without -r");
    })
    .await;
}
