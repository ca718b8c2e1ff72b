//! Requests and answers of the API over HTTP/2.

use serde_json::json;

use super::*;
use crate::listen::Certificate;
use crate::server::{MOCK, NATIVE};

fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(format!("http://localhost/api/v1{path}"))
}

#[tokio::test]
async fn requests_go_side_by_side_and_in_any_order_over_one_connection() {
    let server = TestServer::start(MOCK).await;
    let mut client = Client::to(&server).await;
    let id =
        client.put(request("POST", "/sandboxes").header("content-type", "application/json").body(()).unwrap(), b"{}");
    let id = id.await.unwrap().json()["id"].as_str().unwrap().to_owned();
    let wait = request("GET", &format!("/sandboxes/{id}/wait?state=destroyed&timeout=1m")).body(()).unwrap();
    let (waiting, _) = client.send(wait, true).await.unwrap();
    let mut listing = Vec::new();
    for _ in 0..100 {
        listing.push(client.send(request("GET", "/sandboxes").body(()).unwrap(), true).await.unwrap().0);
    }
    for one in listing {
        let listed = Reply::read(one).await.unwrap();
        assert_eq!(listed.json()[0]["id"], id, "{listed:?}");
        assert!(listed.headers.contains_key("date") && listed.headers.contains_key("content-length"), "{listed:?}");
    }
    assert_eq!(client.ask("DELETE", "localhost", &format!("/api/v1/sandboxes/{id}")).await.unwrap().status, 200);
    assert_eq!(Reply::read(waiting).await.unwrap().json()["state"], "destroyed");
    let head = client.ask("HEAD", "localhost", "/api/v1/sandboxes").await.unwrap();
    assert!(head.status == 200 && head.body.is_empty() && head.headers["content-length"] != "0", "{head:?}");
}

#[tokio::test]
async fn a_handshake_settles_on_http_2_where_the_client_can() {
    let (certificate, dir) = (Certificate::new(), tempfile::tempdir().unwrap());
    let server = TestServer::start(&format!("{MOCK} {}", certificate.settings(dir.path()))).await;
    let stream = certificate.try_connect(&server, "localhost", &["http/1.1", "h2"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut client = Client::open(stream).await;
    for _ in 0..3 {
        client.is_healthy().await;
    }
}

#[tokio::test]
async fn the_preface_may_come_in_pieces_and_a_false_one_is_no_request() {
    let server = TestServer::start(MOCK).await;
    let mut stream = tcp(&server).await;
    let mut hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    hello.extend(frame(HEADERS, END_STREAM | END_HEADERS, 1, &block("GET", "/api/v1/health", &[])));
    for byte in hello {
        stream.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains(r#""status":"ok""#) {
        let count = timeout(PATIENCE, stream.read(&mut buffer)).await.unwrap().unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..count]);
    }
    for false_one in
        ["PRI * HTTP/2.0\r\n\r\nXM\r\n\r\n", "PRI * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"]
    {
        let mut stream = tcp(&server).await;
        stream.write_all(false_one.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
}

#[tokio::test]
async fn a_refused_body_is_not_waited_for() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let mut client = Client::to(&server).await;
    for (request, status) in [
        (request("PUT", "/nowhere"), 404),
        (request("PATCH", "/sandboxes"), 405),
        (
            request("POST", "/sandboxes")
                .header("content-type", "application/json")
                .header("content-length", "99999999"),
            413,
        ),
        (request("PUT", &format!("/sandboxes/{id}/files/f")).header("content-length", "99999999999"), 413),
    ] {
        let (response, mut stream) = client.send(request.body(()).unwrap(), false).await.unwrap();
        assert_eq!(Reply::read(response).await.unwrap().status, status);
        let reason = timeout(PATIENCE, poll_fn(|context| stream.poll_reset(context))).await.expect("it is refused");
        assert_eq!(reason.unwrap(), Reason::NO_ERROR, "{status}");
    }
    client.is_healthy().await;
}

#[tokio::test]
async fn a_file_of_tiny_frames_is_written_whole() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let mut client = Client::to(&server).await;
    let put = request("PUT", &format!("/sandboxes/{id}/files/workspace/f")).body(()).unwrap();
    let (response, mut stream) = client.send(put, false).await.unwrap();
    let text: String = (0..20_000).map(|number| format!("{number}\n")).collect();
    for line in text.split_inclusive('\n') {
        assert_eq!(write(&mut stream, line.as_bytes(), false).await, line.len());
    }
    write(&mut stream, b"", true).await;
    let reply = Reply::read(response).await.unwrap();
    assert!(reply.status.is_success(), "{reply:?}");
    let path = format!("/api/v1/sandboxes/{id}/files?path=/workspace/f");
    assert!(client.ask("GET", "localhost", &path).await.unwrap().text() == text);
}

#[tokio::test]
async fn a_stream_of_output_flows_and_ends_with_its_request() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let mut client = Client::to(&server).await;
    let exec = |line: &str| json!({"command": "sh", "args": ["-c", line], "stream": true}).to_string();
    let post = || request("POST", &format!("/sandboxes/{id}/exec")).header("content-type", "application/json");
    let reply = client.put(post().body(()).unwrap(), exec("echo out").as_bytes()).await.unwrap();
    assert!(reply.status == 200 && reply.text().contains("out"), "{reply:?}");
    assert_eq!(reply.trailers.as_ref().unwrap()["x-exit-code"], "0", "{reply:?}");
    let (response, mut stream) = client.send(post().body(()).unwrap(), false).await.unwrap();
    write(&mut stream, exec("echo first; sleep 60").as_bytes(), true).await;
    let mut output = response.await.unwrap().into_body();
    let first = timeout(PATIENCE, output.data()).await.unwrap().unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("first"), "{first:?}");
    stream.send_reset(Reason::CANCEL);
    drop(output);
    server
        .until("the command has ended", async || {
            server.output(&id, "grep -l 'sl[e]ep' /proc/[0-9]*/cmdline || true").await.is_empty()
        })
        .await;
}

