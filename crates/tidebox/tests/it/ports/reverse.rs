//! Ports of a sandbox that a caller listens on: over the API, and `tidebox forward --reverse`.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, PortListener, PortStream};
use futures_util::{StreamExt, stream};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::forward::{Forward, blocking};
use super::{EOF, all_of, closed};
use crate::cli::tidebox;
use crate::server::{Answer, MOCK, NATIVE, PATIENCE, TestServer, free_port};
use crate::websocket::{Socket, open_at};

/// A program that connects to port 4000, and writes what came of it to a file.
const PROGRAM: &str = r#"
import hashlib, socket, sys, threading

def send(c, count):
    c.sendall(bytes((n ^ n >> 7 ^ n >> 15) & 255 for n in range(count)))
    c.shutdown(socket.SHUT_WR)

def digest(c):
    total, seen = 0, hashlib.sha256()
    while piece := c.recv(65536):
        total += len(piece)
        seen.update(piece)
    return f"{total} {seen.hexdigest()}"

def both(c, count):
    sending = threading.Thread(target=send, args=(c, int(count)))
    sending.start()
    outcome = digest(c)
    sending.join()
    return outcome

def wait(c):
    while c.recv(65536): pass
    return "end"

def flood(c):
    while True: c.sendall(b"x" * 65536)

def many(c, count):
    all = [c] + [socket.create_connection(("127.0.0.1", 4000)) for _ in range(int(count) - 1)]
    for number, c in enumerate(all):
        c.sendall(b"%03d" % number)
    for number, c in enumerate(all):
        assert c.recv(3, socket.MSG_WAITALL) == b"%03d" % number
    return "all"

try:
    outcome = globals()[sys.argv[1]](socket.create_connection(("127.0.0.1", 4000)), *sys.argv[2:])
except OSError as error:
    outcome = type(error).__name__
print(outcome)
"#;

/// Bytes that the program sends.
fn noise(count: u32) -> Vec<u8> {
    (0..count).map(|n| (n ^ n >> 7 ^ n >> 15) as u8).collect()
}

async fn spawn(server: &TestServer) -> String {
    let id = server.spawn().await;
    server.write(&id, "/tmp/program.py", PROGRAM).await;
    id
}

/// Runs the program beside the test; its outcome is in a file.
async fn run(server: &TestServer, id: &str, arguments: &str) {
    let line =
        "sh -c 'python3 /tmp/program.py ARGUMENTS > /tmp/new; mv /tmp/new /tmp/outcome' </dev/null >/dev/null 2>&1 &";
    server.output(id, &format!("rm -f /tmp/outcome; {}", line.replace("ARGUMENTS", arguments))).await;
}

async fn outcome(server: &TestServer, id: &str) -> String {
    let mut seen = String::new();
    server
        .until("the program ends", async || {
            seen = server.output(id, "cat /tmp/outcome 2>/dev/null || true").await;
            !seen.is_empty()
        })
        .await;
    seen.trim().to_owned()
}

fn client(server: &TestServer) -> Client {
    Client::new(&server.url, None, None).unwrap()
}

async fn next(listener: &mut PortListener) -> u64 {
    tokio::time::timeout(PATIENCE, listener.next()).await.expect("a connection comes").unwrap()
}

async fn take(listener: &mut PortListener, input: Vec<Bytes>) -> PortStream {
    let number = next(listener).await;
    listener.accept(number, stream::iter(input.into_iter().map(Ok))).await.unwrap()
}

/// Opens a listener as any program would.
async fn listen(server: &TestServer, id: &str, port: u16) -> Result<Socket, (u16, Value)> {
    open_at(server, &format!("/sandboxes/{id}/ports/{port}/listen"), &[]).await
}

async fn said(socket: &mut Socket) -> Value {
    serde_json::from_str(socket.next().await.unwrap().to_text().unwrap()).unwrap()
}

