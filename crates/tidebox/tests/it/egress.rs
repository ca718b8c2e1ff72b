//! Connections out of a sandbox: what gets through the proxy of its box, and what does not.

mod policy;
mod transparent;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fixtures::Engine;
use fixtures::image::Image;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::server::{NATIVE, TestServer};

/// Image of the Engine of these tests.
const IMAGE: &str = "team/system:1";
/// Port of the proxy in a box that has no other network.
const PROXY: u16 = 7424;

/// A host of the test: it answers each request with the head that it received.
pub struct TestHost {
    pub port: u16,
    connections: Arc<AtomicU32>,
    _task: tokio::task::JoinSet<()>,
}

impl TestHost {
    pub async fn start() -> TestHost {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicU32::new(0));
        let mut task = tokio::task::JoinSet::new();
        let counter = Arc::clone(&connections);
        task.spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                counter.fetch_add(1, Ordering::Relaxed);
                open.spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") && head.first() != Some(&22) {
                        match stream.read_u8().await {
                            Ok(byte) => head.push(byte),
                            Err(_) => return,
                        }
                    }
                    let answer =
                        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", head.len());
                    let _ = stream.write_all(answer.as_bytes()).await;
                    let _ = stream.write_all(&head).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        TestHost { port, connections, _task: task }
    }

    fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Outcome of an attempt: the beginning of what comes back, and words in it.
struct Outcome {
    begins: Vec<u8>,
    has: Vec<String>,
    lacks: Vec<String>,
}

impl Outcome {
    /// An answer of HTTP with this status, and with these words anywhere in it.
    fn status(status: u16, words: &str) -> Outcome {
        Outcome { begins: format!("HTTP/1.1 {status}").into(), has: vec![words.to_owned()], lacks: Vec::new() }
    }

    /// These bytes, and no more than what follows them.
    fn bytes(bytes: &[u8]) -> Outcome {
        Outcome { begins: bytes.to_vec(), has: Vec::new(), lacks: Vec::new() }
    }

    /// The end, without an answer.
    fn nothing() -> Outcome {
        Outcome { lacks: vec![String::new()], ..Outcome::bytes(b"") }
    }

    fn without(mut self, words: &str) -> Outcome {
        self.lacks.push(words.to_owned());
        self
    }

    fn fault(&self, seen: &[u8]) -> Option<String> {
        let text = String::from_utf8_lossy(seen);
        let is_right = seen.starts_with(&self.begins)
            && self.has.iter().all(|words| text.contains(words))
            && !self.lacks.iter().any(|words| !seen.is_empty() && text.contains(words));
        let begins = String::from_utf8_lossy(&self.begins);
        (!is_right).then(|| format!("{text:?} and not {begins:?} with {:?} without {:?}", self.has, self.lacks))
    }
}

/// Something that a process tries: bytes to the proxy, and what has to come back.
struct Attempt {
    name: String,
    bytes: Vec<u8>,
    outcome: Outcome,
}

fn attempt(name: &str, bytes: impl AsRef<[u8]>, outcome: Outcome) -> Attempt {
    Attempt { name: name.to_owned(), bytes: bytes.as_ref().to_vec(), outcome }
}

/// Returns an attempt to open a tunnel, and to use it.
fn tunnel(authority: &str, outcome: Outcome) -> Attempt {
    let bytes =
        format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\nGET /inner HTTP/1.1\r\nHost: x\r\n\r\n");
    attempt(&format!("CONNECT {authority}"), bytes, outcome)
}

/// Returns an attempt with these lines as the head of a request.
fn request(name: &str, lines: &[&str], outcome: Outcome) -> Attempt {
    attempt(name, lines.join("\r\n") + "\r\n\r\n", outcome)
}

fn denied(words: &str) -> Outcome {
    Outcome::status(403, words)
}

/// Returns a request of SOCKS5 after a greeting without a password.
fn socks(name: &str, command: u8, address: &[u8], port: u16, outcome: Outcome) -> Attempt {
    let bytes = [&[5, 1, 0, 5, command, 0][..], address, &port.to_be_bytes()].concat();
    attempt(&format!("SOCKS5 {name}"), bytes, outcome)
}

/// Returns the reply of SOCKS5 with this code, after the greeting's.
fn reply(code: u8) -> Outcome {
    Outcome::bytes(&[5, 0, 5, code])
}

