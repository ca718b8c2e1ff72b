//! Previews over HTTP/2. To the program each request is one of HTTP/1.1, as ever.

use bytes::Bytes;
use h2::Reason;
use http::Request;
use sha2::{Digest, Sha256};

use super::streams::size;
use super::*;
use crate::http2::{Client, Reply, write};

fn request(id: &str, method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(format!("http://{}{path}", host(id)))
}

#[tokio::test]
async fn a_program_sees_a_request_of_http_1_and_its_client_an_answer_of_http_2() {
    let server = server(true).await;
    let id = serving(&server).await;
    let token = token(&server, &id).await;
    let mut client = Client::to(&server).await;
    let get = request(&id, "GET", "/page?a=1").header("te", "trailers").header("x-forwarded-for", "6.6.6.6");
    let get = get.header("sec-fetch-site", "same-origin");
    let cookies = ["a=1".to_owned(), format!("tidebox-preview={token}"), "b=2".to_owned(), "c=3; d=4".to_owned()];
    let get = cookies.iter().fold(get, |get, cookie| get.header("cookie", cookie)).body(()).unwrap();
    let reply = Reply::read(client.send(get, true).await.unwrap().0).await.unwrap();
    assert_eq!(reply.status, 200);
    let told = reply.json();
    assert_eq!(told["line"], "GET /page?a=1 HTTP/1.1");
    let lines: Vec<String> =
        told["head"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_lowercase()).collect();
    for line in [
        format!("host: {}", host(&id)),
        "cookie: a=1; b=2; c=3; d=4".to_owned(),
        "connection: close".to_owned(),
        "te: trailers".to_owned(),
        "x-forwarded-for: 127.0.0.1".to_owned(),
        "x-forwarded-proto: http".to_owned(),
        format!("x-forwarded-host: {}", host(&id)),
    ] {
        assert_eq!(lines.iter().filter(|found| **found == line).count(), 1, "{line}: {lines:?}");
    }
    assert!(!lines.iter().any(|line| line.starts_with(':') || line.contains("6.6.6.6")), "{lines:?}");
    let cookies: Vec<_> = reply.headers.get_all("set-cookie").iter().collect();
    assert_eq!(cookies, ["own=1"]);
    assert_eq!(client.ask("GET", &host(&id), "/").await.unwrap().status, 401);
    assert_eq!(client.ask("GET", "127.0.0.1", "/api/v1/health").await.unwrap().status, 200, "one connection has both");
    // What is between two neighbours ends at this server, whatever a program says.
    let raw = "HTTP/1.1 200 OK\r\nConnection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nUpgrade: h2c\r\n\
               Proxy-Connection: close\r\nX-Kept: 1\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n\
               5\r\nhello\r\n0\r\nX-End: yes\r\n\r\n";
    let hex: String = raw.bytes().map(|byte| format!("{byte:02x}")).collect();
    let get = request(&id, "GET", &format!("/raw/{hex}")).header("x-preview-token", &token).header("te", "trailers");
    let reply = Reply::read(client.send(get.body(()).unwrap(), true).await.unwrap().0).await.unwrap();
    assert_eq!((reply.status.as_u16(), reply.text().as_str()), (200, "hello"));
    assert_eq!(reply.trailers.as_ref().unwrap()["x-end"], "yes");
    for name in ["connection", "x-hop", "keep-alive", "upgrade", "proxy-connection", "transfer-encoding"] {
        assert!(!reply.headers.contains_key(name), "{name}: {reply:?}");
    }
    assert!(reply.headers.contains_key("x-kept") && reply.headers.contains_key("date"), "{reply:?}");
}