#[tokio::test]
async fn a_program_in_a_sandbox_reaches_its_caller_with_plain_websockets() {
    let server = TestServer::start(NATIVE).await;
    let id = spawn(&server).await;
    let mut listener = listen(&server, &id, 4000).await.ok().unwrap();
    assert_eq!(said(&mut listener).await, json!({"type": "listening", "port": 4000}));
    // It is no port of the sandbox's own.
    assert_eq!(server.get(&format!("/sandboxes/{id}/ports")).await.ok(), json!([]));
    run(&server, &id, "both 3").await;
    let announced = said(&mut listener).await;
    assert_eq!(announced["type"], "connection", "{announced}");
    let path = format!("/sandboxes/{id}/ports/4000/listen/{}", announced["connection"]);
    let mut socket = open_at(&server, &path, &[]).await.ok().unwrap();
    assert_eq!(socket.next().await.unwrap(), Message::binary(noise(3)));
    assert_eq!(socket.next().await.unwrap(), Message::text(EOF));
    socket.send(Message::binary("hello")).await;
    socket.say(json!({"type": "eof"})).await;
    closed(socket.next().await, CloseCode::Normal);
    assert!(outcome(&server, &id).await.starts_with("5 "));
    // It is taken once, and by the port that it came to.
    for path in [path, format!("/sandboxes/{id}/ports/4001/listen/1"), format!("/sandboxes/{id}/ports/4000/listen/999")]
    {
        let (status, body) = open_at(&server, &path, &[]).await.err().unwrap();
        assert!(status == 404 && body["message"].as_str().unwrap().contains("is not waiting"), "{path}: {body}");
    }
}

#[tokio::test]
async fn several_megabytes_go_both_ways_through_a_listened_port_byte_for_byte() {
    let server = TestServer::start(NATIVE).await;
    let id = spawn(&server).await;
    let mut listener = client(&server).listen_port(&id, 4000).await.unwrap();
    run(&server, &id, "both 3000000").await;
    let bytes = Bytes::from(noise(3_000_000));
    let pieces = (0..bytes.len()).step_by(77_777).map(|at| bytes.slice(at..bytes.len().min(at + 77_777))).collect();
    let taken = take(&mut listener, pieces).await;
    assert!(all_of(taken).await == bytes);
    server.write(&id, "/tmp/check.py", "import hashlib; print(hashlib.sha256(bytes((n ^ n >> 7 ^ n >> 15) & 255 for n in range(3000000))).hexdigest())").await;
    let digest = server.output(&id, "python3 /tmp/check.py").await;
    assert_eq!(outcome(&server, &id).await, format!("3000000 {}", digest.trim()));
}

#[tokio::test]
async fn a_hundred_connections_are_open_at_once_and_do_not_mix() {
    let server = TestServer::start(NATIVE).await;
    let id = spawn(&server).await;
    let mut listener = client(&server).listen_port(&id, 4000).await.unwrap();
    run(&server, &id, "many 100").await;
    let mut echoes = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let number = next(&mut listener).await;
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let input = stream::unfold(receiver, |mut receiver: tokio::sync::mpsc::Receiver<Bytes>| async move {
            Some((Ok(receiver.recv().await?), receiver))
        });
        let mut taken = listener.accept(number, input.boxed()).await.unwrap();
        echoes.spawn(async move {
            while let Ok(Some(piece)) = taken.next().await {
                if piece.is_empty() || sender.send(piece).await.is_err() {
                    return;
                }
            }
        });
    }
    assert_eq!(outcome(&server, &id).await, "all");
}

