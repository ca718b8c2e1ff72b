//! `/sandboxes/{id}/exec`: on the mock for the rules of the API, on native for those that the
//! kernel enforces.

use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Answer, MOCK, NATIVE, PATIENCE, TestServer};

/// Returns the chunks of a streamed answer.
async fn stream(server: &TestServer, id: &str, mut body: Value) -> Vec<Value> {
    body["stream"] = json!(true);
    let answer = server.post(&format!("/sandboxes/{id}/exec"), body).await;
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    answer
        .bytes
        .split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

fn text(chunks: &[Value], stream: &str) -> String {
    chunks.iter().filter(|chunk| chunk["stream"] == stream).map(|chunk| chunk["data"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_buffered_exec_answers_with_code_output_and_duration() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let result = server.exec(&id, "echo out; echo err >&2; exit 3").await;
    assert_eq!(
        (&result["exit_code"], &result["stdout"], &result["stderr"]),
        (&json!(3), &json!("out\n"), &json!("err\n"))
    );
    assert!(result["duration"].as_str().unwrap().ends_with('s'), "{result}");
    let keys: Vec<&String> = result.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["duration", "exit_code", "stderr", "stdout"], "flags are there only when they are true");
}

#[tokio::test]
async fn arguments_are_quoted_in_a_line_and_untouched_in_argv() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/exec");
    let args = json!(["a b", "it's", "$HOME", ""]);
    let line = server.post(&path, json!({"command": "printf '<%s>'", "args": args})).await.ok();
    assert_eq!(line["stdout"], "<a b><it's><$HOME><>");
    let argv =
        server.post(&path, json!({"command": "printf", "args": ["<%s>", "a b", "$HOME"], "mode": "argv"})).await.ok();
    assert_eq!(argv["stdout"], "<a b><$HOME>");
}

#[tokio::test]
async fn exit_codes_are_those_of_a_shell() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/exec");
    for (command, code) in [("/nonexistent", 127), ("no-such-program", 127), ("/etc", 126), ("/etc/passwd", 126)] {
        let result = server.post(&path, json!({"command": command, "mode": "argv"})).await.ok();
        assert_eq!(result["exit_code"], code, "{command}: {result}");
    }
    assert_eq!(server.exec(&id, "kill -TERM $$").await["exit_code"], 143);
    assert_eq!(server.exec(&id, "kill -KILL $$").await["exit_code"], 137);
}

#[tokio::test]
async fn environment_directory_user_and_stdin_are_the_requests() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/exec");
    let result = server
        .post(&path, json!({"command": "echo $A; pwd; id -u; cat; echo $HOME $PATH $LANG $TERM", "env": {"A": "b c"}, "workdir": "/tmp", "stdin": "in\n"}))
        .await
        .ok();
    let stdout = result["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("b c\n/tmp\n0\nin\n/root /usr/local/sbin:"), "{stdout}");
    assert_eq!(server.output(&id, "pwd").await, "/workspace\n");
    let binary =
        server.post(&path, json!({"command": "od -An -tx1", "stdin": "/wA=", "stdin_encoding": "base64"})).await.ok();
    assert_eq!(binary["stdout"], " ff 00\n");
    server.post(&path, json!({"command": "true", "workdir": "/nonexistent"})).await.refused(
        400,
        "bad_request",
        "/nonexistent",
    );
    server.post(&path, json!({"command": "true", "user": "nobody-here"})).await.refused(
        400,
        "bad_request",
        "nobody-here",
    );
    server.post(&path, json!({"command": "true\0"})).await.refused(400, "bad_request", "NUL");
    server.post(&path, json!({"command": ""})).await.refused(400, "bad_request", "`command`");
    server.post(&path, json!({"command": "true", "stdin": "%", "stdin_encoding": "base64"})).await.refused(
        400,
        "bad_request",
        "base64",
    );
}

#[tokio::test]
async fn nothing_of_the_servers_environment_reaches_a_box() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let env = server.output(&id, "env; cat /proc/1/environ 2>/dev/null; cat /proc/self/environ").await;
    assert!(!env.contains("TIDEBOX"), "{env}");
}

