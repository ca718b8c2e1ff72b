//! A session over stdio, line by line.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::server::{MOCK, NATIVE, TestServer};

/// Longest wait for an answer: only a server that hangs takes that long.
const PATIENCE: Duration = Duration::from_secs(90);

/// Client that writes and reads lines.
struct Session {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    id: u64,
}

impl Session {
    /// Starts the server and agrees with it on a version.
    async fn start(server: &TestServer, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidebox"));
        command.arg("mcp").args(options).env_clear().env("TIDEBOX_URL", &server.url);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut session = Self { child, stdin, lines: BufReader::new(stdout).lines(), id: 0 };
        let params =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let begun = session.ask("initialize", params).await;
        assert_eq!(begun["result"]["serverInfo"]["name"], "tidebox", "{begun}");
        session.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        session
    }

    async fn send(&mut self, message: &Value) {
        self.stdin.as_mut().unwrap().write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.id += 1;
        let id = self.id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        loop {
            let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.expect("an answer");
            let answer: Value = serde_json::from_str(&line.unwrap().expect("the server runs")).unwrap();
            if answer["id"] == id {
                return answer;
            }
        }
    }

    /// Calls a tool. Returns whether it failed, and its text.
    async fn call(&mut self, tool: &str, arguments: Value) -> (bool, String) {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await;
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        (result["isError"] == true, text.to_owned())
    }

    async fn succeeds(&mut self, tool: &str, arguments: Value) -> String {
        let (is_error, text) = self.call(tool, arguments).await;
        assert!(!is_error, "{tool}: {text}");
        text
    }

    async fn fails(&mut self, tool: &str, arguments: Value) -> String {
        let (is_error, text) = self.call(tool, arguments).await;
        assert!(is_error, "{tool}: {text}");
        text
    }

    /// Ends stdin and waits for the server's end.
    async fn leave(mut self) -> Option<i32> {
        drop(self.stdin.take());
        tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it ends with its stdin").unwrap().code()
    }
}