#[tokio::test]
async fn a_connection_that_is_refused_is_reset() {
    let server = TestServer::start(NATIVE).await;
    let id = spawn(&server).await;
    let mut listener = client(&server).listen_port(&id, 4000).await.unwrap();
    run(&server, &id, "wait").await;
    let number = next(&mut listener).await;
    listener.refuse(number).await.unwrap();
    // The server reads it with the next turn of the listener.
    let mut pending = Box::pin(listener.next());
    tokio::select! {
        next = &mut pending => panic!("{next:?}"),
        outcome = outcome(&server, &id) => assert_eq!(outcome, "ConnectionResetError"),
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_frees_the_port_and_resets_its_connections() {
    let server = TestServer::start(NATIVE).await;
    let id = spawn(&server).await;
    let mut listener = client(&server).listen_port(&id, 4000).await.unwrap();
    let (status, body) = listen(&server, &id, 4000).await.err().unwrap();
    assert!(status == 409 && body["message"].as_str().unwrap().contains("in use"), "{body}");
    run(&server, &id, "wait").await;
    let number = next(&mut listener).await;
    let mut taken = listener.accept(number, stream::pending()).await.unwrap();
    drop(listener);
    assert_eq!(outcome(&server, &id).await, "ConnectionResetError");
    assert!(tokio::time::timeout(PATIENCE, taken.next()).await.unwrap().is_err());
    server.until("the port is free", async || listen(&server, &id, 4000).await.is_ok()).await;
}

#[tokio::test]
async fn a_port_that_a_program_listens_on_is_a_conflict() {
    let server = TestServer::start(NATIVE).await;
    let id = super::serving(&server, "echo", 3000).await;
    let (status, body) = listen(&server, &id, 3000).await.err().unwrap();
    assert_eq!((status, body["code"].as_str()), (409, Some("conflict")), "{body}");
    // That of the agent is none to listen on.
    let (status, body) = listen(&server, &id, 7424).await.err().unwrap();
    assert!(status == 400 && body["message"].as_str().unwrap().contains("proxy"), "{body}");
    let (status, body) = listen(&server, &id, 0).await.err().unwrap();
    assert_eq!((status, body["code"].as_str()), (400, Some("bad_request")), "{body}");
    let mut open = Vec::new();
    for port in 4000..4016 {
        open.push(listen(&server, &id, port).await.ok().unwrap());
    }
    let (status, body) = listen(&server, &id, 4016).await.err().unwrap();
    assert_eq!((status, body["code"].as_str()), (429, Some("resource_limit")), "{body}");
}

#[tokio::test]
async fn a_sandbox_that_ends_ends_its_listeners_with_an_error() {
    let server = TestServer::start(NATIVE).await;
    let id = spawn(&server).await;
    let mut listener = listen(&server, &id, 4000).await.ok().unwrap();
    said(&mut listener).await;
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    let last = said(&mut listener).await;
    assert_eq!(last["type"], "error", "{last}");
    assert!(matches!(last["code"].as_str(), Some("not_found" | "conflict")), "{last}");
    assert_eq!(listen(&server, &id, 4000).await.err().unwrap().0, 404);
}

#[tokio::test]
async fn a_message_that_makes_no_sense_ends_the_listener() {
    let server = TestServer::start(NATIVE).await;
    let id = spawn(&server).await;
    for message in [Message::binary("a"), Message::text("hello"), Message::text(r#"{"type":"eof"}"#)] {
        let mut listener = loop {
            match listen(&server, &id, 4000).await {
                Ok(listener) => break listener,
                // The one before is still being closed.
                Err((status, body)) => assert_eq!(status, 409, "{body}"),
            }
        };
        said(&mut listener).await;
        listener.send(message).await;
        let last = said(&mut listener).await;
        assert_eq!((&last["type"], &last["code"]), (&json!("error"), &json!("bad_request")), "{last}");
    }
}

#[tokio::test]
async fn a_server_that_was_killed_leaves_no_listener_in_the_box() {
    let mut server = TestServer::start(NATIVE).await;
    let id = spawn(&server).await;
    let _listener = client(&server).listen_port(&id, 4000).await.unwrap();
    server.kill();
    server.launch().await;
    server.until("the port is free", async || listen(&server, &id, 4000).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_told_to_stop_ends_listeners() {
    let mut server = TestServer::start(NATIVE).await;
    let id = spawn(&server).await;
    let mut listener = listen(&server, &id, 4000).await.ok().unwrap();
    said(&mut listener).await;
    let ending = tokio::spawn(async move { (listener.next().await, listener.next().await) });
    assert_eq!(tokio::task::block_in_place(|| server.terminate()), Some(0));
    let (last, close) = ending.await.unwrap();
    assert!(last.unwrap().to_text().unwrap().contains("shutting down"));
    closed(close, CloseCode::Away);
    server.launch().await;
}

#[tokio::test]
async fn a_caller_that_does_not_read_stops_only_its_own_connection() {
    let server = TestServer::start(NATIVE).await;
    let id = spawn(&server).await;
    let mut listener = client(&server).listen_port(&id, 4000).await.unwrap();
    let before = server.resident_kib();
    run(&server, &id, "flood").await;
    let number = next(&mut listener).await;
    let mut stalled = listener.accept(number, stream::pending()).await.unwrap();
    stalled.next().await.unwrap();
    for _ in 0..3 {
        run(&server, &id, "both 5").await;
        let taken = take(&mut listener, vec![Bytes::from_static(b"still here")]).await;
        assert_eq!(all_of(taken).await, noise(5));
        assert!(outcome(&server, &id).await.starts_with("10 "));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 32 * 1024, "the server grew by {grown} KiB");
}

#[tokio::test]
async fn an_operator_can_switch_it_off_and_each_listener_is_in_the_audit_history() {
    let mut server = TestServer::start(&format!("{NATIVE} egress.mode=none")).await;
    let id = spawn(&server).await;
    drop(listen(&server, &id, 4000).await.ok().unwrap());
    let rows = server.get("/admin/audit?action=sandboxes.listen").await.ok();
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
    server.kill();
    server.set("ports.reverse", "false");
    server.launch().await;
    let (status, body) = listen(&server, &id, 4000).await.err().unwrap();
    assert_eq!((status, body["code"].as_str()), (400, Some("not_supported")), "{body}");
    assert!(body["message"].as_str().unwrap().contains("ports.reverse"), "{body}");
}

#[tokio::test]
async fn where_users_share_boxes_only_the_owner_listens_and_takes() {
    let server = TestServer::start(&format!("{MOCK} pool.enabled=true pool.max_vms=2")).await;
    let spawned = server.request(Method::POST, "/sandboxes").header("X-User-ID", "ann").json(&json!({})).send().await;
    let id = Answer::read(spawned.unwrap()).await.json()["id"].as_str().unwrap().to_owned();
    for path in [format!("/sandboxes/{id}/ports/4000/listen"), format!("/sandboxes/{id}/ports/4000/listen/1")] {
        let (status, body) = open_at(&server, &path, &[("X-User-ID", "bob")]).await.err().unwrap();
        assert!(status == 404 && body["message"].as_str().unwrap().contains(&id), "{body}");
    }
    assert!(open_at(&server, &format!("/sandboxes/{id}/ports/4000/listen"), &[("X-User-ID", "ann")]).await.is_ok());
    let gone = server.request(Method::DELETE, &format!("/sandboxes/{id}")).header("X-User-ID", "ann").send().await;
    assert!(gone.unwrap().status().is_success());
}

#[tokio::test]
async fn a_sandbox_of_another_service_can_be_listened_in_from_here() {
    let far = TestServer::start(NATIVE).await;
    let near = TestServer::start(&format!(
        "providers.native.enabled=false providers.custom.enabled=true providers.custom.base_url={} \
         providers.default=custom",
        far.url
    ))
    .await;
    let id = spawn(&near).await;
    let mut listener = client(&near).listen_port(&id, 4000).await.unwrap();
    let (status, body) = listen(&near, &id, 4000).await.err().unwrap();
    assert_eq!((status, body["code"].as_str()), (409, Some("conflict")), "{body}");
    run(&near, &id, "both 1000000").await;
    let taken = take(&mut listener, vec![Bytes::from(noise(1_000_000))]).await;
    assert!(all_of(taken).await == noise(1_000_000));
    assert!(outcome(&near, &id).await.starts_with("1000000 "));
}

/// Echoes each connection to its end.
fn echo() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).unwrap();
                stream.write_all(&all).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            });
        }
    });
    port
}