#[tokio::test]
async fn a_websocket_over_http_2_is_refused_with_the_way_to_one() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let mut client = Client::to(&server).await;
    client.is_healthy().await;
    assert!(!client.sender.is_extended_connect_protocol_enabled(), "a browser opens one over HTTP/1.1 then");
    for path in [format!("/sandboxes/{id}/exec/ws"), format!("/sandboxes/{id}/ports/80/connect")] {
        let reply = client.ask("GET", "localhost", &format!("/api/v1{path}")).await.unwrap();
        assert!(reply.status == 400 && reply.text().contains("WebSocket over HTTP/1.1"), "{path}: {reply:?}");
    }
}

#[tokio::test]
async fn heads_that_make_no_sense_are_refused_and_the_connection_goes_on() {
    let server = TestServer::start(MOCK).await;
    let mut client = Client::to(&server).await;
    for (uri, host, status) in [
        ("http://localhost/api/v1/health", None, 200),
        ("http://localhost/api/v1/health", Some("LOCALHOST"), 200),
        ("http://localhost/api/v1/health", Some("127.0.0.1"), 400),
        ("http://evil.example/api/v1/health", None, 403),
        ("http://user@localhost/api/v1/health", None, 403),
        ("http://localhost/api/v1/../health", None, 404),
    ] {
        let request = Request::builder().uri(uri);
        let request = if let Some(host) = host { request.header("host", host) } else { request };
        let (response, _) = client.send(request.body(()).unwrap(), true).await.unwrap();
        assert_eq!(Reply::read(response).await.unwrap().status, status, "{uri} {host:?}");
    }
    for (method, uri, status) in [
        ("CONNECT", "localhost:443", 404),
        ("CONNECT", "evil.example:443", 403),
        ("OPTIONS", "http://localhost/api/v1/health", 405),
        ("BREW", "http://localhost/api/v1/health", 405),
    ] {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        let (response, _stream) = client.send(request, true).await.unwrap();
        assert_eq!(Reply::read(response).await.unwrap().status, status, "{method} {uri}");
    }
    let heads: &[&[(&str, &str)]] = &[
        &[("connection", "close")],
        &[("transfer-encoding", "chunked")],
        &[("keep-alive", "1")],
        &[("upgrade", "websocket")],
        &[("proxy-connection", "close")],
        &[("te", "gzip")],
        &[("content-length", "5")],
        &[("content-length", "5"), ("content-length", "6")],
        &[("Upper", "1")],
        &[(":path", "/other")],
        &[("a b", "1")],
        &[("nul", "a\0b")],
        &[("folded", "a\r\nb")],
    ];
    for (at, head) in heads.iter().enumerate() {
        let mut raw = Raw::open(&server).await;
        let health = |more| block("GET", "/api/v1/health", more);
        raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &health(head))).await;
        raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 3, &health(&[]))).await;
        raw.send(&frame(GOAWAY, 0, 0, &[0; 8])).await;
        let frames = raw.frames(PATIENCE).await;
        assert!(!frames.iter().any(|(kind, _, stream, _)| *kind == HEADERS && *stream == 1), "{head:?}: {frames:?}");
        let is_reset = frames.contains(&(RST_STREAM, 0, 1, PROTOCOL_ERROR.to_be_bytes().to_vec()));
        let is_answered = frames.iter().any(|(kind, _, stream, _)| (*kind, *stream) == (DATA, 3));
        // A name or a value that cannot be one breaks the whole connection.
        let is_cut = frames.iter().any(|(kind, _, _, payload)| *kind == GOAWAY && payload[7] != 0);
        assert!(is_reset && is_answered || at >= 8 && is_cut, "{head:?}: {frames:?}");
    }
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_gets_it_if_the_body_is_wanted() {
    let server = TestServer::start(MOCK).await;
    let mut client = Client::to(&server).await;
    let post =
        request("POST", "/sandboxes").header("content-type", "application/json").header("expect", "100-continue");
    let (mut response, mut stream) = client.send(post.body(()).unwrap(), false).await.unwrap();
    let proceed = timeout(PATIENCE, poll_fn(|context| response.poll_informational(context))).await.expect("it comes");
    assert_eq!(proceed.unwrap().unwrap().status(), 100);
    write(&mut stream, b"{}", true).await;
    assert_eq!(Reply::read(response).await.unwrap().status, 201);
    let put = request("PUT", "/nowhere").header("expect", "100-continue").body(()).unwrap();
    let (response, _stream) = client.send(put, false).await.unwrap();
    assert_eq!(Reply::read(response).await.unwrap().status, 404);
}
