//! The proxy of the box: what processes ask it, and what reaches the server.

use bytes::{Bytes, BytesMut};
use guest_protocol::{
    Boot, EgressAccept, EgressReason, EgressRefuse, EgressRow, Failure, FailureKind, ListeningPort, Network,
};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Agent, within};
use crate::ports::Connection;

/// An agent, with this test as its server.
struct Proxy {
    agent: Agent,
    rows: Incoming,
    buffer: BytesMut,
    /// Address of the proxy, and the user and password in front of it, if there are any.
    address: String,
    user: Option<String>,
}

impl Proxy {
    async fn start() -> Proxy {
        Proxy::of(Agent::start().await).await
    }

    async fn of(mut agent: Agent) -> Proxy {
        let rows = receive(&mut agent).await;
        let url = agent.run("printf %s $http_proxy").await;
        let address = url.out().strip_prefix("http://").unwrap();
        let (user, address) =
            address.rsplit_once('@').map_or((None, address), |(user, at)| (Some(user.to_owned()), at));
        Proxy { address: address.to_owned(), user, agent, rows, buffer: BytesMut::new() }
    }

    async fn connect(&self) -> Process {
        Process(within(TcpStream::connect(&self.address)).await.unwrap())
    }

    /// Connects and sends `bytes`.
    async fn send(&self, bytes: impl AsRef<[u8]>) -> Process {
        let mut process = self.connect().await;
        process.send(bytes).await;
        process
    }

    /// Returns the next connection that is asked for.
    async fn row(&mut self) -> EgressRow {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                return serde_json::from_slice(&self.buffer.split_to(end + 1)).unwrap();
            }
            let frame = within(self.rows.frame()).await.unwrap().unwrap();
            self.buffer.extend_from_slice(frame.data_ref().unwrap());
        }
    }

    async fn accept(&mut self) -> Connection {
        let id = self.row().await.id;
        self.accept_id(id).await.unwrap()
    }

    async fn accept_id(&mut self, id: u64) -> Result<Connection, Failure> {
        Connection::open_by(&mut self.agent, "/egress/accept", &EgressAccept { id }).await
    }

    async fn refuse(&mut self, id: u64) -> Result<serde_json::Value, Failure> {
        let refuse = EgressRefuse { id, reason: EgressReason::Denied, message: "no".to_owned() };
        self.agent.ask("/egress/refuse", &refuse).await
    }

    /// Sends a request, accepts its connection, and returns what the host is sent until `end`.
    async fn pass(&mut self, request: &str, end: &str) -> (Process, Connection, String) {
        let process = self.send(request).await;
        let mut host = self.accept().await;
        let seen = until(&mut host, end).await;
        (process, host, seen)
    }

    async fn end(self) {
        drop(self.rows);
        self.agent.end().await;
    }
}

async fn receive(agent: &mut Agent) -> Incoming {
    let response = agent.send("POST", "/egress", Empty::new().boxed_unsync(), &[]).await;
    assert!(response.status().is_success());
    response.into_body()
}

/// Reads what the host is sent until it ends with `end`.
async fn until(host: &mut Connection, end: &str) -> String {
    let mut seen = String::new();
    while !seen.ends_with(end) {
        let piece = host.next().await.unwrap_or_else(|| panic!("no {end:?} in {seen:?}")).unwrap();
        seen.push_str(std::str::from_utf8(&piece).unwrap());
    }
    seen
}

/// A connection of a process to the proxy.
struct Process(TcpStream);

impl Process {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within(self.0.write_all(bytes.as_ref())).await.unwrap();
    }

    async fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        within(self.0.read_exact(&mut bytes)).await.unwrap();
        bytes
    }

    /// Reads the head of an answer.
    async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend(self.read(1).await);
        }
        String::from_utf8(head).unwrap()
    }

    /// Reads to the end.
    async fn rest(&mut self) -> std::io::Result<Vec<u8>> {
        let mut all = Vec::new();
        within(self.0.read_to_end(&mut all)).await.map(|_| all)
    }
}

