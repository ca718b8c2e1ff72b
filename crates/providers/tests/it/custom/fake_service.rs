//! A service whose answers a test can replace. All others are those of a correct service of Tidebox.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// A request that was received.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    /// Method and path, such as `GET /sandboxes?limit=1`.
    pub(crate) line: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// An answer to send.
pub(crate) enum Reply {
    Json(u16, Value),
    /// A success without a body.
    Empty(u16),
    /// A whole response as sent on the wire. The connection ends after it.
    Raw(String),
    /// The same, of any bytes.
    Bytes(Vec<u8>),
    /// These bytes, and then nothing, until the client closes the connection.
    Held(Vec<u8>),
    /// This text, and then the same megabyte until the connection breaks.
    Endless(&'static str),
    /// No answer, until the client closes the connection.
    Nothing,
}

type Tell = dyn Fn(&Received) -> Option<Reply> + Send + Sync;
/// Answers of a correct service.
type Answer = fn(&mut State, &Received) -> Reply;

pub(crate) struct FakeService {
    pub(crate) url: String,
    shared: Arc<Shared>,
}

struct Shared {
    tell: Box<Tell>,
    answer: Answer,
    state: Mutex<State>,
    asked: Mutex<Vec<Received>>,
    /// Number of bytes of endless answers that were sent.
    endless: AtomicU64,
    over: AtomicBool,
}

/// Sandboxes that a correct service would have.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) made: u32,
    pub(crate) boxes: Vec<Value>,
}

impl FakeService {
    pub(crate) fn telling(tell: impl Fn(&Received) -> Option<Reply> + Send + Sync + 'static) -> FakeService {
        FakeService::serving(State::answer, tell)
    }

    /// Starts a service with the answers of `tell`, and for the rest those of `answer`.
    pub(crate) fn serving(
        answer: Answer,
        tell: impl Fn(&Received) -> Option<Reply> + Send + Sync + 'static,
    ) -> FakeService {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            tell: Box::new(tell),
            answer,
            state: Mutex::default(),
            asked: Mutex::default(),
            endless: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.over.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), shared) = (stream, Arc::clone(&serving)) else { continue };
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        FakeService { url, shared }
    }

    /// Returns the requests whose line begins with this text.
    pub(crate) fn asked(&self, line: &str) -> Vec<Received> {
        self.shared.asked.lock().unwrap().iter().filter(|asked| asked.line.starts_with(line)).cloned().collect()
    }

    /// Returns the sandboxes, to change them.
    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    /// Returns the number of sandboxes.
    pub(crate) fn boxes(&self) -> usize {
        self.shared.state.lock().unwrap().boxes.len()
    }

    /// Returns the number of bytes of endless answers that were sent.
    pub(crate) fn endless_bytes(&self) -> u64 {
        self.shared.endless.load(Ordering::SeqCst)
    }
}

impl Drop for FakeService {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        while let Some(asked) = read(&mut stream) {
            self.asked.lock().unwrap().push(asked.clone());
            let say = (self.tell)(&asked).unwrap_or_else(|| (self.answer)(&mut self.state.lock().unwrap(), &asked));
            match say {
                Reply::Json(status, body) => {
                    let body = body.to_string();
                    let answer = format!(
                        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
                Reply::Empty(status) => {
                    if stream.write_all(format!("HTTP/1.1 {status} X\r\n\r\n").as_bytes()).is_err() {
                        return;
                    }
                }
                Reply::Raw(answer) => {
                    let _ = stream.write_all(answer.as_bytes());
                    return;
                }
                Reply::Bytes(answer) => {
                    let _ = stream.write_all(&answer);
                    return;
                }
                Reply::Endless(head) => {
                    let piece = vec![b'x'; 1024 * 1024];
                    let mut go = stream.write_all(head.as_bytes()).is_ok();
                    while go {
                        go = stream.write_all(&piece).is_ok();
                        self.endless.fetch_add(piece.len() as u64, Ordering::SeqCst);
                    }
                    return;
                }
                Reply::Held(answer) => {
                    let _ = stream.write_all(&answer);
                    let _ = stream.read(&mut [0]);
                    return;
                }
                Reply::Nothing => {
                    let _ = stream.read(&mut [0]);
                    return;
                }
            }
        }
    }
}

/// Reads the next request. Returns `None` when there is none.
fn read(stream: &mut TcpStream) -> Option<Received> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 * 1024];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let mut lines = head.lines();
            let line = lines.next()?.replace("/api/v1", "");
            let line = line.trim_end_matches(" HTTP/1.1").to_owned();
            let headers: BTreeMap<String, String> = lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect();
            let body = &bytes[end + 4..];
            let complete = match headers.get("content-length") {
                Some(length) => body.len() >= length.parse().ok()?,
                None => !headers.contains_key("transfer-encoding") || body.ends_with(b"0\r\n\r\n"),
            };
            if complete {
                return Some(Received { line, headers, body: body.to_vec() });
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

impl State {
    fn answer(&mut self, asked: &Received) -> Reply {
        let (method, path) = asked.line.split_once(' ').unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        let id = path.strip_prefix("/sandboxes/").map(|rest| rest.split('/').next().unwrap_or(rest));
        let missing = || Reply::Json(404, json!({"code": "not_found", "message": "no such thing"}));
        match (method, id) {
            ("POST", None) if path == "/sandboxes" => {
                let body: Value = serde_json::from_slice(&asked.body).unwrap();
                self.made += 1;
                let sandbox = sandbox(&format!("far-{}", self.made), body["metadata"].clone());
                self.boxes.push(sandbox.clone());
                Reply::Json(201, sandbox)
            }
            ("GET", None) if path == "/sandboxes" => Reply::Json(200, Value::Array(self.boxes.clone())),
            ("GET", Some(id)) if !path.contains("/files") => {
                self.boxes.iter().find(|it| it["id"] == id).map_or_else(missing, |it| Reply::Json(200, it.clone()))
            }
            ("DELETE", Some(id)) if !path.contains("/files") => {
                self.boxes.retain(|it| it["id"] != id);
                Reply::Json(200, json!({"status": "destroyed"}))
            }
            _ => missing(),
        }
    }
}

/// Returns a running sandbox.
pub(crate) fn sandbox(id: &str, metadata: Value) -> Value {
    json!({"id": id, "state": "running", "provider": "p", "image": "i", "memory_mb": 1, "vcpus": 1,
        "created_at": "2026-01-01T00:00:00Z", "expires_at": "2027-01-01T00:00:00Z", "metadata": metadata})
}
