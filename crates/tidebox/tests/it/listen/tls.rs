//! HTTPS.

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;

use super::{Certificate, HEALTH, ask, is_health, parted, refused_start, rest, tcp};
use crate::server::{MOCK, PATIENCE, TestServer};

async fn with(certificate: &Certificate, dir: &tempfile::TempDir) -> TestServer {
    TestServer::start(&format!("{MOCK} {}", certificate.settings(dir.path()))).await
}

/// Formats a POST request that is the connection's last.
fn posted(path: &str, body: &str) -> String {
    format!(
        "POST /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn https_is_spoken_when_a_certificate_is_set() {
    let (certificate, dir) = (Certificate::new(), tempfile::tempdir().unwrap());
    let server = with(&certificate, &dir).await;
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let stream = certificate.connect(&server).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    is_health(&ask(stream, HEALTH.as_bytes()).await);
    // A client without ALPN is served too, ...
    let stream = certificate.try_connect(&server, "localhost", &[]).await.unwrap();
    is_health(&ask(stream, HEALTH.as_bytes()).await);
    // ... and one that offers only another protocol is refused in the handshake.
    let refused = certificate.try_connect(&server, "localhost", &["h3"]).await.unwrap_err();
    assert!(refused.to_string().contains("NoApplicationProtocol"), "{refused}");
    is_health(&ask(certificate.connect(&server).await, HEALTH.as_bytes()).await);
}

#[tokio::test]
async fn plain_http_to_the_tls_port_is_told_to_use_https() {
    let (certificate, dir) = (Certificate::new(), tempfile::tempdir().unwrap());
    let server = with(&certificate, &dir).await;
    let answer = ask(tcp(&server).await, HEALTH.as_bytes()).await;
    let (head, body) = parted(&answer);
    assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["code"], "bad_request");
    assert!(body["message"].as_str().unwrap().contains("https://"), "{body}");
    for garbage in [&b"\0\0\0\0"[..], b"\x16\x03\x01\xff\xff\0", b"\x16\x03\x01\0\x05hello", &[0xff; 4096]] {
        let mut stream = tcp(&server).await;
        stream.write_all(garbage).await.unwrap();
        let _ = stream.shutdown().await;
        assert!(!rest(&mut stream, PATIENCE).await.contains("HTTP"));
    }
    is_health(&ask(certificate.connect(&server).await, HEALTH.as_bytes()).await);
}

#[tokio::test]
async fn a_certificate_is_shown_whatever_name_is_asked_for() {
    let (certificate, dir) = (Certificate::new(), tempfile::tempdir().unwrap());
    let server = with(&certificate, &dir).await;
    // The client is the one to refuse: names are not secrets, and the server has one certificate.
    let refused = certificate.try_connect(&server, "other.example", &["http/1.1"]).await.unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
    let refused = Certificate::new().try_connect(&server, "localhost", &["http/1.1"]).await.unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
    is_health(&ask(certificate.connect(&server).await, HEALTH.as_bytes()).await);
}

#[tokio::test]
async fn handshakes_that_stall_hold_nobody_up_and_are_let_go() {
    let (certificate, dir) = (Certificate::new(), tempfile::tempdir().unwrap());
    let server = with(&certificate, &dir).await;
    let mut stalled = Vec::new();
    for index in 0..200 {
        let mut stream = tcp(&server).await;
        if index % 2 == 0 {
            // The start of a handshake, of 512 bytes that never come.
            stream.write_all(b"\x16\x03\x01\x02\x00\x01").await.unwrap();
        }
        stalled.push(stream);
    }
    is_health(&ask(certificate.connect(&server).await, HEALTH.as_bytes()).await);
    let start = Instant::now();
    for stream in &mut stalled {
        rest(stream, PATIENCE).await;
    }
    assert!(start.elapsed() < Duration::from_secs(25), "the bound on a handshake is ten seconds");
}

#[tokio::test]
async fn a_new_certificate_is_taken_up_while_a_stream_runs() {
    let (old, new, dir) = (Certificate::new(), Certificate::new(), tempfile::tempdir().unwrap());
    let server = with(&old, &dir).await;
    let spawned = ask(old.connect(&server).await, posted("/sandboxes", "{}").as_bytes()).await;
    let id = serde_json::from_str::<serde_json::Value>(parted(&spawned).1).unwrap()["id"].as_str().unwrap().to_owned();
    let mut stream = old.connect(&server).await;
    let command = r#"{"command":"sh","args":["-c","echo first; sleep 12; echo last"],"stream":true}"#;
    stream.write_all(posted(&format!("/sandboxes/{id}/exec"), command).as_bytes()).await.unwrap();

    // An unusable certificate only causes a line in the log.
    std::fs::write(dir.path().join("cert.pem"), "nonsense").unwrap();
    server.until("a complaint", async || server.log_text().contains("still using the old certificate")).await;
    is_health(&ask(old.connect(&server).await, HEALTH.as_bytes()).await);

    new.write(dir.path());
    server
        .until("the new certificate", async || {
            new.try_connect(&server, "localhost", &["http/1.1"])
                .await
                .is_ok_and(|stream| stream.get_ref().1.peer_certificates().is_some_and(|shown| shown[0] == new.der()))
        })
        .await;
    assert!(old.try_connect(&server, "localhost", &["http/1.1"]).await.is_err());
    let streamed = rest(&mut stream, PATIENCE).await;
    assert!(streamed.contains("first") && streamed.contains("last"), "{streamed}");
    assert!(streamed.ends_with("0\r\n\r\n") || streamed.contains("\r\n0\r\n"), "the stream is whole: {streamed}");
    assert!(!server.log_text().contains("PRIVATE"), "{}", server.log_text());
}

#[test]
fn a_certificate_without_its_key_is_a_fault() {
    for (set, missing) in
        [("server.tls.cert_file", "server.tls.key_file"), ("server.tls.key_file", "server.tls.cert_file")]
    {
        let (code, text) = refused_start(&[(set, "/nonexistent.pem")]);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(set) && text.contains(&format!("needs `{missing}`")), "{text}");
    }
}

#[test]
fn files_that_cannot_be_used_stop_the_start_and_are_named() {
    let (certificate, other, dir) = (Certificate::new(), Certificate::new(), tempfile::tempdir().unwrap());
    let (cert, key) = certificate.write(dir.path());
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let (code, text) =
        refused_start(&[("server.tls.cert_file", "/nonexistent.pem"), ("server.tls.key_file", "/nonexistent.pem")]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("`server.tls.cert_file` /nonexistent.pem: No such file"), "{text}");
    std::fs::write(key, other.key).unwrap();
    let (code, text) = refused_start(&[("server.tls.cert_file", cert), ("server.tls.key_file", key)]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("server.tls.key_file") && text.contains("is not the key of"), "{text}");
}