fn vector(width: usize, content: &[u8]) -> Vec<u8> {
    let count = content.len().to_be_bytes();
    [&count[count.len() - width..], content].concat()
}

/// Returns the first message of a TLS client with these extensions.
fn client_hello(extensions: &[Vec<u8>]) -> Vec<u8> {
    let body = [vec![3, 3], vec![7; 32], vec![0], vec![0, 2, 0x13, 1], vec![1, 0], vector(2, &extensions.concat())];
    [vec![22, 3, 1], vector(2, &[vec![1], vector(3, &body.concat())].concat())].concat()
}

fn server_name(name: &str) -> Vec<u8> {
    let entry = [vec![0], vector(2, name.as_bytes())].concat();
    [vec![0, 0], vector(2, &vector(2, &entry))].concat()
}

/// Returns an attempt to speak TLS through a tunnel.
fn tls(name: &str, authority: &str, extensions: &[Vec<u8>], outcome: Outcome) -> Attempt {
    let head = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    attempt(&format!("TLS {name}"), [head.into_bytes(), client_hello(extensions)].concat(), outcome)
}

/// Ports of the test's hosts, and of the server.
struct Ports {
    open: u16,
    hidden: u16,
    server: u16,
}

/// Returns the attempts from a box whose policy is `open`: special addresses are closed but for one.
fn from_an_open_box(ports: &Ports) -> Vec<Attempt> {
    let Ports { open, hidden, server } = *ports;
    let loopback = "is a loopback address; only the operator can allow it";
    let mut attempts = vec![
        tunnel(&format!("web.example:{open}"), Outcome::status(200, "/inner")),
        tunnel(&format!("WEB.Example.:{open}"), Outcome::status(200, "/inner")),
        tunnel(&format!("127.0.0.1:{open}"), Outcome::status(200, "/inner")),
        tunnel(&format!("[::ffff:127.0.0.1]:{open}"), Outcome::status(200, "/inner")),
        tunnel(&format!("web.example:{hidden}"), denied(loopback)),
        tunnel(&format!("127.0.0.1:{hidden}"), denied(loopback)),
        tunnel(&format!("localhost:{hidden}"), denied(loopback)),
        tunnel(&format!("127.255.255.254:{hidden}"), denied(loopback)),
        tunnel(&format!("[::1]:{hidden}"), denied(loopback)),
        tunnel(&format!("[::ffff:127.0.0.1]:{hidden}"), denied(loopback)),
        tunnel(&format!("[::ffff:7f00:1]:{hidden}"), denied(loopback)),
        tunnel(&format!("[64:ff9b::7f00:1]:{hidden}"), denied(loopback)),
        tunnel(&format!("[2002:7f00:1::]:{hidden}"), denied(loopback)),
        tunnel(&format!("0.0.0.0:{hidden}"), denied("unspecified")),
        tunnel(&format!("[::]:{hidden}"), denied("unspecified")),
        tunnel(&format!("both.example:{hidden}"), denied("only the operator can allow it")),
        tunnel(&format!("web.example:{server}"), denied("the server's own address")),
        tunnel(&format!("127.0.0.1:{server}"), denied("the server's own address")),
        tunnel("169.254.169.254:80", denied("link-local")),
        tunnel("[::ffff:169.254.169.254]:80", denied("link-local")),
        tunnel("[64:ff9b::a9fe:a9fe]:80", denied("link-local")),
        tunnel("metadata.example:80", denied("link-local")),
        tunnel("[fe80::1]:80", denied("link-local")),
        tunnel("[fd00:ec2::254]:80", denied("private")),
        tunnel("10.0.0.1:80", denied("private")),
        tunnel("172.16.0.1:80", denied("private")),
        tunnel("192.168.1.1:80", denied("private")),
        tunnel("100.64.0.1:80", denied("private")),
        tunnel("224.0.0.1:80", denied("multicast")),
        tunnel("239.255.255.250:1900", denied("multicast")),
        tunnel("255.255.255.255:80", denied("multicast")),
        tunnel("[ff02::1]:80", denied("multicast")),
        tunnel("240.0.0.1:80", denied("reserved")),
        tunnel("192.0.2.1:80", denied("reserved")),
        tunnel("198.18.0.1:80", denied("reserved")),
        tunnel("[::127.0.0.1]:80", denied("reserved")),
        tunnel("nowhere.invalid:80", Outcome::status(502, "does not resolve")),
    ];
    for host in ["2130706433", "0x7f000001", "0x7f.1", "017700000001", "0177.0.0.1", "127.1", "0", "2852039166"] {
        attempts.push(tunnel(&format!("{host}:{hidden}"), Outcome::status(400, "")));
    }
    let long = "a.".repeat(150) + "example:80";
    for authority in ["web.example:0", "web.example", "web.example:65536", "web.example:http", ":80", &long] {
        attempts.push(tunnel(authority, Outcome::status(400, "")));
    }
    for authority in ["user@web.example:80", "[fe80::1%25lo]:80", "fe80::1%lo:80", "a..b:80", "-:80:80", "w\u{e9}b:80"]
    {
        attempts.push(tunnel(authority, Outcome::status(400, "")));
    }
    attempts
}

