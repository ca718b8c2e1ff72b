//! A service with scripted answers, one request per connection.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// The longest wait before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A request that the service received.
#[derive(Debug, Clone)]
pub struct Request {
    /// Method and target, without the HTTP version.
    pub line: String,
    /// The content, chunked or not.
    pub body: Vec<u8>,
}

/// An answer of the service.
pub enum Answer {
    /// A status and a JSON text.
    Json(u16, &'static str),
    /// Raw bytes, and the end after them.
    Bytes(&'static [u8], End),
    /// NDJSON lines, and the end after them.
    Lines(Vec<&'static str>, End),
}

/// End of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The answer is complete.
    Complete,
    /// The connection is cut.
    Cut,
    /// The answer does not end until the client hangs up.
    Never,
    /// The last line is repeated until the client hangs up.
    Endless,
}

/// A running service that records its requests.
pub struct Service {
    pub url: String,
    asked: Receiver<Request>,
    hung_up: Receiver<()>,
}

impl Service {
    /// Starts a service that answers each request by `answer`.
    pub fn answering(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (told, asked) = channel();
        let (left, hung_up) = channel();
        let answer = std::sync::Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (told, left, answer) = (told.clone(), left.clone(), answer.clone());
                std::thread::spawn(move || serve(&stream.expect("a connection"), &told, &left, &*answer));
            }
        });
        Service { url, asked, hung_up }
    }

    /// Waits for the next request and returns it.
    pub fn asked(&self) -> Request {
        self.asked.recv_timeout(PATIENCE).expect("a request comes")
    }

    /// Returns whether no further request was received.
    pub fn is_idle(&self) -> bool {
        self.asked.try_recv().is_err()
    }

    /// Waits until a client leaves an answer that does not end.
    pub fn until_hung_up(&self) {
        self.hung_up.recv_timeout(PATIENCE).expect("the client hangs up");
    }
}

fn serve(mut stream: &TcpStream, told: &Sender<Request>, left: &Sender<()>, answer: &dyn Fn(&str) -> Answer) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let Some(request) = read(stream) else { return };
    let line = request.line.clone();
    let _ = told.send(request);
    let head = |status: u16, rest: &str| format!("HTTP/1.1 {status} X\r\nconnection: close\r\n{rest}\r\n");
    match answer(&line) {
        Answer::Json(status, body) => {
            let _ = stream.write_all((head(status, &format!("content-length: {}\r\n", body.len())) + body).as_bytes());
        }
        Answer::Bytes(bytes, end) => {
            let announced = bytes.len() + usize::from(end != End::Complete);
            let _ = stream.write_all(head(200, &format!("content-length: {announced}\r\n")).as_bytes());
            let _ = stream.write_all(bytes);
        }
        Answer::Lines(lines, end) => {
            let _ = stream.write_all(head(200, "transfer-encoding: chunked\r\n").as_bytes());
            let chunk = |line: &str| format!("{:x}\r\n{line}\n\r\n", line.len() + 1);
            for line in &lines {
                let _ = stream.write_all(chunk(line).as_bytes());
            }
            match end {
                End::Complete => drop(stream.write_all(b"0\r\n\r\n")),
                End::Cut => {}
                End::Never => {
                    if matches!(stream.read(&mut [0; 1]), Ok(0)) {
                        let _ = left.send(());
                    }
                }
                End::Endless => {
                    let last = chunk(lines.last().expect("a line to go on with"));
                    while stream.write_all(last.as_bytes()).is_ok() {}
                    let _ = left.send(());
                }
            }
        }
    }
}

fn read(mut stream: &TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 65536];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let lower = head.to_ascii_lowercase();
            let body = &bytes[end + 4..];
            let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
            let complete = match length {
                Some(length) => body.len() >= length.parse().expect("a number"),
                None => !lower.contains("transfer-encoding: chunked") || body.ends_with(b"0\r\n\r\n"),
            };
            if complete {
                let line = head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1").to_owned();
                return Some(Request { line, body: body.to_vec() });
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}
