//! Code in interpreters, against a service with scripted answers.

use std::io::{BufRead as _, BufReader};

use rustix::process::Signal;

use super::service::End;
use super::{box_doing, end, finish, run, signal, tidebox};

const STARTED: &str = r#"{"type":"started","context_id":"python","execution_count":1}"#;
const READY: &str = r#"{"type":"stdout","text":"ready\n"}"#;

#[test]
fn run_removes_its_box_however_the_code_ends() {
    const OK: &str = r#"{"type":"end","outcome":"ok","duration":"1s"}"#;
    const ERROR: &str = r#"{"type":"end","outcome":"error","duration":"1s"}"#;
    const DIED: &str = r#"{"type":"end","outcome":"died","duration":"1s"}"#;
    const TIMED_OUT: &str = r#"{"type":"end","outcome":"timed_out","restarted":true,"duration":"1s"}"#;
    for (lines, how, code) in [
        (&[STARTED, OK][..], End::Complete, 0),
        (&[STARTED, ERROR], End::Complete, 1),
        (&[STARTED, DIED], End::Complete, 1),
        (&[STARTED, TIMED_OUT], End::Complete, 124),
        (&[STARTED, READY], End::Cut, 125),
        (&["nonsense"], End::Complete, 125),
    ] {
        let service = box_doing(lines, how);
        assert_eq!(end(&run(&service.url, &["run", "host", "--code", "x"])).0, Some(code), "{lines:?}");
        let asked: Vec<_> = (0..3).map(|_| service.asked().line).collect();
        assert_eq!(
            asked,
            ["POST /api/v1/sandboxes", "POST /api/v1/sandboxes/sb-1/run", "DELETE /api/v1/sandboxes/sb-1"]
        );
    }
}

#[test]
fn interrupted_code_is_hung_up_on_and_its_box_removed() {
    for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let service = box_doing(&[STARTED, READY], End::Never);
        let mut child = tidebox(&service.url, &["run", "host", "--code", "x"]).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        signal(&child, sent);
        assert_eq!(end(&finish(child)), (Some(code), String::new()));
        service.until_hung_up();
        assert!((0..3).any(|_| service.asked().line == "DELETE /api/v1/sandboxes/sb-1"));
    }
}

#[test]
fn the_request_has_the_options_of_the_code() {
    let service = box_doing(&[STARTED], End::Complete);
    let words = ["exec", "sb-1", "--code", "-1", "--language", "bash", "--timeout", "3s", "-e", "A=b"];
    assert_eq!(end(&run(&service.url, &words)).0, Some(125), "the end is missing");
    let request: serde_json::Value = serde_json::from_slice(&service.asked().body).unwrap();
    let expected = serde_json::json!({"code": "-1", "language": "bash", "timeout": "3s", "env": {"A": "b"}});
    assert_eq!(request, expected);
}

#[test]
fn options_of_code_and_of_commands_do_not_mix() {
    let service = box_doing(&[STARTED], End::Complete);
    for words in [
        &["run", "host", "--code", "x", "ls"][..],
        &["run", "host", "--code", "x", "-c", "ls"],
        &["run", "-it", "host", "--code", "x"],
        &["run", "host", "--language", "bash", "ls"],
        &["run", "host", "--images", "/tmp", "ls"],
        &["run", "host", "--code", "x", "--language", "cobol"],
        &["exec", "sb-1", "-d", "--code", "x"],
        &["exec", "sb-1", "--name", "x", "--code", "x"],
        &["repl", "cobol", "sb-1"],
    ] {
        assert_eq!(end(&run(&service.url, words)).0, Some(2), "{words:?}");
    }
    assert!(service.is_idle());
}

#[test]
fn what_the_output_does_not_say_is_said() {
    let service = box_doing(
        &[
            r#"{"type":"started","context_id":"python","execution_count":1,"state_lost":true}"#,
            r#"{"type":"stdout","text":"no end"}"#,
            r#"{"type":"result","main":true,"data":{"text/plain":"value"}}"#,
            r#"{"type":"result","main":false,"data":{"application/\u001bjson":1}}"#,
            r#"{"type":"dropped"}"#,
            r#"{"type":"error","name":"KernelDied","value":"gone","traceback":""}"#,
            r#"{"type":"end","outcome":"died","duration":"1s"}"#,
        ],
        End::Complete,
    );
    let output = run(&service.url, &["exec", "sb-1", "--code", "x"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "no end\nvalue\n");
    let stderr = end(&output).1;
    for words in ["without its state", r"application/\u{1b}json", "dropped a result", "KernelDied: gone\n"] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
}
