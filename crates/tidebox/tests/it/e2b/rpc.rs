//! A client of the data plane of one sandbox, as E2B's SDKs are.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};

use crate::server::TestServer;

/// Longest wait for a message of a stream.
pub const SOON: Duration = Duration::from_secs(30);

/// A sandbox that was made by the front.
pub struct Sandbox<'a> {
    pub server: &'a TestServer,
    pub id: String,
    pub token: String,
}

/// Error of a call: the code and the message.
pub type Refused = (String, String);

impl<'a> Sandbox<'a> {
    pub async fn create(server: &'a TestServer) -> Sandbox<'a> {
        Sandbox::create_with(server, json!({"templateID": "base", "timeout": 300})).await
    }

    pub async fn create_with(server: &'a TestServer, body: Value) -> Sandbox<'a> {
        let request = server.http.post(format!("{}/v2/sandboxes", server.url)).header("x-api-key", "e2b_any");
        let answer = request.json(&body).send().await.unwrap();
        let status = answer.status();
        let made: Value = answer.json().await.unwrap();
        assert_eq!(status, 201, "{made}");
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        Sandbox { server, id: text("sandboxID"), token: text("envdAccessToken") }
    }

    pub fn request(&self, method: &str) -> RequestBuilder {
        let request = self.server.http.post(format!("{}/process.Process/{method}", self.server.url));
        request
            .header("connect-protocol-version", "1")
            .header("e2b-sandbox-id", &self.id)
            .header("e2b-sandbox-port", "49983")
            .header("x-access-token", &self.token)
    }

    /// Makes a unary call.
    pub async fn call(&self, method: &str, message: Value) -> Result<Value, Refused> {
        let answer = self.request(method).json(&message).send().await.unwrap();
        let status = answer.status();
        let body: Value = answer.json().await.unwrap();
        if status == 200 { Ok(body) } else { Err(refused(&body)) }
    }

    /// Opens a stream of the server.
    pub async fn stream(&self, method: &str, message: Value, headers: &[(&str, &str)]) -> Stream {
        let mut request = self.request(method).header("content-type", "application/connect+json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.body(envelope(&message)).send().await.unwrap();
        assert_eq!(response.status(), 200);
        Stream { response, buffer: Vec::new() }
    }

    /// Starts a command line.
    pub async fn sh(&self, line: &str) -> Stream {
        self.start(line, json!({})).await
    }

    /// Starts a command line, with more fields of the request.
    pub async fn start(&self, line: &str, more: Value) -> Stream {
        let mut message = json!({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", line]}, "stdin": false});
        for (name, value) in more.as_object().unwrap() {
            message[name] = value.clone();
        }
        self.stream("Start", message, &[]).await
    }

    /// Runs a command line to its end.
    pub async fn run(&self, line: &str) -> Ran {
        self.sh(line).await.ran().await
    }

    pub async fn pids(&self) -> Vec<u64> {
        let listed = self.call("List", json!({})).await.unwrap();
        listed["processes"].as_array().unwrap().iter().map(|process| process["pid"].as_u64().unwrap()).collect()
    }
}

fn refused(body: &Value) -> Refused {
    let text = |name: &str| body[name].as_str().unwrap_or_else(|| panic!("{body}")).to_owned();
    (text("code"), text("message"))
}

/// Returns a message in its envelope.
pub fn envelope(message: &Value) -> Vec<u8> {
    let json = message.to_string();
    let length = u32::try_from(json.len()).unwrap().to_be_bytes();
    [&[0][..], &length, json.as_bytes()].concat()
}

pub fn encoded(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// A stream of the server.
pub struct Stream {
    response: Response,
    buffer: Vec<u8>,
}

/// Next part of a stream.
#[derive(Debug, PartialEq)]
pub enum Next {
    Event(Value),
    /// The last envelope, with its error.
    End(Option<Refused>),
    /// The connection broke without a last envelope.
    Broken,
}

/// A process that has ended.
#[derive(Debug)]
pub struct Ran {
    pub pid: u64,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub pty: Vec<u8>,
    /// The end of the process, if it came.
    pub end: Option<Value>,
    pub last: Next,
}

impl Ran {
    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }
}

impl Stream {
    pub async fn next(&mut self) -> Next {
        tokio::time::timeout(SOON, self.read()).await.expect("the stream is silent")
    }

    async fn read(&mut self) -> Next {
        loop {
            if let Some((head, rest)) = self.buffer.split_first_chunk::<5>() {
                let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
                if rest.len() >= length {
                    let flags = head[0];
                    let message: Value = serde_json::from_slice(&rest[..length]).unwrap();
                    self.buffer.drain(..5 + length);
                    if flags == 2 {
                        return Next::End(message.get("error").map(refused));
                    }
                    assert_eq!(flags, 0);
                    return Next::Event(message["event"].clone());
                }
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk),
                Ok(None) | Err(_) => return Next::Broken,
            }
        }
    }

    /// Returns the pid in the first event.
    pub async fn pid(&mut self) -> u64 {
        match self.next().await {
            Next::Event(event) => event["start"]["pid"].as_u64().unwrap_or_else(|| panic!("{event}")),
            other @ (Next::End(_) | Next::Broken) => panic!("{other:?} instead of a start"),
        }
    }

    /// Reads to the end.
    pub async fn ran(mut self) -> Ran {
        let pid = self.pid().await;
        self.rest(pid).await
    }

    /// Reads to the end, after the start.
    pub async fn rest(mut self, pid: u64) -> Ran {
        let (stdout, stderr, pty) = (Vec::new(), Vec::new(), Vec::new());
        let mut ran = Ran { pid, stdout, stderr, pty, end: None, last: Next::Broken };
        loop {
            match self.next().await {
                Next::Event(event) => ran.take(&event),
                last @ (Next::End(_) | Next::Broken) => return Ran { last, ..ran },
            }
        }
    }

    /// Reads until the output holds `text`.
    pub async fn until(&mut self, text: &str) {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(text) {
            match self.next().await {
                Next::Event(event) => {
                    for piece in event["data"].as_object().into_iter().flat_map(|data| data.values()) {
                        seen.extend(BASE64.decode(piece.as_str().unwrap()).unwrap());
                    }
                }
                other @ (Next::End(_) | Next::Broken) => {
                    panic!("{other:?} before {text:?}, after {:?}", String::from_utf8_lossy(&seen))
                }
            }
        }
    }
}

impl Ran {
    fn take(&mut self, event: &Value) {
        assert!(self.end.is_none(), "{event} follows the end");
        if let Some(end) = event.get("end") {
            self.end = Some(end.clone());
        }
        for (name, bytes) in [("stdout", &mut self.stdout), ("stderr", &mut self.stderr), ("pty", &mut self.pty)] {
            if let Some(piece) = event["data"][name].as_str() {
                bytes.extend(BASE64.decode(piece).unwrap());
            }
        }
    }
}
