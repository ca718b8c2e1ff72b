//! Clients that keep to the letter of HTTP/2, or not even to that, to do harm.

use super::*;
use crate::server::MOCK;

/// Memory that no attack over one connection may take, in MiB.
const MEMORY_MAX_MIB: u64 = 24;

/// Returns the memory of a server in KiB, after it has answered requests: until then parts of its
/// program are not loaded.
async fn settled(server: &TestServer) -> u64 {
    for _ in 0..10 {
        Client::to(server).await.is_healthy().await;
        server.get("/diagnostics").await.ok();
    }
    server.resident_kib()
}

/// Sends `piece` until the server hangs up or `bytes` were sent, then checks that the server has not
/// grown and that others are answered. Returns the connection.
async fn flood(server: &TestServer, mut raw: Raw, piece: &[u8], bytes: usize) -> Raw {
    let before = settled(server).await;
    let mut sent = 0;
    while sent < bytes {
        // A server that reads no further has a bound, too.
        match timeout(Duration::from_secs(2), raw.writer.write_all(piece)).await {
            Ok(Ok(())) => sent += piece.len(),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    Client::to(server).await.is_healthy().await;
    let grown = server.resident_kib().saturating_sub(before) / 1024;
    assert!(grown < MEMORY_MAX_MIB, "the server grew by {grown} MiB after {sent} bytes");
    raw
}

fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &block("GET", path, &[]))
}

#[tokio::test]
async fn requests_that_are_taken_back_at_once_end_the_connection() {
    let server = TestServer::start(MOCK).await;
    let mut raw = Raw::open(&server).await;
    let cancel = 8_u32.to_be_bytes();
    let mut burst = Vec::new();
    for stream in (1..20_000).step_by(2) {
        burst.extend(get(stream, "/api/v1/sandboxes"));
        burst.extend(frame(RST_STREAM, 0, stream, &cancel));
    }
    raw.send(&burst).await;
    assert_eq!(raw.reason(PATIENCE).await, Some(ENHANCE_YOUR_CALM));
    Client::to(&server).await.is_healthy().await;
}

#[tokio::test]
async fn requests_that_are_taken_back_one_after_another_end_the_connection() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let mut client = Client::to(&server).await;
    let uri = format!("http://localhost/api/v1/sandboxes/{id}/wait?state=destroyed&timeout=1m");
    let mut sent = 0;
    loop {
        let request = Request::builder().uri(&uri).body(()).unwrap();
        let Ok((response, mut stream)) = client.send(request, true).await else { break };
        sent += 1;
        assert!(sent < 1000, "it goes on");
        // An answer shows that the server has seen the request before.
        if sent % 10 == 0 && client.ask("GET", "localhost", "/api/v1/live").await.is_err() {
            break;
        }
        stream.send_reset(Reason::CANCEL);
        drop(response);
    }
    assert!(sent > 100, "a page that is left takes back what it asked for: {sent}");
    // A client that goes on sending may not see the reason.
    assert!(client.end(PATIENCE).await.is_none_or(|reason| reason == Reason::ENHANCE_YOUR_CALM));
    Client::to(&server).await.is_healthy().await;
}

#[tokio::test]
async fn a_head_without_an_end_is_cut_off() {
    let server = TestServer::start(MOCK).await;
    for payload in [&[][..], b"\x00\x01a\x01b"] {
        let mut raw = Raw::open(&server).await;
        raw.send(&frame(HEADERS, END_STREAM, 1, &block("GET", "/api/v1/health", &[]))).await;
        let piece = frame(CONTINUATION, 0, 1, payload).repeat(1000);
        let raw = flood(&server, raw, &piece, 256 << 20).await;
        assert!(raw.reason(PATIENCE).await.is_none_or(|reason| reason != NO_ERROR));
    }
}