#[tokio::test]
async fn what_is_no_request_to_a_proxy_is_answered_with_what_to_change() {
    let proxy = Proxy::start().await;
    for (request, status, words) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n", 400, "not a web server"),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n", 400, "not a web server"),
        ("GET https://a/ HTTP/1.1\r\nHost: a\r\n", 400, "use CONNECT"),
        ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n", 400, "http://"),
        ("GET http://u:p@a/ HTTP/1.1\r\nHost: a\r\n", 400, "before an @"),
        ("GET http://a:0/ HTTP/1.1\r\nHost: a\r\n", 400, "port 0"),
        ("GET http://a:99999/ HTTP/1.1\r\nHost: a\r\n", 400, "larger than 65535"),
        ("CONNECT a HTTP/1.1\r\n", 400, "no port"),
        ("CONNECT a:0 HTTP/1.1\r\n", 400, "port 0"),
        ("CONNECT u@a:443 HTTP/1.1\r\n", 400, "before an @"),
        ("CONNECT [fe80::1%25eth0]:443 HTTP/1.1\r\n", 400, ""),
        ("GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: a\r\n", 400, "more than one"),
        // What follows cannot be read, so the library answers, and closes.
        ("GET  HTTP/1.1\r\n", 400, ""),
        ("GET http://a/ HTTP/1.1\r\nHost : a\r\n", 400, ""),
        ("GET http://a/ HTTP/1.1\r\nA: b\r\n c\r\n", 400, ""),
        ("GET http://a/ HTTP/1.1\r\nA: b\0c\r\n", 400, ""),
        ("POST http://a/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n", 400, ""),
        ("POST http://a/ HTTP/1.1\r\nContent-Length: 1, 2\r\n", 400, ""),
        ("POST http://a/ HTTP/1.1\r\nContent-Length: -1\r\n", 400, ""),
        ("POST http://a/ HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n", 400, ""),
        ("POST http://a/ HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n", 400, ""),
        ("POST http://a/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n", 400, ""),
        ("\x16\x03\x01\x02\r\n", 400, ""),
    ] {
        let mut process = proxy.send(format!("{request}\r\n")).await;
        let head = process.head().await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")) && head.contains(words), "{request:?}: {head:?}");
    }
    let long = format!("CONNECT {}:443 HTTP/1.1\r\n\r\n", "a".repeat(256));
    assert!(proxy.send(long).await.head().await.contains("longer than 255"));
    let large = format!("GET http://a/ HTTP/1.1\r\nA: {}\r\n\r\n", "b".repeat(70_000));
    assert!(proxy.send(large).await.head().await.starts_with("HTTP/1.1 431 "));
    proxy.end().await;
}

#[tokio::test]
async fn what_two_readers_could_take_for_two_requests_reaches_the_host_as_one() {
    let mut proxy = Proxy::start().await;
    for (request, end, expected) in [
        (
            "POST http://a/x HTTP/1.1\r\nHost: evil\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n\
             1\r\nZ\r\n0\r\n\r\n",
            "0\r\n\r\n",
            "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\nhost: a\r\n\r\n1\r\nZ\r\n0\r\n\r\n",
        ),
        // Lines that end with LF alone come out whole.
        ("GET http://a/x HTTP/1.1\nA: b\n\n", "\r\n\r\n", "GET /x HTTP/1.1\r\nA: b\r\nhost: a\r\n\r\n"),
        // What `Connection` names is gone, and none of it is what the request needs.
        (
            "POST http://a/x HTTP/1.1\r\nHost: a\r\nConnection: host, content-length, a\r\nContent-Length: 1\r\nA: b\r\n\r\nZ",
            "Z",
            "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nZ",
        ),
        ("GET http://a?q HTTP/1.0\r\n\r\n", "\r\n\r\n", "GET /?q HTTP/1.1\r\nhost: a\r\n\r\n"),
    ] {
        let (_process, _host, seen) = proxy.pass(request, end).await;
        let order = |text: &str| {
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let mut lines: Vec<_> = head.split("\r\n").map(str::to_ascii_lowercase).collect();
            lines.sort_unstable();
            (lines, body.to_owned())
        };
        assert_eq!(order(&seen), order(expected), "{request:?}");
    }
    // A chunk whose size ends with LF alone ends the request, and nothing of it passes for another.
    let bad =
        "POST http://a/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\nZ\r\n0\r\n\r\nGET http://b/ HTTP/1.1\r\n\r\n";
    let _process = proxy.send(bad).await;
    let mut host = proxy.accept().await;
    let rest = host.rest().await;
    assert!(!rest.windows(3).any(|it| it == b"GET"), "{rest:?}");
    proxy.end().await;
}

