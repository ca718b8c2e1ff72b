//! Clients that are slow, many, or both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;

use super::{Certificate, HEALTH, address, ask, is_health, parted, rest, tcp};
use crate::server::{Answer, MOCK, TestServer};

/// A server's limit of half a minute, with room for a busy machine.
const HALF_A_MINUTE: Duration = Duration::from_secs(50);
/// Long for an answer, and much less than an idle connection is kept.
const PROMPTLY: Duration = Duration::from_secs(5);
/// A server's limit of a minute, with room for a busy machine.
const A_MINUTE: Duration = Duration::from_secs(90);

/// Sends a head byte by byte until the server hangs up; returns the time that took.
async fn trickle(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Duration {
    let start = Instant::now();
    let head = format!("GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nX-Slow: {}", "x".repeat(1000));
    for byte in head.bytes() {
        assert!(start.elapsed() < HALF_A_MINUTE, "the server listens to a trickle for ever");
        if stream.write_all(&[byte]).await.is_err() {
            break;
        }
        let _ = stream.flush().await;
        // Reads the end or an answer; without either this is the pause between two bytes.
        let pause = Duration::from_millis(200);
        if let Ok(read) = tokio::time::timeout(pause, stream.read(&mut [0; 1024])).await {
            assert!(matches!(read, Ok(0) | Err(_)), "half a request is not answered");
            break;
        }
    }
    start.elapsed()
}

#[tokio::test]
async fn a_burst_of_clients_is_connected_though_the_server_accepts_none_of_them() {
    let server = TestServer::start(MOCK).await;
    server.signal(Signal::STOP);
    let mut open = Vec::new();
    for number in 0..500 {
        let connected = tokio::time::timeout(PROMPTLY, TcpStream::connect(address(&server))).await;
        open.push(connected.unwrap_or_else(|_| panic!("{number} wait, and one more has no room")).unwrap());
    }
    server.signal(Signal::CONT);
    let last = open.pop().unwrap();
    is_health(&ask(last, HEALTH.as_bytes()).await);
}

#[tokio::test]
async fn a_head_that_trickles_in_is_not_waited_for_whatever_the_door() {
    let (certificate, dir) = (Certificate::new(), tempfile::tempdir().unwrap());
    let path = dir.path().join("socket");
    let plain = TestServer::start(&format!("{MOCK} server.unix_socket={}", path.display())).await;
    let tls = TestServer::start(&format!("{MOCK} {}", certificate.settings(dir.path()))).await;
    let (one, two, three) = tokio::join!(
        trickle(tcp(&plain).await),
        trickle(UnixStream::connect(&path).await.unwrap()),
        trickle(certificate.connect(&tls).await),
    );
    for took in [one, two, three] {
        assert!(took > Duration::from_secs(20), "the bound is half a minute: {took:?}");
    }
}

#[tokio::test]
async fn a_connection_that_has_nothing_more_to_ask_is_closed() {
    let server = TestServer::start(MOCK).await;
    let mut stream = tcp(&server).await;
    let kept = HEALTH.replace("Connection: close\r\n", "");
    for _ in 0..2 {
        stream.write_all(kept.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        let mut left = [0; 4096];
        let _ = stream.read(&mut left).await.unwrap();
    }
    rest(&mut stream, HALF_A_MINUTE).await;
}

#[tokio::test]
async fn a_body_that_stalls_is_408_and_leaves_no_file() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let begun = async |head: String, body: &str| {
        let mut stream = tcp(&server).await;
        let head = format!("{head} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n");
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
        let answer = rest(&mut stream, A_MINUTE).await;
        let (head, body) = parted(&answer);
        assert!(head.starts_with("HTTP/1.1 408 "), "{answer}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["code"], "timeout", "{body}");
    };
    // A body that makes progress may take longer than the limit and is stored whole.
    let steady = async {
        let pieces = futures_util::stream::unfold(0, |count| async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            (count < 14).then(|| (Ok::<_, std::io::Error>(vec![b'x'; 2048]), count + 1))
        });
        let path = format!("/sandboxes/{id}/files/workspace/steady");
        let request = server.request(Method::PUT, &path).body(reqwest::Body::wrap_stream(pieces));
        Answer::read(request.send().await.unwrap()).await.ok();
    };
    tokio::join!(
        begun("POST /api/v1/sandboxes".to_owned(), "{\"image\""),
        begun(format!("PUT /api/v1/sandboxes/{id}/files/workspace/halted"), "half a file"),
        steady,
    );
    let listed = server.get(&format!("/sandboxes/{id}/files/list?path=/workspace")).await.ok();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!((&listed[0]["name"], &listed[0]["size"]), (&json!("steady"), &json!(14 * 2048)), "{listed}");
}

/// A client that sends before it listens would see a reset connection, had the
/// server stopped reading.
#[tokio::test]
async fn whoever_is_refused_sees_why_whatever_it_sends() {
    let server = TestServer::start(MOCK).await;
    let body = vec![b'x'; 8 << 20];
    for (line, host, status) in [
        ("PUT /api/v1/sandboxes/sb-x/files/f", "evil.example", 403),
        ("PUT /api/v1/nowhere", "localhost", 404),
        ("PATCH /api/v1/sandboxes", "localhost", 405),
        ("PUT /api/v1/sandboxes/sb-x/files/f", "localhost", 404),
    ] {
        let head =
            format!("{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut stream = tcp(&server).await;
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap();
        let answer = rest(&mut stream, A_MINUTE).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {answer:?}");
    }
}

#[tokio::test]
async fn sockets_closed_half_way_do_no_harm() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let exec = r#"{"command":"sleep","args":["60"],"stream":true}"#;
    for sent in [
        String::new(),
        "GET /api/v1/heal".to_owned(),
        HEALTH.to_owned(),
        "POST /api/v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{".to_owned(),
        format!(
            "POST /api/v1/sandboxes/{id}/exec HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{exec}",
            exec.len()
        ),
    ] {
        let mut stream = tcp(&server).await;
        stream.write_all(sent.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        rest(&mut stream, Duration::from_secs(15)).await;
    }
    server.get("/health").await.ok();
    assert_eq!(server.get("/sandboxes").await.ok().as_array().unwrap().len(), 1);
}

/// Raises the limit of open files of this process to the maximum.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    assert!(maximum.is_none_or(|maximum| maximum > 12_000), "this test needs descriptors: `ulimit -Hn` is {maximum:?}");
}

/// The server's limit of connections on a listener.
const PLACES: usize = 4_096;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_connection_is_answered_while_pollers_hold_every_place() {
    raise_open_files();
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let at = address(&server);
    // Requests in progress, which a new connection must not cut off.
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let wait =
            format!("GET /api/v1/sandboxes/{id}/wait?state=destroyed&timeout=5m HTTP/1.1\r\nHost: localhost\r\n");
        stream.write_all(format!("{wait}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
        waiting.push(stream);
    }
    let answered = Arc::new(AtomicUsize::new(0));
    let mut pollers = tokio::task::JoinSet::<std::io::Result<()>>::new();
    // A few at a time: a connection beyond the kernel's queue is retried only after seconds.
    let at_once = Arc::new(Semaphore::new(256));
    for _ in 0..PLACES {
        let (answered, at_once) = (Arc::clone(&answered), Arc::clone(&at_once));
        pollers.spawn(async move {
            let poll = b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n";
            let mut first = Some(at_once.acquire().await.unwrap());
            // A poller whose connection was closed reconnects.
            loop {
                let mut stream = TcpStream::connect(at).await?;
                while stream.write_all(poll).await.is_ok()
                    && stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0)
                {
                    if first.take().is_some() {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    // No condition to await: as an attacker polls.
                    tokio::time::sleep(Duration::from_secs(8)).await;
                }
            }
        });
    }
    server.until("every place is taken", async || answered.load(Ordering::Relaxed) >= PLACES - 8).await;
    let start = Instant::now();
    for _ in 0..20 {
        let answer = tokio::time::timeout(PROMPTLY, ask(tcp(&server).await, HEALTH.as_bytes())).await;
        is_health(&answer.unwrap_or_else(|_| panic!("no place came free for {:?}", start.elapsed())));
    }
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    for mut stream in waiting {
        let answer = rest(&mut stream, HALF_A_MINUTE).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    pollers.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_connections_do_no_lasting_harm() {
    raise_open_files();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let server = TestServer::start(&format!("{MOCK} server.unix_socket={}", path.display())).await;
    let at = address(&server);
    // Connections beyond the limit wait in the kernel's queue, or before it; closed ones
    // reconnect until each client has been accepted once.
    let is_pressing = Arc::new(AtomicBool::new(true));
    let been = Arc::new(AtomicUsize::new(0));
    let mut held = tokio::task::JoinSet::new();
    for index in 0..5_000 {
        let (is_pressing, been) = (Arc::clone(&is_pressing), Arc::clone(&been));
        held.spawn(async move {
            let mut is_first = true;
            while is_pressing.load(Ordering::Relaxed) {
                let Ok(mut stream) = TcpStream::connect(at).await else { continue };
                if std::mem::take(&mut is_first) {
                    been.fetch_add(1, Ordering::Relaxed);
                }
                if index % 2 == 0 {
                    let _ = stream.write_all(b"GET /api/v1/health HTTP/1.1\r\nHost: lo").await;
                }
                let _ = stream.read(&mut [0]).await;
            }
        });
    }
    let count = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    // The number of concurrent connections depends on how fast this machine opens them. That the
    // last place can be taken, and no more, is for the tests of `http::accept::places`.
    let deadline = Instant::now() + 4 * A_MINUTE;
    let mut most = 0;
    while been.load(Ordering::Relaxed) < 5_000 {
        assert!(Instant::now() < deadline, "not all have been there: {}", been.load(Ordering::Relaxed));
        most = most.max(count());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!((500..4_096 + 200).contains(&most), "the connections are bounded: {most}");
    is_pressing.store(false, Ordering::Relaxed);
    // The Unix socket still accepts connections.
    is_health(&ask(UnixStream::connect(&path).await.unwrap(), HEALTH.as_bytes()).await);
    // Connections without a request are closed in the end, and a waiting one is answered.
    let patient = async {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(HEALTH.as_bytes()).await.unwrap();
        rest(&mut stream, A_MINUTE).await
    };
    is_health(&patient.await);
    held.shutdown().await;
    server.until("the descriptors are given back", async || count() < 100).await;
    is_health(&ask(tcp(&server).await, HEALTH.as_bytes()).await);
}