#[tokio::test]
async fn a_small_head_that_unpacks_to_a_large_one_is_refused() {
    let server = TestServer::start(MOCK).await;
    let mut raw = Raw::open(&server).await;
    // A header of 4,000 bytes enters the table, and is then named by one byte each.
    let mut bomb = block("GET", "/api/v1/health", &[]);
    bomb.extend_from_slice(b"\x40\x01x\x7f");
    // 4000 = 127 + 3873, in groups of seven bits.
    bomb.extend_from_slice(&[0xa1, 0x1e]);
    bomb.extend_from_slice(&[b'a'; 4000]);
    let bomb = frame(HEADERS, END_STREAM | END_HEADERS, 1, &bomb);
    let mut alone = Raw::open(&server).await;
    alone.send(&[bomb.clone(), frame(GOAWAY, 0, 0, &[0; 8])].concat()).await;
    let frames = alone.frames(PATIENCE).await;
    assert!(frames.iter().any(|(kind, _, stream, _)| (*kind, *stream) == (DATA, 1)), "the header itself is fine");
    assert!(raw.send(&bomb).await);
    let mut named = block("GET", "/api/v1/health", &[]);
    named.extend([0xbe; 16_000]);
    let named = frame(HEADERS, END_STREAM | END_HEADERS, 3, &named);
    let raw = flood(&server, raw, &named, named.len()).await;
    let frames = raw.frames(PATIENCE).await;
    assert!(!frames.iter().any(|(kind, _, stream, _)| (*kind, *stream) == (DATA, 3)), "64 MB of headers are not");
}

#[tokio::test]
async fn settings_and_pings_without_end_take_no_memory_and_hold_nothing_up() {
    let server = TestServer::start(MOCK).await;
    let window = [&3_u16.to_be_bytes()[..], &100_u32.to_be_bytes()].concat();
    for piece in [
        frame(PING, 0, 0, &[7; 8]),
        frame(SETTINGS, 0, 0, &window),
        frame(SETTINGS, 0, 0, &[]),
        frame(WINDOW_UPDATE, 0, 0, &0_u32.to_be_bytes()),
        frame(2, 0, 5, &[0, 0, 0, 0, 1]),
        frame(0xfa, 0, 0, b"unknown"),
    ] {
        let raw = Raw::open(&server).await;
        flood(&server, raw, &piece.repeat(1000), 16 << 20).await;
        // A client that reads nothing of what it asks for.
        let (_reader, mut writer) = tcp(&server).await.into_split();
        writer.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
        let raw = Raw { writer, reader: JoinSet::new() };
        flood(&server, raw, &piece.repeat(1000), 16 << 20).await;
    }
}

#[tokio::test]
async fn frames_that_ask_for_nothing_end_the_connection_and_a_few_do_not() {
    let server = TestServer::start(MOCK).await;
    for piece in [
        frame(PING, 0, 0, &[7; 8]),
        frame(SETTINGS, 0, 0, &[]),
        frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
        frame(2, 0, 5, &[0, 0, 0, 0, 1]),
        frame(0xfa, 0, 0, b"unknown"),
    ] {
        let kind = piece[3];
        let mut few = Raw::open(&server).await;
        few.send(&[piece.repeat(1000), get(1, "/api/v1/live"), frame(GOAWAY, 0, 0, &[0; 8])].concat()).await;
        let frames = few.frames(PATIENCE).await;
        assert!(frames.iter().any(|(kind, _, stream, _)| (*kind, *stream) == (DATA, 1)), "{kind}: {frames:?}");
        let mut raw = Raw::open(&server).await;
        raw.send(&piece.repeat(40_000)).await;
        // A client that goes on sending may not see the reason.
        assert!(raw.reason(PATIENCE).await.is_none_or(|reason| reason == ENHANCE_YOUR_CALM), "{kind}");
        Client::to(&server).await.is_healthy().await;
    }
}

#[tokio::test]
async fn pieces_of_a_body_without_bytes_end_the_connection() {
    let server = TestServer::start(MOCK).await;
    let mut raw = Raw::open(&server).await;
    raw.send(&frame(
        HEADERS,
        END_HEADERS,
        1,
        &block("POST", "/api/v1/sandboxes", &[("content-type", "application/json")]),
    ))
    .await;
    let raw = flood(&server, raw, &frame(DATA, 0, 1, &[]).repeat(1000), 64 << 20).await;
    assert_eq!(raw.reason(PATIENCE).await, Some(ENHANCE_YOUR_CALM));
}

