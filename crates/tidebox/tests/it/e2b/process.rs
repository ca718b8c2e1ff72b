//! `process.Process`, as E2B's SDKs call it.

use futures_util::{StreamExt, stream};
use reqwest::Body;
use serde_json::{Value, json};

use super::rpc::{Next, SOON, Sandbox, encoded, envelope};
use crate::server::{MOCK, NATIVE, TestServer};

/// The last envelope of a stream that ended well.
const WELL: Next = Next::End(None);

fn pid(pid: u64) -> Value {
    json!({"pid": pid})
}

fn input(process: u64, bytes: &[u8]) -> Value {
    json!({"process": pid(process), "input": {"stdin": encoded(bytes)}})
}

#[tokio::test]
async fn a_command_runs_as_the_user_in_the_home_and_tells_how_it_ended() {
    let server = TestServer::start(NATIVE).await;
    let sandbox = Sandbox::create(&server).await;
    let ran = sandbox.run("whoami; pwd; echo $HOME $USER $LOGNAME; echo problem >&2; exit 3").await;
    assert_eq!(ran.text(), "user\n/home/user\n/home/user user user\n");
    assert_eq!((ran.stderr.as_slice(), &ran.last), (&b"problem\n"[..], &WELL));
    let expected = json!({"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"});
    assert_eq!(ran.end, Some(expected));
    let ran = sandbox.run("true").await;
    assert_eq!(ran.end, Some(json!({"exitCode": 0, "exited": true, "status": "exit status 0"})));
    let root = [("authorization", "Basic cm9vdDo=")];
    let whoami = json!({"process": {"cmd": "whoami", "cwd": "~"}, "stdin": false});
    let ran = sandbox.stream("Start", whoami.clone(), &root).await.ran().await;
    assert_eq!(ran.text(), "root\n");
    let eve = [("authorization", "Basic ZXZlOg==")];
    let refused = sandbox.stream("Start", whoami, &eve).await.next().await;
    assert!(matches!(&refused, Next::End(Some((code, _))) if code == "unauthenticated"), "{refused:?}");
    for (process, words) in [
        (json!({"cmd": "true", "cwd": "/nowhere"}), "/nowhere"),
        (json!({"cmd": "true", "cwd": "~bob"}), "~bob"),
        (json!({}), "process.cmd"),
    ] {
        let refused = sandbox.stream("Start", json!({"process": process}), &[]).await.next().await;
        let Next::End(Some((code, message))) = refused else { panic!("{refused:?}") };
        assert!(code == "invalid_argument" && message.contains(words), "{code}: {message}");
    }
}

#[tokio::test]
async fn variables_of_one_command_do_not_reach_the_next() {
    let server = TestServer::start(NATIVE).await;
    let body = json!({"templateID": "base", "envVars": {"A": "sandbox", "B": "sandbox"}});
    let sandbox = Sandbox::create_with(&server, body).await;
    let line = "echo $A $B $C";
    let process = json!({"cmd": "/bin/bash", "args": ["-l", "-c", line], "envs": {"B": "command", "C": "command"}});
    let ran = sandbox.stream("Start", json!({"process": process, "stdin": false}), &[]).await.ran().await;
    assert_eq!(ran.text(), "sandbox command command\n");
    assert_eq!(sandbox.run(line).await.text(), "sandbox sandbox\n");
}

