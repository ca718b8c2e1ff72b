//! Ports of a sandbox: the list of them, and connections over a WebSocket.

mod changes;
mod forward;
mod idle;
mod reverse;

use bytes::Bytes;
use client::{Client, PortStream};
use futures_util::{StreamExt, stream};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::server::{Answer, MOCK, NATIVE, PATIENCE, TestServer};
use crate::websocket::{Socket, open_at};

/// A server that serves each connection with `serve`, and writes what came of it to a file.
const SERVER: &str = r#"
import socket, sys, threading

def echo(c):
    while piece := c.recv(65536):
        c.sendall(piece)
    return "end"

def count(c):
    total = 0
    while piece := c.recv(65536):
        total += len(piece)
    c.sendall(str(total).encode())
    return str(total)

def bye(c):
    c.sendall(b"bye")
    c.shutdown(socket.SHUT_WR)
    total = 0
    while piece := c.recv(65536):
        total += len(piece)
    return str(total)

def flood(c):
    while True:
        c.sendall(b"x" * 65536)

def deaf(c):
    threading.Event().wait()

def run(serve, c):
    try:
        outcome = serve(c)
    except OSError as error:
        outcome = type(error).__name__
    c.close()
    with open("/tmp/outcome", "a") as file:
        file.write(outcome + "\n")

listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
while True:
    c, _ = listener.accept()
    threading.Thread(target=run, args=(globals()[sys.argv[1]], c)).start()
"#;

const EOF: &str = r#"{"type":"eof"}"#;

/// Starts a process that listens on the port, and waits for it to listen.
async fn start(server: &TestServer, id: &str, line: &str, port: u16) -> Value {
    server.output(id, &format!("{line} </dev/null >/dev/null 2>&1 &")).await;
    let mut entry = Value::Null;
    server
        .until("the port listens", async || {
            let ports = server.get(&format!("/sandboxes/{id}/ports")).await.ok();
            entry = ports.as_array().unwrap().iter().find(|entry| entry["port"] == port).cloned().unwrap_or_default();
            !entry.is_null()
        })
        .await;
    entry
}

/// Spawns a sandbox with a server that serves each connection in this way.
async fn serving(server: &TestServer, serve: &str, port: u16) -> String {
    let id = server.spawn().await;
    server.write(&id, "/tmp/server.py", SERVER).await;
    start(server, &id, &format!("python3 /tmp/server.py {serve} {port}"), port).await;
    id
}

async fn connect(server: &TestServer, id: &str, port: u16) -> Result<Socket, (u16, Value)> {
    open_at(server, &format!("/sandboxes/{id}/ports/{port}/connect"), &[]).await
}

/// Opens a connection with the client.
async fn dial(url: &str, id: &str, port: u16, input: Vec<Bytes>) -> PortStream {
    let client = Client::new(url, None, None).unwrap();
    client.connect_port(id, port, stream::iter(input.into_iter().map(Ok))).await.unwrap()
}