#[tokio::test]
async fn a_connection_is_kept_for_the_same_host_and_not_for_another() {
    let mut proxy = Proxy::start().await;
    let (mut process, mut host, _) = proxy.pass("GET http://a/1 HTTP/1.1\r\nHost: a\r\n\r\n", "\r\n\r\n").await;
    for number in 2..5 {
        host.send("HTTP/1.1 200 Fine\r\nContent-Length: 2\r\nKeep-Alive: x\r\n\r\nok").await;
        let head = process.head().await;
        assert!(head.starts_with("HTTP/1.1 200 Fine\r\n") && !head.contains("Keep-Alive"), "{head}");
        assert_eq!(process.read(2).await, b"ok");
        process.send(format!("GET http://a:80/{number} HTTP/1.1\r\n\r\n")).await;
        assert!(until(&mut host, "\r\n\r\n").await.starts_with(&format!("GET /{number} HTTP/1.1\r\n")));
    }
    host.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n").await;
    process.head().await;
    assert_eq!(process.read(12).await, b"2\r\nok\r\n0\r\n\r\n");
    process.send("GET http://b/ HTTP/1.1\r\n\r\n").await;
    let row = proxy.row().await;
    assert_eq!((row.host.as_str(), row.port), ("b", 80));
    assert_eq!(host.rest().await, b"");
    proxy.refuse(row.id).await.unwrap();
    assert!(process.head().await.starts_with("HTTP/1.1 403 no\r\n"));
    assert_eq!(process.read(3).await, b"no\n");
    // One that the host has closed is not asked again.
    process.send("GET http://b/ HTTP/1.1\r\n\r\n").await;
    let mut second = proxy.accept().await;
    until(&mut second, "\r\n\r\n").await;
    second.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    process.head().await;
    second.sender = None;
    second.rest().await;
    process.send("GET http://b/ HTTP/1.1\r\n\r\n").await;
    until(&mut proxy.accept().await, "\r\n\r\n").await;
    proxy.end().await;
}

#[tokio::test]
async fn bodies_are_streamed_both_ways_and_a_broken_answer_is_no_whole_one() {
    let mut proxy = Proxy::start().await;
    let question = "POST http://a/ HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (mut process, mut host, _) = proxy.pass(question, "\r\n\r\n").await;
    assert!(process.head().await.starts_with("HTTP/1.1 100 "));
    // Each piece arrives before the next is sent.
    process.send("3\r\none\r\n").await;
    until(&mut host, "one\r\n").await;
    host.send("HTTP/1.1 200 OK\r\n\r\nfirst").await;
    process.head().await;
    assert_eq!(process.read(10).await, b"5\r\nfirst\r\n");
    process.send("3\r\ntwo\r\n0\r\n\r\n").await;
    until(&mut host, "two\r\n0\r\n\r\n").await;
    host.send("second").await;
    assert_eq!(process.read(11).await, b"6\r\nsecond\r\n");
    drop(host);
    // There is no last chunk.
    assert_eq!(process.rest().await.unwrap_or_default(), b"");
    let (mut process, host, _) = proxy.pass("GET http://a/ HTTP/1.1\r\n\r\n", "\r\n\r\n").await;
    drop(host);
    assert!(process.head().await.starts_with("HTTP/1.1 502 the host closed the connection"));
    let (mut process, host, _) = proxy.pass("GET http://a/ HTTP/1.1\r\n\r\n", "\r\n\r\n").await;
    host.send("220 this is a mail server\r\n").await;
    assert!(process.head().await.starts_with("HTTP/1.1 502 "));
    let (mut process, host, _) = proxy.pass("GET http://a/ HTTP/1.1\r\n\r\n", "\r\n\r\n").await;
    host.send("HTTP/1.1 101 Other\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n").await;
    assert!(process.head().await.starts_with("HTTP/1.1 502 "));
    proxy.end().await;
}

