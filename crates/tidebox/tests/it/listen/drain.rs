//! Shutdown: requests in progress are finished, and no new ones are accepted.

use std::time::{Duration, Instant};

use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::{Certificate, address, rest, tcp};
use crate::server::{Answer, MOCK, PATIENCE, TestServer};

fn tell_to_stop(server: &TestServer) {
    kill_process(Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap(), Signal::TERM).unwrap();
}

/// Starts a stream and waits for its first chunk.
async fn streaming(server: &TestServer, line: &str) -> reqwest::Response {
    let id = server.spawn().await;
    let body = json!({"command": "sh", "args": ["-c", line], "stream": true});
    let mut response = server.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&body).send().await.unwrap();
    let first = response.chunk().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("first"), "{first:?}");
    response
}

#[tokio::test]
async fn a_stream_under_way_is_finished_and_new_callers_are_refused() {
    let mut server = TestServer::start(MOCK).await;
    let at = address(&server);
    // A connection that waits for its next request, and one that never had any.
    let mut idle = tcp(&server).await;
    idle.write_all(b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    idle.read_exact(&mut [0; 12]).await.unwrap();
    let mut fresh = tcp(&server).await;
    let response = streaming(&server, "echo first; sleep 7; echo last").await;
    tell_to_stop(&server);
    server.until("refusal", async || TcpStream::connect(at).await.is_err()).await;
    rest(&mut idle, Duration::from_secs(5)).await;
    rest(&mut fresh, Duration::from_secs(5)).await;
    let answer = Answer::read(response).await;
    assert!(String::from_utf8_lossy(&answer.bytes).contains("last"), "{:?}", String::from_utf8_lossy(&answer.bytes));
    let code = tokio::task::spawn_blocking(move || server.end()).await.unwrap();
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn what_takes_too_long_is_cut_off() {
    let mut server = TestServer::start(MOCK).await;
    let response = streaming(&server, "echo first; sleep 50; echo last").await;
    let start = Instant::now();
    tell_to_stop(&server);
    // The cut shows as an error, so that a part is never taken for the whole.
    let cut = tokio::time::timeout(PATIENCE, response.bytes()).await.expect("the drain has an end");
    assert!(cut.is_err(), "{cut:?}");
    assert!(start.elapsed() > Duration::from_secs(8), "there is time to finish");
    let code = tokio::task::spawn_blocking(move || server.end()).await.unwrap();
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn handshakes_and_idle_callers_of_every_door_hold_up_no_end() {
    let (certificate, dir) = (Certificate::new(), tempfile::tempdir().unwrap());
    let path = dir.path().join("socket");
    let settings = format!("{MOCK} {} server.unix_socket={}", certificate.settings(dir.path()), path.display());
    let mut server = TestServer::start(&settings).await;
    let mut shaking = tcp(&server).await;
    shaking.write_all(b"\x16\x03\x01\x02\x00\x01").await.unwrap();
    let mut idle = certificate.connect(&server).await;
    let mut local = UnixStream::connect(&path).await.unwrap();
    for stream in [&mut idle as &mut (dyn Stream + Unpin), &mut local] {
        stream.write_all(b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        stream.read_exact(&mut [0; 12]).await.unwrap();
    }
    let start = Instant::now();
    let code = tokio::task::spawn_blocking(move || server.terminate()).await.unwrap();
    assert_eq!(code, Some(0));
    assert!(start.elapsed() < Duration::from_secs(8), "nothing was under way: {:?}", start.elapsed());
    for stream in [&mut shaking as &mut (dyn Stream + Unpin), &mut idle, &mut local] {
        rest(&mut *stream, PATIENCE).await;
    }
    assert!(!path.exists());
}

trait Stream: AsyncRead + AsyncWrite {}

impl<S: AsyncRead + AsyncWrite> Stream for S {}