/// Returns requests that mean one thing to the proxy and another to the host, if one is careless.
fn smuggled(ports: &Ports) -> Vec<Attempt> {
    let Ports { open, hidden, .. } = *ports;
    let (get, host) = (format!("GET http://web.example:{open}/x HTTP/1.1"), format!("Host: web.example:{open}"));
    let post = get.replace("GET", "POST");
    let host_seen = format!("Host: web.example:{open}");
    let bad = || Outcome::status(400, "");
    vec![
        request("an absolute form", &[&get, &host], Outcome::status(200, "GET /x HTTP/1.1")),
        request(
            "an absolute form with another Host",
            &[&get, &format!("Host: secret.example:{hidden}")],
            Outcome { has: vec![host_seen], ..Outcome::status(200, "") }.without("secret.example"),
        ),
        request(
            "headers for the proxy",
            &[
                &get,
                &host,
                "Proxy-Authorization: Basic eDp5",
                "Proxy-Connection: keep-alive",
                "Connection: x-secret",
                "X-Secret: 1",
            ],
            Outcome::status(200, "").without("roxy-").without("ecret"),
        ),
        // Of the two, only the chunks are passed on; RFC 9112 §6.3.
        request(
            "a length and chunks",
            &[&post, &host, "Content-Length: 5", "Transfer-Encoding: chunked"],
            Outcome::status(200, "Transfer-Encoding: chunked").without("Content-Length: 5"),
        ),
        request("two lengths", &[&post, &host, "Content-Length: 5", "Content-Length: 6"], bad()),
        request("a negative length", &[&post, &host, "Content-Length: -1"], bad()),
        request("a length with a sign", &[&post, &host, "Content-Length: +5"], bad()),
        request("another coding", &[&post, &host, "Transfer-Encoding: xchunked"], bad()),
        request("chunks that are not the last coding", &[&post, &host, "Transfer-Encoding: chunked, gzip"], bad()),
        request("a folded header", &[&get, &host, "X-A: 1", " folded: 2"], bad()),
        request("a space before the colon", &[&get, &host, "X-A : 1"], bad()),
        request("two Hosts", &[&get, &host, &format!("Host: secret.example:{hidden}")], bad()),
        request("a NUL in a header", &[&get, &host, "X-A: a\0b"], bad()),
        attempt("a bare CR in a header", format!("{get}\r\n{host}\r\nX-A: a\rX-B: b\r\n\r\n"), bad()),
        request("an origin form", &["GET /x HTTP/1.1", &host], Outcome::status(400, "proxy")),
        request("an asterisk", &["OPTIONS * HTTP/1.1", &host], bad()),
        request(
            "https in absolute form",
            &["GET https://web.example/x HTTP/1.1", "Host: web.example"],
            Outcome::status(400, "CONNECT"),
        ),
        request("another scheme", &["GET ftp://web.example/x HTTP/1.1", "Host: web.example"], bad()),
        request("a user in the URL", &[&get.replace("web", "user:word@web"), &host], bad()),
        attempt("the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Outcome::nothing()),
        // The answer is 431, or lost when the rest of what was sent meets a closed connection.
        attempt(
            "a head without end",
            format!("{get}\r\n{host}\r\nX: {}\r\n\r\n", "x".repeat(200_000)),
            Outcome::bytes(b"").without("200 OK"),
        ),
        socks("to a name", 1, &[&[3, 11][..], b"web.example"].concat(), open, reply(0)),
        socks("to an address", 1, &[1, 127, 0, 0, 1], open, reply(0)),
        socks("to a hidden port", 1, &[1, 127, 0, 0, 1], hidden, reply(2)),
        socks("to a hidden name", 1, &[&[3, 14][..], b"secret.example"].concat(), hidden, reply(2)),
        socks("to the metadata service", 1, &[1, 169, 254, 169, 254], 80, reply(2)),
        socks("to IPv6 loopback", 1, &[&[4][..], &[0; 15], &[1]].concat(), hidden, reply(2)),
        socks("that binds", 2, &[1, 127, 0, 0, 1], open, reply(7)),
        socks("over UDP", 3, &[1, 127, 0, 0, 1], open, reply(7)),
        socks("with an unknown kind of address", 1, &[9, 127, 0, 0, 1], open, reply(8)),
        socks("to port 0", 1, &[1, 127, 0, 0, 1], 0, Outcome::bytes(&[5, 0, 5])),
        attempt("SOCKS5 with a password only", [5, 1, 2, 1, 1, 97, 1, 97], Outcome::bytes(&[5])),
        attempt("SOCKS4", [4, 1, 0, 80, 127, 0, 0, 1, 0], Outcome::status(400, "")),
    ]
}

/// Returns attempts to show another name to a host of TLS.
fn names_of_tls(ports: &Ports) -> Vec<Attempt> {
    let web = format!("web.example:{}", ports.open);
    let alert = || Outcome {
        begins: b"HTTP/1.1 200".to_vec(),
        has: vec!["\u{15}\u{3}\u{3}\0\u{2}\u{2}1".to_owned()],
        lacks: vec!["200 OK\r\nConn".to_owned()],
    };
    let passed = || Outcome {
        begins: b"HTTP/1.1 200".to_vec(),
        has: vec!["HTTP/1.1 200 OK\r\nConn".to_owned()],
        lacks: Vec::new(),
    };
    vec![
        tls("with the name", &web, &[server_name("web.example")], passed()),
        tls("with the name in capitals", &web, &[server_name("WEB.EXAMPLE")], passed()),
        tls("with another name", &web, &[server_name("secret.example")], alert()),
        tls("without a name", &web, &[], alert()),
        tls("with two names", &web, &[server_name("web.example"), server_name("secret.example")], alert()),
        tls("with an address for a name", &web, &[server_name("127.0.0.1")], alert()),
        tls("by address", &format!("127.0.0.1:{}", ports.open), &[server_name("any.example")], passed()),
    ]
}

/// Returns the attempts from a box with an allow list of names.
fn from_a_listed_box(ports: &Ports) -> Vec<Attempt> {
    let Ports { open, hidden, .. } = *ports;
    let encrypted = [vec![0xfe, 0x0d], vector(2, &[0; 64])].concat();
    let web = format!("web.example:{open}");
    let mut attempts = vec![
        tunnel(&web, Outcome::status(200, "/inner")),
        tunnel(&format!("a.wild.example:{open}"), Outcome::status(200, "/inner")),
        tunnel(&format!("A.B.Wild.Example.:{open}"), Outcome::status(502, "does not resolve")),
        tls(
            "with an encrypted name",
            &web,
            &[server_name("web.example"), encrypted],
            Outcome {
                begins: b"HTTP/1.1 200".to_vec(),
                has: vec!["\u{15}\u{3}\u{3}\0\u{2}\u{2}1".to_owned()],
                lacks: Vec::new(),
            },
        ),
        request(
            "plain HTTP to another host",
            &["GET http://other.example/ HTTP/1.1", "Host: web.example"],
            denied(
                "egress to other.example:80 is refused: the egress policy does not allow it; add it to `egress.allow`",
            ),
        ),
    ];
    for host in [
        "other.example",
        "wild.example",
        "evilwild.example",
        "web.example.evil.example",
        "evilweb.example",
        "xn--wb-bja.example",
        "example",
        "127.0.0.1",
        "denied.wild.example",
    ] {
        attempts.push(tunnel(&format!("{host}:{open}"), denied("")));
    }
    attempts.push(tunnel(&format!("web.example:{hidden}"), denied("does not allow it")));
    attempts
}

/// Makes every attempt in a box at once, and returns what came back, in their order. `client` holds each
/// connection for as long as a busy machine may take to answer: no end of an answer is common to all.
async fn make(server: &TestServer, id: &str, client: &str, attempts: &[Attempt]) -> Vec<Vec<u8>> {
    let mut script = format!(
        "mkdir -p /tmp/a && cd /tmp/a && rm -f *\ntry() {{ printf %s $2 | base64 -d | {client} > $1 2>/dev/null & }}\n"
    );
    for (index, attempt) in attempts.iter().enumerate() {
        script.push_str(&format!("try {index} {}\n", STANDARD.encode(&attempt.bytes)));
    }
    script.push_str("wait\nfor f in $(seq 0 ");
    script.push_str(&format!("{}); do head -c 2000 $f | base64 | tr -d '\\n'; echo; done\n", attempts.len() - 1));
    server.write(id, "/tmp/attempts.sh", &script).await;
    let seen = server.output(id, "sh /tmp/attempts.sh").await;
    let seen: Vec<Vec<u8>> = seen.lines().map(|line| STANDARD.decode(line).unwrap()).collect();
    assert_eq!(seen.len(), attempts.len());
    seen
}

async fn no_attempt_gets_around_the_policy(settings: &str, client: &str) {
    let (host, hidden) = (TestHost::start().await, TestHost::start().await);
    let server = TestServer::start(&format!(
        "{settings} egress.internal=127.0.0.1:{},127.0.0.1:1 egress.hosts.web.example=127.0.0.1 \
         egress.hosts.secret.example=127.0.0.1 egress.hosts.both.example=127.0.0.1,192.0.2.1 \
         egress.hosts.metadata.example=169.254.169.254 egress.hosts.a.wild.example=127.0.0.1 \
         egress.max_connections=256 egress.max_connections_per_second=10000",
        host.port
    ))
    .await;
    let ports =
        Ports { open: host.port, hidden: hidden.port, server: server.url.rsplit(':').next().unwrap().parse().unwrap() };
    let open = server.spawn_with(json!({"egress": {"mode": "open"}})).await;
    let listed = server
        .spawn_with(json!({"egress": {"mode": "allow-list", "deny": ["denied.wild.example"],
            "allow": [format!("web.example:{}", host.port), format!("*.wild.example:{}", host.port)]}}))
        .await;
    server.write(&open, "/tmp/client.py", CLIENT).await;
    server.write(&listed, "/tmp/client.py", CLIENT).await;
    let mut made = 0;
    let mut faults = Vec::new();
    for (id, attempts) in [
        (&open, from_an_open_box(&ports)),
        (&open, smuggled(&ports)),
        (&open, names_of_tls(&ports)),
        (&listed, from_a_listed_box(&ports)),
    ] {
        made += attempts.len();
        let seen = make(&server, id, client, &attempts).await;
        for (attempt, seen) in attempts.iter().zip(&seen) {
            faults.extend(attempt.outcome.fault(seen).map(|fault| format!("{}: {fault}", attempt.name)));
        }
    }
    assert_eq!(hidden.connections(), 0, "the hidden host was reached");
    assert!(faults.is_empty(), "{} of {made}:\n{}", faults.len(), faults.join("\n"));
    assert!(made >= 60, "{made} attempts");
    let account = server.get(&format!("/sandboxes/{open}/egress")).await.ok();
    assert!(account["denied"].as_u64() >= Some(30), "{account}");
}

/// Connection to the proxy, with stdin and stdout, which is held once all is sent: to start dozens of these
/// takes seconds.
const CLIENT: &str = r#"
import os, socket, threading, time
c = socket.create_connection(("127.0.0.1", 7424))
def send():
    while piece := os.read(0, 65536):
        c.sendall(piece)
    time.sleep(8)
    c.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while piece := c.recv(65536):
    os.write(1, piece)
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attempt_from_a_native_box_gets_around_the_policy() {
    no_attempt_gets_around_the_policy(NATIVE, "python3 /tmp/client.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attempt_from_a_container_gets_around_the_policy() {
    let Some(image) = Image::alpine_like() else { return };
    let Some(engine) = Engine::start() else { return };
    engine.load(IMAGE, &image);
    let settings = format!(
        "providers.native.enabled=false providers.docker.enabled=true providers.default=docker \
         providers.docker.pull=never defaults.image={IMAGE} providers.docker.socket={}",
        engine.socket().display()
    );
    no_attempt_gets_around_the_policy(&settings, &format!("(cat; sleep 8) | busybox nc 127.0.0.1 {PROXY}")).await;
}
