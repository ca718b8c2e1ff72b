//! Commands over a WebSocket.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;
use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{ClientRequestBuilder, Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::server::{Answer, MOCK, NATIVE, PATIENCE, TestServer};

const KEY: &str = "a-key-of-at-least-thirty-two-bytes";

/// The client's end of a connection.
pub struct Socket {
    pub stream: WebSocketStream<TcpStream>,
    /// The subprotocol that the server selected.
    protocol: Option<String>,
}

/// Output and end of a command.
#[derive(Debug)]
struct Ended {
    stdout: String,
    stderr: String,
    /// The last message before the connection closed.
    last: Value,
    code: Option<CloseCode>,
}

impl Ended {
    #[track_caller]
    fn exited(&self, code: i32) {
        assert_eq!((&self.last["type"], &self.last["exit_code"]), (&json!("exit"), &json!(code)), "{self:?}");
        assert_eq!(self.code, Some(CloseCode::Normal), "{self:?}");
    }

    #[track_caller]
    fn refused(&self, code: &str, words: &str) {
        assert_eq!((&self.last["type"], &self.last["code"]), (&json!("error"), &json!(code)), "{self:?}");
        assert!(self.last["message"].as_str().unwrap().contains(words), "{self:?}");
    }
}

async fn open(server: &TestServer, id: &str, headers: &[(&str, &str)]) -> Result<Socket, (u16, Value)> {
    open_at(server, &format!("/sandboxes/{id}/exec/ws"), headers).await
}

/// Opens a WebSocket with these headers; returns the status and the body if it is refused.
pub async fn open_at(server: &TestServer, path: &str, headers: &[(&str, &str)]) -> Result<Socket, (u16, Value)> {
    let address = server.url.strip_prefix("http://").unwrap();
    let uri = format!("ws://{address}/api/v1{path}").parse().unwrap();
    let request = headers
        .iter()
        .fold(ClientRequestBuilder::new(uri), |request, (name, value)| request.with_header(*name, *value));
    let stream = TcpStream::connect(address).await.unwrap();
    match client_async(request, stream).await {
        Ok((stream, answer)) => {
            let protocol = answer.headers().get("sec-websocket-protocol").map(|name| name.to_str().unwrap().to_owned());
            Ok(Socket { stream, protocol })
        }
        Err(Error::Http(answer)) => {
            let body = answer.body().as_deref().unwrap_or_default();
            Err((answer.status().as_u16(), serde_json::from_slice(body).unwrap_or_default()))
        }
        Err(error) => panic!("{error}"),
    }
}

impl Socket {
    async fn begin(server: &TestServer, id: &str, start: Value) -> Socket {
        let mut socket = open(server, id, &[]).await.map_err(|refused| format!("{refused:?}")).unwrap();
        socket.start(start).await;
        socket
    }

    async fn start(&mut self, mut start: Value) {
        start["type"] = json!("start");
        self.say(start).await;
    }

    pub async fn say(&mut self, message: Value) {
        self.send(Message::text(message.to_string())).await;
    }

    pub async fn send(&mut self, message: Message) {
        // The server may have closed the connection; its last messages can still be read.
        let _ = self.stream.send(message).await;
    }

    pub async fn next(&mut self) -> Option<Message> {
        loop {
            match tokio::time::timeout(PATIENCE, self.stream.next()).await.expect("the server says something") {
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(message)) => return Some(message),
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// Reads until stdout has `text` and returns all of stdout so far.
    async fn until(&mut self, text: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(text) {
            let message = self.next().await.unwrap_or_else(|| panic!("no {text:?} in {seen:?}"));
            let message: Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
            assert_eq!(message["type"], "stdout", "{seen:?} {message}");
            seen.push_str(message["data"].as_str().unwrap());
        }
        seen
    }

    /// Reads until the connection ends.
    async fn end(mut self) -> Ended {
        let mut ended = Ended { stdout: String::new(), stderr: String::new(), last: Value::Null, code: None };
        while let Some(message) = self.next().await {
            if let Message::Close(frame) = &message {
                ended.code = frame.as_ref().map(|frame| frame.code);
                continue;
            }
            let message: Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
            assert!(ended.last.is_null(), "something follows the last message: {ended:?} {message}");
            let data = message["data"].as_str().unwrap_or_default();
            match message["type"].as_str().unwrap() {
                "stdout" => ended.stdout.push_str(data),
                "stderr" => ended.stderr.push_str(data),
                _ => ended.last = message,
            }
        }
        ended
    }
}

async fn run(server: &TestServer, id: &str, start: Value) -> Ended {
    Socket::begin(server, id, start).await.end().await
}

/// Returns whether no process in the box matches this pattern by its command line.
async fn is_gone(server: &TestServer, id: &str, pattern: &str) -> bool {
    server.exec(id, &format!("pgrep -f '{pattern}'")).await["exit_code"] == 1
}

#[tokio::test]
async fn a_command_runs_over_a_websocket_and_its_end_is_the_last_word() {
    for settings in [NATIVE, MOCK] {
        let server = TestServer::start(settings).await;
        let id = server.spawn().await;
        let ended = run(&server, &id, json!({"command": "echo out; echo err >&2; exit 3"})).await;
        ended.exited(3);
        assert_eq!((&*ended.stdout, &*ended.stderr), ("out\n", "err\n"));
        let start = json!({"command": "printf", "args": ["<%s>", "a b", "$X"], "mode": "argv"});
        assert_eq!(run(&server, &id, start).await.stdout, "<a b><$X>");
        let start = json!({"command": "pwd; echo $WHO", "workdir": "/tmp", "env": {"WHO": "me"}});
        assert_eq!(run(&server, &id, start).await.stdout, "/tmp\nme\n");
        run(&server, &id, json!({"command": "no-such-program"})).await.exited(127);
        let unknown = run(&server, &id, json!({"command": "true", "workdir": "/no/such/place"})).await;
        unknown.refused("bad_request", "/no/such/place");
    }
}

#[tokio::test]
async fn stdin_comes_as_text_and_as_raw_bytes_until_its_end() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let mut socket = Socket::begin(&server, &id, json!({"command": "cat", "mode": "argv", "binary": true})).await;
    let noise: Vec<u8> = (0..=255).cycle().take(900_000).collect();
    socket.say(json!({"type": "stdin", "data": "héllo\u{0}"})).await;
    socket.send(Message::binary(noise.clone())).await;
    socket.send(Message::binary(Vec::new())).await;
    socket.say(json!({"type": "eof"})).await;
    socket.say(json!({"type": "eof"})).await;
    let (mut read, mut last) = (Vec::new(), Value::Null);
    while let Some(message) = socket.next().await {
        match message {
            Message::Binary(bytes) => {
                assert_eq!(bytes[0], 1, "all of it is stdout");
                read.extend_from_slice(&bytes[1..]);
            }
            Message::Text(text) => last = serde_json::from_str(&text).unwrap(),
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => {}
        }
    }
    assert!(read == ["héllo\u{0}".as_bytes(), &noise].concat(), "{} bytes", read.len());
    assert_eq!(last, json!({"type": "exit", "exit_code": 0}));
    let mut socket = Socket::begin(&server, &id, json!({"command": "echo oh >&2", "binary": true})).await;
    assert_eq!(socket.next().await, Some(Message::binary(&b"\x02oh\n"[..])));
}

#[tokio::test]
async fn a_terminal_has_a_size_can_be_resized_and_typed_into() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let shell = json!({"command": "/bin/sh", "mode": "argv", "tty": true, "cols": 100, "rows": 30});
    let mut socket = Socket::begin(&server, &id, shell).await;
    socket.say(json!({"type": "stdin", "data": "stty size; tty; echo $TERM\n"})).await;
    let seen = socket.until("xterm-256color").await;
    assert!(seen.contains("30 100\r\n/dev/pts/"), "{seen:?}");
    socket.say(json!({"type": "resize", "cols": 65535, "rows": 1})).await;
    socket.say(json!({"type": "stdin", "data": "stty size\n"})).await;
    socket.until("1 65535\r\n").await;
    socket.say(json!({"type": "stdin", "data": "sleep 4322; echo \"ended $?\"\n"})).await;
    server.until("the sleep", async || !is_gone(&server, &id, "^[s]leep 4322").await).await;
    socket.send(Message::binary(&b"\x03"[..])).await;
    // Input typed before the prompt is back is echoed before it; only the sum is the command's own.
    socket.say(json!({"type": "stdin", "data": "echo $((40 + 2)) again\n"})).await;
    socket.until("42 again").await;
    socket.say(json!({"type": "stdin", "data": "sleep 4323; echo \"ended $?\"\n"})).await;
    server.until("the sleep", async || !is_gone(&server, &id, "^[s]leep 4323").await).await;
    socket.say(json!({"type": "signal", "signal": "SIGTERM"})).await;
    socket.until("\nended 143").await;
    socket.say(json!({"type": "stdin", "data": "exit 9\n"})).await;
    socket.end().await.exited(9);
    let ended = run(&server, &id, json!({"command": "stty size", "tty": true})).await;
    ended.exited(0);
    assert_eq!(ended.stdout, "24 80\r\n");
    let mut socket = Socket::begin(&server, &id, json!({"command": "cat", "tty": true})).await;
    socket.say(json!({"type": "eof"})).await;
    socket.end().await.exited(0);
}

#[tokio::test]
async fn a_signal_reaches_the_command_which_may_handle_it() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let script = "trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.05; done";
    let mut socket = Socket::begin(&server, &id, json!({"command": script})).await;
    socket.until("ready").await;
    socket.say(json!({"type": "signal", "signal": "USR1"})).await;
    let ended = socket.end().await;
    ended.exited(7);
    assert_eq!(ended.stdout, "caught\n");
    let mock = TestServer::start(MOCK).await;
    let id = mock.spawn().await;
    let mut socket = Socket::begin(&mock, &id, json!({"command": "echo ready; sleep 100"})).await;
    socket.until("ready").await;
    socket.say(json!({"type": "signal", "signal": "SIGINT"})).await;
    socket.end().await.exited(130);
    run(&mock, &id, json!({"command": "true", "tty": true})).await.refused("not_supported", "`mock`");
    let mut socket = Socket::begin(&mock, &id, json!({"command": "echo ready; sleep 100"})).await;
    socket.until("ready").await;
    socket.say(json!({"type": "signal", "signal": "SIGSTOP"})).await;
    socket.end().await.refused("not_supported", "`mock`");
}

