//! The command line as a process, against a service with scripted answers.

mod code;
mod config;
mod firecracker;
mod service;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;

use rustix::process::{Pid, Signal, kill_process};

use self::service::{Answer, End, PATIENCE, Service};

const SANDBOX: &str = r#"{"id":"sb-1","state":"running","provider":"mock","image":"host","memory_mb":512,"vcpus":1,
    "created_at":"2026-01-01T00:00:00Z","expires_at":"2026-01-01T00:30:00Z","metadata":{"note":"\u001b[2J\u202egone"}}"#;
const DESTROYED: Answer = Answer::Json(200, r#"{"status":"destroyed"}"#);
/// "ready" and a line end, on stdout.
const READY: &str = r#"{"stream":"stdout","data":"cmVhZHkK"}"#;
const EXIT_42: &str = r#"{"stream":"exit","data":"42"}"#;

fn tidebox(url: &str, args: &[&str]) -> Command {
    // Tests that run in a script's background ignore SIGINT, and the processes they start would too.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_tidebox")]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TIDEBOX_")) {
        command.env_remove(name);
    }
    command.args(args).env("TIDEBOX_URL", url).env("TIDEBOX_SYSTEM_CONFIG", "");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the end of the process, at most [`PATIENCE`].
fn finish(child: Child) -> Output {
    let pid = child.id();
    let (done, wait) = channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    wait.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("process {pid} does not end")).expect("its output")
}

fn run(url: &str, args: &[&str]) -> Output {
    finish(tidebox(url, args).spawn().expect("it starts"))
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("a pid");
    kill_process(pid, signal).expect("it runs");
}

/// Returns the exit code and stderr.
fn end(output: &Output) -> (Option<i32>, String) {
    assert_eq!(output.status.signal(), None, "ended by a signal instead of by itself");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Starts a service with one box, whose commands and code answer with `lines` and end as `how` says.
fn box_doing(lines: &'static [&'static str], how: End) -> Service {
    Service::answering(move |line| match line.split(' ').next() {
        Some("DELETE") => DESTROYED,
        _ if line.ends_with("/exec") || line.ends_with("/run") => Answer::Lines(lines.to_vec(), how),
        _ => Answer::Json(201, SANDBOX),
    })
}