async fn ids(server: &TestServer) -> Vec<String> {
    let listed = server.get("/sandboxes").await.json();
    listed.as_array().unwrap().iter().map(|sandbox| sandbox["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_session_makes_its_sandbox_at_the_first_call_and_removes_it_at_the_end() {
    let server = TestServer::start(NATIVE).await;
    let mut session = Session::start(&server, &["--memory-mb", "128"]).await;
    session.succeeds("list_sandboxes", json!({})).await;
    assert_eq!(ids(&server).await, [""; 0]);
    session.succeeds("run_command", json!({"command": "true"})).await;
    let made = server.get("/sandboxes").await.json();
    assert_eq!((made.as_array().unwrap().len(), &made[0]["memory_mb"]), (1, &json!(128)));
    session.succeeds("run_code", json!({"code": "1"})).await;
    assert_eq!(ids(&server).await.len(), 1, "calls share it");
    assert_eq!(session.leave().await, Some(0));
    assert_eq!(ids(&server).await, [""; 0]);
}

#[tokio::test]
async fn a_session_that_a_signal_ends_removes_its_sandbox_and_ends_what_runs() {
    let server = TestServer::start(NATIVE).await;
    let mut session = Session::start(&server, &[]).await;
    session.succeeds("run_command", json!({"command": "true"})).await;
    let call = json!({"name": "run_command", "arguments": {"command": "touch on; sleep 1000"}});
    session.send(&json!({"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": call})).await;
    let id = ids(&server).await.remove(0);
    let path = format!("/sandboxes/{id}/files/stat?path=/workspace/on");
    server.until("the command runs", async || server.get(&path).await.status == 200).await;
    let pid = rustix::process::Pid::from_raw(session.child.id().unwrap().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ended = tokio::time::timeout(PATIENCE, session.child.wait()).await.expect("it ends at a signal");
    assert_eq!(ended.unwrap().code(), Some(0));
    assert_eq!(ids(&server).await, [""; 0]);
}

#[tokio::test]
async fn a_client_that_leaves_during_its_first_call_leaves_no_sandbox() {
    let server = TestServer::start(NATIVE).await;
    for calls in [1, 3] {
        let mut session = Session::start(&server, &[]).await;
        for id in 90..90 + calls {
            let call = json!({"name": "run_command", "arguments": {"command": "sleep 1000"}});
            session.send(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call})).await;
        }
        assert_eq!(session.leave().await, Some(0));
        server.until("no sandbox is left", async || ids(&server).await.is_empty()).await;
    }
}

#[tokio::test]
async fn a_sandbox_that_has_ended_is_replaced_and_the_model_is_told() {
    let server = TestServer::start(NATIVE).await;
    let mut session = Session::start(&server, &[]).await;
    session.succeeds("write_file", json!({"path": "/workspace/a", "content": "a"})).await;
    let id = ids(&server).await.remove(0);
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    let text = session.succeeds("list_files", json!({})).await;
    assert!(text.starts_with("[the sandbox had ended") && text.ends_with("is empty]"), "{text}");
    let text = session.succeeds("list_files", json!({})).await;
    assert!(text.starts_with("[/workspace is empty"), "it is told once: {text}");
    assert_eq!(session.leave().await, Some(0));
}

#[tokio::test]
async fn sandboxes_of_others_are_neither_listed_nor_used_unless_the_operator_wants_it() {
    let server = TestServer::start(MOCK).await;
    let others = server.spawn().await;
    let mut session = Session::start(&server, &[]).await;
    assert!(session.succeeds("list_sandboxes", json!({})).await.starts_with("No sandbox"));
    for (tool, arguments) in [
        ("run_command", json!({"command": "true"})),
        ("read_file", json!({"path": "/etc/passwd"})),
        ("expose_port", json!({"port": 80})),
        ("snapshot", json!({})),
        ("destroy_sandbox", json!({})),
    ] {
        let mut arguments = arguments;
        arguments["sandbox"] = others.clone().into();
        let text = session.fails(tool, arguments).await;
        assert!(text.contains("--all-sandboxes"), "{tool}: {text}");
    }
    let uri = format!("tidebox://{others}/etc/passwd");
    let refused = session.ask("resources/read", json!({"uri": uri})).await;
    assert!(refused["error"]["message"].as_str().unwrap().contains("--all-sandboxes"), "{refused}");
    session.leave().await;

    let mut session = Session::start(&server, &["--all-sandboxes"]).await;
    assert!(session.succeeds("list_sandboxes", json!({})).await.starts_with(&others));
    session.succeeds("run_command", json!({"command": "true", "sandbox": others})).await;
    session.succeeds("destroy_sandbox", json!({"sandbox": others})).await;
    session.leave().await;
}

#[tokio::test]
async fn wrong_calls_are_explained_and_leave_the_session_alive() {
    let server = TestServer::start(MOCK).await;
    let mut session = Session::start(&server, &[]).await;
    for (tool, arguments, expected) in [
        ("run_command", json!({}), "pass either `command`"),
        ("run_command", json!({"command": "true", "process": 1}), "pass either `command`"),
        ("run_command", json!({"command": "true", "position": 1}), "`position` is for a `process`"),
        ("run_command", json!({"command": "true", "timeout": -1}), "`timeout` must be between"),
        ("run_command", json!({"command": "a\u{0}b"}), "NUL"),
        ("run_command", json!({"process": 4711}), "process"),
        ("run_code", json!({"code": 1}), "expected a string"),
        ("read_file", json!({"path": "relative"}), "absolute"),
        ("read_file", json!({"path": "/a", "first_line": 0}), "count from 1"),
        ("edit_file", json!({"path": "/a", "old_text": "", "new_text": "b"}), "use write_file"),
        ("create_sandbox", json!({"image": "host", "snapshot": "x"}), "pass one of"),
        ("create_sandbox", json!({"allow_hosts": ["not a host"]}), "host"),
        ("expose_port", json!({"port": 70000}), "70000"),
        ("install", json!({"packages": []}), "1 to 100"),
        ("destroy_sandbox", json!({"sandbox": "../../x"}), "sandbox"),
    ] {
        let text = session.fails(tool, arguments.clone()).await;
        assert!(text.contains(expected), "{tool} {arguments}: {text}");
    }
    for broken in ["{", "[]", "\u{fffd}", "{\"jsonrpc\": \"2.0\", \"id\": 7}"] {
        session.stdin.as_mut().unwrap().write_all(format!("{broken}\n").as_bytes()).await.unwrap();
    }
    session.succeeds("list_sandboxes", json!({})).await;
    assert_eq!(session.leave().await, Some(0));
}

#[tokio::test]
async fn output_without_end_is_answered_in_bounds_and_read_on() {
    let server = TestServer::start(NATIVE).await;
    let mut session = Session::start(&server, &[]).await;
    let command = "yes 0123456789 | head -c 50000000; printf '\\377\\nlast'";
    let text = session.succeeds("run_command", json!({"command": command})).await;
    assert!(text.len() < 20_000 && text.ends_with("\u{fffd}\nlast\n[exit code 0]"), "{}", &text[text.len() - 100..]);
    let text = session.succeeds("run_code", json!({"code": "print('x' * 50_000_000)"})).await;
    assert!(text.len() < 20_000 && text.contains("bytes left out"));
    let text = session.succeeds("run_code", json!({"code": "'y' * 10_000_000"})).await;
    assert!(text.len() < 20_000, "{}", text.len());
    for code in [
        "for i in range(2000): display('z' * 1000)",
        "raise ValueError('v' * 1_000_000)",
        "from IPython.display import Image\nfor i in range(30): display(Image(b'\\x89PNG\\r\\n\\x1a\\n' + bytes(60_000)))",
    ] {
        let answer = session.ask("tools/call", json!({"name": "run_code", "arguments": {"code": code}})).await;
        assert!(answer.to_string().len() < 1_000_000, "{code}: {} bytes", answer.to_string().len());
    }
    let text = session.succeeds("run_command", json!({"command": "seq 1 4000"})).await;
    let process: u64 = text.split("`process`: ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    let text = session.succeeds("run_command", json!({"process": process, "position": 3893})).await;
    assert!(text.starts_with("1001\n1002\n"), "{}", &text[..50]);
    assert_eq!(session.leave().await, Some(0));
}