#[tokio::test]
async fn a_message_that_makes_no_sense_ends_it_with_an_error_and_kills_the_command() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let firsts = [
        ("nonsense", "the message"),
        ("[]", "not a JSON object"),
        (r#"{"type":"stdin","data":"a"}"#, "must be a `start`"),
        (r#"{"type":"start","command":"true","colour":1}"#, "unknown field `colour`"),
        (r#"{"type":"start","command":"true","command":"false"}"#, "duplicate field `command`"),
        (r#"{"type":"start","command":"true","tty":true,"cols":0}"#, "at least 1"),
        (r#"{"type":"start","command":"true","rows":5}"#, "`tty`"),
    ];
    for (text, words) in firsts {
        let mut socket = open(&server, &id, &[]).await.ok().unwrap();
        socket.send(Message::text(text)).await;
        let ended = socket.end().await;
        ended.refused("bad_request", words);
        assert_eq!(ended.code, Some(CloseCode::Normal));
    }
    let mut socket = open(&server, &id, &[]).await.ok().unwrap();
    socket.send(Message::binary(&b"ls"[..])).await;
    socket.end().await.refused("bad_request", "must be a `start`");
    for (message, words) in [
        (json!({"type": "start", "command": "true"}), "is already running"),
        (json!({"type": "signal", "signal": "SIGNOPE"}), "SIGNOPE"),
        (json!({"type": "signal", "signal": 9}), "`signal`"),
        (json!({"type": "resize", "cols": 0, "rows": 10}), "at least 1"),
        (json!({"type": "resize", "cols": 70000, "rows": 10}), "`cols`"),
        (json!({"type": "resize", "cols": 10}), "`rows`"),
        (json!({"type": "resize", "cols": 80, "rows": 24}), "no terminal"),
        (json!({"type": "eof", "now": true}), "unknown field `now`"),
        (json!({"type": "explode"}), "unknown variant `explode`"),
    ] {
        let mut socket = Socket::begin(&server, &id, json!({"command": "echo ready; sleep 4324"})).await;
        socket.until("ready").await;
        socket.say(message).await;
        socket.end().await.refused("bad_request", words);
    }
    let mut socket = Socket::begin(&server, &id, json!({"command": "echo ready; sleep 4324"})).await;
    socket.until("ready").await;
    socket.say(json!({"type": "eof"})).await;
    socket.say(json!({"type": "stdin", "data": "more"})).await;
    socket.end().await.refused("bad_request", "ended with `eof`");
    server.until("the end of all", async || is_gone(&server, &id, "[s]leep 4324").await).await;
}

#[tokio::test]
async fn what_is_too_large_or_no_websocket_is_told_and_cut() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let mut socket = open(&server, &id, &[]).await.ok().unwrap();
    socket.send(Message::binary(vec![b'x'; 10 * 1024 * 1024])).await;
    let ended = socket.end().await;
    ended.refused("payload_too_large", "1048576");
    assert_eq!(ended.code, Some(CloseCode::Size));
    let mut socket = Socket::begin(&server, &id, json!({"command": "echo ready; sleep 4325"})).await;
    socket.until("ready").await;
    // A frame with an opcode that does not exist.
    tokio::io::AsyncWriteExt::write_all(socket.stream.get_mut(), &[0x83, 0x80, 1, 2, 3, 4]).await.unwrap();
    let ended = socket.end().await;
    ended.refused("bad_request", "invalid WebSocket data");
    assert_eq!(ended.code, Some(CloseCode::Protocol));
    server.until("the end", async || is_gone(&server, &id, "[s]leep 4325").await).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_has_its_command_killed_and_that_is_no_timeout() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    for tty in [false, true] {
        for in_order in [false, true] {
            let start = json!({"command": "echo ready; trap '' HUP; sleep 4326", "tty": tty});
            let mut socket = Socket::begin(&server, &id, start).await;
            socket.until("ready").await;
            assert!(!is_gone(&server, &id, "[s]leep 4326").await);
            if in_order {
                socket.stream.close(None).await.unwrap();
            } else {
                drop(socket);
            }
            server.until("its end", async || is_gone(&server, &id, "[s]leep 4326").await).await;
        }
    }
    let events = server.get(&format!("/events?sandbox_id={id}&follow=false&last_event_id=0")).await;
    let text = String::from_utf8_lossy(&events.bytes);
    assert!(text.contains("exec.started") && text.contains("exec.failed") && !text.contains("exec.timeout"), "{text}");
}

#[tokio::test]
async fn at_the_deadline_the_command_is_killed_and_the_limits_are_those_of_exec() {
    let server =
        TestServer::start(&format!("{NATIVE} defaults.default_exec_timeout=10s defaults.max_exec_timeout=20s")).await;
    let id = server.spawn().await;
    let ended = run(&server, &id, json!({"command": "echo before; sleep 4327", "timeout": "1s"})).await;
    ended.exited(124);
    assert_eq!((&*ended.stdout, &ended.last["timed_out"]), ("before\n", &json!(true)));
    assert!(ended.stderr.contains("its timeout of 1s"), "{ended:?}");
    let above = run(&server, &id, json!({"command": "true", "timeout": "21s"})).await;
    above.refused("resource_limit", "timeout");
    let events = server.get(&format!("/events?sandbox_id={id}&follow=false&last_event_id=0")).await;
    let text = String::from_utf8_lossy(&events.bytes);
    assert!(text.contains("exec.timeout"), "{text}");
    let metrics = server.get("/metrics").await.ok();
    let operations = metrics["operations"].as_array().unwrap().clone();
    assert!(operations.iter().any(|operation| operation["operation"] == "exec_stream"), "{operations:?}");
}

#[tokio::test]
async fn what_can_be_refused_before_it_is_a_websocket_is_refused_as_anywhere() {
    let server = TestServer::start(MOCK).await;
    let refused = async |id: &str| open(&server, id, &[]).await.err().unwrap();
    let (status, body) = refused("sb-aaaaaaaaaaaaaaaa").await;
    assert_eq!((status, &body["code"]), (404, &json!("not_found")));
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/exec/ws");
    server.get(&path).await.refused(400, "bad_request", "speaks WebSocket");
    let handshake = [
        ("Connection", "keep-alive, Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    for (name, value, words) in [
        ("Upgrade", "h2c", "speaks WebSocket"),
        ("Sec-WebSocket-Version", "8", "Sec-WebSocket-Version: 13"),
        ("Sec-WebSocket-Key", "short", "base64 of 16 bytes"),
    ] {
        let request = handshake.iter().fold(server.request(Method::GET, &path), |request, (known, right)| {
            request.header(*known, if *known == name { value } else { right })
        });
        let answer = Answer::read(request.send().await.unwrap()).await;
        answer.refused(400, "bad_request", words);
    }
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    let (status, body) = refused(&id).await;
    assert!(matches!(status, 404 | 409), "{status} {body}");
}

#[tokio::test]
async fn a_page_needs_an_origin_that_is_listed_by_name_or_the_servers_own() {
    let server = TestServer::start(&format!("{MOCK} server.cors_allowed_origins=https://app.example,*")).await;
    let id = server.spawn().await;
    let own = server.url.clone();
    let admitted = async |origin: &str| match open(&server, &id, &[("Origin", origin)]).await {
        Ok(_) => true,
        Err((403, body)) => {
            assert_eq!(body["code"], "forbidden");
            assert!(body["message"].as_str().unwrap().contains("server.cors_allowed_origins"), "{body}");
            false
        }
        Err(other) => panic!("{other:?}"),
    };
    assert!(admitted("https://app.example").await && admitted(&own).await);
    let preview = format!("http://3000-{id}.localhost:7423");
    for origin in
        ["https://evil.example", "null", "http://localhost:1", "https://app.example.evil.example", preview.as_str()]
    {
        assert!(!admitted(origin).await, "{origin}");
    }
    assert!(open(&server, &id, &[]).await.is_ok(), "who is no page needs no origin");
}

#[tokio::test]
async fn a_key_may_be_a_subprotocol_and_is_neither_answered_nor_written_down() {
    let server = TestServer::builder(&format!("{MOCK} logging.level=debug")).key(KEY).start().await;
    let id = server.spawn().await;
    let offer = |key: &str| format!("tidebox.v1, tidebox.key.{}", BASE64_URL.encode(key));
    let with = async |offer: &str| open(&server, &id, &[("Sec-WebSocket-Protocol", offer)]).await;
    let mut socket = with(&offer(KEY)).await.ok().unwrap();
    assert_eq!(socket.protocol.as_deref(), Some("tidebox.v1"));
    socket.start(json!({"command": "env; echo done"})).await;
    let ended = socket.end().await;
    ended.exited(0);
    assert!(!ended.stdout.contains(KEY));
    let wrong = "another-key-of-at-least-thirty-two-bytes";
    let padded = format!("tidebox.v1, tidebox.key.{}", base64::engine::general_purpose::URL_SAFE.encode(wrong));
    for refused in [offer(wrong), "tidebox.v1".to_owned(), "tidebox.v1, tidebox.key.%%".to_owned(), padded] {
        let (status, body) = with(&refused).await.err().unwrap();
        assert_eq!((status, &body["code"]), (401, &json!("unauthorized")), "{refused}");
        assert!(!body.to_string().contains(&BASE64_URL.encode(wrong)), "{body}");
    }
    let both = [("X-API-Key", KEY), ("Sec-WebSocket-Protocol", &*offer(KEY))];
    assert_eq!(open(&server, &id, &both).await.err().unwrap().0, 401, "a key is shown once");
    let by_header = open(&server, &id, &[("X-API-Key", KEY), ("Sec-WebSocket-Protocol", "tidebox.v1")]).await;
    assert_eq!(by_header.ok().unwrap().protocol.as_deref(), Some("tidebox.v1"));
    // On any other route it is no key.
    let plain = server.url.clone() + "/api/v1/sandboxes";
    let answer = crate::server::http_client()
        .build()
        .unwrap()
        .get(plain)
        .header("Sec-WebSocket-Protocol", offer(KEY))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 401);
    let log = server.log_text();
    for secret in [KEY, wrong, &BASE64_URL.encode(KEY), &BASE64_URL.encode(wrong)] {
        assert!(!log.contains(secret), "the log has a key");
    }
}

#[tokio::test]
async fn a_client_that_stops_reading_stops_its_command_and_nothing_else() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    server.exec(&id, "true").await;
    let before = server.resident_kib();
    let mut stalled = Vec::new();
    for tty in [false, true] {
        for binary in [false, true] {
            let start = json!({"command": "exec yes 0123456789", "tty": tty, "binary": binary});
            let mut socket = Socket::begin(&server, &id, start).await;
            socket.next().await.unwrap();
            stalled.push(socket);
        }
    }
    let asleep = "cat /proc/[0-9]*/stat | grep -c '(yes) S' || true";
    server.until("the stall", async || server.output(&id, asleep).await.trim() == "4").await;
    assert_eq!(server.output(&id, "echo still here").await, "still here\n");
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 48 * 1024, "the server grew by {grown} KiB");
    // A signal still reaches a command whose output is not read.
    let mut last = stalled.pop().unwrap();
    last.say(json!({"type": "signal", "signal": "SIGKILL"})).await;
    server.until("its end", async || server.output(&id, "pgrep -x yes | wc -l").await.trim() == "3").await;
    drop((last, stalled));
    server.until("their end", async || is_gone(&server, &id, "^[y]es").await).await;
}

#[tokio::test]
async fn a_command_that_does_not_read_does_not_hold_up_a_signal_or_its_end() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let mut socket = Socket::begin(&server, &id, json!({"command": "echo ready; sleep 4328"})).await;
    socket.until("ready").await;
    // More than a pipe holds, and less than all that may be in transit.
    for _ in 0..8 {
        socket.send(Message::binary(vec![b'x'; 64 * 1024])).await;
    }
    socket.say(json!({"type": "signal", "signal": "TERM"})).await;
    socket.end().await.exited(143);
    let mut socket = Socket::begin(&server, &id, json!({"command": "echo ready; sleep 0.3; exit 5"})).await;
    socket.until("ready").await;
    let flood = async {
        for _ in 0..64 {
            socket.stream.feed(Message::binary(vec![b'x'; 512 * 1024])).await.unwrap_or_default();
        }
    };
    // Not all of it is read.
    let _ = tokio::time::timeout(Duration::from_secs(2), flood).await;
    socket.end().await.exited(5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_told_to_stop_says_so_and_goes_away() {
    let mut server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let mut socket = Socket::begin(&server, &id, json!({"command": "echo ready; sleep 100"})).await;
    socket.until("ready").await;
    let idle = open(&server, &id, &[]).await.ok().unwrap();
    let ended = async { (socket.end().await, idle.end().await) };
    let ending = tokio::spawn(ended);
    let began = std::time::Instant::now();
    assert_eq!(tokio::task::block_in_place(|| server.terminate()), Some(0));
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    let (busy, idle) = ending.await.unwrap();
    for ended in [busy, idle] {
        ended.refused("unavailable", "shutting down");
        assert_eq!(ended.code, Some(CloseCode::Away));
    }
}

#[tokio::test]
async fn a_box_that_is_destroyed_ends_its_websockets_with_an_error() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let mut socket = Socket::begin(&server, &id, json!({"command": "echo ready; sleep 100"})).await;
    socket.until("ready").await;
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    let ended = socket.end().await;
    assert_eq!(ended.last["type"], "error", "{ended:?}");
    assert!(matches!(ended.last["code"].as_str(), Some("not_found" | "conflict")), "{ended:?}");
}

#[tokio::test]
async fn where_users_share_boxes_a_websocket_says_whose_it_is() {
    let server = TestServer::start(&format!("{MOCK} pool.enabled=true pool.max_vms=2")).await;
    let spawned = server.request(Method::POST, "/sandboxes").header("X-User-ID", "ann").json(&json!({}));
    let spawned = Answer::read(spawned.send().await.unwrap()).await;
    let id = spawned.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(open(&server, &id, &[]).await.err().unwrap().0, 400);
    assert_eq!(open(&server, &id, &[("X-User-ID", "bob")]).await.err().unwrap().0, 404);
    let mut socket = open(&server, &id, &[("X-User-ID", "ann")]).await.ok().unwrap();
    socket.start(json!({"command": "echo mine"})).await;
    assert_eq!(socket.end().await.stdout, "mine\n");
    let delete = server.request(Method::DELETE, &format!("/sandboxes/{id}")).header("X-User-ID", "ann");
    assert!(delete.send().await.unwrap().status().is_success());
}

#[tokio::test]
async fn a_websocket_is_counted_by_the_rate_limit_like_any_request() {
    let limited = "rate_limit.enabled=true rate_limit.requests_per_minute=60 rate_limit.burst=4";
    let server = TestServer::start(&format!("{MOCK} {limited}")).await;
    let id = server.spawn().await;
    let mut statuses = Vec::new();
    for _ in 0..12 {
        statuses.push(open(&server, &id, &[]).await.err().map_or(101, |(status, _)| status));
    }
    assert!(statuses.contains(&101) && statuses.contains(&429), "{statuses:?}");
}

#[tokio::test]
async fn a_command_is_controlled_through_two_services_which_say_what_they_cannot() {
    let far = TestServer::start(MOCK).await;
    let near = TestServer::start(&format!(
        "providers.native.enabled=false providers.custom.enabled=true providers.custom.base_url={} \
         providers.default=custom",
        far.url
    ))
    .await;
    let id = near.spawn().await;
    let mut socket = Socket::begin(&near, &id, json!({"command": "cat; exit 4"})).await;
    socket.say(json!({"type": "stdin", "data": "through two services\n"})).await;
    socket.say(json!({"type": "eof"})).await;
    let ended = socket.end().await;
    ended.exited(4);
    assert_eq!(ended.stdout, "through two services\n");
    run(&near, &id, json!({"command": "true", "tty": true})).await.refused("not_supported", "terminals");
    let mut socket = Socket::begin(&near, &id, json!({"command": "echo ready; sleep 100"})).await;
    socket.until("ready").await;
    socket.say(json!({"type": "signal", "signal": "SIGINT"})).await;
    socket.end().await.exited(130);
}