#[tokio::test]
async fn bodies_of_any_size_go_both_ways_whole_and_take_no_memory() {
    let settings =
        format!("{NATIVE} server.preview_domain={DOMAIN} limits.request_memory_mb=16 limits.max_file_bytes=1024");
    let server = TestServer::start(&settings).await;
    let id = serving(&server).await;
    let before = server.resident_kib();
    let mut client = Client::to(&server).await;
    let pieces = size() >> 20;
    let piece = |number: usize| -> Vec<u8> { (0..1 << 20).map(|at| (at * 31 + at / 977 + number * 7) as u8).collect() };
    let mut digest = Sha256::new();
    let (response, mut stream) = client.send(request(&id, "PUT", "/digest").body(()).unwrap(), false).await.unwrap();
    for number in 0..pieces {
        let piece = piece(number);
        digest.update(&piece);
        assert_eq!(write(&mut stream, &piece, number + 1 == pieces).await, piece.len());
    }
    let expected: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(Reply::read(response).await.unwrap().text(), expected);
    // What is sent comes back while more is sent.
    let (response, mut stream) = client.send(request(&id, "POST", "/echo").body(()).unwrap(), false).await.unwrap();
    let mut echo = timeout(PATIENCE, response).await.unwrap().unwrap().into_body();
    for number in 0..pieces {
        let piece = piece(number);
        let sending = write(&mut stream, &piece, number + 1 == pieces);
        let receiving = async {
            let mut came = Vec::new();
            while came.len() < piece.len() {
                let bytes = timeout(PATIENCE, echo.data()).await.expect("it comes back").unwrap().unwrap();
                echo.flow_control().release_capacity(bytes.len()).unwrap();
                came.extend_from_slice(&bytes);
            }
            came
        };
        let (sent, came) = tokio::join!(sending, receiving);
        assert!(sent == piece.len() && came == piece, "{number}");
    }
    while let Some(more) = timeout(PATIENCE, echo.data()).await.unwrap() {
        assert!(more.unwrap().is_empty());
    }
    let taken_mib = server.resident_kib().saturating_sub(before) / 1024;
    assert!(taken_mib < 24, "{taken_mib} MiB");
}

#[tokio::test]
async fn an_event_arrives_when_it_is_sent_and_a_request_that_is_taken_back_ends() {
    let server = server(false).await;
    let id = serving(&server).await;
    let mut client = Client::to(&server).await;
    let open = async || server.output(&id, "grep -c ':0BB8 .* 01 ' /proc/net/tcp || true").await.trim().to_owned();
    let (response, mut stream) = client.send(request(&id, "GET", "/events").body(()).unwrap(), true).await.unwrap();
    let answer = timeout(PATIENCE, response).await.unwrap().unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut events = answer.into_body();
    assert_eq!(timeout(PATIENCE, events.data()).await.unwrap().unwrap().unwrap(), "data: one\n\n");
    assert_ne!(open().await, "0");
    stream.send_reset(Reason::CANCEL);
    server.until("the connection in the box has ended", async || open().await == "0").await;
    // A body that is taken back half way is no whole one.
    let (response, mut stream) = client.send(request(&id, "PUT", "/count").body(()).unwrap(), false).await.unwrap();
    write(&mut stream, b"half", false).await;
    server.until("the program reads", async || open().await != "0").await;
    stream.send_reset(Reason::CANCEL);
    assert!(Reply::read(response).await.is_err());
    server.until("the connection in the box has ended", async || open().await == "0").await;
    assert_eq!(client.ask("GET", &host(&id), "/").await.unwrap().status, 200, "the others go on");
}

#[tokio::test]
async fn an_answer_before_the_end_of_an_upload_reaches_the_client_and_refuses_the_rest() {
    let server = server(false).await;
    let id = serving(&server).await;
    let mut client = Client::to(&server).await;
    let (response, mut stream) = client.send(request(&id, "POST", "/early").body(()).unwrap(), false).await.unwrap();
    let sending = async {
        while write(&mut stream, &[7; 1 << 16], false).await > 0 {}
        std::future::poll_fn(|context| stream.poll_reset(context)).await
    };
    let (reset, reply) = tokio::join!(timeout(PATIENCE, sending), Reply::read(response));
    let reply = reply.unwrap();
    assert_eq!((reply.status.as_u16(), reply.text().as_str()), (413, "early"));
    assert_eq!(reset.expect("the rest is refused").unwrap(), Reason::NO_ERROR);
}

