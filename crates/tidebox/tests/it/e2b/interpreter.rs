//! E2B's packages for the code interpreter, unmodified, and the routes that they use.

use std::path::Path;
use std::process::Command;

use reqwest::Method;
use serde_json::{Value, json};

use super::sdk::{node, passed, run};
use super::{E2b, KEY, Sandbox, answer};
use crate::programs::{installed, is_there, python};
use crate::server::{Answer, NATIVE, TestServer, http_client};

const PYTHON: &str = include_str!("interpreter.py");
const JAVASCRIPT: &str = include_str!("interpreter.mjs");
const PRINTED: &str = "2 2\nhello blue\nzerodivisionerror division by zero\n/tmp\n42\nred\n<b>hi</b> false\n";
const DOMAIN: &str = "box.test";

/// Resolves names below the domain to this machine, as a resolver of the user's does.
const RESOLVE_IN_PYTHON: &str = "\
import socket
resolve = socket.getaddrinfo
def here(host, *more, **named):
    name = host.decode() if isinstance(host, bytes) else host
    return resolve('127.0.0.1' if name and name.endswith('.box.test') else host, *more, **named)
socket.getaddrinfo = here
";
const RESOLVE_IN_JAVASCRIPT: &str = "\
const dns = require('node:dns')
const lookup = dns.lookup
dns.lookup = (host, ...more) => lookup(host.endsWith('.box.test') ? '127.0.0.1' : host, ...more)
";

/// Packages that are a year old find a sandbox by its host name alone, over TLS.
struct ByHostName {
    e2b: E2b,
    folder: tempfile::TempDir,
}

impl ByHostName {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let names = [DOMAIN, &format!("*.{DOMAIN}")].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let settings = format!(
            "{NATIVE} auth.enabled=true auth.api_key={KEY} server.preview_domain={DOMAIN} server.tls.cert_file={} \
             server.tls.key_file={}",
            cert.display(),
            key.display()
        );
        let server = TestServer::start(&settings).await;
        Self { e2b: E2b { server, http: http_client().build().unwrap() }, folder }
    }

    async fn run(&self, name: &str, mut command: Command) -> String {
        let port = self.e2b.server.url.rsplit(':').next().unwrap();
        let certificate = self.folder.path().join("cert.pem");
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", "/nonexistent");
        command.env("E2B_API_KEY", KEY).env("E2B_DOMAIN", format!("{DOMAIN}:{port}"));
        command.env("SSL_CERT_FILE", &certificate).env("NODE_EXTRA_CA_CERTS", &certificate);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        passed(&self.e2b, name, &output).to_lowercase()
    }
}

fn packages(folder: &Path) -> std::path::PathBuf {
    folder.join("node_modules/@e2b/code-interpreter")
}

#[tokio::test]
async fn the_code_interpreter_in_python_runs_unmodified() {
    let folder = installed("e2b-python");
    if is_there(&folder.join("e2b_code_interpreter"), "e2b-python") {
        let e2b = E2b::start(NATIVE).await;
        let output = run(&e2b, python(&folder, PYTHON)).await;
        assert_eq!(passed(&e2b, "e2b-python", &output).to_lowercase(), PRINTED);
    }
}

#[tokio::test]
async fn the_code_interpreter_in_javascript_runs_unmodified() {
    let folder = installed("e2b");
    if is_there(&packages(&folder), "e2b") {
        let e2b = E2b::start(NATIVE).await;
        let here = tempfile::tempdir().unwrap();
        let output = run(&e2b, node(&folder, JAVASCRIPT, here.path())).await;
        assert_eq!(passed(&e2b, "e2b", &output).to_lowercase(), PRINTED);
    }
}

#[tokio::test]
async fn a_code_interpreter_in_python_that_is_a_year_old_runs_unmodified() {
    let folder = installed("e2b-python-old");
    if is_there(&folder.join("e2b_code_interpreter"), "e2b-python-old") {
        let named = ByHostName::start().await;
        let program = format!("{RESOLVE_IN_PYTHON}{PYTHON}");
        assert_eq!(named.run("e2b-python-old", python(&folder, &program)).await, PRINTED);
    }
}

#[tokio::test]
async fn a_code_interpreter_in_javascript_that_is_a_year_old_runs_unmodified() {
    let folder = installed("e2b-old");
    if is_there(&packages(&folder), "e2b-old") {
        let named = ByHostName::start().await;
        let here = tempfile::tempdir().unwrap();
        let preload = here.path().join("resolve.cjs");
        std::fs::write(&preload, RESOLVE_IN_JAVASCRIPT).unwrap();
        let mut command = Command::new("node");
        command.arg("--require").arg(&preload).args(node(&folder, JAVASCRIPT, here.path()).get_args());
        assert_eq!(named.run("e2b-old", command).await, PRINTED);
    }
}

impl E2b {
    /// Makes a request to the code interpreter of a sandbox, without its token.
    async fn interpreter(&self, method: Method, path: &str, sandbox: &Sandbox, body: Value) -> Answer {
        let request = self.bare(method, path).header("E2b-Sandbox-Id", &sandbox.id).header("E2b-Sandbox-Port", "49999");
        answer(request.json(&body)).await
    }

