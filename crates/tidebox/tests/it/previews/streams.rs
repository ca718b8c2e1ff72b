//! Streams through previews: bodies of any size, events, switched protocols.

use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::ClientRequestBuilder;

use super::*;

/// Size of the uploads and downloads, in bytes.
pub fn size() -> usize {
    std::env::var("TIDEBOX_TEST_PREVIEW_BYTES").map_or(32 << 20, |bytes| bytes.parse().unwrap())
}

/// Reads until these bytes have come.
async fn until(stream: &mut TcpStream, expected: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.ends_with(expected) {
        let count = timeout(PATIENCE, stream.read(&mut buffer)).await.expect("more comes").unwrap();
        assert!(count > 0, "it ended: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    text
}

#[tokio::test]
async fn uploads_and_downloads_may_be_larger_than_any_limit_and_take_no_memory() {
    let settings =
        format!("{NATIVE} server.preview_domain={DOMAIN} limits.request_memory_mb=16 limits.max_file_bytes=1024");
    let server = TestServer::start(&settings).await;
    let id = serving(&server).await;
    let size = size();
    let before = server.resident_kib();
    let mut stream = dial(&server).await;
    let head = format!("PUT /count HTTP/1.1\r\nHost: {}\r\nContent-Length: {size}\r\n\r\n", host(&id));
    stream.write_all(head.as_bytes()).await.unwrap();
    let piece = vec![7; 1 << 20];
    for _ in 0..size >> 20 {
        stream.write_all(&piece).await.unwrap();
    }
    assert_eq!(reply(&mut stream).await.body, size.to_string());
    let head = format!("POST /count HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n", host(&id));
    let mut stream = dial(&server).await;
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..4 {
        stream.write_all(b"100000\r\n").await.unwrap();
        stream.write_all(&piece).await.unwrap();
        stream.write_all(b"\r\n").await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    assert_eq!(reply(&mut stream).await.body, (4 << 20).to_string());
    let mut stream = dial(&server).await;
    let head = format!("GET /zeros/{size} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", host(&id));
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut total, mut buffer) = (0, vec![0; 1 << 20]);
    while let count @ 1.. = timeout(PATIENCE, stream.read(&mut buffer)).await.expect("more comes").unwrap() {
        total += count;
    }
    assert!(total > size && total < size + 1000, "{total}");
    let taken_mib = server.resident_kib().saturating_sub(before) / 1024;
    assert!(taken_mib < 24, "{taken_mib} MiB");
}

#[tokio::test]
async fn an_event_arrives_when_it_is_sent_and_a_client_that_goes_away_ends_the_request() {
    let server = server(false).await;
    let id = serving(&server).await;
    let mut stream = dial(&server).await;
    let request = format!("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", host(&id));
    stream.write_all(request.as_bytes()).await.unwrap();
    let seen = until(&mut stream, "data: one\n\n\r\n").await;
    assert!(seen.contains("content-type: text/event-stream"), "{seen}");
    drop(stream);
    server
        .until("the connection in the box has ended", async || {
            server.output(&id, "grep -c ':0BB8 .* 01 ' /proc/net/tcp || true").await.trim() == "0"
        })
        .await;
}

#[tokio::test]
async fn a_protocol_is_switched_and_both_directions_flow_until_their_ends() {
    let server = server(false).await;
    let id = serving(&server).await;
    let mut stream = dial(&server).await;
    let request =
        format!("GET /switch HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nearly ", host(&id));
    stream.write_all(request.as_bytes()).await.unwrap();
    let seen = until(&mut stream, "hello early ").await;
    assert!(seen.starts_with("HTTP/1.1 101 ") && seen.contains("upgrade: echo") && seen.contains("x-own: 1"), "{seen}");
    let bytes: String = "0123456789abcdef".repeat(1 << 16);
    let (mut reader, mut writer) = stream.split();
    let write = async {
        writer.write_all(bytes.as_bytes()).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let mut echoed = String::new();
    let (_, read) = tokio::join!(write, timeout(PATIENCE, reader.read_to_string(&mut echoed)));
    read.unwrap().unwrap();
    assert!(echoed == bytes);
}

#[tokio::test]
async fn a_websocket_of_a_program_is_its_own() {
    let server = server(false).await;
    let id = serving(&server).await;
    let script = "import base64,hashlib,socket
l=socket.create_server(('127.0.0.1',4000))
c,_=l.accept()
head=b''
while not head.endswith(b'\\r\\n\\r\\n'): head+=c.recv(1)
key=[x.split(b': ')[1] for x in head.split(b'\\r\\n') if x.lower().startswith(b'sec-websocket-key')][0]
accept=base64.b64encode(hashlib.sha1(key+b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest())
c.sendall(b'HTTP/1.1 101 X\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: '+accept+b'\\r\\n\\r\\n')
c.sendall(b'\\x81\\x05hello')
c.recv(100)
";
    server.write(&id, "/tmp/ws.py", script).await;
    server.output(&id, "exec python3 /tmp/ws.py </dev/null >/dev/null 2>&1 &").await;
    let host = format!("4000-{id}.{DOMAIN}");
    server.until("it listens", async || server.output(&id, "cat /proc/net/tcp").await.contains(":0FA0 ")).await;
    let request = ClientRequestBuilder::new(format!("ws://{host}/").parse().unwrap());
    let (mut socket, _) = client_async(request, dial(&server).await).await.unwrap();
    let message = futures_util::StreamExt::next(&mut socket).await.unwrap().unwrap();
    assert_eq!(message.into_text().unwrap(), "hello");
}

#[tokio::test]
async fn an_answer_before_the_end_of_an_upload_reaches_the_client() {
    let server = server(false).await;
    let id = serving(&server).await;
    let mut stream = dial(&server).await;
    let head = format!("POST /early HTTP/1.1\r\nHost: {}\r\nContent-Length: 1000000000\r\n\r\nfirst", host(&id));
    stream.write_all(head.as_bytes()).await.unwrap();
    let reply = reply(&mut stream).await;
    assert_eq!((reply.status, reply.body.as_str()), (413, "early"));
}

/// Python's own server refuses what it does not know without a look at the body, and closes.
#[tokio::test]
async fn the_answer_of_a_program_that_closes_without_reading_an_upload_reaches_the_client() {
    let server = server(false).await;
    let id = server.spawn().await;
    server.output(&id, "exec python3 -m http.server 3000 --bind 127.0.0.1 </dev/null >/dev/null 2>&1 &").await;
    server.until("it listens", async || server.output(&id, "cat /proc/net/tcp").await.contains(":0BB8 ")).await;
    for size in [0, 1 << 10, 1 << 20, 8 << 20] {
        for _ in 0..8 {
            let mut stream = dial(&server).await;
            let head = format!("POST / HTTP/1.1\r\nHost: {}\r\nContent-Length: {size}\r\n\r\n", host(&id));
            stream.write_all(head.as_bytes()).await.unwrap();
            // A client that reads nothing before it has sent all.
            timeout(PATIENCE, stream.write_all(&vec![7; size])).await.expect("all is taken").unwrap();
            let reply = reply(&mut stream).await;
            assert!(reply.status == 501 && reply.body.contains("Unsupported method"), "{size}: {reply:?}");
        }
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_the_fault_of_who_sent_it() {
    let server = server(false).await;
    let id = serving(&server).await;
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    for answer in [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    ] {
        let request = format!("GET /raw/{} HTTP/1.1\r\nHost: {}\r\n\r\n", hex(answer), host(&id));
        let reply = raw(&server, &request).await;
        assert!(reply.status == 502 && reply.body.contains("closed the connection"), "{answer}: {reply:?}");
    }
    for body in ["zz\r\nab\r\n", "2\r\nabcdef\r\n0\r\n\r\n", "-1\r\n"] {
        let head = format!("POST /count HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n", host(&id));
        let reply = raw(&server, &format!("{head}{body}")).await;
        assert!(reply.status == 400 && reply.body.contains("chunks"), "{body}: {reply:?}");
    }
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_gets_it_only_if_the_body_is_wanted() {
    let server = server(false).await;
    let id = serving(&server).await;
    let head = |host: &str| {
        format!("POST /count HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    };
    let mut stream = dial(&server).await;
    stream.write_all(head(&host(&id)).as_bytes()).await.unwrap();
    until(&mut stream, "HTTP/1.1 100 Continue\r\n\r\n").await;
    stream.write_all(b"hello").await.unwrap();
    assert_eq!(reply(&mut stream).await.body, "5");
    assert_eq!(raw(&server, &head(&format!("3001-{id}.{DOMAIN}"))).await.status, 502);
}

#[tokio::test]
async fn a_thousand_idle_previews_are_alive_and_take_little_memory() {
    let server = server(false).await;
    let keeper = include_str!("../ports/keeper.py");
    let mut boxes = Vec::new();
    for _ in 0..2 {
        boxes.push(running(&server, keeper, "http").await);
    }
    let before = server.resident_kib();
    let mut streams = Vec::new();
    for id in &boxes {
        for _ in 0..500 {
            let mut stream = dial(&server).await;
            let switch = format!("GET / HTTP/1.1\r\nHost: {}\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", host(id));
            stream.write_all(switch.as_bytes()).await.unwrap();
            until(&mut stream, "\r\n\r\n").await;
            streams.push(stream);
        }
    }
    let taken = server.resident_kib().saturating_sub(before);
    eprintln!("{} KiB for each idle connection", taken as f64 / streams.len() as f64);
    assert!(taken < 20 * streams.len() as u64, "{taken} KiB");
    for of_one in streams.chunks_mut(500) {
        of_one[0].write_all(b"hello").await.unwrap();
        for stream in of_one {
            until(stream, "hello").await;
        }
    }
}