#[tokio::test]
async fn what_a_program_breaks_off_is_an_error_and_no_short_answer() {
    let server = server(false).await;
    let id = serving(&server).await;
    let mut client = Client::to(&server).await;
    let raw = |text: &str| format!("/raw/{}", text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>());
    for cut in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ] {
        let error = client.ask("GET", &host(&id), &raw(cut)).await.unwrap_err();
        assert!(
            error.is_reset() && error.is_remote() && error.reason() == Some(Reason::INTERNAL_ERROR),
            "{cut}: {error}"
        );
    }
    for bad in ["", "nonsense", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"] {
        assert_eq!(client.ask("GET", &host(&id), &raw(bad)).await.unwrap().status, 502, "{bad}");
    }
    // Nothing switches to another protocol here.
    assert_eq!(client.ask("GET", &host(&id), "/switch").await.unwrap().status, 502);
    assert_eq!(client.ask("GET", &host(&id), "/").await.unwrap().status, 200);
}

#[tokio::test]
async fn a_program_that_reads_nothing_holds_up_no_other_request_and_takes_no_memory() {
    let server = server(false).await;
    let (silent, id) = (running(&server, SILENT, "").await, serving(&server).await);
    let mut client = Client::to(&server).await;
    let mut stuck = Vec::new();
    let before = server.resident_kib();
    for number in 0..20 {
        let (response, mut stream) = client.send(request(&silent, "PUT", "/").body(()).unwrap(), false).await.unwrap();
        let bytes = if number == 0 { 1 } else { 100_000 };
        let sending = async { while write(&mut stream, &vec![b'x'; bytes], false).await == bytes {} };
        // It sends as much as is taken.
        let _ = timeout(Duration::from_millis(if number == 0 { 2000 } else { 200 }), sending).await;
        stuck.push((response, stream));
    }
    for _ in 0..20 {
        let put = request(&id, "PUT", "/count").body(()).unwrap();
        assert_eq!(client.put(put, &[7; 500_000]).await.unwrap().text(), "500000");
    }
    let taken_mib = server.resident_kib().saturating_sub(before) / 1024;
    assert!(taken_mib < 64, "{taken_mib} MiB");
    drop(stuck);
    server
        .until("the requests have ended", async || {
            server.get("/diagnostics").await.ok()["request_memory"]["used_bytes"] == 0
        })
        .await;
}

#[tokio::test]
async fn hundreds_of_idle_previews_over_few_connections_are_alive_and_take_little_memory() {
    let server = server(false).await;
    let id = serving(&server).await;
    assert_eq!(Client::to(&server).await.ask("GET", &host(&id), "/").await.unwrap().status, 200);
    let before = server.resident_kib();
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = Client::to(&server).await;
        let mut echoes = Vec::new();
        for _ in 0..40 {
            let echo = request(&id, "POST", "/echo").body(()).unwrap();
            let (response, stream) = client.send(echo, false).await.unwrap();
            let response = timeout(PATIENCE, response).await.unwrap().unwrap();
            assert_eq!(response.status(), 200);
            echoes.push((response.into_body(), stream));
        }
        clients.push((client, echoes));
    }
    let taken = server.resident_kib().saturating_sub(before);
    eprintln!("{} KiB for each idle request", taken as f64 / 160.0);
    assert!(taken < 60 * 160, "{taken} KiB");
    for (_, echoes) in &mut clients {
        for (echo, stream) in echoes {
            stream.send_data(Bytes::from_static(b"hello"), true).unwrap();
            assert_eq!(timeout(PATIENCE, echo.data()).await.unwrap().unwrap().unwrap(), "hello");
        }
    }
}
