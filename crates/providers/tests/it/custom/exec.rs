//! Answers from the inside of a box, and output of its commands.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use providers::{Background, Command, Error, Guest, OutputEvent, Provider, Result};
use serde_json::json;

use crate::custom::fake_service::{FakeService, Received, Reply};
use crate::custom::harness::{argv, everything, id, inside, kind, patient, soon, spec};

#[tokio::test]
async fn a_stale_generation_is_a_conflict_and_not_gone() {
    let refuse = |_: &Received| Reply::Json(409, json!({"code": "conflict", "message": "generation 9 is current"}));
    let (_service, custom, guest) = inside(refuse).await;
    custom.set_generation(&id(1), 8);
    for (call, kind) in everything(&guest).await {
        assert_eq!(kind, "Conflict", "{call}");
    }
    let Err(Error::Conflict(text)) = guest.chmod("/f", 0o600).await else { panic!("no conflict") };
    assert!(text.contains("generation 9 is current"), "{text}");

    let service = FakeService::telling(move |asked| {
        asked.line.starts_with("DELETE").then(|| Reply::Json(409, json!({"code": "conflict", "message": "stale"})))
    });
    let custom = patient(&service.url);
    custom.start(&id(1), &spec()).await.unwrap();
    custom.set_generation(&id(1), 1);
    assert_eq!(kind(custom.stop(&id(1)).await), "Conflict");
    assert_eq!(service.boxes(), 1);
}

#[tokio::test]
async fn a_box_that_is_gone_is_told_from_a_file_that_is_not_there() {
    let missing = |_: &Received| Reply::Json(404, json!({"code": "not_found", "message": "nothing here"}));
    let (_service, custom, guest) = inside(missing).await;
    for (call, kind) in everything(&guest).await {
        let of_a_path = !["exec", "glob", "console", "ports", "set_deadline"].contains(&call);
        assert_eq!(kind, if of_a_path { "NotFound" } else { "Gone" }, "{call}");
    }
    custom.stop(&id(1)).await.unwrap();
    for (call, kind) in everything(&guest).await {
        assert_eq!(kind, "Gone", "{call}");
    }
}

#[tokio::test]
async fn limits_and_full_boxes_keep_their_meaning() {
    for (status, code, expected) in [
        (429, "resource_limit", "Exhausted"),
        (507, "no_space", "NoSpace"),
        (400, "not_supported", "NotSupported"),
        (413, "payload_too_large", "Invalid"),
        (503, "unavailable", "Unavailable"),
        (401, "unauthorized", "Unavailable"),
        (500, "provider_error", "Failed"),
    ] {
        let answer = move |_: &Received| Reply::Json(status, json!({"code": code, "message": "max 5m0s"}));
        let (_service, _custom, guest) = inside(answer).await;
        for (call, kind) in everything(&guest).await {
            assert_eq!(kind, expected, "{code} to {call}");
        }
        let service = FakeService::telling(move |asked| {
            (asked.line == "POST /sandboxes").then(|| Reply::Json(status, json!({"code": code, "message": "max 5m0s"})))
        });
        let started = patient(&service.url).start(&id(1), &spec()).await;
        // Before there is a box, a full disk is that of the remote service.
        let expected = if code == "no_space" { "Full" } else { expected };
        assert_eq!(kind(started), expected, "{code} to a start");
    }
}

fn lines(lines: &[&str]) -> Reply {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    Reply::Raw(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    ))
}

/// Returns a line on stderr, as the API encodes it.
fn stderr(text: &str) -> String {
    use base64::Engine as _;
    json!({"stream": "stderr", "data": base64::engine::general_purpose::STANDARD.encode(text)}).to_string()
}

async fn output(guest: &Arc<dyn Guest>) -> Vec<Result<OutputEvent>> {
    soon("the output", guest.exec(argv(&["true"])).await.unwrap().collect()).await
}

