//! Errors: one shape everywhere, and messages that help.

use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::server::{Answer, MOCK, TestServer};

#[tokio::test]
async fn what_is_not_served_is_told_in_the_same_shape() {
    let server = TestServer::start(MOCK).await;
    server.get("/nope").await.refused(404, "not_found", "openapi.json");
    Answer::read(server.http.get(&server.url).send().await.unwrap()).await.refused(404, "not_found", "no route `/`");
    let answer = Answer::read(server.request(Method::PATCH, "/sandboxes").send().await.unwrap()).await;
    answer.refused(405, "method_not_allowed", "Allow");
    let allowed = answer.headers["allow"].to_str().unwrap();
    assert!(allowed.contains("POST") && allowed.contains("GET") && allowed.contains("DELETE"), "{allowed}");
}

#[tokio::test]
async fn a_body_that_is_not_json_is_415_and_says_so() {
    let server = TestServer::start(MOCK).await;
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let request = server.request(Method::POST, "/sandboxes").header("content-type", kind).body("{}");
        Answer::read(request.send().await.unwrap()).await.refused(415, "unsupported_media_type", "application/json");
    }
}

#[tokio::test]
async fn json_is_read_strictly() {
    let server = TestServer::start(MOCK).await;
    for (body, words) in [
        ("{", "the body"),
        ("{} x", "trailing"),
        (r#"{"image":"a","image":"b"}"#, "duplicate field `image`"),
        (r#"{"colour":"red"}"#, "unknown field `colour`"),
        ("\u{1}", "the body"),
    ] {
        let request = server.request(Method::POST, "/sandboxes").header("content-type", "application/json").body(body);
        Answer::read(request.send().await.unwrap()).await.refused(400, "bad_request", words);
    }
}

#[tokio::test]
async fn a_json_body_above_a_mebibyte_is_413_and_the_client_sees_it() {
    let server = TestServer::start(MOCK).await;
    let large = format!(r#"{{"image":"{}"}}"#, "x".repeat(2 << 20));
    for is_chunked in [false, true] {
        let body: reqwest::Body = if is_chunked {
            reqwest::Body::wrap_stream(futures_util::stream::iter([Ok::<_, std::io::Error>(large.clone())]))
        } else {
            large.clone().into()
        };
        let request = server.request(Method::POST, "/sandboxes").header("content-type", "application/json").body(body);
        Answer::read(request.send().await.unwrap()).await.refused(413, "payload_too_large", "1048576");
    }
}

#[tokio::test]
async fn a_request_id_is_echoed_or_made() {
    let server = TestServer::start(MOCK).await;
    let given = server.request(Method::GET, "/health").header("X-Request-ID", "mine-1").send().await.unwrap();
    assert_eq!(given.headers()["x-request-id"], "mine-1");
    let made = server.get("/nope").await;
    assert_eq!(made.headers["x-request-id"].len(), 16);
}

#[tokio::test]
async fn a_name_that_is_not_ours_is_refused_on_loopback() {
    let server = TestServer::start(MOCK).await;
    let with_host = async |host: &str| {
        let request = server.request(Method::GET, "/sandboxes").header("Host", host);
        Answer::read(request.send().await.unwrap()).await
    };
    with_host("evil.example").await.refused(403, "forbidden", "allowed_hosts");
    with_host("127.0.0.1.evil.example:7423").await.refused(403, "forbidden", "allowed_hosts");
    with_host("localhost:1").await.ok();
    let posted =
        server.request(Method::POST, "/sandboxes").header("Origin", "http://evil.example").send().await.unwrap();
    Answer::read(posted).await.refused(403, "forbidden", "server.cors_allowed_origins");
}

#[tokio::test]
async fn what_a_route_does_not_read_is_refused_and_not_ignored() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    for (method, path) in [
        (Method::DELETE, "/sandboxes?state=failed".to_owned()),
        (Method::GET, "/providers?limit=1".to_owned()),
        (Method::HEAD, "/providers?limit=1".to_owned()),
        (Method::GET, "/quotas?owner=x".to_owned()),
        (Method::GET, format!("/sandboxes/{id}?x=1")),
        (Method::POST, "/sandboxes/admission?x".to_owned()),
        (Method::DELETE, format!("/sandboxes/{id}?force=true")),
    ] {
        let answer = Answer::read(server.request(method.clone(), &path).send().await.unwrap()).await;
        assert_eq!(answer.status, 400, "{method} {path}");
        if method != Method::HEAD {
            answer.refused(400, "bad_request", "leave out `");
        }
    }
    server.get(&format!("/sandboxes/{id}?")).await.ok();
    server.post("/providers/test", json!({"x": 1})).await.refused(400, "bad_request", "unknown field `x`");
    server.post("/providers/test", json!({})).await.ok();
}

#[tokio::test]
async fn numbers_that_do_not_fit_are_told_in_plain_words() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let whole = "`memory_mb`: invalid value: integer `99999999999`, expected a whole number from 0 to 4294967295";
    server.post("/sandboxes", json!({"memory_mb": 99_999_999_999u64})).await.refused(400, "bad_request", whole);
    server.get(&format!("/sandboxes/{id}/logs?lines=x")).await.refused(
        400,
        "bad_request",
        "lines: is not a whole number",
    );
    server.post(&format!("/sandboxes/{id}/files/move"), json!({"old_path": "a", "new_path": "/b"})).await.refused(
        400,
        "bad_request",
        "the path `a` must be absolute",
    );
}

#[tokio::test]
async fn an_owner_that_breaks_the_rules_is_refused() {
    let server = TestServer::start(MOCK).await;
    let too_long = "x".repeat(129);
    for owner in ["a b", "a/b", &too_long, " "] {
        let request = server.request(Method::POST, "/sandboxes").header("X-User-ID", owner).json(&json!({}));
        Answer::read(request.send().await.unwrap()).await.refused(400, "bad_request", "X-User-ID");
    }
}

#[tokio::test]
async fn a_client_that_never_finishes_its_request_is_let_go() {
    let server = TestServer::start(MOCK).await;
    let address = server.url.strip_prefix("http://").unwrap();
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\nHost: local").await.unwrap();
    let mut answer = Vec::new();
    // The server's timeout for the head of a request is half a minute.
    let read = tokio::time::timeout(std::time::Duration::from_secs(50), socket.read_to_end(&mut answer)).await;
    read.expect("the server hangs up").unwrap();
}

#[tokio::test]
async fn garbage_instead_of_http_does_no_harm() {
    let server = TestServer::start(MOCK).await;
    let address = server.url.strip_prefix("http://").unwrap();
    for garbage in [&b"\x16\x03\x01\x02\x00"[..], b"\r\n\r\n\r\n", b"GET /\r\n\r\n", &[0; 70_000]] {
        let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
        let _ = socket.write_all(garbage).await;
        let _ = socket.shutdown().await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
    }
    server.get("/health").await.ok();
}