#[tokio::test]
async fn a_change_of_the_protocol_is_passed_on() {
    let mut proxy = Proxy::start().await;
    let question = "GET http://a/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let (mut process, mut host, seen) = proxy.pass(question, "\r\n\r\n").await;
    assert!(seen.contains("Upgrade: websocket\r\n") && seen.to_ascii_lowercase().contains("connection: upgrade\r\n"));
    host.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nwelcome").await;
    assert!(process.head().await.starts_with("HTTP/1.1 101 "));
    assert_eq!(process.read(7).await, b"welcome");
    process.send("thanks").await;
    until(&mut host, "thanks").await;
    host.sender = None;
    assert_eq!(process.rest().await.unwrap(), b"");
    process.send("bye").await;
    until(&mut host, "bye").await;
    drop(process);
    assert_eq!(host.rest().await, b"");
    proxy.end().await;
}

#[tokio::test]
async fn a_reset_stays_a_reset_through_a_tunnel() {
    let mut proxy = Proxy::start().await;
    let mut process = proxy.send("CONNECT a:443 HTTP/1.1\r\n\r\nearly").await;
    let mut host = proxy.accept().await;
    assert!(process.head().await.starts_with("HTTP/1.1 200 "));
    until(&mut host, "early").await;
    drop(host);
    assert_eq!(process.rest().await.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    let process = proxy.send("CONNECT a:443 HTTP/1.1\r\n\r\n").await;
    let mut host = proxy.accept().await;
    host.send("unread").await;
    // With bytes that were not read, the kernel resets.
    within(process.0.peek(&mut [0])).await.unwrap();
    drop(process);
    let mut last = host.next().await;
    while let Some(Ok(_)) = last {
        last = host.next().await;
    }
    assert!(last.is_some_and(|last| last.is_err()));
    proxy.end().await;
}

#[tokio::test]
async fn the_end_of_the_server_ends_five_hundred_connections() {
    let mut proxy = Proxy::start().await;
    let mut open = Vec::new();
    for _ in 0..500 {
        let mut process = proxy.send("CONNECT a:443 HTTP/1.1\r\n\r\n").await;
        let host = proxy.accept().await;
        process.head().await;
        open.push((process, host));
    }
    let (mut processes, hosts): (Vec<_>, Vec<_>) = open.into_iter().unzip();
    drop(hosts);
    for process in &mut processes {
        process.rest().await.unwrap_err();
    }
    let pid = proxy.agent.pid();
    let descriptors = move || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    crate::harness::eventually("the agent has closed them", || descriptors() < 100).await;
    proxy.end().await;
}

#[tokio::test]
async fn an_answer_is_for_one_process_once() {
    let mut proxy = Proxy::start().await;
    assert_eq!(proxy.refuse(99).await.unwrap_err().kind, FailureKind::NotFound);
    let mut process = proxy.send("CONNECT a:443 HTTP/1.1\r\n\r\n").await;
    let id = proxy.row().await.id;
    proxy.refuse(id).await.unwrap();
    assert_eq!(proxy.refuse(id).await.unwrap_err().kind, FailureKind::NotFound);
    assert_eq!(proxy.accept_id(id).await.map(|_| ()).unwrap_err().kind, FailureKind::NotFound);
    assert!(process.head().await.starts_with("HTTP/1.1 403 no\r\n"));
    // The same connection may ask again.
    process.read(3).await;
    process.send("CONNECT b:443 HTTP/1.1\r\n\r\n").await;
    proxy.accept().await;
    for question in [&b"CONNECT a:443 HTTP/1.1\r\n\r\n"[..], b"\x05\x01\x00\x05\x01\x00\x03\x01a\x00\x50"] {
        let process = proxy.send(question).await;
        let id = proxy.row().await.id;
        drop(process);
        // What comes later is seen later.
        let _later = proxy.send("CONNECT b:443 HTTP/1.1\r\n\r\n").await;
        proxy.accept().await;
        assert_eq!(proxy.accept_id(id).await.map(|_| ()).unwrap_err().kind, FailureKind::NotFound);
    }
    proxy.end().await;
}

#[tokio::test]
async fn socks_takes_names_and_addresses_of_both_families() {
    let mut proxy = Proxy::start().await;
    for (address, host) in [
        (&b"\x01\x7f\0\0\x01"[..], "127.0.0.1"),
        (b"\x03\x09a.example", "a.example"),
        (b"\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01", "2001:db8::1"),
    ] {
        let mut process = proxy.send(b"\x05\x02\x02\x00").await;
        assert_eq!(process.read(2).await, b"\x05\x00");
        process.send([b"\x05\x01\x00", address, b"\x1f\x90"].concat()).await;
        let row = proxy.row().await;
        assert_eq!((row.host.as_str(), row.port), (host, 8080));
        let mut connection = proxy.accept_id(row.id).await.unwrap();
        assert_eq!(process.read(10).await, b"\x05\0\0\x01\0\0\0\0\0\0");
        process.send("hello").await;
        until(&mut connection, "hello").await;
    }
    for (request, code) in [
        (&b"\x05\x02\x00\x01\0\0\0\0\0\x50"[..], 7),
        (b"\x05\x01\x00\x09", 8),
        (b"\x05\x01\x00\x03\x00\0\x50", 1),
        (b"\x05\x01\x00\x03\x01\xff\0\x50", 1),
        (b"\x05\x01\x00\x03\x01a\0\0", 1),
    ] {
        let mut process = proxy.send([b"\x05\x01\x00", request].concat()).await;
        assert_eq!(process.read(12).await[3], code, "{request:?}");
    }
    let mut process = proxy.send(b"\x05\x01\x00\x05\x01\x00\x03\x01a\0\x50").await;
    let id = proxy.row().await.id;
    proxy.refuse(id).await.unwrap();
    assert_eq!(process.read(12).await[3], 2);
    assert_eq!(proxy.send(b"\x05\x01\x03").await.rest().await.unwrap(), b"\x05\xff");
    proxy.end().await;
}

#[tokio::test]
async fn on_a_shared_network_the_proxy_is_there_on_demand_and_asks_for_its_password() {
    let boot = Boot { deadline_ms: 600_000, network: Network::Shared, ..Boot::default() };
    let mut agent = Agent::start_with(boot).await;
    assert_eq!(agent.run("echo $http_proxy").await.out(), "\n");
    let mut proxy = Proxy::of(agent).await;
    let user = proxy.user.clone().unwrap();
    let (name, password) = user.split_once(':').unwrap();
    assert_eq!((name, password.len()), ("tidebox", 32));
    let question = |header: &str| format!("CONNECT a:443 HTTP/1.1\r\n{header}\r\n");
    for header in ["", "Proxy-Authorization: Basic eDp5\r\n", "Proxy-Authorization: Basic\r\n", "Authorization: x\r\n"]
    {
        let head = proxy.send(question(header)).await.head().await;
        assert!(head.starts_with("HTTP/1.1 407 ") && head.contains("proxy-authenticate: Basic"), "{head}");
    }
    let right = proxy.agent.run(&format!("printf %s {user} | base64 -w0")).await;
    let mut process = proxy.send(question(&format!("Proxy-Authorization: basic {}\r\n", right.out()))).await;
    let _host = proxy.accept().await;
    assert!(process.head().await.starts_with("HTTP/1.1 200 "));
    assert_eq!(proxy.send(b"\x05\x01\x00").await.rest().await.unwrap(), b"\x05\xff");
    let wrong = [b"\x05\x01\x02\x01\x07tidebox\x20", "x".repeat(32).as_bytes()].concat();
    assert_eq!(proxy.send(wrong).await.rest().await.unwrap(), b"\x05\x02\x01\x01");
    let right = [b"\x05\x01\x02\x01\x07tidebox\x20", password.as_bytes(), b"\x05\x01\x00\x03\x01a\0\x50"].concat();
    let mut process = proxy.send(right).await;
    let _host = proxy.accept().await;
    assert_eq!(process.read(14).await[..6], *b"\x05\x02\x01\x00\x05\x00");
    // No other user of the host sees it in a command line.
    assert_eq!(proxy.agent.run("echo $MAVEN_OPTS").await.out(), "\n");
    let ports: Vec<ListeningPort> = proxy.agent.ask("/ports", &()).await.unwrap();
    assert_eq!(ports, []);
    proxy.end().await;
}

#[tokio::test]
async fn a_connection_beyond_the_limit_ends_at_once() {
    let proxy = Proxy::start().await;
    let mut open = Vec::new();
    for _ in 0..guest_protocol::EGRESS_CONNECTIONS_MAX {
        open.push(proxy.connect().await);
    }
    let mut beyond = proxy.connect().await;
    assert_eq!(beyond.rest().await.unwrap_or_default(), b"");
    drop(open);
    crate::harness::eventually("there is room again", || {
        std::fs::read_dir(format!("/proc/{}/fd", proxy.agent.pid())).unwrap().count() < 100
    })
    .await;
    assert!(proxy.send("GET / HTTP/1.1\r\n\r\n").await.head().await.starts_with("HTTP/1.1 400 "));
    proxy.end().await;
}

#[tokio::test]
async fn megabytes_pass_through_plain_http_unchanged() {
    let mut proxy = Proxy::start().await;
    let sent: Vec<u8> = (0..8_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let question = format!("POST http://a/ HTTP/1.1\r\nContent-Length: {}\r\n\r\n", sent.len());
    let mut process = proxy.send(question).await;
    let mut host = proxy.accept().await;
    let (mut reader, mut writer) = process.0.split();
    let sender = host.sender.take().unwrap();
    let answer = async {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", sent.len());
        sender.send(Bytes::from(head)).await.unwrap();
        for piece in sent.chunks(100_000) {
            sender.send(Bytes::copy_from_slice(piece)).await.unwrap();
        }
    };
    let heard = async {
        let mut seen = Vec::new();
        while seen.len() < sent.len() || !seen.ends_with(&sent[sent.len() - 100..]) {
            seen.extend_from_slice(&host.next().await.unwrap().unwrap());
        }
        assert!(seen.ends_with(&sent));
    };
    let answered = async {
        let mut seen = Vec::new();
        while seen.len() < sent.len() || !seen.ends_with(&sent[sent.len() - 100..]) {
            reader.read_buf(&mut seen).await.unwrap();
        }
        assert!(seen.ends_with(&sent));
    };
    let (written, (), (), ()) = within(async { tokio::join!(writer.write_all(&sent), answer, heard, answered) }).await;
    written.unwrap();
    proxy.end().await;
}
