//! Previews: programs in sandboxes, reached by host names over HTTP.

mod attempts;
mod http2;
mod keys;
mod paths;
mod programs;
mod streams;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::server::{NATIVE, PATIENCE, TestServer};

const APP: &str = include_str!("previews/app.py");
/// A program that accepts connections and says nothing.
const SILENT: &str = "import socket
listener = socket.create_server(('127.0.0.1', 3000), backlog=1024)
kept = []
while True:
    kept.append(listener.accept()[0])
";
const KEY: &str = "a-key-of-at-least-thirty-two-bytes";
const DOMAIN: &str = "box.example";

/// Starts a server whose previews are below [`DOMAIN`].
async fn server(with_key: bool) -> TestServer {
    let builder = TestServer::builder(&format!("{NATIVE} server.preview_domain={DOMAIN} auth.api_key={KEY}"));
    if with_key { builder.key(KEY) } else { builder }.start().await
}

/// Spawns a sandbox with the program on port 3000.
async fn serving(server: &TestServer) -> String {
    running(server, APP, "3000").await
}

/// Spawns a sandbox with a program in Python that listens on port 3000.
async fn running(server: &TestServer, program: &str, arguments: &str) -> String {
    let id = server.spawn().await;
    server.write(&id, "/tmp/app.py", program).await;
    server.output(&id, &format!("exec python3 /tmp/app.py {arguments} </dev/null >/dev/null 2>&1 &")).await;
    server
        .until("the program listens", async || {
            let ports = server.get(&format!("/sandboxes/{id}/ports")).await.ok();
            ports.as_array().unwrap().iter().any(|entry| entry["port"] == 3000)
        })
        .await;
    id
}

fn host(id: &str) -> String {
    format!("3000-{id}.{DOMAIN}")
}

/// Returns a token for port 3000.
async fn token(server: &TestServer, id: &str) -> String {
    let minted = server.post(&format!("/sandboxes/{id}/preview"), json!({"port": 3000})).await.ok();
    minted["token"].as_str().unwrap().to_owned()
}

async fn dial(server: &TestServer) -> TcpStream {
    TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap()
}

/// Answer to raw bytes.
#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    /// Returns the value of a header.
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns what the program says of the request that it got.
    #[track_caller]
    fn told(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Sends raw bytes on a connection of their own and reads the first answer.
async fn raw(server: &TestServer, request: &str) -> Reply {
    let mut stream = dial(server).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    reply(&mut stream).await
}

/// Reads one answer, until the end of the body or the connection.
async fn reply(stream: &mut TcpStream) -> Reply {
    let mut text = String::new();
    let read = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length =
                    head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                if length.is_some_and(|length: usize| body.len() >= length) {
                    return;
                }
            }
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(count) => text.push_str(&String::from_utf8_lossy(&buffer[..count])),
            }
        }
    };
    if timeout(PATIENCE, read).await.is_err() {
        panic!("no whole answer came: {text}");
    }
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Reply { status, head: head.to_owned(), body: body.to_owned() }
}

/// Sends a GET with further headers, each with its line's end.
async fn get(server: &TestServer, host: &str, path: &str, headers: &str) -> Reply {
    raw(server, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n")).await
}

#[tokio::test]
async fn a_page_of_a_sandbox_is_reached_by_its_host_name_and_a_wrong_name_is_said() {
    let server = server(false).await;
    let id = serving(&server).await;
    let told = get(&server, &host(&id), "/api/v1/sandboxes?a=1", "Accept: */*\r\n").await.told();
    assert_eq!(told["line"], "GET /api/v1/sandboxes?a=1 HTTP/1.1", "the path of the API means nothing here");
    let html = "Accept: text/html,*/*\r\n";
    let page = get(&server, &format!("3001-{id}.{DOMAIN}"), "/", html).await;
    assert_eq!((page.status, page.header("retry-after")), (502, Some("1")));
    assert!(page.body.contains("Nothing listens") && page.body.contains("http-equiv=\"refresh\""), "{page:?}");
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"), "{page:?}");
    let plain = get(&server, &format!("3001-{id}.{DOMAIN}"), "/", "").await;
    let error: Value = serde_json::from_str(&plain.body).unwrap();
    assert_eq!(error["code"], "bad_gateway", "{plain:?}");
    let malformed = get(&server, &format!("x-{id}.{DOMAIN}"), "/", html).await;
    assert!(malformed.status == 400 && malformed.body.contains("not the address of a preview"), "{malformed:?}");
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    let gone = get(&server, &host(&id), "/", html).await;
    assert!(gone.status == 404 && gone.body.contains("This sandbox is gone"), "{gone:?}");
    let operations = server.get("/metrics").await.ok()["operations"].clone();
    assert!(operations.as_array().unwrap().iter().any(|one| one["operation"] == "preview"), "{operations}");
}

#[tokio::test]
async fn a_box_that_dies_with_many_requests_open_ends_them_and_nothing_else() {
    let server = server(false).await;
    let id = running(&server, SILENT, "").await;
    let mut open = Vec::new();
    for _ in 0..500 {
        let mut stream = dial(&server).await;
        let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", host(&id));
        stream.write_all(request.as_bytes()).await.unwrap();
        open.push(stream);
    }
    server
        .until("every request has arrived", async || {
            let connected = server.output(&id, "grep -c ':0BB8 .* 01 ' /proc/net/tcp || true").await;
            connected.trim().parse::<usize>().unwrap() >= open.len()
        })
        .await;
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    for mut stream in open {
        let reply = reply(&mut stream).await;
        assert!(matches!(reply.status, 404 | 409 | 502), "{reply:?}");
    }
    let other = serving(&server).await;
    assert_eq!(get(&server, &host(&other), "/", "").await.status, 200);
    tokio::time::timeout(Duration::from_secs(1), server.get("/health")).await.unwrap().ok();
}