#[tokio::test]
async fn a_process_is_listed_with_its_command_while_it_lives() {
    let server = TestServer::start(NATIVE).await;
    let sandbox = Sandbox::create(&server).await;
    let config = json!({"cmd": "sleep", "args": ["1000"], "envs": {"A": "b"}, "cwd": "/tmp"});
    let mut tagged = sandbox.stream("Start", json!({"process": config, "tag": "my tag"}), &[]).await;
    let tagged_pid = tagged.pid().await;
    let terminal =
        json!({"process": {"cmd": "/bin/bash", "args": ["-i", "-l"]}, "pty": {"size": {"cols": 80, "rows": 24}}});
    let terminal_pid = sandbox.stream("Start", terminal, &[]).await.pid().await;
    let listed = sandbox.call("List", json!({})).await.unwrap();
    let of = |pid: u64| listed["processes"].as_array().unwrap().iter().find(|one| one["pid"] == json!(pid)).unwrap();
    assert_eq!(of(tagged_pid), &json!({"config": config, "pid": tagged_pid, "tag": "my tag"}));
    assert_eq!(of(terminal_pid)["config"]["args"], json!(["-i", "-l"]));
    let ran = sandbox.run(&format!("kill -0 {tagged_pid} && tr '\\0' ' ' < /proc/{tagged_pid}/cmdline")).await;
    assert_eq!(ran.text(), "sleep 1000 ", "the pid is that of the sandbox");
    let by_tag = json!({"process": {"tag": "my tag"}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(sandbox.call("SendSignal", by_tag.clone()).await, Ok(json!({})));
    assert_eq!(sandbox.pids().await, [terminal_pid]);
    assert_ne!(sandbox.run(&format!("kill -0 {tagged_pid}")).await.end.unwrap()["exitCode"], json!(0));
    let ran = tagged.rest(tagged_pid).await;
    let killed = json!({"exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed"});
    assert_eq!((ran.end, ran.last), (Some(killed), WELL));
    assert_eq!(sandbox.call("SendSignal", by_tag).await.unwrap_err().0, "not_found");
}

#[tokio::test]
async fn what_is_sent_to_a_process_is_checked() {
    let server = TestServer::start(NATIVE).await;
    let sandbox = Sandbox::create(&server).await;
    let without = sandbox.sh("sleep 1000").await.pid().await;
    let with = sandbox.start("sleep 1000", json!({"stdin": true})).await.pid().await;
    let pty = json!({"process": {"cmd": "/bin/sh"}, "pty": {"size": {"cols": 80, "rows": 24}}});
    let terminal = sandbox.stream("Start", pty, &[]).await.pid().await;
    let size = json!({"size": {"cols": 10, "rows": 10}});
    for (method, message, code) in [
        ("SendInput", input(without, b"x"), "internal"),
        ("SendInput", input(terminal, b"x"), "internal"),
        ("SendInput", json!({"process": pid(with), "input": {"pty": "eA=="}}), "internal"),
        ("SendInput", json!({"process": pid(with), "input": {}}), "invalid_argument"),
        ("SendInput", json!({"process": pid(with)}), "invalid_argument"),
        ("SendInput", json!({"process": pid(with), "input": {"stdin": "?"}}), "invalid_argument"),
        ("SendInput", json!({"process": {}, "input": {"stdin": "eA=="}}), "invalid_argument"),
        ("SendInput", json!({"Process": pid(with), "input": {"stdin": "eA=="}}), "invalid_argument"),
        ("CloseStdin", json!({"process": pid(terminal)}), "internal"),
        ("Update", json!({"process": pid(with), "pty": size}), "internal"),
        ("Update", json!({"process": pid(terminal), "pty": {"size": {"cols": 0, "rows": 1}}}), "invalid_argument"),
        ("SendSignal", json!({"process": pid(with), "signal": "SIGNAL_SIGHUP"}), "unimplemented"),
        ("SendSignal", json!({"process": pid(with)}), "unimplemented"),
        ("SendInput", input(999_999, b"x"), "not_found"),
        ("CloseStdin", json!({"process": pid(999_999)}), "not_found"),
        ("SendSignal", json!({"process": pid(999_999), "signal": "SIGNAL_SIGKILL"}), "not_found"),
        ("Update", json!({"process": pid(999_999)}), "not_found"),
    ] {
        let refused = sandbox.call(method, message.clone()).await.unwrap_err();
        assert_eq!(refused.0, code, "{method} {message}: {}", refused.1);
    }
    // Numbers may be text, and closing is for ever.
    let as_text = json!({"process": {"pid": with.to_string()}});
    for _ in 0..2 {
        assert_eq!(sandbox.call("CloseStdin", as_text.clone()).await, Ok(json!({})));
    }
    assert_eq!(sandbox.call("SendInput", input(with, b"x")).await.unwrap_err().0, "internal");
}

#[tokio::test]
async fn two_clients_write_to_one_stdin() {
    two_clients(NATIVE, "wc -c").await;
}

#[tokio::test]
async fn two_clients_write_to_one_stdin_in_memory() {
    two_clients(MOCK, "wc -c").await;
}

async fn two_clients(settings: &str, line: &str) {
    let server = TestServer::start(settings).await;
    let sandbox = Sandbox::create(&server).await;
    let mut stream = sandbox.start(line, json!({"stdin": true})).await;
    let process = stream.pid().await;
    let (one, other) = (vec![b'a'; 100_000], vec![b'b'; 100_000]);
    let write = |bytes: &[u8]| sandbox.call("SendInput", input(process, bytes));
    let written = tokio::join!(write(&one), write(&other));
    assert_eq!(written, (Ok(json!({})), Ok(json!({}))));
    for _ in 0..2 {
        assert_eq!(sandbox.call("CloseStdin", json!({"process": pid(process)})).await, Ok(json!({})));
    }
    assert_eq!(stream.rest(process).await.text().trim(), "200000");
}

#[tokio::test]
async fn input_is_streamed_as_it_comes() {
    let server = TestServer::start(NATIVE).await;
    let sandbox = Sandbox::create(&server).await;
    let mut stream = sandbox.start("cat", json!({"stdin": true})).await;
    let process = stream.pid().await;
    let messages = [
        json!({"start": {"process": pid(process)}}),
        json!({"data": {"input": {"stdin": encoded(b"one\n")}}}),
        json!({"keepalive": {}}),
        json!({"data": {"input": {"stdin": encoded(b"two\n")}}}),
    ];
    let post = |body: Vec<u8>| {
        let request = sandbox.request("StreamInput").header("content-type", "application/connect+json");
        request.body(body).send()
    };
    let answer = post(messages.iter().flat_map(envelope).collect()).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.bytes().await.unwrap()[..], [envelope(&json!({})), vec![2, 0, 0, 0, 2], b"{}".to_vec()].concat());
    stream.until("one\ntwo\n").await;
    for bad in [
        envelope(&messages[1]),
        messages[..1].iter().chain(&messages[..1]).flat_map(envelope).collect(),
        envelope(&json!({"start": {"process": pid(999_999)}})),
        [&envelope(&messages[0])[..], &[0, 0xff, 0xff, 0xff, 0xff]].concat(),
        [&envelope(&messages[0])[..], &[0, 0, 0]].concat(),
        [&envelope(&messages[0])[..], &[0, 0, 0, 0, 0]].concat(),
        [&envelope(&messages[0])[..], &[1, 0, 0, 0, 2, b'{', b'}']].concat(),
    ] {
        let body = post(bad.clone()).await.unwrap().bytes().await.unwrap();
        assert!(body[0] == 2 && String::from_utf8_lossy(&body).contains("\"error\""), "{bad:?}: {body:?}");
    }
    assert_eq!(sandbox.call("CloseStdin", json!({"process": pid(process)})).await, Ok(json!({})));
    assert_eq!(stream.rest(process).await.last, WELL);
}

#[tokio::test]
async fn a_stream_of_input_breaks_off_when_its_sandbox_is_killed() {
    let server = TestServer::start(NATIVE).await;
    let sandbox = Sandbox::create(&server).await;
    let mut output = sandbox.start("cat", json!({"stdin": true})).await;
    let process = output.pid().await;
    let messages =
        [json!({"start": {"process": pid(process)}}), json!({"data": {"input": {"stdin": encoded(b"one\n")}}})];
    let begun: Vec<u8> = messages.iter().flat_map(envelope).collect();
    let body = stream::once(async { Ok::<_, std::io::Error>(begun) }).chain(stream::pending());
    let request = sandbox.request("StreamInput").header("content-type", "application/connect+json");
    let sending = request.body(Body::wrap_stream(body)).send();
    let killing = async {
        output.until("one\n").await;
        let kill =
            server.http.delete(format!("{}/sandboxes/{}", server.url, sandbox.id)).header("x-api-key", "e2b_any");
        assert_eq!(kill.send().await.unwrap().status(), 204);
    };
    let (answer, ()) = tokio::time::timeout(SOON, async { tokio::join!(sending, killing) }).await.unwrap();
    // The connection may break before the head of the answer is out, or after it.
    if let Ok(answer) = answer {
        let body = answer.bytes().await;
        assert!(body.is_err(), "{body:?} is a tidy end");
    }
}

#[tokio::test]
async fn several_streams_follow_a_process_and_a_late_one_learns_of_the_end() {
    several_streams(NATIVE).await;
}

#[tokio::test]
async fn several_streams_follow_a_process_in_memory_and_a_late_one_learns_of_the_end() {
    several_streams(MOCK).await;
}

async fn several_streams(settings: &str) {
    let server = TestServer::start(settings).await;
    let sandbox = Sandbox::create(&server).await;
    let mut first = sandbox.start("echo early; read go; echo late; exit 4", json!({"stdin": true})).await;
    let process = first.pid().await;
    first.until("early\n").await;
    let connect = || sandbox.stream("Connect", json!({"process": pid(process)}), &[]);
    let mut second = connect().await;
    assert_eq!(second.pid().await, process);
    assert_eq!(sandbox.call("SendInput", input(process, b"\n")).await, Ok(json!({})));
    for stream in [first, second] {
        let ran = stream.rest(process).await;
        assert_eq!((ran.text().as_str(), ran.last), ("late\n", WELL), "a late stream gets what comes next");
        assert_eq!(ran.end.unwrap()["exitCode"], json!(4));
    }
    let ran = connect().await.ran().await;
    assert_eq!((ran.pid, ran.stdout.len(), ran.last), (process, 0, WELL));
    assert_eq!(ran.end.unwrap()["status"], json!("exit status 4"));
    assert_eq!(sandbox.pids().await, [0; 0]);
}

#[tokio::test]
async fn a_pid_of_another_sandbox_names_no_process() {
    pid_of_another(NATIVE).await;
}

#[tokio::test]
async fn a_pid_of_another_sandbox_in_memory_names_no_process() {
    pid_of_another(MOCK).await;
}

async fn pid_of_another(settings: &str) {
    let server = TestServer::start(settings).await;
    let (mine, other) = (Sandbox::create(&server).await, Sandbox::create(&server).await);
    // Of pids that both have, each means its own.
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(mine.start("sleep 1000", json!({"stdin": true})).await);
    }
    let mut process = 0;
    for stream in &mut streams {
        process = stream.pid().await;
    }
    for (method, message) in [
        ("SendInput", input(process, b"x")),
        ("CloseStdin", json!({"process": pid(process)})),
        ("SendSignal", json!({"process": pid(process), "signal": "SIGNAL_SIGKILL"})),
        ("Update", json!({"process": pid(process)})),
    ] {
        assert_eq!(other.call(method, message).await.unwrap_err().0, "not_found", "{method}");
    }
    let refused = other.stream("Connect", json!({"process": pid(process)}), &[]).await.next().await;
    assert!(matches!(&refused, Next::End(Some((code, _))) if code == "not_found"), "{refused:?}");
    let stolen = Sandbox { server: &server, id: mine.id.clone(), token: other.token.clone() };
    let answer = stolen.request("List").json(&json!({})).send().await.unwrap();
    assert_eq!(answer.status(), 401, "the token is that of another sandbox");
    assert_eq!(mine.pids().await.len(), 3);
}

