//! The agents below `examples`, each in two languages, against a real server.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use fixtures::found;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::programs::installed;
use crate::server::{NATIVE, TestServer};

const API_KEY: &str = "an-api-key-that-only-this-test-knows-0123";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/agent").canonicalize().unwrap()
}

/// Finds a program for TypeScript where `.ci/run` puts it.
fn of_node(name: &str) -> Option<PathBuf> {
    found(name, &[installed("examples").join("node_modules/.bin").join(name)])
}

#[derive(Debug, Clone, Copy)]
enum Language {
    Python,
    TypeScript,
}

impl Language {
    const ALL: [Self; 2] = [Self::Python, Self::TypeScript];

    /// Returns the command that starts the agent, or `None` if the machine lacks the interpreter.
    fn agent(self, url: &str, key: &str) -> Option<Command> {
        let (interpreter, program) = match self {
            Self::Python => (found("python3", &[])?, "python/agent.py"),
            Self::TypeScript => (of_node("tsx")?, "typescript/agent.ts"),
        };
        let mut command = Command::new(interpreter);
        command.arg(folder().join(program)).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", "/nonexistent");
        command.env("TIDEBOX_URL", url).env("TIDEBOX_API_KEY", key);
        // Neither leaves files next to the sources, nor in a shared folder.
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("TSX_DISABLE_CACHE", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        Some(command)
    }
}

fn lines(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn start() -> TestServer {
    TestServer::builder(NATIVE).key(API_KEY).start().await
}

async fn sandboxes(server: &TestServer) -> Vec<Value> {
    server.get("/sandboxes").await.ok().as_array().unwrap().clone()
}

/// Agent whose only command runs for longer than a test.
struct Busy {
    child: Child,
    /// Id of its sandbox.
    id: String,
    _script: tempfile::NamedTempFile,
}

impl Busy {
    /// Starts an agent and waits until its command runs.
    async fn start(server: &TestServer, language: Language) -> Option<Self> {
        let mut command = language.agent(&server.url, API_KEY)?;
        let call = json!({"name": "run_command", "arguments": {"command": "touch started && sleep 100"}});
        let script = json!({"task": "Wait.", "turns": [{"text": "I wait.", "tool_calls": [call]}]});
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), script.to_string()).unwrap();
        let child = command.arg(file.path()).spawn().unwrap();
        let mut id = String::new();
        let runs = async || {
            let Some(sandbox) = sandboxes(server).await.pop() else { return false };
            sandbox["id"].as_str().unwrap().clone_into(&mut id);
            let started = server.get(&format!("/sandboxes/{id}/files/stat?path=/workspace/started")).await;
            started.status.is_success()
        };
        server.until("the command of the agent", runs).await;
        Some(Self { child, id, _script: file })
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().expect("the agent runs")).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    async fn end(self) -> Output {
        self.child.wait_with_output().await.unwrap()
    }
}

#[tokio::test]
async fn an_agent_recovers_from_failed_calls_and_deletes_its_sandbox() {
    let server = start().await;
    let mut conversations = Vec::new();
    for language in Language::ALL {
        let Some(mut command) = language.agent(&server.url, API_KEY) else { continue };
        let output = command.output().await.unwrap();
        let said = lines(&output.stdout);
        assert!(output.status.success(), "{language:?}: {said}\n{}", lines(&output.stderr));
        for part in [
            "ValueError: invalid literal",
            "    exit code 0\n    stdout:\n    Berlin: 20.00\n    Lisbon: 19.75\n",
            "    error: run_command needs `command`, a string\n",
            "    timed out after 1 s\n",
            "    error: /workspace/report.txt: no such file or directory (404 not_found)\n",
        ] {
            assert!(said.contains(part), "{language:?} lacks {part:?}: {said}");
        }
        assert!(said.ends_with("\nanswer: Berlin sold 20.00, Lisbon 19.75.\n"), "{language:?}: {said}");
        assert_eq!(sandboxes(&server).await, Vec::<Value>::new(), "{language:?}");
        conversations.push(said);
    }
    assert!(conversations.windows(2).all(|pair| pair[0] == pair[1]), "{conversations:#?}");
}

#[tokio::test]
async fn an_agent_whose_sandbox_is_gone_stops() {
    let server = start().await;
    for language in Language::ALL {
        let Some(agent) = Busy::start(&server, language).await else { continue };
        server.delete(&format!("/sandboxes/{}", agent.id)).await.ok();
        let output = agent.end().await;
        let told = lines(&output.stderr);
        assert_eq!((output.status.code(), told.as_str()), (Some(1), "error: the sandbox is gone\n"), "{language:?}");
    }
}

#[tokio::test]
async fn an_agent_that_a_signal_stops_deletes_its_sandbox() {
    let server = start().await;
    for language in Language::ALL {
        for signal in [Signal::INT, Signal::TERM] {
            let Some(agent) = Busy::start(&server, language).await else { continue };
            agent.signal(signal);
            let output = agent.end().await;
            let told = lines(&output.stderr);
            assert_eq!((output.status.code(), told.as_str()), (Some(130), "stopped\n"), "{language:?}");
            assert_eq!(sandboxes(&server).await, Vec::<Value>::new(), "{language:?}");
        }
    }
}

#[tokio::test]
async fn an_agent_that_gets_no_sandbox_says_why() {
    let server = start().await;
    let unused = format!("http://127.0.0.1:{}", crate::server::free_port());
    for language in Language::ALL {
        for (url, key, words) in [(&server.url, "another-key", "401 unauthorized"), (&unused, API_KEY, "no answer")] {
            let Some(mut command) = language.agent(url, key) else { continue };
            let output = command.output().await.unwrap();
            let told = lines(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{language:?}: {told}");
            assert!(told.starts_with("error: ") && told.contains(words), "{language:?}: {told}");
        }
    }
}

#[tokio::test]
async fn the_agent_in_python_passes_a_strict_type_checker() {
    let Some(mypy) = found("mypy", &[installed("venv").join("bin/mypy")]) else { return };
    let mut command = Command::new(mypy);
    command.current_dir(folder().join("python")).args(["--strict", "--python-version=3.10", "--cache-dir=/dev/null"]);
    let output = command.args(["agent.py", "model.py", "sandbox.py"]).output().await.unwrap();
    assert!(output.status.success(), "{}", lines(&output.stdout));
}

/// Node.js removes types without understanding them, so the compiler checks that it can.
#[tokio::test]
async fn the_agent_in_typescript_passes_a_strict_type_checker() {
    let Some(compiler) = of_node("tsc") else { return };
    let types = installed("examples").join("node_modules/@types");
    let mut command = Command::new(compiler);
    command.arg("--project").arg(folder().join("typescript")).arg("--typeRoots").arg(types);
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{}", lines(&output.stdout));
}
