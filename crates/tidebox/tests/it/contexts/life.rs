//! Contexts from their making to their end.

use client::Client;
use client::api::{RunLine, RunRequest};
use serde_json::json;

use super::{Run, context, run, run_in};
use crate::server::{MOCK, NATIVE, TestServer};

fn code(text: &str) -> RunRequest {
    RunRequest { code: text.to_owned(), ..RunRequest::default() }
}

#[tokio::test]
async fn a_server_that_was_killed_finds_contexts_with_their_state_again() {
    let mut server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    run(&server, &id, "python", "x = 41").await;
    let other = context(&server, &id, json!({"language": "bash", "workdir": "/tmp"})).await;
    let before = server.get(&format!("/sandboxes/{id}/contexts")).await.ok();
    server.kill();
    server.launch().await;
    assert_eq!(server.get(&format!("/sandboxes/{id}/contexts")).await.ok(), before);
    assert_eq!(run(&server, &id, "python", "x + 1").await.value(), "42");
    assert_eq!(run_in(&server, &id, &other, json!({"code": "pwd"})).await.stdout(), "/tmp\n");
}

#[tokio::test]
async fn a_run_that_a_killed_server_began_ends_before_the_next() {
    let mut server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let client = Client::new(&server.url, None, None).unwrap();
    let request = code(
        "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nx = 1",
    );
    let mut stream = client.run_code(&id, None, &request).await.unwrap();
    while !matches!(stream.next().await.unwrap(), Some(RunLine::Stdout { .. })) {}
    server.kill();
    server.launch().await;
    let next = async { run(&server, &id, "python", "x").await };
    let go = async { server.output(&id, "touch /tmp/go").await };
    let (next, _) = tokio::join!(next, go);
    assert_eq!((next.value(), next.stdout().as_str()), ("1", ""), "{next:?}");
}

#[tokio::test]
async fn runs_in_one_context_wait_for_one_another_and_contexts_run_side_by_side() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    run(&server, &id, "python", "log = []").await;
    let other = context(&server, &id, json!({"language": "python"})).await;
    // Each waits for a file that the other context writes, or comes after.
    let first = "import os, time\nlog.append(1)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nlog.append(1)";
    let runs = async { tokio::join!(run(&server, &id, "python", first), run(&server, &id, "python", "log.append(2)")) };
    let beside = async {
        server
            .until("the first run is under way", async || {
                server.get(&format!("/sandboxes/{id}/contexts/python")).await.ok()["state"] == "busy"
            })
            .await;
        run_in(&server, &id, &other, json!({"code": "open('/tmp/go', 'w')"})).await
    };
    let ((first, second), beside) = tokio::join!(runs, beside);
    assert_eq!([first.outcome(), second.outcome(), beside.outcome()], ["ok"; 3]);
    let log = run(&server, &id, "python", "log").await;
    assert!(["[1, 1, 2]", "[2, 1, 1]"].contains(&log.value()), "{log:?}");
}

#[tokio::test]
async fn a_request_interrupts_code_and_the_state_stays() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let client = Client::new(&server.url, None, None).unwrap();
    assert_eq!(run(&server, &id, "python", "x = 5").await.outcome(), "ok");
    assert_eq!(client.interrupt_context(&id, "python").await.unwrap().status, "idle");
    let mut stream =
        client.run_code(&id, Some("python"), &code("print('in', flush=True)\nwhile True: pass")).await.unwrap();
    while !matches!(stream.next().await.unwrap(), Some(RunLine::Stdout { .. })) {}
    let mut rest = Vec::new();
    // Python may lose an interrupt that comes before it waits for something, as any program may.
    let mut interrupts = tokio::time::interval(std::time::Duration::from_secs(2));
    while rest.len() < 2 {
        tokio::select! {
            line = stream.next() => rest.push(line.unwrap().expect("there is an end")),
            _ = interrupts.tick() => {
                assert_eq!(client.interrupt_context(&id, "python").await.unwrap().status, "interrupted");
            }
        }
    }
    let [RunLine::Error { name, .. }, RunLine::End { outcome, .. }] = &rest[..] else { panic!("{rest:?}") };
    assert_eq!((name.as_str(), *outcome), ("KeyboardInterrupt", client::api::RunOutcome::Interrupted));
    assert_eq!(run(&server, &id, "python", "x").await.value(), "5");
}

#[tokio::test]
async fn who_hangs_up_interrupts_the_code() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let client = Client::new(&server.url, None, None).unwrap();
    let endless = "import time\nx = 5\nprint('in', flush=True)\ntry:\n    while True: time.sleep(0.01)\nexcept KeyboardInterrupt:\n    x = 6";
    let mut stream = client.run_code(&id, None, &code(endless)).await.unwrap();
    while !matches!(stream.next().await.unwrap(), Some(RunLine::Stdout { .. })) {}
    drop(stream);
    assert_eq!(run(&server, &id, "python", "x").await.value(), "6");
}