#[tokio::test]
async fn a_terminal_is_resized_and_killed() {
    let server = TestServer::start(NATIVE).await;
    let sandbox = Sandbox::create(&server).await;
    let size = |cols: u32, rows: u32| json!({"size": {"cols": cols, "rows": rows}});
    let envs = json!({"TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"});
    let config = json!({"cmd": "/bin/bash", "args": ["-i", "-l"], "envs": envs});
    let mut stream = sandbox.stream("Start", json!({"process": config, "pty": size(80, 24)}), &[]).await;
    let process = stream.pid().await;
    let keys = |text: &str| json!({"process": pid(process), "input": {"pty": encoded(text.as_bytes())}});
    sandbox.call("SendInput", keys("stty size; echo $((40 + 2)) $TERM\n")).await.unwrap();
    stream.until("42 xterm-256color").await;
    assert_eq!(sandbox.call("Update", json!({"process": pid(process), "pty": size(100, 30)})).await, Ok(json!({})));
    sandbox.call("SendInput", keys("stty size\n")).await.unwrap();
    stream.until("30 100").await;
    // A command in the foreground does not keep the terminal alive.
    sandbox.call("SendInput", keys("sleep 1000\n")).await.unwrap();
    let kill = json!({"process": pid(process), "signal": "SIGNAL_SIGKILL"});
    assert_eq!(sandbox.call("SendSignal", kill).await, Ok(json!({})));
    let ran = stream.rest(process).await;
    assert_eq!((ran.end.unwrap()["exitCode"].clone(), ran.last), (json!(-1), WELL));
    assert_eq!(sandbox.pids().await, [0; 0]);
}