#[tokio::test]
async fn windows_are_kept_and_cannot_overflow() {
    let server = TestServer::start(MOCK).await;
    let most = i32::MAX.to_be_bytes();
    let mut raw = Raw::open(&server).await;
    raw.send(&frame(WINDOW_UPDATE, 0, 0, &most).repeat(2)).await;
    assert_eq!(raw.reason(PATIENCE).await, Some(FLOW_CONTROL_ERROR));
    // More of a body than its window, which its reader may not have seen: the route waits for all.
    let mut raw = Raw::open(&server).await;
    raw.send(&frame(HEADERS, END_HEADERS, 1, &block("PUT", "/api/v1/sandboxes/sb-x/files/f", &[]))).await;
    let raw = flood(&server, raw, &frame(DATA, 0, 1, &[b'x'; 16_384]), 128 << 20).await;
    drop(raw);
    Client::to(&server).await.is_healthy().await;
}

#[tokio::test]
async fn of_ten_thousand_requests_at_once_no_more_than_the_bound_are_taken() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let path = format!("/api/v1/sandboxes/{id}/wait?state=destroyed&timeout=5m");
    let before = settled(&server).await;
    let mut raw = Raw::open(&server).await;
    let burst: Vec<u8> = (0..10_000).flat_map(|number| get(2 * number + 1, &path)).collect();
    raw.send(&burst).await;
    let frames = raw.frames(PATIENCE).await;
    let refused = frames.iter().filter(|(kind, _, _, payload)| *kind == RST_STREAM && payload == &[0, 0, 0, 7]).count();
    assert!((1..=256).contains(&refused), "they may be sent again: {refused}");
    assert!(frames.iter().any(|(kind, ..)| *kind == GOAWAY), "a client that goes on is hung up");
    let grown = server.resident_kib().saturating_sub(before) / 1024;
    assert!(grown < MEMORY_MAX_MIB, "{grown} MiB");
    Client::to(&server).await.is_healthy().await;
}

#[tokio::test]
async fn requests_that_the_server_is_made_to_reset_end_the_connection() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let path = format!("/api/v1/sandboxes/{id}/wait?state=destroyed&timeout=5m");
    for fault in [
        |stream| frame(WINDOW_UPDATE, 0, stream, &0_u32.to_be_bytes()),
        |stream| frame(WINDOW_UPDATE, 0, stream, &i32::MAX.to_be_bytes()),
        |stream| frame(DATA, 0, stream, b"after the end"),
        |stream| get(stream, "/api/v1/health"),
    ] {
        let before = settled(&server).await;
        let mut raw = Raw::open(&server).await;
        for number in 0..5_000 {
            let stream = 2 * number + 1;
            if !raw.send(&[get(stream, &path), fault(stream)].concat()).await {
                break;
            }
        }
        assert!(raw.reason(PATIENCE).await.is_none_or(|reason| reason != NO_ERROR));
        let grown = server.resident_kib().saturating_sub(before) / 1024;
        assert!(grown < MEMORY_MAX_MIB, "{grown} MiB");
        Client::to(&server).await.is_healthy().await;
    }
}

#[tokio::test]
async fn requests_beyond_the_bound_wait_with_a_client_that_keeps_to_it() {
    let server = TestServer::start(MOCK).await;
    let mut client = Client::to(&server).await;
    client.is_healthy().await;
    let mut waiting = Vec::new();
    for _ in 0..1000 {
        let request = Request::builder().uri("http://localhost/api/v1/live").body(()).unwrap();
        waiting.push(client.send(request, true).await.unwrap().0);
    }
    assert_eq!(client.sender.current_max_send_streams(), 128);
    for one in waiting {
        assert_eq!(Reply::read(one).await.unwrap().status, 200);
    }
}
