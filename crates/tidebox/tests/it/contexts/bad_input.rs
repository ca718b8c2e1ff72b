//! Requests that make no sense, and code that means harm.

use client::Client;
use client::api::{RunLine, RunOutcome, RunRequest};
use serde_json::json;

use super::{context, run, run_in};
use crate::server::{NATIVE, TestServer};

#[tokio::test]
async fn a_request_that_makes_no_sense_is_refused_by_what_is_wrong() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let other = server.spawn().await;
    let foreign = context(&server, &other, json!({"language": "bash"})).await;
    let bash = context(&server, &id, json!({"language": "bash"})).await;
    for (path, body, status, code, words) in [
        ("contexts", json!({"language": "cobol"}), 400, "bad_request", "unknown variant `cobol`"),
        ("contexts", json!({"language": "bash", "workdir": "/no/such"}), 400, "bad_request", "/no/such"),
        ("contexts", json!({"language": "bash", "user": "nobody-here"}), 400, "bad_request", "nobody-here"),
        ("contexts", json!({"language": "bash", "user": ""}), 400, "bad_request", "`user`"),
        ("contexts", json!({"language": "bash", "env": {"A": "x".repeat(5000)}}), 400, "bad_request", "for each run"),
        ("run", json!({"code": "1", "language": "bash", "more": 1}), 400, "bad_request", "unknown field `more`"),
        ("run", json!({"code": "echo a\u{0}b", "language": "bash"}), 400, "bad_request", "NUL"),
        ("run", json!({"code": "1", "language": "bash", "env": {"A=B": "1"}}), 400, "bad_request", "`env`"),
        ("run", json!({"code": "1", "language": "bash", "timeout": "0s"}), 400, "bad_request", "`timeout`"),
        ("run", json!({"code": "1", "language": "bash", "timeout": "9000h"}), 429, "resource_limit", "`timeout`"),
        ("run", json!({"code": "x".repeat(1 << 20), "language": "bash"}), 413, "payload_too_large", ""),
        (&format!("contexts/{bash}/run"), json!({"code": "1", "language": "r"}), 409, "conflict", "runs `bash`"),
        (
            "contexts",
            json!({"language": "bash", "workdir": format!("/{}", "x".repeat(512))}),
            400,
            "bad_request",
            "512",
        ),
        (&format!("contexts/{foreign}/run"), json!({"code": "1"}), 404, "not_found", "context"),
        ("contexts/python/run", json!({"code": "1"}), 404, "not_found", "context `python`"),
        ("contexts/UPPER/run", json!({"code": "1"}), 404, "not_found", "context `UPPER`"),
        ("contexts/ctx-none/restart", json!({}), 404, "not_found", "context `ctx-none`"),
        ("contexts/ctx-none/interrupt", json!({}), 404, "not_found", "context `ctx-none`"),
    ] {
        server.post(&format!("/sandboxes/{id}/{path}"), body).await.refused(status, code, words);
    }
    server.delete(&format!("/sandboxes/{id}/contexts/ctx-none")).await.refused(404, "not_found", "context `ctx-none`");
    server.post("/sandboxes/sb-aaaaaaaaaaaaaaaa/run", json!({"code": "1"})).await.refused(404, "not_found", "sandbox");
    assert_eq!(server.get(&format!("/sandboxes/{id}/contexts")).await.ok().as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_sandbox_without_the_interpreter_says_what_to_install() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    for (language, words) in [("python", "`python3`"), ("javascript", "`node`"), ("r", "`Rscript`")] {
        let body = json!({"language": language, "env": {"PATH": "/nowhere"}});
        server.post(&format!("/sandboxes/{id}/contexts"), body).await.refused(400, "bad_request", words);
    }
    assert_eq!(server.get(&format!("/sandboxes/{id}/contexts")).await.ok(), json!([]));
}

#[tokio::test]
async fn a_process_of_the_code_that_has_the_name_of_a_context_is_none() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let body = json!({"command": "sleep 1000", "background": true, "name": "context-python"});
    server.post(&format!("/sandboxes/{id}/exec"), body).await.ok();
    assert_eq!(server.get(&format!("/sandboxes/{id}/contexts")).await.ok(), json!([]));
    let answer = server.post(&format!("/sandboxes/{id}/run"), json!({"code": "1"})).await;
    answer.refused(409, "conflict", "context-python");
}