#[tokio::test]
async fn a_program_in_a_sandbox_reaches_a_port_of_this_machine_by_the_command_line() {
    let server = TestServer::start(NATIVE).await;
    let id = spawn(&server).await;
    let (good, free) = (echo(), TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port());
    let arguments = [format!("4000:{good}"), format!("4001:localhost:{free}")];
    let (forward, id) = {
        let (url, id) = (server.url.clone(), id.clone());
        blocking(move || {
            let mut forward = Forward::at(&url, &["--reverse", &id, &arguments[0], &arguments[1]]);
            assert_eq!(forward.line(), format!("port 4000 of {id} -> 127.0.0.1:{good}\n"));
            assert_eq!(forward.line(), format!("port 4001 of {id} -> localhost:{free}\n"));
            (forward, id)
        })
        .await
    };
    run(&server, &id, "both 300000").await;
    assert!(outcome(&server, &id).await.starts_with("300000 "));
    // What is not there resets the connection, with a line about it; the others go on.
    server.output(&id, "sed -i s/4000/4001/ /tmp/program.py").await;
    run(&server, &id, "wait").await;
    assert_eq!(outcome(&server, &id).await, "ConnectionResetError");
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    let (code, said) = blocking(move || forward.end()).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("localhost:{free} cannot be reached")) && said.contains("has ended"), "{said}");
}