#[tokio::test]
async fn at_the_deadline_the_whole_tree_is_killed_and_what_was_written_is_kept() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/exec");
    let command =
        "echo before; (setsid sh -c 'trap \"\" TERM; sleep 4321 & sleep 4322' &) ; setsid -f sleep 4323; sleep 4324";
    let started = Instant::now();
    let result = server.post(&path, json!({"command": command, "timeout": "3s"})).await.ok();
    assert!(started.elapsed() < PATIENCE, "the processes would run for an hour");
    assert_eq!(
        (&result["exit_code"], &result["timed_out"], &result["stdout"]),
        (&json!(124), &json!(true), &json!("before\n"))
    );
    let left = server.exec(&id, "ps -eo args | grep '[s]leep 432'").await;
    assert_eq!(left["stdout"], "", "{left}");
    server.post(&path, json!({"command": "true", "timeout": "10m1s"})).await.refused(429, "resource_limit", "10m0s");
    server.post(&path, json!({"command": "true", "timeout": "10m1s", "stream": true})).await.refused(
        429,
        "resource_limit",
        "10m0s",
    );
    server.post(&path, json!({"command": "true", "timeout": "0s"})).await.refused(400, "bad_request", "`timeout`");
}

#[tokio::test]
async fn children_left_behind_go_on_and_their_words_are_the_console() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let started = Instant::now();
    let result = server.exec(&id, "(sleep 4; echo from behind; touch /tmp/done; sleep 60) & echo ok").await;
    assert_eq!((&result["stdout"], &result["exit_code"]), (&json!("ok\n"), &json!(0)));
    assert!(started.elapsed() < PATIENCE, "the answer does not wait for the children, who live for a minute");
    server.until("the child's work", async || server.exec(&id, "test -e /tmp/done").await["exit_code"] == 0).await;
    let logs = server.get(&format!("/sandboxes/{id}/logs")).await.ok();
    assert_eq!(logs, json!(["from behind"]));
    server.get(&format!("/sandboxes/{id}/logs?lines=10001")).await.refused(400, "bad_request", "10000");
    server.get(&format!("/sandboxes/{id}/logs?lines=x")).await.refused(400, "bad_request", "query");
    assert_eq!(server.get(&format!("/sandboxes/{id}/logs?lines=0")).await.ok(), json!([]));
}

#[tokio::test]
async fn output_beyond_the_bound_is_cut_and_said_so() {
    let server = TestServer::start(&format!("{NATIVE} limits.max_output_bytes=1000")).await;
    let id = server.spawn().await;
    let result = server.exec(&id, "head -c 5000 /dev/zero | tr '\\0' x; echo done >&2; touch /tmp/ran-on").await;
    assert_eq!(result["stdout"].as_str().unwrap().len(), 1000);
    assert_eq!((&result["truncated"], &result["stderr"]), (&json!(true), &json!("done\n")));
    assert_eq!(server.exec(&id, "test -e /tmp/ran-on").await["exit_code"], 0);
}

#[tokio::test]
async fn a_stream_carries_both_outputs_and_the_exit_when_asked() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let chunks = stream(&server, &id, json!({"command": "echo out; echo err >&2; exit 7", "exit_event": true})).await;
    assert_eq!((text(&chunks, "stdout"), text(&chunks, "stderr")), ("out\n".to_owned(), "err\n".to_owned()));
    assert_eq!(chunks.last().unwrap(), &json!({"stream": "exit", "data": "7"}));
    let plain = stream(&server, &id, json!({"command": "echo out"})).await;
    assert_eq!(plain, [json!({"stream": "stdout", "data": "out\n"})]);
}

#[tokio::test]
async fn a_stream_is_exact_in_base64_and_readable_in_text() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let command = r"printf '\377\000\303'; sleep 0.05; printf '\274x'";
    let exact = stream(&server, &id, json!({"command": command, "encoding": "base64"})).await;
    let bytes: Vec<u8> =
        exact.iter().flat_map(|chunk| BASE64.decode(chunk["data"].as_str().unwrap()).unwrap()).collect();
    assert_eq!(bytes, b"\xff\0\xc3\xbcx");
    let readable = stream(&server, &id, json!({"command": command})).await;
    assert_eq!(text(&readable, "stdout"), "\u{fffd}\0üx");
}

#[tokio::test]
async fn a_stream_that_runs_into_its_deadline_says_so() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let chunks =
        stream(&server, &id, json!({"command": "echo a; sleep 60", "timeout": "300ms", "exit_event": true})).await;
    assert!(text(&chunks, "stderr").contains("timeout of 300ms"), "{chunks:?}");
    assert_eq!(chunks.last().unwrap(), &json!({"stream": "exit", "data": "124", "timed_out": true}));
}

#[tokio::test]
async fn chunks_come_as_they_are_written() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let body = json!({"command": "echo first; cat /tmp/fifo", "stream": true});
    server.output(&id, "mkfifo /tmp/fifo").await;
    let answer = server.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&body).send().await.unwrap();
    let mut bytes = answer.bytes_stream();
    let first = bytes.next().await.unwrap().unwrap();
    assert_eq!(first, "{\"stream\":\"stdout\",\"data\":\"first\\n\"}\n", "before the command has ended");
    server.output(&id, "echo second > /tmp/fifo").await;
    assert_eq!(bytes.next().await.unwrap().unwrap(), "{\"stream\":\"stdout\",\"data\":\"second\\n\"}\n");
}