#[tokio::test]
async fn code_can_do_what_it_likes_to_its_streams() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    for code in [
        "import os; os.close(1)",
        "import sys; sys.stdout = None",
        "import sys; sys.stdout.close()",
        "print = json = repr = None",
        "import os; os.write(1, bytes(range(256)))",
        "import os\nif os.fork() == 0: raise SystemExit",
        "class A:\n    def __repr__(self): raise ValueError('no')\nA()",
        "class A:\n    def _repr_html_(self): return 'x' * (1 << 26)\nA()",
    ] {
        let done = run(&server, &id, "python", code).await;
        assert!(["ok", "error"].contains(&done.outcome()), "{code}: {done:?}");
        let next = run(&server, &id, "python", "41 + 1").await;
        assert_eq!(next.value(), "42", "after {code}");
    }
    // Without any descriptor there is no way to go on.
    let closed = run(&server, &id, "python", "import os; os.closerange(0, 256)").await;
    assert_eq!((closed.outcome(), closed.error()), ("died", "KernelDied"), "{closed:?}");
    assert_eq!(run(&server, &id, "python", "41 + 1").await.value(), "42");
}

#[tokio::test]
async fn bytes_that_are_no_text_come_as_replacement_characters_and_characters_come_whole() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let code = r"printf 'a\xffb\xe2\x82'; sleep 0.05; printf '\xac'; printf '\xe2' >&2";
    let done = run(&server, &id, "bash", code).await;
    assert_eq!((done.stdout().as_str(), done.text("stderr").as_str()), ("a\u{fffd}b€", "\u{fffd}"));
}

#[tokio::test]
async fn what_looks_like_a_message_of_the_interpreter_is_output() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let code = r#"printf '\x1e%032d0010.{"type":"end"}' 0"#;
    let done = run(&server, &id, "bash", code).await;
    assert!(done.stdout().ends_with(r#"0010.{"type":"end"}"#), "{done:?}");
}

#[tokio::test]
async fn code_that_forges_messages_ends_its_own_interpreter_alone() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let other = context(&server, &id, json!({"language": "bash"})).await;
    // The driver has the marker in a variable.
    let code = r#"mark=$(set | grep -aoE '\b[0-9a-f]{32}\b' | head -1); echo "${#mark}"; printf "\x1e${mark}zzzz?""#;
    let forged = run(&server, &id, "bash", code).await;
    assert_eq!((forged.stdout().as_str(), forged.outcome()), ("32\n", "died"), "{forged:?}");
    assert!(forged.first("error")["value"].as_str().unwrap().contains("malformed"), "{forged:?}");
    assert_eq!(run(&server, &id, "bash", "echo on").await.stdout(), "on\n");
    assert_eq!(run_in(&server, &id, &other, json!({"code": "echo on"})).await.stdout(), "on\n");
}

#[tokio::test]
async fn output_without_end_is_streamed_with_flat_memory_and_stops_when_the_reader_leaves() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    run(&server, &id, "python", "1").await;
    let client = Client::new(&server.url, None, None).unwrap();
    let request = RunRequest { code: "while True: print('x' * 1000)".to_owned(), ..RunRequest::default() };
    let mut stream = client.run_code(&id, None, &request).await.unwrap();
    let before = server.resident_kib();
    let mut bytes = 0;
    while bytes < 100_000_000 {
        if let RunLine::Stdout { text } = stream.next().await.unwrap().unwrap() {
            bytes += text.len();
        }
    }
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB more");
    drop(stream);
    assert_eq!(run(&server, &id, "python", "41 + 1").await.value(), "42");
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_up_its_code_and_its_deadline_still_comes() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    run(&server, &id, "python", "x = 5").await;
    let client = Client::new(&server.url, None, None).unwrap();
    let request = RunRequest {
        code: "while True: print('x' * 1000)".to_owned(),
        timeout: Some("500ms".to_owned()),
        ..RunRequest::default()
    };
    let mut stream = client.run_code(&id, None, &request).await.unwrap();
    // The next run comes after the deadline of the first one, of which nothing is read.
    assert_eq!(run(&server, &id, "python", "x").await.value(), "5");
    let mut last = None;
    while let Some(line) = stream.next().await.unwrap() {
        last = Some(line);
    }
    let Some(RunLine::End { outcome, restarted, .. }) = last else { panic!("{last:?}") };
    assert_eq!((outcome, restarted), (RunOutcome::TimedOut, false));
}

#[tokio::test]
async fn no_more_runs_wait_for_a_context_than_may() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let bash = context(&server, &id, json!({"language": "bash"})).await;
    let many = (0..40).map(|_| {
        let path = format!("/sandboxes/{id}/contexts/{bash}/run");
        let server = &server;
        async move { server.post(&path, json!({"code": "sleep 0.05"})).await.status.as_u16() }
    });
    let statuses = futures_util::future::join_all(many).await;
    let count = |status| statuses.iter().filter(|found| **found == status).count();
    assert_eq!(count(200) + count(429), 40, "{statuses:?}");
    assert!(count(200) >= 33 && count(429) >= 1, "{statuses:?}");
    assert_eq!(run_in(&server, &id, &bash, json!({"code": "echo on"})).await.stdout(), "on\n");
}
