//! Headless Chromium with one page, driven through the protocol `DevTools`.
//!
//! Source: <https://chromedevtools.github.io/devtools-protocol/>

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;

use futures_util::{SinkExt, StreamExt};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{ClientRequestBuilder, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::*;

/// Options by which it shows a page and asks nothing of other hosts.
const OPTIONS: [&str; 15] = [
    "--headless",
    // Chromium has no sandbox for root. The pages are those of the tests.
    "--no-sandbox",
    // Those are the tests' own, too.
    "--ignore-certificate-errors",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-sync",
    "--disable-extensions",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-component-update",
    "--disable-background-networking",
    "--no-first-run",
    "--no-proxy-server",
    "--remote-debugging-port=0",
];

/// A browser. Dropping it ends it.
pub struct Chromium {
    process: Child,
    socket: WebSocketStream<TcpStream>,
    /// Session of the page; empty until there is one.
    session: String,
    last_id: u64,
    /// Events that have come.
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Chromium {
    /// Starts the browser; `None` if this machine has none.
    pub async fn start() -> Option<Self> {
        let program = fixtures::found("chromium", &[])?;
        let profile = tempfile::Builder::new().prefix("tidebox-chromium-").tempdir().unwrap();
        let (process, address) = launch(&program, profile.path());
        let host = address.strip_prefix("ws://").unwrap().split('/').next().unwrap().to_owned();
        let request = ClientRequestBuilder::new(address.parse().unwrap());
        let stream = TcpStream::connect(host).await.unwrap();
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let (socket, _) = client_async_with_config(request, stream, Some(config)).await.unwrap();
        let mut browser =
            Self { process, socket, session: String::new(), last_id: 0, events: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"})).await["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true})).await;
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        Some(browser)
    }

    /// Opens a URL and waits until its page is loaded.
    pub async fn open(&mut self, url: &str) {
        self.events.clear();
        let opened = self.call("Page.navigate", json!({"url": url})).await;
        assert!(opened.get("errorText").is_none(), "{url}: {opened}");
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.next().await;
            self.events.push(event);
        }
        let shown = self.evaluate("document.body.innerText").await;
        assert!(!shown.as_str().unwrap().contains("from Tidebox"), "the server itself answers {url}: {shown}");
    }

    /// Evaluates an expression in the page, and waits for the outcome of a promise.
    pub async fn evaluate(&mut self, expression: &str) -> Value {
        let question = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let outcome = self.call("Runtime.evaluate", question).await;
        let complaints = self.complaints();
        assert!(outcome.get("exceptionDetails").is_none(), "{expression}: {outcome}, {complaints:?}");
        outcome["result"]["value"].clone()
    }

    /// Returns the errors and warnings in the console of the page.
    pub fn complaints(&self) -> Vec<String> {
        let is_bad = |level: &Value| matches!(level.as_str(), Some("error" | "warning" | "assert"));
        let complaint = |event: &Value| match event["method"].as_str()? {
            "Runtime.consoleAPICalled" if is_bad(&event["params"]["type"]) => Some(event["params"]["args"].to_string()),
            "Runtime.exceptionThrown" => Some(event["params"]["exceptionDetails"].to_string()),
            "Log.entryAdded" if is_bad(&event["params"]["entry"]["level"]) => {
                Some(event["params"]["entry"].to_string())
            }
            _ => None,
        };
        self.events.iter().filter_map(complaint).collect()
    }

    /// Returns whether the page has written these words to its console.
    pub fn has_said(&self, words: &str) -> bool {
        let is_said = |event: &Value| event["method"] == "Runtime.consoleAPICalled";
        self.events.iter().any(|event| is_said(event) && event["params"]["args"].to_string().contains(words))
    }

    /// Calls a method and returns its result. Events that come before it are kept.
    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let mut command = json!({"id": self.last_id, "method": method, "params": params});
        if !self.session.is_empty() {
            command["sessionId"] = json!(self.session);
        }
        self.socket.send(Message::text(command.to_string())).await.unwrap();
        loop {
            let mut message = self.next().await;
            if message["id"] == self.last_id {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].take();
            }
            self.events.push(message);
        }
    }

    async fn next(&mut self) -> Value {
        let message = timeout(PATIENCE, self.socket.next()).await;
        let message = message.unwrap_or_else(|_| panic!("the browser says nothing more: {:?}", self.events));
        serde_json::from_str(message.unwrap().unwrap().to_text().unwrap()).unwrap()
    }
}

/// Starts the program, and returns it with the address of its `DevTools`.
fn launch(program: &Path, profile: &Path) -> (Child, String) {
    let mut process = Command::new(program)
        .args(OPTIONS)
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!(
            "--host-resolver-rules=MAP *.{DOMAIN} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE *.localhost"
        ))
        .arg("about:blank")
        .env("HOME", profile)
        .env("TMPDIR", profile)
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_CACHE_HOME")
        // All that it starts is in one group, which ends with it.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = process.stderr.take().unwrap();
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut said = String::new();
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if let Some(address) = line.strip_prefix("DevTools listening on ") {
                let _ = send.send(Ok(address.to_owned()));
            }
            said.push_str(&line);
            said.push('\n');
        }
        let _ = send.send(Err(said));
    });
    let address = receive.recv_timeout(PATIENCE).expect("the browser starts").unwrap_or_else(|said| panic!("{said}"));
    (process, address)
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let _ = self.process.wait();
    }
}