#[tokio::test]
async fn a_command_is_killed_at_the_deadline_of_its_call_and_goes_on_without_its_client() {
    let server = TestServer::start(NATIVE).await;
    let sandbox = Sandbox::create(&server).await;
    let process = json!({"cmd": "/bin/bash", "args": ["-c", "(sleep 1000) & sleep 1000"]});
    let brief = [("connect-timeout-ms", "500")];
    let ran = sandbox.stream("Start", json!({"process": process}), &brief).await.ran().await;
    assert!(matches!(&ran.last, Next::End(Some((code, _))) if code == "deadline_exceeded"), "{ran:?}");
    server.until("all of it is gone", async || sandbox.run("pgrep sleep").await.text().is_empty()).await;
    let mut left = sandbox.start("sleep 1; echo done > /tmp/done; sleep 1000", json!({})).await;
    let process = left.pid().await;
    drop(left);
    server.until("it goes on", async || sandbox.run("cat /tmp/done").await.text() == "done\n").await;
    // The deadline of a stream that was joined ends the stream alone.
    let joined = sandbox.stream("Connect", json!({"process": pid(process)}), &brief).await.ran().await;
    assert!(matches!(&joined.last, Next::End(Some((code, _))) if code == "deadline_exceeded"), "{joined:?}");
    assert_eq!(sandbox.pids().await, [process]);
    let term = json!({"process": pid(process), "signal": "SIGNAL_SIGTERM"});
    assert_eq!(sandbox.call("SendSignal", term).await, Ok(json!({})));
    let ended = sandbox.stream("Connect", json!({"process": pid(process)}), &[]).await.ran().await.end.unwrap();
    assert_eq!(ended["status"], json!("signal: terminated"));
}