/// Reads to the end of both directions.
async fn all_of(mut port: PortStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(piece) = tokio::time::timeout(PATIENCE, port.next()).await.expect("something comes").unwrap() {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

/// Waits for what a connection came to in the box.
async fn outcome(server: &TestServer, id: &str, expected: &str) {
    let mut seen = String::new();
    server
        .until("the connection ends in the box", async || {
            seen = server.output(id, "cat /tmp/outcome 2>/dev/null || true").await;
            !seen.is_empty()
        })
        .await;
    assert_eq!(seen.trim(), expected);
}

#[track_caller]
fn closed(message: Option<Message>, code: CloseCode) {
    match message {
        Some(Message::Close(Some(frame))) => assert_eq!(frame.code, code),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_service_in_a_sandbox_is_listed_and_answers() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/ports");
    assert_eq!(server.get(&path).await.ok(), json!([]));
    server.write(&id, "/tmp/site/index.html", "hello from the box").await;
    let entry = start(&server, &id, "exec python3 -m http.server --directory /tmp/site 3000", 3000).await;
    assert_eq!(entry["address"], "0.0.0.0", "{entry}");
    assert!(entry["process"].as_str().unwrap().starts_with("python3"), "{entry}");
    let pid = entry["pid"].as_u64().unwrap();
    assert!(server.output(&id, &format!("tr '\\0' ' ' </proc/{pid}/cmdline")).await.contains("http.server"));

    let mut socket = connect(&server, &id, 3000).await.ok().unwrap();
    socket.send(Message::binary("GET / HTTP/1.0\r\n\r\n")).await;
    let mut answer = Vec::new();
    // The process closes first, and the client still may send.
    let text = loop {
        let message = socket.next().await.unwrap();
        if !message.is_binary() {
            break message;
        }
        answer.extend_from_slice(&message.into_data());
    };
    assert_eq!(text, Message::text(EOF));
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 OK") && answer.ends_with("\r\n\r\nhello from the box"), "{answer}");
    socket.say(json!({"type": "eof"})).await;
    closed(socket.next().await, CloseCode::Normal);
}

#[tokio::test]
async fn several_megabytes_go_both_ways_byte_for_byte() {
    let server = TestServer::start(NATIVE).await;
    let id = serving(&server, "echo", 3000).await;
    let bytes: Bytes = (0..8 << 20).map(|n: u32| (n ^ n >> 7 ^ n >> 15) as u8).collect();
    // Odd pieces, some larger than a message.
    let pieces: Vec<Bytes> =
        (0..bytes.len()).step_by(77_777).map(|at| bytes.slice(at..bytes.len().min(at + 77_777))).collect();
    let (one, other) =
        tokio::join!(async { all_of(dial(&server.url, &id, 3000, pieces.clone()).await).await }, async {
            all_of(dial(&server.url, &id, 3000, vec![bytes.clone()]).await).await
        },);
    assert!(one == bytes && other == bytes);
    outcome(&server, &id, "end\nend").await;
}

#[tokio::test]
async fn each_direction_has_its_own_end() {
    let server = TestServer::start(NATIVE).await;
    let id = serving(&server, "count", 3000).await;
    let bytes = Bytes::from(vec![7; 1_000_000]);
    assert_eq!(all_of(dial(&server.url, &id, 3000, vec![bytes]).await).await, b"1000000");
    assert_eq!(all_of(dial(&server.url, &id, 3000, vec![]).await).await, b"0");

    let id = serving(&server, "bye", 3000).await;
    let mut socket = connect(&server, &id, 3000).await.ok().unwrap();
    assert_eq!(socket.next().await.unwrap(), Message::binary("bye"));
    assert_eq!(socket.next().await.unwrap(), Message::text(EOF));
    for _ in 0..3 {
        socket.send(Message::binary(vec![1; 100_000])).await;
    }
    socket.say(json!({"type": "eof"})).await;
    closed(socket.next().await, CloseCode::Normal);
    outcome(&server, &id, "300000").await;
}

#[tokio::test]
async fn a_client_that_hangs_up_resets_the_connection_in_the_box() {
    let server = TestServer::start(NATIVE).await;
    let id = serving(&server, "echo", 3000).await;
    let mut socket = connect(&server, &id, 3000).await.ok().unwrap();
    socket.send(Message::binary("a")).await;
    assert_eq!(socket.next().await.unwrap(), Message::binary("a"));
    drop(socket);
    outcome(&server, &id, "ConnectionResetError").await;
}

#[tokio::test]
async fn what_can_be_refused_before_it_is_a_websocket_is_refused_as_anywhere() {
    let server = TestServer::start(NATIVE).await;
    let id = serving(&server, "echo", 3000).await;
    let (status, body) = connect(&server, &id, 3001).await.err().unwrap();
    assert_eq!((status, body["code"].as_str()), (404, Some("not_found")), "{body}");
    assert!(body["message"].as_str().unwrap().contains("nothing listens on port 3001"), "{body}");
    for port in ["0", "65536", "abc", "+80", "-1", "%20"] {
        let (status, body) =
            open_at(&server, &format!("/sandboxes/{id}/ports/{port}/connect"), &[]).await.err().unwrap();
        assert_eq!((status, body["code"].as_str()), (400, Some("bad_request")), "{port}: {body}");
    }
    let plain = server.get(&format!("/sandboxes/{id}/ports/3000/connect")).await;
    plain.refused(400, "bad_request", "tidebox forward");
    let unknown = "sb-aaaaaaaaaaaaaaaa";
    assert_eq!(connect(&server, unknown, 3000).await.err().unwrap().0, 404);
    server.get(&format!("/sandboxes/{unknown}/ports")).await.refused(404, "not_found", unknown);
    let foreign = [("Origin", "https://evil.example")];
    let path = format!("/sandboxes/{id}/ports/3000/connect");
    assert_eq!(open_at(&server, &path, &foreign).await.err().unwrap().0, 403);
}

#[tokio::test]
async fn a_message_that_makes_no_sense_ends_the_connection_with_an_error() {
    let server = TestServer::start(NATIVE).await;
    let id = serving(&server, "echo", 3000).await;
    let mut socket = connect(&server, &id, 3000).await.ok().unwrap();
    socket.say(json!({"type": "stdin", "data": "a"})).await;
    let last: Value = serde_json::from_str(socket.next().await.unwrap().to_text().unwrap()).unwrap();
    assert_eq!((&last["type"], &last["code"]), (&json!("error"), &json!("bad_request")), "{last}");
    closed(socket.next().await, CloseCode::Normal);
    outcome(&server, &id, "ConnectionResetError").await;
}

#[tokio::test]
async fn a_sandbox_that_is_destroyed_ends_its_connections_with_an_error() {
    let server = TestServer::start(NATIVE).await;
    let id = serving(&server, "echo", 3000).await;
    let mut socket = connect(&server, &id, 3000).await.ok().unwrap();
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    // The end of the process may be seen before that of the box.
    let last = loop {
        let message = socket.next().await.unwrap();
        if message != Message::text(EOF) {
            break message;
        }
    };
    let last: Value = serde_json::from_str(last.to_text().unwrap()).unwrap();
    assert_eq!(last["type"], "error", "{last}");
    assert!(matches!(last["code"].as_str(), Some("not_found" | "conflict")), "{last}");
    assert_eq!(connect(&server, &id, 3000).await.err().unwrap().0, 404);
}

#[tokio::test]
async fn a_client_that_stops_reading_and_a_process_that_does_stop_nothing_else() {
    let server = TestServer::start(NATIVE).await;
    let id = serving(&server, "flood", 3000).await;
    start(&server, &id, "python3 /tmp/server.py deaf 3001", 3001).await;
    start(&server, &id, "python3 /tmp/server.py echo 3002", 3002).await;
    let before = server.resident_kib();
    let mut stalled = Vec::new();
    for _ in 0..4 {
        let mut socket = connect(&server, &id, 3000).await.ok().unwrap();
        socket.next().await.unwrap();
        stalled.push(socket);
    }
    let mut deaf = Vec::new();
    for _ in 0..4 {
        let endless = stream::repeat_with(|| Ok(Bytes::from(vec![b'x'; 1 << 20]))).take(64);
        let client = Client::new(&server.url, None, None).unwrap();
        deaf.push(client.connect_port(&id, 3001, endless).await.unwrap());
    }
    for _ in 0..3 {
        let echoed = all_of(dial(&server.url, &id, 3002, vec![Bytes::from_static(b"still here")]).await).await;
        assert_eq!(echoed, b"still here");
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    }
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 48 * 1024, "the server grew by {grown} KiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_told_to_stop_closes_connections() {
    let mut server = TestServer::start(NATIVE).await;
    let id = serving(&server, "echo", 3000).await;
    let mut socket = connect(&server, &id, 3000).await.ok().unwrap();
    let ending = tokio::spawn(async move { (socket.next().await, socket.next().await) });
    assert_eq!(tokio::task::block_in_place(|| server.terminate()), Some(0));
    let (last, close) = ending.await.unwrap();
    assert!(last.unwrap().to_text().unwrap().contains("shutting down"));
    closed(close, CloseCode::Away);
    server.launch().await;
}

#[tokio::test]
async fn where_users_share_boxes_the_ports_of_another_are_hidden() {
    let server = TestServer::start(&format!("{MOCK} pool.enabled=true pool.max_vms=2")).await;
    let ask = async |method: Method, path: &str, user: &str| {
        Answer::read(server.request(method, path).header("X-User-ID", user).json(&json!({})).send().await.unwrap())
            .await
    };
    let id = ask(Method::POST, "/sandboxes", "ann").await.json()["id"].as_str().unwrap().to_owned();
    let (list, connect) = (format!("/sandboxes/{id}/ports"), format!("/sandboxes/{id}/ports/3000/connect"));
    ask(Method::GET, &list, "bob").await.refused(404, "not_found", &id);
    assert_ne!(ask(Method::GET, &list, "ann").await.status, 404);
    let (status, body) = open_at(&server, &connect, &[("X-User-ID", "bob")]).await.err().unwrap();
    assert!(status == 404 && body["message"].as_str().unwrap().contains(&id), "{body}");
    assert!(ask(Method::DELETE, &format!("/sandboxes/{id}"), "ann").await.status.is_success());
}

#[tokio::test]
async fn a_sandbox_of_another_service_has_its_ports_here_too() {
    let far = TestServer::start(NATIVE).await;
    let near = TestServer::start(&format!(
        "providers.native.enabled=false providers.custom.enabled=true providers.custom.base_url={} \
         providers.default=custom",
        far.url
    ))
    .await;
    let id = serving(&near, "echo", 3000).await;
    let bytes = Bytes::from(vec![9; 2 << 20]);
    assert!(all_of(dial(&near.url, &id, 3000, vec![bytes.clone()]).await).await == bytes);
    outcome(&near, &id, "end").await;
    let (status, body) = connect(&near, &id, 3001).await.err().unwrap();
    assert!(status == 404 && body["message"].as_str().unwrap().contains("port 3001"), "{body}");

    let id = serving(&near, "bye", 3000).await;
    let mut socket = connect(&near, &id, 3000).await.ok().unwrap();
    assert_eq!(socket.next().await.unwrap(), Message::binary("bye"));
    assert_eq!(socket.next().await.unwrap(), Message::text(EOF));
    drop(socket);
    outcome(&near, &id, "ConnectionResetError").await;
}
