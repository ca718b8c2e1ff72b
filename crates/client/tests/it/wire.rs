//! The client against servers that answer well, badly, or incompletely.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use api::{ExecRequest, SpawnRequest};
use tidebox_client::{AuditQuery, Client, Error, EventQuery, ExecEvent, Exit, Range};

/// A server that takes one request, does as the test says, and returns the request.
struct Server {
    client: Client,
    request: JoinHandle<String>,
}

impl Server {
    fn answering(answer: impl Into<Vec<u8>>) -> Server {
        let answer = answer.into();
        Server::doing(move |stream| {
            stream.write_all(&answer).expect("the client reads");
        })
    }

    fn doing(act: impl FnOnce(&mut TcpStream) + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let request = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
            let request = read_request(&mut stream);
            act(&mut stream);
            request
        });
        Server { client: Client::new(&url, Some("the-key"), Some("someone")).expect("a client"), request }
    }

    async fn request(self) -> String {
        // On another thread than the runtime, which still has a connection to close.
        let joined = tokio::task::spawn_blocking(|| self.request.join()).await.expect("the wait is not cancelled");
        joined.expect("the server did not fail")
    }
}

/// Reads the head, and the body as it was framed.
fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let complete = match length {
                Some(length) => body.len() >= length.parse().expect("a number"),
                None => !head.contains("transfer-encoding: chunked") || body.ends_with("0\r\n\r\n"),
            };
            if complete {
                return text;
            }
        }
        match stream.read(&mut buffer).expect("the client writes") {
            0 => return String::from_utf8_lossy(&bytes).into_owned(),
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

fn json(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Formats a chunked NDJSON answer of `lines`, with its end or cut off before it.
fn stream(lines: &[&str], complete: bool) -> String {
    let mut text =
        String::from("HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n");
    for line in lines {
        text += &format!("{:x}\r\n{line}\r\n", line.len());
    }
    if complete {
        text += "0\r\n\r\n";
    }
    text
}

/// Formats a raw answer of `frames`, in pieces of 7 bytes, with its end or cut off before it.
fn raw(frames: &[(u8, &[u8])], complete: bool) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, payload) in frames {
        body.push(*kind);
        body.extend_from_slice(&u32::try_from(payload.len()).expect("a short payload").to_be_bytes());
        body.extend_from_slice(payload);
    }
    let mut bytes =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for piece in body.chunks(7) {
        bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        bytes.extend_from_slice(piece);
        bytes.extend_from_slice(b"\r\n");
    }
    if complete {
        bytes.extend_from_slice(b"0\r\n\r\n");
    }
    bytes
}

#[tokio::test]
async fn a_raw_stream_is_read_however_it_is_cut() {
    const EXIT: &[u8] = br#"{"type":"exit","exit_code":3,"oom_killed":true,"of_the_future":1}"#;
    let server = Server::answering(raw(&[(1, b"a long line of output\xff\0"), (0, b""), (2, b"oh"), (0, EXIT)], true));
    let (events, error) = events(&server.client).await;
    let output =
        |wanted: fn(&ExecEvent) -> Option<&[u8]>| events.iter().filter_map(wanted).collect::<Vec<_>>().concat();
    let stdout = output(|event| if let ExecEvent::Stdout(bytes) = event { Some(bytes) } else { None });
    let stderr = output(|event| if let ExecEvent::Stderr(bytes) = event { Some(bytes) } else { None });
    assert_eq!((&stdout[..], &stderr[..]), (&b"a long line of output\xff\0"[..], &b"oh"[..]));
    assert_eq!(
        events.last(),
        Some(&ExecEvent::Exit(Exit { code: 3, timed_out: false, oom_killed: true, pids_exhausted: false }))
    );
    assert!(error.is_none(), "{error:?}");
    let request = server.request().await;
    assert!(request.contains("accept: application/octet-stream, application/x-ndjson"), "{request}");
}