#[tokio::test]
async fn a_grandchild_that_holds_the_output_does_not_delay_the_end_of_a_kill() {
    let server = TestServer::start(NATIVE).await;
    let sandbox = Sandbox::create(&server).await;
    let mut stream = sandbox.start("setsid sleep 1000 & echo up; sleep 1000", json!({})).await;
    let process = stream.pid().await;
    stream.until("up").await;
    let started = std::time::Instant::now();
    let kill = json!({"process": pid(process), "signal": "SIGNAL_SIGKILL"});
    assert_eq!(sandbox.call("SendSignal", kill).await, Ok(json!({})));
    assert_eq!(stream.rest(process).await.end.unwrap()["status"], json!("signal: killed"));
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_stream_breaks_off_when_its_sandbox_is_killed() {
    breaks_off(NATIVE).await;
}

#[tokio::test]
async fn a_stream_in_memory_breaks_off_when_its_sandbox_is_killed() {
    breaks_off(MOCK).await;
}

async fn breaks_off(settings: &str) {
    let server = TestServer::start(settings).await;
    let sandbox = Sandbox::create(&server).await;
    let mut stream = sandbox.sh("echo up; sleep 1000").await;
    let process = stream.pid().await;
    stream.until("up").await;
    let killed = server.http.delete(format!("{}/sandboxes/{}", server.url, sandbox.id)).header("x-api-key", "e2b_any");
    assert_eq!(killed.send().await.unwrap().status(), 204);
    let ran = stream.rest(process).await;
    assert_eq!((ran.end, ran.last), (None, Next::Broken), "no tidy end");
    let answer = sandbox.request("List").json(&json!({})).send().await.unwrap();
    assert_eq!(answer.status(), 502);
}

#[tokio::test]
async fn messages_of_several_mebibytes_are_taken_and_larger_ones_refused() {
    let server = TestServer::start(NATIVE).await;
    let sandbox = Sandbox::create(&server).await;
    let mut stream = sandbox.start("wc -c", json!({"stdin": true})).await;
    let process = stream.pid().await;
    let bytes = vec![b'x'; 4 * 1024 * 1024];
    assert_eq!(sandbox.call("SendInput", input(process, &bytes)).await, Ok(json!({})));
    let much = vec![b'x'; 9 * 1024 * 1024];
    assert!(sandbox.call("SendInput", input(process, &much)).await.is_err());
    sandbox.call("CloseStdin", json!({"process": pid(process)})).await.unwrap();
    assert_eq!(stream.rest(process).await.text(), format!("{}\n", bytes.len()));
}

#[tokio::test]
async fn much_output_takes_little_memory_of_the_server() {
    const BYTES: usize = 100_000_000;
    let server = TestServer::start(NATIVE).await;
    let sandbox = Sandbox::create(&server).await;
    sandbox.run("true").await;
    let before = server.peak_kib();
    let mut stream = sandbox.sh(&format!("head -c {BYTES} /dev/zero")).await;
    let process = stream.pid().await;
    // A client that does not read holds the process up, not the server's memory.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let ran = stream.rest(process).await;
    assert_eq!((ran.stdout.len(), ran.last), (BYTES, WELL));
    let grown = server.peak_kib() - before;
    assert!(grown < 48 * 1024, "{grown} KiB");
}