#[tokio::test]
async fn the_services_own_words_are_not_the_commands() {
    // The end of a box is an error, and not a line on stderr.
    let (_service, _custom, guest) = inside(|_| lines(&[&stderr("mine\n"), &stderr(api::SANDBOX_ENDED)])).await;
    let events = output(&guest).await;
    assert!(matches!(&events[..], [Ok(OutputEvent::Stderr(_)), Err(Error::Gone)]), "{events:?}");

    let (_service, _custom, guest) = inside(|_| lines(&[&stderr(api::PROVIDER_FAILED)])).await;
    let events = output(&guest).await;
    assert!(matches!(&events[..], [Err(Error::NoAnswer { .. })]), "{events:?}");

    let (_service, _custom, guest) = inside(|_| {
        let told = stderr(&format!("{}5s\n", api::TIMED_OUT));
        lines(&[&told, r#"{"stream":"exit","data":"124","timed_out":true}"#])
    })
    .await;
    let events = output(&guest).await;
    assert!(matches!(&events[..], [Ok(OutputEvent::Exit(exit))] if exit.timed_out), "{events:?}");

    // A command that writes the same text keeps it.
    let (_service, _custom, guest) = inside(|_| {
        let words = stderr(api::SANDBOX_ENDED);
        lines(&[&words, &words, r#"{"stream":"stdout","data":"eA=="}"#, &words, r#"{"stream":"exit","data":"0"}"#])
    })
    .await;
    let events: Vec<_> = output(&guest).await.into_iter().map(Result::unwrap).collect();
    let words = || OutputEvent::Stderr(Bytes::from_static(api::SANDBOX_ENDED.as_bytes()));
    assert_eq!(events[..4], [words(), words(), OutputEvent::Stdout(Bytes::from_static(b"x")), words()]);
    assert!(matches!(events[4], OutputEvent::Exit(exit) if exit.code == 0) && events.len() == 5);
}

#[tokio::test]
async fn an_output_that_breaks_off_is_a_failure_unless_the_box_has_gone() {
    let (_service, custom, guest) = inside(|_| lines(&[r#"{"stream":"stdout","data":"eA=="}"#])).await;
    let events = output(&guest).await;
    assert!(matches!(&events[..], [Ok(_), Err(Error::NoAnswer { .. })]), "{events:?}");
    custom.stop(&id(1)).await.unwrap();
    let events = output(&guest).await;
    assert!(matches!(&events[..], [Ok(_), Err(Error::Gone)]), "{events:?}");
}

#[tokio::test]
async fn a_stdin_that_is_too_large_is_refused_before_anything_runs() {
    let (service, _custom, guest) = inside(|_| lines(&[])).await;
    let endless = stream::repeat_with(|| Ok(Bytes::from_static(&[7; 10_000]))).boxed();
    let command = Command { stdin: Some(endless), ..argv(&["cat"]) };
    let Err(Error::Invalid(text)) = guest.exec(command).await.map(|_| ()) else { panic!("it is not refused") };
    assert!(text.contains("1048576 bytes"), "{text}");
    let silent =
        Command { stdin: Some(stream::pending().boxed()), timeout: Duration::from_millis(50), ..argv(&["cat"]) };
    assert_eq!(kind(soon("a stdin that never ends", guest.exec(silent)).await), "Invalid");
    assert!(service.asked("POST /sandboxes/far-1/exec").is_empty());
}

#[tokio::test]
async fn a_service_of_an_earlier_release_has_no_processes_that_wait_for_their_readers() {
    let only = |field: &str| json!({"code": "bad_request", "message": format!("`{field}` is only for `stream: true`")});
    let lossless = Background { is_lossless: true, ..Background::default() };
    let (service, _custom, guest) = inside(move |_| Reply::Json(400, only("resumable"))).await;
    let Err(Error::NotSupported(text)) = guest.start_process(argv(&["true"]), lossless.clone()).await else {
        panic!("it is not refused")
    };
    assert!(text.contains("`far`") && text.contains("upgrade"), "{text}");
    assert_eq!(kind(guest.start_process(argv(&["true"]), Background::default()).await), "Invalid");
    let bodies: Vec<serde_json::Value> = service
        .asked("POST /sandboxes/far-1/exec")
        .iter()
        .map(|asked| serde_json::from_slice(&asked.body).unwrap())
        .collect();
    assert_eq!((&bodies[0]["resumable"], bodies[1].get("resumable")), (&json!(true), None));
    let (_service, _custom, guest) = inside(move |_| Reply::Json(400, only("name"))).await;
    assert_eq!(kind(guest.start_process(argv(&["true"]), lossless).await), "Invalid");
}