#[tokio::test]
async fn the_command_line_listens_again_after_the_server_was_killed() {
    let mut server = TestServer::start(&format!("{NATIVE} server.port={}", free_port())).await;
    let id = spawn(&server).await;
    let mapping = format!("4000:{}", echo());
    let forward = {
        let (url, id) = (server.url.clone(), id.clone());
        blocking(move || {
            let mut forward = Forward::at(&url, &["--reverse", &id, &mapping]);
            forward.line();
            forward
        })
        .await
    };
    for _ in 0..2 {
        server.kill();
        server.launch().await;
        let listened = async || {
            run(&server, &id, "both 3000").await;
            outcome(&server, &id).await.starts_with("3000 ")
        };
        server.until("the port is listened on again", listened).await;
    }
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    let (code, said) = blocking(move || forward.end()).await;
    assert!(code == Some(1) && said.contains("has ended"), "{said}");
}

#[tokio::test]
async fn the_command_line_says_why_it_cannot_listen() {
    let server = TestServer::start(NATIVE).await;
    let id = super::serving(&server, "echo", 3000).await;
    blocking(move || {
        let used = tidebox(&server, &["forward", "--reverse", &id, "3000"], b"");
        let text = String::from_utf8(used.stderr).unwrap();
        assert!(used.status.code() == Some(1) && text.contains("port 3000 is in use"), "{text}");
        let none = tidebox(&server, &["forward", "--reverse", "sb-aaaaaaaaaaaaaaaa", "3000"], b"");
        assert_eq!((none.status.code(), none.stdout.len()), (Some(1), 0), "{none:?}");
        for wrong in [&["--reverse", "sb-1"][..], &["--reverse", "sb-1", "0"], &["--reverse", "sb-1", "1:2:3:4"]] {
            let arguments = [&["forward"], wrong].concat();
            assert_eq!(tidebox(&server, &arguments, b"").status.code(), Some(2), "{wrong:?}");
        }
    })
    .await;
}