#[tokio::test]
async fn ten_thousand_lines_in_one_write_arrive_complete() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let chunks = stream(&server, &id, json!({"command": "seq 1 10000 > /tmp/n; cat /tmp/n"})).await;
    let expected: String = (1..=10_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(text(&chunks, "stdout"), expected);
}

#[tokio::test]
async fn a_caller_that_hangs_up_has_its_command_killed_streamed_or_not() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    for is_stream in [false, true] {
        let body = json!({"command": "touch /tmp/started; sleep 4321", "stream": is_stream});
        let call = server.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&body).send();
        let hung_up = tokio::spawn(async move {
            let answer = call.await;
            if let Ok(answer) = answer {
                let _ = answer.bytes().await;
            }
        });
        server.until("the start", async || server.exec(&id, "rm /tmp/started").await["exit_code"] == 0).await;
        hung_up.abort();
        server.until("its end", async || server.exec(&id, "pgrep -f '[s]leep 4321'").await["exit_code"] == 1).await;
    }
}

#[tokio::test]
async fn a_box_that_is_destroyed_ends_its_streams_with_a_word() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let body = json!({"command": "echo a; sleep 60", "stream": true});
    let answer = server.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&body).send().await.unwrap();
    let mut bytes = answer.bytes_stream();
    bytes.next().await.unwrap().unwrap();
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    let last = bytes.next().await.unwrap().unwrap();
    let last: Value = serde_json::from_slice(&last).unwrap();
    assert_eq!(last["stream"], "stderr");
    assert!(last["data"].as_str().unwrap().contains("the sandbox ended"), "{last}");
    assert!(bytes.next().await.is_none());
}

#[tokio::test]
async fn a_reader_that_stops_reading_stops_its_command_and_the_servers_memory_stays_flat() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    server.exec(&id, "true").await;
    let before = server.resident_kib();
    let body = json!({"command": "cat /dev/zero", "stream": true, "encoding": "base64"});
    let mut stalled = Vec::new();
    for _ in 0..4 {
        let answer = server.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&body).send().await.unwrap();
        let mut bytes = answer.bytes_stream();
        bytes.next().await.unwrap().unwrap();
        stalled.push(bytes);
    }
    // The stall is final once all writers sleep in their pipes.
    server
        .until("the stall", async || {
            server.output(&id, "cat /proc/[0-9]*/stat | grep -c '(cat) S' || true").await.trim() == "4"
        })
        .await;
    assert_eq!(server.output(&id, "echo still here").await, "still here\n");
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 48 * 1024, "the server grew by {grown} KiB");
    drop(stalled);
    server.until("their end", async || server.exec(&id, "pgrep -x cat").await["exit_code"] == 1).await;
}

#[tokio::test]
async fn a_long_stream_arrives_whole_with_flat_memory() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    server.exec(&id, "true").await;
    let before = server.resident_kib();
    let body =
        json!({"command": "head -c 268435456 /dev/zero", "stream": true, "encoding": "base64", "timeout": "10m"});
    let answer = server.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&body).send().await.unwrap();
    let (mut bytes, mut received, mut most) = (answer.bytes_stream(), 0u64, before);
    while let Some(piece) = bytes.next().await {
        let was = received;
        received += piece.unwrap().len() as u64;
        if was >> 24 != received >> 24 {
            most = most.max(server.resident_kib());
        }
    }
    assert!(received > 268_435_456 / 3 * 4, "{received} bytes of NDJSON hold less than was written");
    assert!(most - before < 48 * 1024, "the server grew by {} KiB", most - before);
}

#[tokio::test]
async fn a_command_ended_by_the_memory_limit_is_reported_as_such() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn_with(json!({"memory_mb": 64})).await;
    let other = server.spawn().await;
    let result = server.exec(&id, "python3 -c 'x = bytearray(512 << 20); print(len(x))'").await;
    assert_eq!((&result["oom_killed"], &result["exit_code"]), (&json!(true), &json!(137)), "{result}");
    assert_eq!(server.output(&id, "echo alive").await, "alive\n", "the box goes on");
    assert_eq!(server.output(&other, "echo alive").await, "alive\n");
}

