//! Ambiguous requests, which two readers could understand in two ways, and malformed ones.

use tokio::io::AsyncWriteExt;

use super::{HEALTH, ask, is_health, parted, rest, tcp};
use crate::server::{MOCK, PATIENCE, TestServer};

/// Returns the status of the only answer, after which the connection ends.
async fn status(server: &TestServer, request: &str) -> u16 {
    let answer = ask(tcp(server).await, request.as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{request:?} got {answer:?}");
    answer["HTTP/1.1 ".len()..][..3].parse().unwrap()
}

#[tokio::test]
async fn a_head_that_is_not_http_is_refused() {
    let server = TestServer::start(MOCK).await;
    let with = |header: &str| HEALTH.replace("Connection: close\r\n", &format!("{header}Connection: close\r\n"));
    let long = "x".repeat(70_000);
    let many: String = (0..150).map(|index| format!("X-{index}: 1\r\n")).collect();
    for (request, expected) in [
        (with("Content-Length: 5\r\nContent-Length: 6\r\n"), 400),
        (with("Content-Length: 5, 5\r\n"), 400),
        (with("Content-Length: +5\r\n"), 400),
        (with("Content-Length: -1\r\n"), 400),
        (with("Content-Length: 0x5\r\n"), 400),
        (with("Content-Length: 99999999999999999999\r\n"), 400),
        (with("Content-Length : 5\r\n"), 400),
        (with("Transfer-Encoding: gzip\r\n"), 400),
        (with("Transfer-Encoding: chunked, identity\r\n"), 400),
        (with("Transfer-Encoding: xchunked\r\n"), 400),
        (with("X-Folded: a\r\n b\r\n"), 400),
        (with("X-Nul: a\0b\r\n"), 400),
        (with("X-Return: a\rb\r\n"), 400),
        (with(" X-Indented: a\r\n"), 400),
        (with("No colon\r\n"), 400),
        (with(": no name\r\n"), 400),
        (with("Host: localhost\r\n"), 400),
        (with(&many), 431),
        (with(&format!("X-Long: {long}\r\n")), 431),
        (HEALTH.replace("Host: localhost\r\n", ""), 400),
        (HEALTH.replace("Host: localhost", "Host: 127.0.0.1:1@evil.example"), 403),
        (HEALTH.replace("Host: localhost", "Host: [::1]evil"), 403),
        (HEALTH.replace("Host: localhost", "Host: localhost:99999"), 403),
        (HEALTH.replace("/api", "http://evil.example/api"), 403),
        (HEALTH.replace("/api", "http://localhost@evil.example/api"), 403),
        (HEALTH.replace("/api", "http://localhost:1/api"), 200),
        (HEALTH.replace("HTTP/1.1", "HTTP/3.0"), 400),
        (HEALTH.replace("HTTP/1.1", "HTTP/1.1 x"), 400),
        (HEALTH.replace("GET ", "G\u{1}T "), 400),
        (HEALTH.replace("/health", "/he\u{1}alth"), 400),
        (HEALTH.replace("/health", "/health x"), 400),
        (HEALTH.replace("/api/v1/health", "api/v1/health"), 400),
        (HEALTH.replace("/health", &format!("/{long}")), 431),
        (HEALTH.replace("HTTP/1.1", "HTTP/1.0").replace("Connection: close", "Transfer-Encoding: chunked"), 400),
    ] {
        let shown: String = request.chars().take(200).collect();
        assert_eq!(status(&server, &request).await, expected, "{shown:?}");
    }
    server.get("/health").await.ok();
}

#[tokio::test]
async fn a_chunk_that_is_none_is_refused() {
    let server = TestServer::start(MOCK).await;
    let head = "POST /api/v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    for body in [
        "x\r\n{}\r\n0\r\n\r\n",
        "-2\r\n{}\r\n0\r\n\r\n",
        "2\n{}\n0\n\n",
        "2\r\n{}0\r\n\r\n",
        "fffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        "2;a\nb\r\n{}\r\n0\r\n\r\n",
        "0x2\r\n{}\r\n0\r\n\r\n",
    ] {
        let answer = ask(tcp(&server).await, format!("{head}{body}").as_bytes()).await;
        let (head, text) = parted(&answer);
        assert!(head.starts_with("HTTP/1.1 400 ") && text.contains("bad_request"), "{body:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{body:?}: {answer}");
    }
    assert_eq!(server.get("/sandboxes").await.ok(), serde_json::json!([]), "nothing was done");
}