#[tokio::test]
async fn code_that_ignores_interrupts_is_ended_with_its_interpreter() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let stubborn = "import time\nx = 1\nwhile True:\n    try:\n        while True: time.sleep(0.01)\n    except KeyboardInterrupt: pass";
    let body = json!({"code": stubborn, "timeout": "300ms"});
    let stopped = Run::of(&server.post(&format!("/sandboxes/{id}/run"), body).await);
    let end = stopped.first("end");
    assert_eq!((&end["outcome"], &end["restarted"]), (&json!("timed_out"), &json!(true)), "{stopped:?}");
    assert_eq!(run(&server, &id, "python", "x").await.error(), "NameError");
}

#[tokio::test]
async fn a_restart_and_a_deletion_end_the_code_under_way() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let client = Client::new(&server.url, None, None).unwrap();
    let begin = async |context: &str| {
        let mut stream = client.run_code(&id, Some(context), &code("echo in; sleep 1000")).await.unwrap();
        while !matches!(stream.next().await.unwrap(), Some(RunLine::Stdout { .. })) {}
        stream
    };
    let rest = async |mut stream: client::RunStream| {
        let mut rest = Vec::new();
        while let Some(line) = stream.next().await.unwrap() {
            rest.push(line);
        }
        rest
    };
    let one = context(&server, &id, json!({"language": "bash"})).await;
    let stream = begin(&one).await;
    let waiting = code("echo never");
    let waiting = client.run_code(&id, Some(&one), &waiting);
    let restart = async {
        // The other run waits by then, or comes after: both are right, and the first is what is hard.
        tokio::task::yield_now().await;
        client.restart_context(&id, &one).await.unwrap()
    };
    let (waiting, restarted) = tokio::join!(waiting, restart);
    assert_eq!(restarted.state, client::api::ContextState::Idle);
    if let Err(refused) = waiting {
        assert!(refused.is_code("conflict"), "{refused}");
    }
    let ended = rest(stream).await;
    let [RunLine::Error { name, value, .. }, RunLine::End { .. }] = &ended[..] else { panic!("{ended:?}") };
    assert!(name == "KernelDied" && value.contains("a request"), "{ended:?}");

    let stream = begin(&one).await;
    client.delete_context(&id, &one).await.unwrap();
    assert!(matches!(rest(stream).await.last(), Some(RunLine::End { .. })));
    let gone = client.run_code(&id, Some(&one), &code("true")).await.unwrap_err();
    assert!(gone.is_code("not_found"), "{gone}");
    assert_eq!(server.output(&id, "ps ax | grep -c '[s]leep 1000' || true").await, "0\n");
}

#[tokio::test]
async fn code_is_completed_by_the_state_of_its_context() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    run(&server, &id, "python", "wave_length = 5").await;
    let complete =
        async |context: &str, body| server.post(&format!("/sandboxes/{id}/contexts/{context}/complete"), body).await;
    let found = complete("python", json!({"code": "é = wave_l + 1", "cursor": 10})).await.ok();
    assert_eq!((&found["start"], &found["matches"]), (&json!(4), &json!(["wave_length"])), "{found}");
    complete("python", json!({"code": "wave_l", "cursor": 99})).await.ok();
    complete("r", json!({"code": "x"})).await.refused(404, "not_found", "context `r`");
}

#[tokio::test]
async fn runs_are_counted_as_operations_whether_their_code_fails_or_not() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    run(&server, &id, "python", "1").await;
    run(&server, &id, "python", "1 / 0").await;
    let metrics = server.get("/metrics").await.ok();
    let operations = metrics["operations"].as_array().unwrap();
    let counted = operations.iter().find(|operation| operation["operation"] == "context_run").unwrap();
    assert_eq!(counted["success_total"], 2, "{counted}");
}

#[tokio::test]
async fn a_sandbox_that_ends_ends_the_run_with_it() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let client = Client::new(&server.url, None, None).unwrap();
    let mut stream = client.run_code(&id, None, &code("print('in', flush=True)\nwhile True: pass")).await.unwrap();
    while !matches!(stream.next().await.unwrap(), Some(RunLine::Stdout { .. })) {}
    client.destroy(&id).await.unwrap();
    let mut rest = Vec::new();
    while let Some(line) = stream.next().await.unwrap() {
        rest.push(line);
    }
    let [RunLine::Error { name, .. }, RunLine::End { .. }] = &rest[..] else { panic!("{rest:?}") };
    assert_eq!(name, "SandboxEnded");
}

#[tokio::test]
async fn a_paused_sandbox_resumes_for_a_run_and_has_its_contexts() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    run(&server, &id, "python", "x = 41").await;
    server.post(&format!("/sandboxes/{id}/pause"), json!({})).await.ok();
    assert_eq!(run(&server, &id, "python", "x + 1").await.value(), "42");
}

#[tokio::test]
async fn a_provider_without_interpreters_says_so() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let answer = server.post(&format!("/sandboxes/{id}/run"), json!({"code": "1"})).await;
    assert_eq!(answer.status, 400, "{}", answer.json());
}