#[tokio::test]
async fn a_command_at_the_limit_of_processes_is_reported_as_such() {
    let server = TestServer::start(NATIVE).await;
    let few = server.spawn_with(json!({"pids": 32})).await;
    let many = server.spawn_with(json!({"pids": 600})).await;
    let threads = "python3 -c 'import threading, time\nfor n in range(300): threading.Thread(target=time.sleep, args=(3,), daemon=True).start()\nprint(1)'";
    let result = server.exec(&many, threads).await;
    assert_eq!((&result["exit_code"], result.get("pids_exhausted")), (&json!(0), None), "{result}");
    let result = server.exec(&few, threads).await;
    assert_eq!((&result["exit_code"], &result["pids_exhausted"]), (&json!(1), &json!(true)), "{result}");
    let result = server.exec(&few, "true").await;
    assert_eq!(result.get("pids_exhausted"), None, "{result}");
}

#[tokio::test]
async fn the_exit_code_is_a_trailer_too() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let address = server.url.strip_prefix("http://").unwrap();
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let body = r#"{"command":"exit 5","stream":true}"#;
    let head = format!(
        "POST /api/v1/sandboxes/{id}/exec HTTP/1.1\r\nHost: {address}\r\nTE: trailers\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("0\r\nx-exit-code: 5\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn binary_output_without_a_last_newline_is_kept_in_a_buffered_answer() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/exec");
    let answer: Answer =
        server.post(&path, json!({"command": r"printf '\000\377no newline'", "encoding": "base64"})).await;
    assert_eq!(BASE64.decode(answer.ok()["stdout"].as_str().unwrap()).unwrap(), b"\0\xffno newline");
}

/// Sends a request that accepts frames, and returns the payloads of all frames by kind, with the messages.
async fn frames(request: reqwest::RequestBuilder) -> ([Vec<u8>; 2], Vec<Value>, Option<String>) {
    let answer = request.header("accept", "application/octet-stream").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/octet-stream");
    let process = answer.headers().get("x-process-id").map(|number| number.to_str().unwrap().to_owned());
    let body = answer.bytes().await.unwrap();
    let (mut rest, mut output, mut messages) = (&body[..], [Vec::new(), Vec::new()], Vec::new());
    while let Some((&[kind, ref length @ ..], after)) = rest.split_first_chunk::<5>() {
        let (payload, after) = after.split_at(u32::from_be_bytes(*length) as usize);
        match kind {
            0 if payload.is_empty() => {}
            0 => messages.push(serde_json::from_slice(payload).unwrap()),
            kind => output[usize::from(kind) - 1].extend_from_slice(payload),
        }
        rest = after;
    }
    assert!(rest.is_empty(), "whole frames only");
    (output, messages, process)
}

#[tokio::test]
async fn a_raw_stream_carries_every_byte_and_the_exit() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/exec");
    let exec = async |body: Value| frames(server.request(Method::POST, &path).json(&body)).await;
    let all = "python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)) * 20000)'; printf '\\377' >&2; exit 9";
    let ([stdout, stderr], messages, _) = exec(json!({"command": all, "stream": true})).await;
    let wanted: Vec<u8> = (0..=255).collect::<Vec<u8>>().repeat(20_000);
    assert!(stdout == wanted, "{} bytes", stdout.len());
    assert_eq!(stderr, [0xff]);
    assert_eq!(messages, [json!({"type": "exit", "exit_code": 9})]);
    let ([_, stderr], messages, _) = exec(json!({"command": "sleep 60", "stream": true, "timeout": "100ms"})).await;
    assert!(String::from_utf8_lossy(&stderr).contains("100ms"), "{stderr:?}");
    assert_eq!(messages, [json!({"type": "exit", "exit_code": 124, "timed_out": true})]);
    // What is not streamed has its one form.
    let request = server.request(Method::POST, &path).header("accept", "application/octet-stream");
    let answer = Answer::read(request.json(&json!({"command": "echo hi"})).send().await.unwrap()).await;
    assert_eq!(answer.ok()["stdout"], "hi\n");
}

#[tokio::test]
async fn a_raw_stream_with_numbers_is_read_on_from_any_byte() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let start = server.request(Method::POST, &format!("/sandboxes/{id}/exec"));
    let body = json!({"command": "printf 0123456789; exit 5", "stream": true, "resumable": true});
    let ([stdout, _], messages, process) = frames(start.json(&body)).await;
    assert_eq!(stdout, b"0123456789");
    let exit = json!({"type": "exit", "exit_code": 5});
    assert_eq!(messages, [json!({"type": "position", "seq": 0}), exit.clone()]);
    let path = format!("/sandboxes/{id}/processes/{}/output?from=7", process.unwrap());
    let ([stdout, _], messages, _) = frames(server.request(Method::GET, &path)).await;
    assert_eq!(stdout, b"789");
    assert_eq!(messages, [json!({"type": "position", "seq": 7}), exit]);
}