    /// Runs code in a sandbox.
    async fn execute(&self, sandbox: &Sandbox, body: Value) -> Answer {
        let request = self.bare(Method::POST, "/execute").header("E2b-Sandbox-Id", &sandbox.id);
        let request = request.header("E2b-Sandbox-Port", "49999").header("X-Access-Token", &sandbox.token);
        answer(request.json(&body)).await
    }
}

fn text(answer: &Answer) -> String {
    String::from_utf8(answer.bytes.clone()).unwrap()
}

#[tokio::test]
async fn contexts_are_made_listed_restarted_and_deleted() {
    let e2b = E2b::start(NATIVE).await;
    let sandbox = e2b.create(json!({"templateID": "code-interpreter-v1"})).await;
    assert_eq!(e2b.interpreter(Method::GET, "/health", &sandbox, json!({})).await.status, 200);
    let list = async || e2b.interpreter(Method::GET, "/contexts", &sandbox, json!({})).await.ok();
    let of = |language: &str| json!({"id": language, "language": language, "cwd": "/home/user"});
    assert_eq!(list().await, json!([of("python"), of("javascript")]));
    let made =
        e2b.interpreter(Method::POST, "/contexts", &sandbox, json!({"language": "Bash", "cwd": "/tmp"})).await.ok();
    assert_eq!((&made["language"], &made["cwd"]), (&json!("bash"), &json!("/tmp")));
    let id = made["id"].as_str().unwrap();
    assert_eq!(list().await, json!([of("python"), of("javascript"), made]));
    let ran = text(&e2b.execute(&sandbox, json!({"code": "pwd; x=5", "context_id": id})).await);
    let lines: Vec<Value> = ran.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0], json!({"type": "number_of_executions", "execution_count": 1}));
    assert_eq!((&lines[1]["type"], &lines[1]["text"]), (&json!("stdout"), &json!("/tmp\n")));
    assert!(lines[1]["timestamp"].as_str().unwrap().ends_with('Z'), "{ran}");
    assert_eq!(lines[2..], [json!({"type": "end_of_execution"})]);
    let restart = format!("/contexts/{id}/restart");
    assert_eq!(e2b.interpreter(Method::POST, &restart, &sandbox, json!({})).await.ok(), json!(null));
    let restarted = text(&e2b.execute(&sandbox, json!({"code": "echo x=$x", "context_id": id})).await);
    assert!(restarted.contains(r#""x=\n""#), "{restarted}");
    assert_eq!(
        e2b.interpreter(Method::DELETE, &format!("/contexts/{id}"), &sandbox, json!({})).await.ok(),
        json!(null)
    );
    let gone = e2b.execute(&sandbox, json!({"code": "1", "context_id": id})).await;
    assert_eq!((gone.status.as_u16(), text(&gone)), (404, format!("context `{id}` does not exist")));
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_in_words() {
    let e2b = E2b::start(NATIVE).await;
    let sandbox = e2b.create(json!({"templateID": "code-interpreter-v1"})).await;
    for (body, status, words) in [
        (json!({"code": "1", "context_id": "python", "language": "python"}), 400, "only one of"),
        (json!({"code": "1", "language": "cobol"}), 400, "`cobol`"),
        (json!({"code": "\u{0}"}), 400, "NUL"),
        (json!({"code": "1", "env_vars": {"": "1"}}), 400, "`env_vars`"),
        (json!({"code": "1", "context_id": "../x"}), 404, "`../x`"),
        (json!({}), 400, "code"),
    ] {
        let answer = e2b.execute(&sandbox, body).await;
        assert_eq!(answer.status, status, "{}", text(&answer));
        assert!(text(&answer).contains(words) && !text(&answer).starts_with('{'), "{}", text(&answer));
    }
}

#[tokio::test]
async fn code_needs_the_token_and_contexts_need_what_ports_need() {
    let e2b = E2b::start(NATIVE).await;
    let open = e2b.create(json!({"templateID": "code-interpreter-v1"})).await;
    let closed = json!({"templateID": "code-interpreter-v1", "network": {"allowPublicTraffic": false}});
    let closed = e2b.create(closed).await;
    let private = e2b.server.spawn().await;
    let private = Sandbox { id: private, token: String::new(), answer: json!({}) };
    for (sandbox, status) in [(&open, 200), (&closed, 401), (&private, 401)] {
        assert_eq!(e2b.interpreter(Method::POST, "/execute", sandbox, json!({"code": "1"})).await.status, 401);
        assert_eq!(e2b.interpreter(Method::GET, "/contexts", sandbox, json!({})).await.status, status);
        assert_eq!(
            e2b.interpreter(Method::POST, "/contexts", sandbox, json!({"language": "bash"})).await.status,
            status
        );
    }
    let traffic = closed.answer["trafficAccessToken"].as_str().unwrap();
    let request = e2b.bare(Method::GET, "/contexts").header("E2b-Sandbox-Id", &closed.id);
    let request = request.header("E2b-Sandbox-Port", "49999");
    assert_eq!(answer(request.try_clone().unwrap().header("e2b-traffic-access-token", traffic)).await.status, 200);
    assert_eq!(answer(request.header("X-Access-Token", &closed.token)).await.status, 200);
    let never = Sandbox { id: "sb-aaaaaaaaaaaaaaaa".to_owned(), ..open };
    let gone = e2b.execute(&never, json!({"code": "1"})).await;
    assert_eq!((gone.status.as_u16(), gone.json()["message"].as_str().unwrap().contains("was not found")), (502, true));
}