#[test]
fn exec_passes_bytes_and_the_exit_code_through() {
    let lines = &[r#"{"stream":"stdout","data":"AP8K"}"#, r#"{"stream":"stderr","data":"Zf8="}"#, EXIT_42];
    let service = box_doing(lines, End::Complete);
    let output = run(&service.url, &["exec", "sb-1", "-e", "A=b c", "-w", "/tmp", "--", "prog", "-x", "--", "y z"]);
    assert_eq!(output.status.code(), Some(42));
    assert_eq!(output.stdout, [0, 255, b'\n']);
    assert_eq!(output.stderr, [b'e', 255]);
    let request: serde_json::Value = serde_json::from_slice(&service.asked().body).unwrap();
    assert_eq!(request["command"], "prog");
    assert_eq!(request["args"], serde_json::json!(["-x", "--", "y z"]));
    assert_eq!(request["mode"], "argv");
    assert_eq!(request["env"], serde_json::json!({"A": "b c"}));
    assert_eq!(request["workdir"], "/tmp");
    assert!(request.get("stdin").is_none(), "{request}");
}

#[test]
fn our_own_failures_are_told_apart_from_the_commands() {
    let cut = box_doing(&[READY], End::Cut);
    let (code, stderr) = end(&run(&cut.url, &["exec", "sb-1", "-c", "x"]));
    assert_eq!(code, Some(125));
    assert!(stderr.starts_with("error: ") && stderr.contains("cut"), "{stderr}");

    let missing = Service::answering(|_| Answer::Json(404, r#"{"code":"not_found","message":"no sandbox sb-1"}"#));
    assert_eq!(end(&run(&missing.url, &["exec", "sb-1", "--", "x"])).0, Some(125));
    let (code, stderr) = end(&run(&missing.url, &["get", "sb-1", "--output", "json"]));
    assert_eq!(code, Some(1));
    let error: serde_json::Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!(error["code"], "not_found");
    assert_eq!(end(&run(&missing.url, &["get"])).0, Some(2));
}

#[test]
fn an_interrupted_exec_hangs_up() {
    for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let service = box_doing(&[READY], End::Never);
        let mut child = tidebox(&service.url, &["exec", "sb-1", "--", "x"]).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        signal(&child, sent);
        assert_eq!(end(&finish(child)), (Some(code), String::new()));
        service.until_hung_up();
    }
}

#[test]
fn a_signal_that_was_ignored_stays_so() {
    let service = box_doing(&[READY], End::Never);
    let shell = format!("trap '' INT; exec {} exec sb-1 -- x", env!("CARGO_BIN_EXE_tidebox"));
    let mut child = Command::new("/bin/sh")
        .args(["-c", &shell])
        .env("TIDEBOX_URL", &service.url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    signal(&child, Signal::INT);
    signal(&child, Signal::TERM);
    assert_eq!(end(&finish(child)), (Some(143), String::new()));
}

#[test]
fn output_that_nobody_reads_ends_the_command_quietly() {
    let service = box_doing(&[READY], End::Endless);
    let mut child = tidebox(&service.url, &["exec", "sb-1", "--", "yes"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(end(&finish(child)), (Some(141), String::new()));
    service.until_hung_up();
}

#[test]
fn run_removes_its_box_however_the_command_ends() {
    for (lines, how, code) in [
        (&[EXIT_42][..], End::Complete, 42),
        (&[READY], End::Cut, 125),
        (&["nonsense"], End::Complete, 125),
        (&[r#"{"stream":"exit","data":"0"}"#], End::Complete, 0),
    ] {
        let service = box_doing(lines, how);
        assert_eq!(end(&run(&service.url, &["run", "host", "--", "x"])).0, Some(code));
        let lines: Vec<_> = (0..3).map(|_| service.asked().line).collect();
        assert_eq!(
            lines,
            ["POST /api/v1/sandboxes", "POST /api/v1/sandboxes/sb-1/exec", "DELETE /api/v1/sandboxes/sb-1"]
        );
    }
}

#[test]
fn an_interrupted_run_removes_its_box() {
    for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let service = box_doing(&[READY], End::Never);
        let mut child = tidebox(&service.url, &["run", "host", "-c", "x"]).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        signal(&child, sent);
        assert_eq!(end(&finish(child)), (Some(code), String::new()));
        assert!((0..3).any(|_| service.asked().line == "DELETE /api/v1/sandboxes/sb-1"));
    }
}

#[test]
fn a_run_without_a_box_runs_and_removes_nothing() {
    let service = Service::answering(|_| Answer::Json(503, r#"{"code":"unavailable","message":"no provider"}"#));
    let (code, stderr) = end(&run(&service.url, &["run", "host", "--", "x"]));
    assert_eq!(code, Some(125));
    assert!(stderr.contains("no provider"), "{stderr}");
    assert_eq!(service.asked().line, "POST /api/v1/sandboxes");
    let looks_for_its_row = service.asked().line;
    assert!(looks_for_its_row.starts_with("GET /api/v1/sandboxes?metadata.tidebox.run="), "{looks_for_its_row}");
    assert!(service.is_idle());
}

#[test]
fn the_words_after_the_box_are_the_command() {
    for words in [
        &["exec", "-w", "/tmp", "sb-1", "prog", "-x", "--timeout", "--", "y z"][..],
        &["exec", "sb-1", "-w", "/tmp", "--", "prog", "-x", "--timeout", "--", "y z"],
        &["run", "--rm", "-w", "/tmp", "host", "prog", "-x", "--timeout", "--", "y z"],
        &["run", "host", "-w", "/tmp", "--", "prog", "-x", "--timeout", "--", "y z"],
    ] {
        let service = box_doing(&[EXIT_42], End::Complete);
        assert_eq!(end(&run(&service.url, words)), (Some(42), String::new()), "{words:?}");
        let request = (0..3).map(|_| service.asked()).find(|asked| asked.line.ends_with("/exec")).unwrap();
        let request: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!((&request["command"], &request["workdir"]), (&"prog".into(), &"/tmp".into()), "{words:?}");
        assert_eq!(request["args"], serde_json::json!(["-x", "--timeout", "--", "y z"]), "{words:?}");
    }
}

#[test]
fn a_command_that_is_missing_is_asked_for_by_its_place() {
    let service = box_doing(&[EXIT_42], End::Complete);
    for (words, place) in [
        (&["exec", "sb-1"][..], "after ID"),
        (&["exec", "-i", "sb-1"], "after ID"),
        (&["exec", "-d", "sb-1"], "after ID"),
        (&["run", "ubuntu"], "after IMAGE"),
    ] {
        let (code, stderr) = end(&run(&service.url, words));
        assert_eq!(code, Some(2), "{words:?}");
        assert!(stderr.contains(place) && stderr.contains("-it"), "{words:?}: {stderr}");
    }
    assert!(service.is_idle());
}

#[test]
fn what_fingers_type_by_habit_is_taken_or_translated() {
    let service = Service::answering(|line| match line.split(' ').next() {
        Some("DELETE") => DESTROYED,
        _ if line.contains("/resume") => Answer::Json(200, SANDBOX),
        _ if line.starts_with("POST") => Answer::Json(201, SANDBOX),
        _ => Answer::Json(200, "[]"),
    });
    for words in [&["rm", "-f", "sb-1"][..], &["create"], &["ps", "-a"], &["ls", "-q"], &["unpause", "sb-1"]] {
        assert_eq!(run(&service.url, words).status.code(), Some(0), "{words:?}");
    }
    for (theirs, ours) in [("pull", "tidebox image pull"), ("images", "tidebox image list"), ("sh", "tidebox shell")] {
        let (code, stderr) = end(&run(&service.url, &[theirs, "x"]));
        assert_eq!(code, Some(2));
        assert!(stderr.contains(&format!("`{ours}`")), "{theirs}: {stderr}");
    }
}

#[test]
fn the_list_shows_what_is_there_and_the_rest_for_all() {
    let service = Service::answering(|_| {
        Answer::Json(
            200,
            r#"[{"id":"sb-1","state":"running","provider":"p","image":"i","memory_mb":1,"vcpus":1,"created_at":"",
            "expires_at":"","metadata":{}},{"id":"sb-2","state":"failed","provider":"p","image":"i","memory_mb":1,
            "vcpus":1,"created_at":"","expires_at":"","metadata":{}},{"id":"sb-3","state":"paused","provider":"p",
            "image":"i","memory_mb":1,"vcpus":1,"created_at":"","expires_at":"","metadata":{}}]"#,
        )
    });
    for (words, shown) in
        [(&["list", "-q"][..], "sb-1\nsb-3\n"), (&["ls", "-qa"], "sb-1\nsb-2\nsb-3\n"), (&["ps", "-q"], "sb-1\nsb-3\n")]
    {
        assert_eq!(String::from_utf8(run(&service.url, words).stdout).unwrap(), shown, "{words:?}");
    }
    for (words, is_shown) in [(&["list"][..], false), (&["list", "--all"], true), (&["--output=json", "list"], false)] {
        let printed = String::from_utf8(run(&service.url, words).stdout).unwrap();
        assert_eq!((printed.contains("sb-1"), printed.contains("sb-2")), (true, is_shown), "{words:?}: {printed}");
    }
}

#[test]
fn without_i_nothing_is_read_from_stdin() {
    for words in [&["exec", "sb-1", "cat"][..], &["run", "host", "cat"], &["--output=json", "exec", "sb-1", "cat"]] {
        let service = Service::answering(|line| match line.split(' ').next() {
            Some("DELETE") => DESTROYED,
            _ if line.ends_with("/exec") => Answer::Json(404, r#"{"code":"not_found","message":"no sandbox"}"#),
            _ => Answer::Json(201, SANDBOX),
        });
        let (mut left, mut typed) = std::io::pipe().unwrap();
        typed.write_all(b"of the loop").unwrap();
        // The other end stays open: a command that waited for its end would not finish.
        let child = tidebox(&service.url, words).stdin(left.try_clone().unwrap()).spawn().unwrap();
        assert_eq!(finish(child).status.code(), Some(125), "{words:?}");
        let request = (0..3).map(|_| service.asked()).find(|asked| asked.line.ends_with("/exec")).unwrap();
        let request: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        assert!(request.get("stdin").is_none(), "{words:?}: {request}");
        drop(typed);
        let mut rest = String::new();
        left.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "of the loop", "{words:?}");
    }
}

#[test]
fn in_json_the_stdin_goes_along_up_to_the_limit_and_the_deadline() {
    const DONE: &str = r#"{"exit_code":42,"stdout":"","stderr":"","duration":"1s"}"#;
    let service = Service::answering(|_| Answer::Json(200, DONE));
    let words = ["--output=json", "exec", "-i", "--timeout", "20s", "sb-1", "cat"];
    let with_stdin = |bytes: Vec<u8>| {
        let mut child = tidebox(&service.url, &words).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // The command may stop reading at its limit.
        std::thread::spawn(move || stdin.write_all(&bytes));
        finish(child)
    };
    assert_eq!(with_stdin(b"na\xc3\xafve".to_vec()).status.code(), Some(42));
    let request: serde_json::Value = serde_json::from_slice(&service.asked().body).unwrap();
    assert_eq!((request["stdin"].as_str(), request["stdin_encoding"].as_str()), (Some("naïve"), Some("utf8")));

    assert_eq!(with_stdin(b"\xff".to_vec()).status.code(), Some(42));
    let request: serde_json::Value = serde_json::from_slice(&service.asked().body).unwrap();
    assert_eq!((request["stdin"].as_str(), request["stdin_encoding"].as_str()), (Some("/w=="), Some("base64")));

    for bytes in [vec![b'x'; 3 << 20], vec![0xff; 1000 << 10]] {
        let (code, stderr) = end(&with_stdin(bytes));
        assert_eq!(code, Some(125));
        assert!(stderr.contains("`-i` streams stdin"), "{stderr}");
    }

    let (left, _typed) = std::io::pipe().unwrap();
    let words = ["--output=json", "exec", "-i", "--timeout", "100ms", "sb-1", "cat"];
    let child = tidebox(&service.url, &words).stdin(left).spawn().unwrap();
    assert_eq!(finish(child).status.code(), Some(124));
    assert!(service.is_idle());
}

#[test]
fn an_upload_keeps_its_x_bits_and_goes_into_directories() {
    let service = Service::answering(|line| {
        if line.contains("/stat?path=%2Fbin") {
            Answer::Json(200, r#"{"name":"bin","path":"/bin","size":0,"is_dir":true,"mod_time":"","mode":"0755"}"#)
        } else if line.contains("/stat") {
            Answer::Json(404, r#"{"code":"not_found","message":"no such file"}"#)
        } else {
            Answer::Json(200, r#"{"status":"done"}"#)
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a tool");
    std::fs::write(&file, b"\0raw\xff").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o751)).unwrap();
    assert_eq!(end(&run(&service.url, &["cp", file.to_str().unwrap(), "sb-1:/bin"])), (Some(0), String::new()));
    assert!(service.asked().line.contains("/stat"));
    let put = service.asked();
    assert_eq!(
        (put.line.as_str(), &put.body[..]),
        ("PUT /api/v1/sandboxes/sb-1/files/bin/a%20tool", &b"\0raw\xff"[..])
    );
    let chmod = service.asked();
    assert_eq!(chmod.line, "POST /api/v1/sandboxes/sb-1/files/chmod");
    assert_eq!(chmod.body, br#"{"path":"/bin/a tool","mode":"751"}"#);

    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(end(&run(&service.url, &["cp", file.to_str().unwrap(), "sb-1:/list"])), (Some(0), String::new()));
    assert!(service.asked().line.contains("/stat"));
    assert_eq!(service.asked().line, "PUT /api/v1/sandboxes/sb-1/files/list");
    assert!(service.is_idle());
}

#[test]
fn a_download_appears_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("result");
    let whole = Service::answering(|_| Answer::Bytes(b"\0new\xff", End::Complete));
    let cut = Service::answering(|_| Answer::Bytes(b"part", End::Cut));

    let (code, stderr) = end(&run(&cut.url, &["cp", "sb-1:/x", to.to_str().unwrap()]));
    assert!(code == Some(1) && stderr.contains("cut"), "{code:?} {stderr}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    assert_eq!(run(&whole.url, &["cp", "sb-1:/x", to.to_str().unwrap()]).status.code(), Some(0));
    assert_eq!(std::fs::read(&to).unwrap(), b"\0new\xff");
    assert_eq!(std::fs::metadata(&to).unwrap().permissions().mode() & 0o111, 0);

    assert_eq!(run(&cut.url, &["cp", "sb-1:/x", to.to_str().unwrap()]).status.code(), Some(1));
    assert_eq!(std::fs::read(&to).unwrap(), b"\0new\xff");

    assert_eq!(run(&whole.url, &["cp", "sb-1:/a/b", folder.path().to_str().unwrap()]).status.code(), Some(0));
    assert_eq!(std::fs::read(folder.path().join("b")).unwrap(), b"\0new\xff");
    assert_eq!(run(&whole.url, &["cp", "sb-1:/x", "-"]).stdout, b"\0new\xff");
}

#[test]
fn names_from_the_server_cannot_move_the_cursor() {
    let service = Service::answering(|line| {
        if line.ends_with("/sandboxes") {
            Answer::Json(
                200,
                r#"[{"id":"sb-1","state":"\u001b[2J","provider":"p\n","image":"i","memory_mb":1,"vcpus":1,
                "created_at":"","expires_at":"","metadata":{"\u009b":"\u202e"}}]"#,
            )
        } else {
            Answer::Json(200, SANDBOX)
        }
    });
    for args in [&["list"][..], &["get", "sb-1"]] {
        let output = run(&service.url, args);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("sb-1"), "{text}");
        assert!(!text.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{text:?}");
    }
}

#[test]
fn json_output_is_the_answer_of_the_api() {
    let service = Service::answering(|_| Answer::Json(200, SANDBOX));
    let output = run(&service.url, &["--output", "json", "get", "sb-1"]);
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed, serde_json::from_str::<serde_json::Value>(SANDBOX).unwrap());
}

#[test]
fn a_script_gets_the_id_alone() {
    let service = Service::answering(|_| Answer::Json(201, SANDBOX));
    let output = run(&service.url, &["spawn"]);
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"sb-1\n"[..], &b""[..]));
}

#[test]
fn one_box_that_cannot_be_removed_does_not_save_the_others() {
    let service = Service::answering(|line| match line.ends_with("sb-2") {
        true => Answer::Json(404, r#"{"code":"not_found","message":"no sandbox sb-2"}"#),
        false => DESTROYED,
    });
    let output = run(&service.url, &["rm", "sb-1", "sb-2", "sb-3"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"sb-1\nsb-3\n");
    assert!(end(&output).1.contains("sb-2"));
}

#[test]
fn help_never_shows_the_key() {
    let output = finish(tidebox("http://h", &["spawn", "--help"]).env("TIDEBOX_API_KEY", "hunter2").spawn().unwrap());
    assert_eq!(output.status.code(), Some(0));
    assert!(!String::from_utf8(output.stdout).unwrap().contains("hunter2"));
}