/// HTTP allows a reader to take a bare line feed for the end of a line. There must be one request,
/// and nothing of it may be taken for the request of another client.
#[tokio::test]
async fn a_bare_line_feed_ends_a_line_of_the_head() {
    let server = TestServer::start(MOCK).await;
    is_health(&ask(tcp(&server).await, HEALTH.replace("\r\n", "\n").as_bytes()).await);
    let refused = HEALTH.replace("Host: localhost\r\n", "X-Hidden: a\nHost: evil.example\r\n");
    assert_eq!(status(&server, &refused).await, 403);
}

/// With both lengths, the bytes that a proxy takes for a body are never read as the request of
/// another client.
#[tokio::test]
async fn nothing_is_read_behind_a_body_of_two_lengths() {
    let server = TestServer::start(MOCK).await;
    let smuggled = "DELETE /api/v1/sandboxes/sb-x HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let body = format!("0\r\n\r\n{smuggled}");
    let length = format!("Content-Length: {}\r\n", body.len());
    let chunked = "Transfer-Encoding: chunked\r\n";
    for headers in [format!("{length}{chunked}"), format!("{chunked}{length}")] {
        let request = format!("POST /api/v1/sandboxes HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{body}");
        let answer = ask(tcp(&server).await, request.as_bytes()).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    }
}

#[tokio::test]
async fn targets_of_other_forms_are_answered_in_our_shape() {
    let server = TestServer::start(MOCK).await;
    let port = server.url.rsplit(':').next().unwrap();
    let with = |line: String| HEALTH.replace("GET /api/v1/health", &line);
    is_health(&ask(tcp(&server).await, with(format!("GET http://localhost:{port}/api/v1/health")).as_bytes()).await);
    for (line, expected, code) in [
        ("GET http://evil.example/api/v1/health", 403, "forbidden"),
        ("OPTIONS *", 404, "not_found"),
        ("GET *", 404, "not_found"),
        ("CONNECT evil.example:443", 403, "forbidden"),
        ("CONNECT localhost:443", 404, "not_found"),
        ("GET //evil.example/api/v1/health", 404, "not_found"),
        ("GET /api/v1/../v1/health", 404, "not_found"),
        ("GET /api/v1/%2e%2e/health", 404, "not_found"),
        ("GET /api/v1/sandboxes/%2e%2e", 404, "not_found"),
        ("GET /api/v1/sandboxes/a%2fb", 404, "not_found"),
        ("GET /api/v1/sandboxes/%00", 404, "not_found"),
        ("GET /api/v1/sandboxes/%c0%ae", 400, "bad_request"),
        ("GET /api/v1/sandboxes/%ff", 400, "bad_request"),
        ("GET /api/v1/sandboxes/%zz", 404, "not_found"),
        ("GET /api/v1/sandboxes/sb-x/files?%ff=%00", 400, "bad_request"),
        ("BREW /api/v1/health", 405, "method_not_allowed"),
    ] {
        let answer = ask(tcp(&server).await, with(line.to_owned()).as_bytes()).await;
        let (head, body) = parted(&answer);
        assert!(head.starts_with(&format!("HTTP/1.1 {expected} ")), "{line}: {answer}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{line}: {answer}"));
        assert_eq!(body["code"], code, "{line}: {body}");
    }
}

#[tokio::test]
async fn requests_sent_ahead_are_answered_in_order() {
    let server = TestServer::start(MOCK).await;
    let kept = HEALTH.replace("Connection: close\r\n", "");
    let mut stream = tcp(&server).await;
    stream.write_all(format!("{}{HEALTH}", kept.repeat(20)).as_bytes()).await.unwrap();
    let answer = rest(&mut stream, PATIENCE).await;
    assert_eq!(answer.matches("HTTP/1.1 200 ").count(), 21, "{answer}");
}