#[tokio::test]
async fn a_raw_stream_that_is_cut_or_makes_no_sense_is_an_error() {
    for (answer, is_cut) in [
        (raw(&[(1, b"x")], true), true),
        (raw(&[(1, b"x")], false), true),
        (raw(&[(0, b"{}")], true), false),
        (raw(&[(7, b"x")], true), false),
        (raw(&[(0, br#"{"type":"stdout","data":"x"}"#)], true), false),
    ] {
        let server = Server::answering(answer);
        let (_, error) = events(&server.client).await;
        let error = error.expect("there is no exit");
        assert_eq!(matches!(error, Error::Cut { .. }), is_cut, "{error:?}");
        assert!(is_cut || matches!(error, Error::Protocol { .. }), "{error:?}");
    }
}

fn command() -> ExecRequest {
    ExecRequest { command: "true".into(), ..ExecRequest::default() }
}

async fn events(client: &Client) -> (Vec<ExecEvent>, Option<Error>) {
    let mut stream = client.exec_stream("sb-1", command()).await.expect("the stream begins");
    let mut events = Vec::new();
    loop {
        match stream.next().await {
            Ok(Some(event)) => events.push(event),
            Ok(None) => return (events, None),
            Err(error) => {
                assert!(stream.next().await.expect("nothing follows an error").is_none());
                return (events, Some(error));
            }
        }
    }
}

const SANDBOX: &str = r#"{"id":"sb-1","state":"running","provider":"mock","image":"host","memory_mb":1,"vcpus":1,
    "created_at":"2026-01-01T00:00:00Z","expires_at":"2026-01-01T00:30:00Z","metadata":{},"of_the_future":1}"#;

#[tokio::test]
async fn a_spawn_carries_the_credentials_and_reads_what_a_newer_server_adds() {
    let server = Server::answering(json("201 Created", SANDBOX));
    let sandbox = server.client.spawn(&SpawnRequest::default()).await.unwrap();
    assert_eq!(sandbox.id, "sb-1");
    let request = server.request().await;
    assert!(request.starts_with("POST /api/v1/sandboxes HTTP/1.1\r\n"), "{request}");
    for line in ["x-api-key: the-key", "x-user-id: someone", "content-type: application/json"] {
        assert!(request.to_ascii_lowercase().contains(line), "{line} in {request}");
    }
    assert!(request.ends_with("\r\n\r\n{}"), "{request}");
}

#[tokio::test]
async fn a_refusal_keeps_its_status_code_message_and_request_id() {
    let body = r#"{"code":"not_found","message":"no sandbox sb-1"}"#;
    let server = Server::answering(format!(
        "HTTP/1.1 404 Not Found\r\nx-request-id: r-7\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    let error = server.client.sandbox("sb-1").await.unwrap_err();
    assert!(error.is_code("not_found"));
    let Error::Api { status, message, request_id, .. } = error else { panic!("{error:?}") };
    assert_eq!((status, message.as_str(), request_id.as_deref()), (404, "no sandbox sb-1", Some("r-7")));
}

#[tokio::test]
async fn an_error_that_is_no_json_is_quoted_in_part() {
    let page = format!("<html>Bad gateway{}</html>", "x".repeat(10_000));
    let server = Server::answering(json("502 Bad Gateway", &page));
    let error = server.client.list().await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    assert!(text.contains("502") && text.contains("<html>Bad gateway") && text.len() < 500, "{text}");
}

#[tokio::test]
async fn json_of_another_shape_is_a_protocol_error() {
    for body in ["{}", "[{}]", "null", "[", "hello", ""] {
        let server = Server::answering(json("200 OK", body));
        let error = server.client.list().await.unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{body}: {error:?}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed_with_the_key() {
    let server = Server::answering("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n");
    let error = server.client.list().await.unwrap_err();
    assert!(matches!(&error, Error::Protocol { reason, .. } if reason.contains("302")), "{error:?}");
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_an_error() {
    let server = Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n[");
    assert!(matches!(server.client.list().await.unwrap_err(), Error::Cut { .. }));
}

#[tokio::test]
async fn nobody_listening_says_how_to_start_the_server() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client = Client::new(&format!("http://127.0.0.1:{port}"), None, None).unwrap();
    let error = client.live().await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("tidebox serve") && text.contains("refused") && text.contains(&port.to_string()), "{text}");
}

#[tokio::test]
async fn a_server_that_is_slow_to_answer_a_long_call_is_waited_for() {
    let (go, wait) = std::sync::mpsc::channel();
    let server = Server::doing(move |stream| {
        wait.recv_timeout(Duration::from_secs(10)).expect("the test says go");
        stream.write_all(json("201 Created", SANDBOX).as_bytes()).expect("the client still reads");
    });
    let request = SpawnRequest::default();
    let spawn = server.client.spawn(&request);
    tokio::pin!(spawn);
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut spawn).await.is_err());
    go.send(()).unwrap();
    assert_eq!(spawn.await.unwrap().id, "sb-1");
}

#[tokio::test]
async fn a_stream_gives_exact_bytes_and_the_exit() {
    let server = Server::answering(stream(
        &[
            "{\"stream\":\"stdout\",\"data\":\"AP8K\"}\n{\"stream\":\"stderr\",",
            "\"data\":\"ZQ==\"}\n",
            "{\"stream\":\"stdout\",\"data\":\"\"}\n\n",
            "{\"stream\":\"exit\",\"data\":\"137\",\"oom_killed\":true}\n",
        ],
        true,
    ));
    let (events, error) = events(&server.client).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(
        events,
        [
            ExecEvent::Stdout(vec![0, 255, b'\n'].into()),
            ExecEvent::Stderr("e".into()),
            ExecEvent::Exit(Exit { code: 137, timed_out: false, oom_killed: true, pids_exhausted: false }),
        ]
    );
    let request = server.request().await;
    for part in ["\"stream\":true", "\"exit_event\":true", "\"encoding\":\"base64\""] {
        assert!(request.contains(part), "{part} in {request}");
    }
}

#[tokio::test]
async fn a_stream_without_an_exit_is_an_error_however_it_ends() {
    let output = "{\"stream\":\"stdout\",\"data\":\"aGk=\"}\n";
    for (lines, complete) in [
        (vec![output], true),
        (vec![output], false),
        (vec![], true),
        (vec![output, "{\"stream\":\"exit\",\"data\":\"0\"}"], true),
        (vec![output, "{\"stream\":\"exit\",\"da"], false),
    ] {
        let server = Server::answering(stream(&lines, complete));
        let (events, error) = events(&server.client).await;
        assert!(!events.iter().any(|event| matches!(event, ExecEvent::Exit(_))));
        assert!(matches!(error, Some(Error::Cut { .. })), "{lines:?} {complete}: {error:?}");
    }
}

#[tokio::test]
async fn lines_that_are_no_chunks_are_protocol_errors() {
    for line in [
        "hello\n",
        "{}\n",
        "{\"stream\":\"stdin\",\"data\":\"\"}\n",
        "{\"stream\":\"stdout\",\"data\":\"not base64!\"}\n",
        "{\"stream\":\"exit\",\"data\":\"soon\"}\n",
        "{\"stream\":\"exit\",\"data\":\"99999999999\"}\n",
    ] {
        let server = Server::answering(stream(&[line], true));
        let (_, error) = events(&server.client).await;
        assert!(matches!(error, Some(Error::Protocol { .. })), "{line}: {error:?}");
    }
}

#[tokio::test]
async fn a_line_without_end_is_refused_instead_of_kept() {
    let server = Server::doing(|stream| {
        let piece = "x".repeat(1024 * 1024);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        // The client hangs up before this ends.
        while stream.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).is_ok() {}
    });
    let (_, error) = events(&server.client).await;
    assert!(matches!(&error, Some(Error::Protocol { reason, .. }) if reason.contains("line")), "{error:?}");
    drop(server);
}

#[tokio::test]
async fn dropping_a_stream_hangs_up() {
    let server = Server::doing(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").expect("the client reads");
        assert_eq!(stream.read(&mut [0; 1]).expect("the client hangs up in time"), 0);
    });
    let stream = server.client.exec_stream("sb-1", command()).await.unwrap();
    drop(stream);
    server.request().await;
}

#[tokio::test]
async fn a_request_over_the_limit_of_the_api_is_not_sent() {
    let client = Client::new("http://127.0.0.1:9", None, None).unwrap();
    let request = ExecRequest { stdin: Some("x".repeat(1024 * 1024)), ..command() };
    assert!(matches!(client.exec("sb-1", request).await.unwrap_err(), Error::TooLarge { .. }));
}

#[tokio::test]
async fn a_file_is_written_raw_to_its_encoded_path() {
    let server = Server::answering(json("200 OK", r#"{"status":"written"}"#));
    server.client.write_file("sb-1", "/list/a b%?#é", &b"\x01raw"[..], Some(4)).await.unwrap();
    let request = server.request().await;
    assert!(request.starts_with("PUT /api/v1/sandboxes/sb-1/files/list/a%20b%25%3F%23%C3%A9 HTTP"), "{request}");
    assert!(request.to_ascii_lowercase().contains("content-type: application/octet-stream"), "{request}");
    assert!(request.to_ascii_lowercase().contains("content-length: 4"), "{request}");
    assert!(request.ends_with("\r\n\r\n\x01raw"), "{request}");
}

#[tokio::test]
async fn a_refusal_in_the_middle_of_an_upload_is_understood() {
    const SIZE: u64 = 64 * 1024 * 1024;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap()), None, None).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let mut buffer = vec![0; 64 * 1024];
        let mut read = stream.read(&mut buffer).expect("the head");
        let body = r#"{"code":"payload_too_large","message":"too much"}"#;
        stream.write_all(json("413 Payload Too Large\r\nconnection: close", body).as_bytes()).expect("an answer");
        // Reads on for a while, so that the answer is seen before the end.
        while read < 16 * 1024 * 1024 {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => read += count,
            }
        }
    });
    let source = tokio::io::AsyncReadExt::take(tokio::io::repeat(b'x'), SIZE);
    let error = client.write_file("sb-1", "/x", source, Some(SIZE)).await.unwrap_err();
    assert!(error.is_code("payload_too_large"), "{error:?}");
    // On another thread than the runtime, which still has a connection to close.
    tokio::task::spawn_blocking(|| server.join()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_source_that_fails_is_told_apart_from_a_connection_that_does() {
    let server = Server::doing(|_| {});
    let source = tokio_util::io::StreamReader::new(futures_util::stream::iter([
        Ok(bytes::Bytes::from_static(b"begin")),
        Err(std::io::Error::other("the disk is on fire")),
    ]));
    let error = server.client.write_file("sb-1", "/x", source, None).await.unwrap_err();
    assert!(matches!(&error, Error::Io(source) if source.to_string().contains("on fire")), "{error:?}");
}

#[tokio::test]
async fn a_part_of_a_file_is_asked_for_and_must_be_a_part() {
    let server =
        Server::answering("HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 2-4/9\r\ncontent-length: 3\r\n\r\ncde");
    let range = Range { start: 2, end: Some(4) };
    let mut file = server.client.read_file("sb-1", "/a b", Some(range)).await.unwrap();
    assert_eq!((file.length(), file.content_range()), (Some(3), Some("bytes 2-4/9")));
    assert_eq!(file.next().await.unwrap().unwrap(), "cde");
    assert!(file.next().await.unwrap().is_none());
    let request = server.request().await;
    assert!(request.starts_with("GET /api/v1/sandboxes/sb-1/files?path=%2Fa%20b HTTP"), "{request}");
    assert!(request.to_ascii_lowercase().contains("range: bytes=2-4"), "{request}");

    let server = Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabcdefghi");
    let error = server.client.read_file("sb-1", "/a", Some(range)).await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
}

#[tokio::test]
async fn a_file_that_is_cut_off_is_an_error() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let server = Server::answering(answer);
        let mut file = server.client.read_file("sb-1", "/a", None).await.unwrap();
        let error = loop {
            match file.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("a part passes for the whole: {answer}"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Cut { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_ready_says_why() {
    let body = r#"{"message":"no provider is healthy (native: no user namespaces)","code":"unavailable"}"#;
    let server = Server::answering(json("503 Service Unavailable", body));
    let refused = server.client.ready().await.unwrap_err();
    assert!(refused.is_code("unavailable"), "{refused:?}");
    assert_eq!(refused.to_string(), "no provider is healthy (native: no user namespaces)");
}

#[tokio::test]
async fn headers_that_are_asked_for_are_on_every_request() {
    let server = Server::answering(json("200 OK", "[]"));
    let client = server.client.with_header("X-Lease-Generation", "7").unwrap();
    client.with_header("X-Lease-Generation", "8").unwrap().list().await.unwrap();
    let request = server.request().await.to_ascii_lowercase();
    assert!(request.contains("x-lease-generation: 8") && request.contains("x-api-key: the-key"), "{request}");
    assert!(!request.contains("x-lease-generation: 7"), "{request}");
}

#[tokio::test]
async fn a_part_of_the_list_carries_its_filters_and_says_where_it_goes_on() {
    let server = Server::answering(json("200 OK\r\nx-next-cursor: more", "[]"));
    let labels = [("a.b", "c d")];
    let filter = tidebox_client::Filter {
        metadata: &labels,
        state: Some("running"),
        limit: Some(5),
        ..tidebox_client::Filter::default()
    };
    let page = server.client.list_page(&filter).await.unwrap();
    assert_eq!((page.sandboxes.len(), page.next.as_deref()), (0, Some("more")));
    let request = server.request().await;
    assert!(request.starts_with("GET /api/v1/sandboxes?metadata.a.b=c%20d&state=running&limit=5 HTTP"), "{request}");
}

#[tokio::test]
async fn an_answer_of_another_type_is_not_taken_for_what_was_asked_for() {
    const PAGE: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\n[]";
    let server = Server::answering(PAGE);
    assert!(matches!(server.client.list().await.unwrap_err(), Error::Protocol { .. }));
    let server = Server::answering(PAGE);
    assert!(matches!(server.client.read_file("sb-1", "/a", None).await.unwrap_err(), Error::Protocol { .. }));
    let server = Server::answering(PAGE);
    assert!(matches!(server.client.exec_stream("sb-1", command()).await.unwrap_err(), Error::Protocol { .. }));
}

#[tokio::test]
async fn a_range_behind_the_end_of_a_file_is_empty() {
    let server = Server::answering(
        "HTTP/1.1 416 Range Not Satisfiable\r\ncontent-range: bytes */9\r\ncontent-length: 2\r\n\r\n{}",
    );
    let mut file = server.client.read_file("sb-1", "/a", Some(Range { start: 9, end: None })).await.unwrap();
    assert_eq!((file.size(), file.length()), (Some(9), Some(0)));
    assert!(file.next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_stream_that_falls_silent_is_given_up() {
    for head in ["application/x-ndjson", "application/octet-stream"] {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: {head}\r\ntransfer-encoding: chunked\r\n\r\n");
        let server = Server::doing(move |stream| {
            stream.write_all(answer.as_bytes()).expect("the client reads");
            let _ = stream.read(&mut [0; 1]);
        });
        let silence_max = Duration::from_millis(100);
        let options = tidebox_client::Options { silence_max, ..tidebox_client::Options::default() };
        let client = Client::open(server.client.base_url(), options).unwrap();
        let error = if head.ends_with("ndjson") {
            client.exec_stream("sb-1", command()).await.unwrap().next().await.unwrap_err()
        } else {
            client.read_file("sb-1", "/a", None).await.unwrap().next().await.unwrap_err()
        };
        assert!(matches!(error, Error::Timeout { after } if after == silence_max), "{error:?}");
        drop(client);
        server.request().await;
    }
}

/// A stream of events: comments, two whole events, an id without an event, and a cut event.
const EVENTS: &str = ": listening\n\nid: 7\nevent: file.written\ndata: {\"id\":7,\"type\":\"file.written\",\"sandbox_id\":\"sb-1\",\
    \"timestamp\":\"2026-01-01T00:00:00.000Z\",\"data\":{\"path\":\"/a\"},\"newer\":1}\n\n\
    id: 9\r\nevent: events.gap\r\ndata: {\"id\":9,\"type\":\"events.gap\",\"sandbox_id\":null,\
    \"timestamp\":\"2026-01-01T00:00:00.000Z\",\"data\":{\"lost\":2}}\r\n\r\n: still here\nid: 12\n\nid: 13\ndata: {\"id\"";

#[tokio::test]
async fn events_are_read_however_they_are_cut_and_one_that_is_not_whole_is_none() {
    let server = Server::doing(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").expect("the client reads");
        for piece in EVENTS.as_bytes().chunks(7) {
            stream.write_all(piece).expect("the client reads");
        }
    });
    let asked = EventQuery {
        types: vec!["file.written".into(), "exec.failed".into()],
        sandbox_id: Some("sb-1".into()),
        after: Some(3),
        only_kept: true,
    };
    let mut stream = server.client.events(&asked).await.unwrap();
    assert_eq!(stream.last_id(), Some(3));
    let event = stream.next().await.unwrap().unwrap();
    assert_eq!((event.id, event.kind.as_str(), event.sandbox_id.as_deref()), (7, "file.written", Some("sb-1")));
    assert_eq!((event.data["path"].as_str(), stream.last_id()), (Some("/a"), Some(7)));
    let gap = stream.next().await.unwrap().unwrap();
    assert_eq!((gap.kind.as_str(), gap.sandbox_id), (api::Event::GAP, None));
    assert_eq!(stream.next().await.unwrap(), None);
    assert_eq!(stream.last_id(), Some(12), "a lone id moves the place, an event that is not whole does not");
    let request = server.request().await;
    let query = "?type=file.written%2Cexec.failed&sandbox_id=sb-1&last_event_id=3&follow=false ";
    assert!(request.starts_with(&format!("GET /api/v1/events{query}")), "{request}");
}

#[tokio::test]
async fn a_page_of_the_audit_history_comes_with_the_place_of_the_next() {
    let server = Server::answering("HTTP/1.1 200 OK\r\nx-next-cursor: abc\r\ncontent-length: 2\r\n\r\n[]");
    let asked = AuditQuery { path: Some("a%&b".into()), status: Some(401), ..AuditQuery::default() };
    let (rows, next) = server.client.audit(&asked).await.unwrap();
    assert_eq!((rows.len(), next.as_deref()), (0, Some("abc")));
    let request = server.request().await;
    assert!(request.starts_with("GET /api/v1/admin/audit?status=401&path=a%25%26b "), "{request}");
}
