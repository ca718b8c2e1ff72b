//! Shared parts of the tests of `e2b`: a service that is correct unless a test says otherwise.

use std::sync::Arc;
use std::time::Duration;

use domain::{Resources, Timestamp};
use providers::e2b::{E2b, E2bConfig, SecretString};
use providers::{Guest, Provider, Spec};
use serde_json::{Value, json};

use crate::custom::fake_service::{FakeService, Received, Reply, State};
use crate::custom::harness::{BOUND, TIMEOUT, id};

pub(crate) const KEY: &str = "e2b_hunter2";

pub(crate) fn config(url: &str) -> E2bConfig {
    E2bConfig {
        api_key: SecretString::from(KEY),
        domain: "e2b.app".to_owned(),
        base_url: Some(url.to_owned()),
        sandbox_url: Some(url.to_owned()),
        ca_file: None,
        timeout: TIMEOUT,
        user: "root".to_owned(),
        templates: Default::default(),
        lifetime_max: Duration::from_secs(3600),
        grace: Duration::from_secs(3600),
        usual: resources(),
        label: "ours".to_owned(),
    }
}

fn resources() -> Resources {
    Resources { memory_mb: 64, vcpus: 1, disk_mb: 0, pids: 64 }
}

pub(crate) fn spec() -> Spec {
    Spec { image: "base".to_owned(), ..crate::custom::harness::spec() }
}

pub(crate) fn open(config: E2bConfig) -> E2b {
    E2b::open(config, || Timestamp::UNIX_EPOCH).unwrap()
}

pub(crate) fn hasty(url: &str) -> E2b {
    open(config(url))
}

pub(crate) fn patient(url: &str) -> E2b {
    open(E2bConfig { timeout: BOUND, ..config(url) })
}

pub(crate) fn cloud(tell: impl Fn(&Received) -> Option<Reply> + Send + Sync + 'static) -> FakeService {
    FakeService::serving(answer, tell)
}

/// Returns a running sandbox.
pub(crate) fn sandbox(id: &str, metadata: Value) -> Value {
    json!({"sandboxID": id, "templateID": "base", "clientID": "c", "envdVersion": "0.6.1", "state": "running",
        "startedAt": "2026-01-01T00:00:00.000Z", "endAt": "2027-01-01T00:00:00.000Z", "cpuCount": 1, "memoryMB": 64,
        "diskSizeMB": 0, "metadata": metadata, "envdAccessToken": format!("token-{id}")})
}

pub(crate) fn labels() -> Value {
    json!({"tidebox.e2b.id": id(1).as_str(), "tidebox.e2b.store": "ours"})
}

pub(crate) fn refusal(status: u16, message: &str) -> Reply {
    Reply::Json(status, json!({"code": status, "message": message}))
}

pub(crate) fn rpc(status: u16, code: &str, message: &str) -> Reply {
    Reply::Json(status, json!({"code": code, "message": message}))
}

/// Answers as a correct service.
fn answer(state: &mut State, asked: &Received) -> Reply {
    let (method, path) = asked.line.split_once(' ').unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default().to_owned();
    if let Some(sandbox) = asked.headers.get("e2b-sandbox-id") {
        let runs = state.boxes.iter().any(|it| it["sandboxID"] == *sandbox && it["state"] == "running");
        return inside(&path, runs);
    }
    let id = path.strip_prefix("/v2").unwrap_or(&path).strip_prefix("/sandboxes/");
    let id = id.map(|rest| rest.split('/').next().unwrap_or(rest).to_owned());
    let missing = || refusal(404, "no such thing");
    match (method, id) {
        ("POST", None) => {
            let body: Value = serde_json::from_slice(&asked.body).unwrap();
            state.made += 1;
            let made = sandbox(&format!("far-{}", state.made), body["metadata"].clone());
            state.boxes.push(made.clone());
            Reply::Json(201, made)
        }
        ("GET", None) => Reply::Json(200, Value::Array(state.boxes.clone())),
        (_, Some(id)) => {
            let Some(at) = state.boxes.iter().position(|it| it["sandboxID"] == *id) else { return missing() };
            match (method, path.rsplit('/').next().unwrap_or_default()) {
                ("DELETE", _) => {
                    state.boxes.remove(at);
                    Reply::Empty(204)
                }
                ("GET", _) => Reply::Json(200, state.boxes[at].clone()),
                ("POST", "timeout") => Reply::Empty(204),
                ("POST", "pause") if state.boxes[at]["state"] == "paused" => refusal(409, "it is paused"),
                ("POST", "pause") => {
                    state.boxes[at]["state"] = json!("paused");
                    Reply::Empty(204)
                }
                ("POST", "connect") => {
                    state.boxes[at]["state"] = json!("running");
                    Reply::Json(201, state.boxes[at].clone())
                }
                _ => missing(),
            }
        }
        _ => missing(),
    }
}

fn inside(path: &str, runs: bool) -> Reply {
    if !runs {
        return refusal(502, "The sandbox was not found");
    }
    match path {
        "/health" => Reply::Empty(204),
        "/filesystem.Filesystem/MakeDir" => rpc(409, "already_exists", "it exists"),
        "/process.Process/List" => Reply::Json(200, json!({"processes": []})),
        "/process.Process/Start" => {
            stream(&[message(&json!({"start": {"pid": 7}})), message(&ended(0)), end(&json!({}))])
        }
        _ => Reply::Json(200, json!({})),
    }
}

pub(crate) fn ended(code: i32) -> Value {
    json!({"end": {"exitCode": code, "exited": true, "status": format!("exit status {code}")}})
}

/// Returns an envelope.
pub(crate) fn envelope(flags: u8, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&[flags], &length[..], content].concat()
}

pub(crate) fn message(event: &Value) -> Vec<u8> {
    envelope(0, json!({"event": event}).to_string().as_bytes())
}

pub(crate) fn end(content: &Value) -> Vec<u8> {
    envelope(2, content.to_string().as_bytes())
}

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/connect+json\r\ntransfer-encoding: chunked\r\n\r\n";

/// Returns a whole stream of envelopes.
pub(crate) fn stream(envelopes: &[Vec<u8>]) -> Reply {
    let bytes = envelopes.concat();
    Reply::Bytes([STREAM.as_bytes(), format!("{:x}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n0\r\n\r\n"].concat())
}

fn begun(bytes: &[u8]) -> Vec<u8> {
    [STREAM.as_bytes(), format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Returns a stream whose connection breaks after these bytes.
pub(crate) fn broken(bytes: &[u8]) -> Reply {
    Reply::Bytes(begun(bytes))
}

/// Returns a stream that stands still after these bytes.
pub(crate) fn held(bytes: &[u8]) -> Reply {
    Reply::Held(begun(bytes))
}

/// Returns whether the request is for the inside of a sandbox, once it has been made ready.
pub(crate) fn is_inside(asked: &Received) -> bool {
    let is_of_start = ["/health", "/filesystem.Filesystem/MakeDir"].iter().any(|path| asked.line.contains(path));
    asked.headers.contains_key("e2b-sandbox-id") && !is_of_start
}

/// Starts a box at a service that answers requests for its inside with `tell`.
pub(crate) async fn entered(
    tell: impl Fn(&Received) -> Reply + Send + Sync + 'static,
) -> (FakeService, E2b, Arc<dyn Guest>) {
    let service = cloud(move |asked| is_inside(asked).then(|| tell(asked)));
    let e2b = patient(&service.url);
    e2b.start(&id(1), &spec()).await.unwrap();
    let guest = e2b.guest(&id(1)).await.unwrap();
    (service, e2b, guest)
}
