//! Commands in the background.

use std::time::Duration;

use base64::Engine as _;
use client::api::ExecRequest;
use client::{Client, ExecEvent, ProcessEvent};
use serde_json::{Value, json};

use crate::server::{MOCK, NATIVE, TestServer, free_port};

async fn start(server: &TestServer, id: &str, body: Value) -> u64 {
    let mut body = body;
    body["background"] = json!(true);
    let answer = server.post(&format!("/sandboxes/{id}/exec"), body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    answer.json()["process_id"].as_u64().unwrap()
}

/// Reads the lines of a process's output.
async fn output(server: &TestServer, id: &str, process: impl std::fmt::Display, query: &str) -> Vec<Value> {
    let answer = server.get(&format!("/sandboxes/{id}/processes/{process}/output?{query}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    std::str::from_utf8(&answer.bytes).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(lines: &[Value]) -> String {
    let written = lines.iter().filter(|line| ["stdout", "stderr"].contains(&line["stream"].as_str().unwrap()));
    written.map(|line| line["data"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_process_lives_from_its_start_to_its_removal() {
    lives_from_start_to_removal(NATIVE).await;
}

#[tokio::test]
async fn a_process_in_memory_lives_from_its_start_to_its_removal() {
    lives_from_start_to_removal(MOCK).await;
}

async fn lives_from_start_to_removal(settings: &str) {
    let server = TestServer::start(settings).await;
    let id = server.spawn().await;
    let line = "echo one; read more; echo $more >&2; exit 4";
    let process = start(&server, &id, json!({"command": line, "name": "job", "stdin_open": true})).await;
    server.until("the first line is there", async || text(&output(&server, &id, "job", "").await) == "one\n").await;
    let lines = output(&server, &id, process, "").await;
    assert_eq!(lines, [json!({"stream": "stdout", "data": "one\n", "seq": 4})]);
    let listed = server.get(&format!("/sandboxes/{id}/processes")).await.ok();
    let one = server.get(&format!("/sandboxes/{id}/processes/job")).await.ok();
    assert_eq!(listed, json!([one]));
    assert_eq!((&one["state"], &one["name"], &one["last_seq"]), (&json!("running"), &json!("job"), &json!(4)));
    assert!(one["command"].as_str().unwrap().contains("read more"), "{one}");
    let path = format!("/sandboxes/{id}/processes/job");
    server.post(&format!("{path}/stdin"), json!({"data": "dHdvCg==", "encoding": "base64"})).await.ok();
    let lines = output(&server, &id, "job", "from=4&follow=true").await;
    assert_eq!(
        lines,
        [json!({"stream": "stderr", "data": "two\n", "seq": 8}), json!({"stream": "exit", "data": "4", "seq": 8}),]
    );
    let ended = server.get(&path).await.ok();
    assert_eq!((&ended["state"], &ended["exit_code"], ended.get("pid")), (&json!("exited"), &json!(4), None));
    server.delete(&path).await.ok();
    server.get(&path).await.refused(404, "not_found", "`job`");
    server.delete(&path).await.refused(404, "not_found", "`job`");
}

#[tokio::test]
async fn a_process_that_is_not_wanted_so_is_refused() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let exec = format!("/sandboxes/{id}/exec");
    for (body, words) in [
        (json!({"background": true, "stream": true}), "cannot be combined"),
        (json!({"background": true, "exit_event": true}), "exit_event"),
        (json!({"background": true, "resumable": true, "stream": true}), "cannot be combined"),
        (json!({"resumable": true}), "stream"),
        (json!({"name": "x"}), "background"),
        (json!({"tty": true}), "exec/ws"),
        (json!({"linger": "1s"}), "background"),
        (json!({"stdin_open": true}), "background"),
        (json!({"background": true, "cols": 80}), "tty"),
        (json!({"background": true, "tty": true, "rows": 0}), "at least 1"),
        (json!({"background": true, "tty": true, "rows": 65536}), "rows"),
        (json!({"background": true, "linger": "0s"}), "linger"),
        (json!({"background": true, "timeout": "soon"}), "timeout"),
        (json!({"background": true, "name": "7"}), "letter"),
        (json!({"background": true, "name": "a/b"}), "letters"),
        (json!({"background": true, "workdir": "/nowhere"}), "workdir"),
    ] {
        let mut body = body;
        body["command"] = json!("true");
        let answer = server.post(&exec, body.clone()).await;
        if words == "workdir" {
            assert_eq!(answer.status, 400, "{body}: {answer:?}");
        } else {
            answer.refused(400, "bad_request", words);
        }
    }
    let job = json!({"command": "sleep 100", "name": "job"});
    let process = start(&server, &id, job.clone()).await;
    let mut again = job;
    again["background"] = json!(true);
    server.post(&exec, again).await.refused(409, "conflict", "job");
    let path = format!("/sandboxes/{id}/processes/{process}");
    server.get(&format!("{path}/output?from=1")).await.refused(400, "bad_request", "0 bytes so far");
    server.get(&format!("{path}/output?from=-1")).await.refused(400, "bad_request", "from");
    server.post(&format!("{path}/stdin"), json!({"data": "x"})).await.refused(409, "conflict", "stdin");
    server.post(&format!("{path}/stdin"), json!({"data": "?", "encoding": "base64"})).await.refused(
        400,
        "bad_request",
        "base64",
    );
    server.post(&format!("{path}/resize"), json!({"cols": 1, "rows": 1})).await.refused(400, "bad_request", "terminal");
    server.post(&format!("{path}/signal"), json!({"signal": "SIGNONE"})).await.refused(400, "bad_request", "SIGNONE");
    for unknown in ["99", "none", "18446744073709551615"] {
        let path = format!("/sandboxes/{id}/processes/{unknown}");
        server.get(&path).await.refused(404, "not_found", unknown);
        server.post(&format!("{path}/signal"), json!({"signal": "TERM"})).await.refused(404, "not_found", unknown);
        server.get(&format!("{path}/output")).await.refused(404, "not_found", "process");
    }
    server.get(&format!("/sandboxes/{id}/processes/18446744073709551616")).await.refused(400, "bad_request", "number");
    server.post(&format!("{path}/signal"), json!({"signal": "TERM"})).await.ok();
    let lines = output(&server, &id, process, "follow=true").await;
    assert_eq!(lines.last().unwrap()["data"], "143");
}

#[tokio::test]
async fn a_process_that_is_read_keeps_its_sandbox_awake_and_one_that_is_not_rests_with_it() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let line = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done";
    let process = start(&server, &id, json!({"command": line})).await.to_string();
    let client = Client::new(&server.url, None, None).unwrap();
    let mut reader = client.process_output(&id, &process, 0, true).await.unwrap();
    reader.next().await.unwrap().unwrap();
    let pause = format!("/sandboxes/{id}/pause");
    server.post(&pause, json!({})).await.refused(409, "conflict", "process_attach");
    let seq = reader.seq();
    drop(reader);
    server.until("the reader is gone", async || server.post(&pause, json!({})).await.status == 200).await;
    assert_eq!(server.get(&format!("/sandboxes/{id}")).await.ok()["state"], "paused");
    // The next look wakes it, and goes on where the last one was.
    let mut reader = client.process_output(&id, &process, seq, true).await.unwrap();
    assert!(matches!(reader.next().await.unwrap(), Some(ProcessEvent::Stdout(_))));
    assert_eq!(server.get(&format!("/sandboxes/{id}")).await.ok()["state"], "running");
}

#[tokio::test]
async fn a_provider_without_terminals_says_so_and_starts_no_process() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let body = json!({"command": "true", "background": true, "tty": true});
    server.post(&format!("/sandboxes/{id}/exec"), body).await.refused(400, "not_supported", "terminals");
    assert_eq!(server.get(&format!("/sandboxes/{id}/processes")).await.ok(), json!([]));
}

#[tokio::test]
async fn no_line_is_lost_or_comes_twice_though_the_server_is_killed() {
    let mut server = TestServer::start(&format!("{NATIVE} server.port={}", free_port())).await;
    let id = server.spawn().await;
    let line = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo line $i; done; echo over >&2; sleep 0.2; exit 3";
    let process = start(&server, &id, json!({"command": line})).await;
    let expected: String = (1..=20_000).map(|n| format!("line {n}\n")).collect();
    let client = Client::new(&server.url, None, None).unwrap();
    let (mut seen, mut seq) = (String::new(), 0);
    let mut exit = None;
    for round in 0.. {
        let mut reader = client.process_output(&id, &process.to_string(), seq, true).await.unwrap();
        loop {
            match reader.next().await {
                Ok(Some(ProcessEvent::Stdout(bytes))) => seen.push_str(std::str::from_utf8(&bytes).unwrap()),
                Ok(Some(ProcessEvent::Stderr(bytes))) => assert_eq!(&bytes[..], b"over\n"),
                Ok(Some(ProcessEvent::Exit(ended))) => exit = Some(ended.code),
                Ok(Some(event)) => panic!("{event:?}"),
                Ok(None) => break,
                Err(error) => panic!("{error}"),
            }
            if round < 2 && reader.seq() > (round + 1) * 40_000 {
                break;
            }
        }
        seq = reader.seq();
        if exit.is_some() {
            break;
        }
        server.kill();
        server.launch().await;
    }
    assert_eq!(exit, Some(3));
    assert!(seen == expected, "{} of {} bytes", seen.len(), expected.len());
}

/// Starts a server whose boxes another server makes, which is the second.
async fn near_and_far() -> (TestServer, TestServer) {
    let far = TestServer::start(&format!("{NATIVE} server.port={}", free_port())).await;
    let settings = format!(
        "providers.native.enabled=false providers.custom.enabled=true providers.custom.base_url={} \
         providers.default=custom server.port={}",
        far.url,
        free_port()
    );
    (TestServer::start(&settings).await, far)
}

#[tokio::test]
async fn a_resumable_stream_goes_on_after_the_server_was_killed() {
    let mut server = TestServer::start(&format!("{NATIVE} server.port={}", free_port())).await;
    goes_on_after_kills(&mut server, None).await;
}

#[tokio::test]
async fn a_resumable_stream_of_another_services_box_goes_on_after_either_server_was_killed() {
    let (mut near, mut far) = near_and_far().await;
    goes_on_after_kills(&mut near, Some(&mut far)).await;
}

/// Reads a stream while the server is killed, and then the one behind it.
async fn goes_on_after_kills(server: &mut TestServer, mut behind: Option<&mut TestServer>) {
    let id = server.spawn().await;
    let client = Client::new(&server.url, None, None).unwrap();
    let line = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i; sleep 0.01; done; exit 5";
    let request = ExecRequest { command: line.to_owned(), ..ExecRequest::default() };
    let mut stream = client.exec_resumable(&id, request.clone()).await.unwrap();
    let mut seen = String::new();
    let (mut killed, mut killed_behind) = (false, behind.is_none());
    let code = loop {
        match stream.next().await.unwrap().unwrap() {
            ExecEvent::Stdout(bytes) => seen.push_str(std::str::from_utf8(&bytes).unwrap()),
            ExecEvent::Stderr(bytes) => panic!("{bytes:?}"),
            ExecEvent::Exit(exit) => break exit.code,
        }
        if !killed && seen.contains("line 50\n") {
            killed = true;
            server.kill();
            server.launch().await;
        }
        if !killed_behind
            && seen.contains("line 150\n")
            && let Some(behind) = &mut behind
        {
            killed_behind = true;
            behind.kill();
            behind.launch().await;
        }
    };
    assert_eq!((code, killed, killed_behind), (5, true, true));
    assert!(seen == (1..=300).map(|n| format!("line {n}\n")).collect::<String>(), "{seen}");
    let mut left = client.exec_resumable(&id, request).await.unwrap();
    left.next().await.unwrap();
    left.kill().await.unwrap();
    let running = client.processes(&id).await.unwrap().into_iter().filter(|process| process.exit_code.is_none());
    assert_eq!(running.count(), 0);
}

#[tokio::test]
async fn a_resumable_stream_waits_for_a_slow_client_and_loses_nothing() {
    waits_for_a_slow_client(&TestServer::start(NATIVE).await).await;
}

#[tokio::test]
async fn a_resumable_stream_of_another_services_box_waits_for_a_slow_client_and_loses_nothing() {
    let (near, _far) = near_and_far().await;
    waits_for_a_slow_client(&near).await;
}

async fn waits_for_a_slow_client(server: &TestServer) {
    let id = server.spawn().await;
    let client = Client::new(&server.url, None, None).unwrap();
    let request = ExecRequest { command: "seq 1 6000000".to_owned(), ..ExecRequest::default() };
    let mut stream = client.exec_resumable(&id, request).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    // Long enough for all of it, if the command did not wait.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let process = client.processes(&id).await.unwrap().remove(0);
    assert!(process.exit_code.is_none() && process.last_seq < 40_000_000, "{process:?}");
    let ExecEvent::Stdout(first) = first else { panic!("{first:?}") };
    let mut seen = first.to_vec();
    while let Some(event) = stream.next().await.unwrap() {
        if let ExecEvent::Stdout(bytes) = event {
            seen.extend_from_slice(&bytes);
        }
    }
    assert!(seen == (1..=6_000_000).map(|n| format!("{n}\n")).collect::<String>().into_bytes());
}

#[tokio::test]
async fn a_line_that_breaks_again_and_again_loses_nothing() {
    reads_on_where_it_broke(&TestServer::start(NATIVE).await).await;
}

#[tokio::test]
async fn a_line_to_another_services_box_that_breaks_again_and_again_loses_nothing() {
    let (near, _far) = near_and_far().await;
    reads_on_where_it_broke(&near).await;
}

/// Reads a resumable stream of less than is kept, of which each line breaks under a slow client.
async fn reads_on_where_it_broke(server: &TestServer) {
    let id = server.spawn().await;
    let body = json!({"command": "seq 1 250000; echo over >&2; exit 3", "stream": true, "resumable": true,
        "exit_event": true, "encoding": "base64"});
    let path = format!("/sandboxes/{id}/exec");
    let mut answer = server.request(reqwest::Method::POST, &path).json(&body).send().await.unwrap();
    let process = answer.headers()["x-process-id"].to_str().unwrap().to_owned();
    // Apart, because the order of what a command writes to two pipes is not kept.
    let mut stdout = Vec::new();
    let mut stderr = Vec::new();
    let mut seq = 0;
    let mut exit = None;
    while exit.is_none() {
        let (mut line, mut lines) = (Vec::new(), 0);
        'broken: while let Some(piece) = answer.chunk().await.unwrap() {
            for byte in piece {
                line.push(byte);
                if byte != b'\n' {
                    continue;
                }
                let chunk: Value = serde_json::from_slice(&std::mem::take(&mut line)).unwrap();
                let data = chunk["data"].as_str().unwrap();
                let seen = match chunk["stream"].as_str().unwrap() {
                    "exit" => None,
                    "stdout" => Some(&mut stdout),
                    "stderr" => Some(&mut stderr),
                    other => panic!("{other}: {chunk}"),
                };
                match seen {
                    Some(seen) => {
                        let bytes = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
                        seq += bytes.len() as u64;
                        seen.extend(bytes);
                    }
                    None => exit = Some(data.to_owned()),
                }
                assert_eq!(chunk["seq"], seq);
                lines += 1;
                if lines == 3 {
                    break 'broken;
                }
            }
        }
        let output = format!("/sandboxes/{id}/processes/{process}/output?follow=true&from={seq}&encoding=base64");
        answer = server.request(reqwest::Method::GET, &output).send().await.unwrap();
    }
    let expected = (1..=250_000).map(|n| format!("{n}\n")).collect::<String>();
    assert!(String::from_utf8(stdout).unwrap() == expected, "all of stdout came, in order");
    assert_eq!((&*stderr, exit.as_deref()), (&b"over\n"[..], Some("3")));
}
