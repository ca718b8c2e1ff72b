//! Connections of programs that know of no proxy, which the kernel leads to the agent.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use super::TestHost;
use crate::server::{NATIVE, TestServer};

const TRANSPARENT: &str = "providers.default=native providers.native.transparent_egress=true";
/// Start of a shell line whose programs know of no proxy.
const NO_PROXY: &str =
    "for name in $(env | cut -d= -f1 | grep -i proxy); do unset $name; done; unset MAVEN_OPTS GRADLE_OPTS;";

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        fixtures::skip("root", "only root can divert connections");
    }
    is_root
}

/// Starts a server with a host that its sandboxes may reach as `web.example`, and further settings.
async fn with_host(settings: &str) -> (TestHost, TestServer) {
    let host = TestHost::start().await;
    let settings =
        format!("{TRANSPARENT} egress.internal=127.0.0.1:{} egress.hosts.web.example=127.0.0.1 {settings}", host.port);
    let server = TestServer::start(&settings).await;
    (host, server)
}

/// Returns what a line prints whose programs know of no proxy.
async fn output(server: &TestServer, id: &str, line: &str) -> String {
    server.output(id, &format!("{NO_PROXY} {line}")).await
}

/// Runs a program of Python that knows of no proxy, and returns its lines.
async fn python(server: &TestServer, id: &str, program: &str) -> Vec<String> {
    server.write(id, "/tmp/program.py", &format!("{PYTHON}\n{program}")).await;
    output(server, id, "python3 /tmp/program.py").await.lines().map(str::to_owned).collect()
}

/// Functions of those programs.
const PYTHON: &str = r#"
import asyncio, socket, struct, sys, time
def show(*words): print(*words, flush=True)
def connect(host, port, wait=20):
    c = socket.create_connection((host, port), wait)
    c.settimeout(wait)
    return c
def rest(c):
    got = b""
    while piece := c.recv(65536):
        got += piece
    return got
def outcome(work):
    try:
        return work()
    except OSError as error:
        return error.__class__.__name__ + " " + str(error.errno)
def question(name, kind=1, flags=0x100, counts=(1, 0, 0, 0)):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">6H", 7, flags, *counts) + labels + b"\0" + struct.pack(">2H", kind, 1)
def ask(message, server="198.18.0.2"):
    s = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(20)
    s.connect((server, 53))
    s.send(message)
    return s.recv(600)
def code(answer): return answer[3] & 15, answer[7]
"#;

/// A host that speaks first, and says at the end of what it gets how much it was.
async fn greeter() -> (u16, JoinSet<()>) {
    // A connection beyond the backlog is one that its client has and the greeter never sees.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let listener = socket.listen(1024).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut open = JoinSet::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            open.spawn(async move {
                let mut got = Vec::new();
                if stream.write_all(b"220 ready\r\n").await.is_ok() && stream.read_to_end(&mut got).await.is_ok() {
                    let _ = stream.write_all(format!("got {}\r\n", got.len()).as_bytes()).await;
                }
            });
        }
    });
    (port, task)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_root_programs_that_know_no_proxy_get_out_by_the_same_policy() {
    if !is_root() {
        return;
    }
    let (host, server) = with_host("egress.hosts.other.example=127.0.0.1").await;
    let target = format!("web.example:{}", host.port);
    let id = server.spawn_with(json!({"egress": {"mode": "allow-list", "allow": [target]}})).await;
    let native = server.get("/providers/native").await.ok();
    assert_eq!(native["config"]["network_mode"], "transparent");
    assert_eq!(server.get(&format!("/sandboxes/{id}/egress")).await.ok()["enforced"], true);
    let url = format!("http://{target}/x");
    for program in [
        format!("curl -sS {url}"),
        format!("curl -sS -4 {url}"),
        format!("curl -sS http://WEB.Example.:{}/x", host.port),
        format!("python3 -c 'import urllib.request as u; print(u.urlopen(\"{url}\").read().decode())'"),
        format!(
            "bash -c 'exec 3<>/dev/tcp/web.example/{}; printf \"GET /x HTTP/1.0\\r\\n\\r\\n\" >&3; cat <&3'",
            host.port
        ),
    ] {
        let seen = output(&server, &id, &program).await;
        assert!(seen.contains("GET /x HTTP/1"), "{program}: {seen}");
    }
    let before = host.connections();
    output(&server, &id, &format!("GIT_TERMINAL_PROMPT=0 git ls-remote {url} 2>&1 || true")).await;
    assert!(host.connections() > before, "git finds the host");
    // Programs that know of proxies go on using one, also after they have looked the name up.
    for proxy in ["", "-x http://127.0.0.1:7424", "-x socks5://127.0.0.1:7424", "-x socks5h://127.0.0.1:7424"] {
        let seen = server.output(&id, &format!("curl -sS {proxy} {url}")).await;
        assert!(seen.contains("GET /x HTTP/1"), "{proxy}: {seen}");
    }
    let before = host.connections();
    let refused = output(&server, &id, &format!("curl -sSi http://other.example:{}/y", host.port)).await;
    let reason = format!("egress to other.example:{} is refused: the egress policy does not allow it", host.port);
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("tidebox-egress: denied"), "{refused}");
    assert!(refused.ends_with(&format!("{reason}; add it to `egress.allow`\n")), "{refused}");
    let by_address = output(&server, &id, "curl -sS http://8.8.8.8/").await;
    assert_eq!(
        by_address.split(';').next(),
        Some("egress to 8.8.8.8:80 is refused: the egress policy does not allow it")
    );
    assert_eq!(host.connections(), before);
    let account = server.get(&format!("/sandboxes/{id}/egress")).await.ok();
    let shown: Vec<&Value> = account["decisions"].as_array().unwrap().iter().collect();
    assert!(shown.iter().any(|it| it["host"] == "other.example" && it["verdict"] == "denied"), "{account}");
    assert!(shown.iter().all(|it| !it["host"].as_str().unwrap().starts_with("198.18.")), "{account}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_root_no_address_gets_around_the_policy_without_a_proxy() {
    if !is_root() {
        return;
    }
    let hidden = TestHost::start().await;
    let (host, server) = with_host(
        "egress.hosts.secret.example=127.0.0.1 egress.hosts.metadata.example=169.254.169.254 \
         egress.max_connections=256 egress.max_connections_per_second=10000",
    )
    .await;
    let id = server.spawn_with(json!({"egress": {"mode": "open"}})).await;
    let port = server.url.rsplit(':').next().unwrap();
    let (open, hidden_port) = (host.port, hidden.port);
    let own = "ConnectionRefusedError 111";
    let mut attempts = vec![
        ("web.example", open, "200 OK".to_owned()),
        ("web.example", hidden_port, "403 is a loopback address".to_owned()),
        ("secret.example", hidden_port, "403 is a loopback address".to_owned()),
        ("metadata.example", 80, "403 link-local".to_owned()),
        ("nowhere.invalid", 80, "502 does not resolve".to_owned()),
        ("169.254.169.254", 80, "403 link-local".to_owned()),
        ("fd00:ec2::254", 80, "403 private".to_owned()),
        ("10.0.0.1", 80, "403 private".to_owned()),
        ("172.16.0.1", 80, "403 private".to_owned()),
        ("192.168.1.1", 80, "403 private".to_owned()),
        ("100.64.0.1", 80, "403 private".to_owned()),
        ("240.0.0.1", 80, "403 reserved".to_owned()),
        ("192.0.2.1", 80, "403 reserved".to_owned()),
        ("0.1.2.3", 80, "403 unspecified".to_owned()),
        ("255.255.255.254", 80, "403 reserved".to_owned()),
        ("fe80::1%lo", 80, "403 link-local".to_owned()),
        ("::127.0.0.1", hidden_port, "403 reserved".to_owned()),
        ("64:ff9b::7f00:1", hidden_port, "403 loopback".to_owned()),
        ("64:ff9b::a9fe:a9fe", 80, "403 link-local".to_owned()),
        ("2002:7f00:1::", hidden_port, "403 loopback".to_owned()),
        ("198.19.255.255", 80, "502 look the name up again".to_owned()),
        ("198.18.0.2", 80, "403 reserved".to_owned()),
        ("8.8.8.8", 0, "400 port 0 does not exist".to_owned()),
        ("255.255.255.255", 80, "OSError 101".to_owned()),
        ("224.0.0.1", 80, "OSError 101".to_owned()),
        ("ff0e::1", 80, "OSError 101".to_owned()),
    ];
    // The box itself, where nothing listens.
    for address in
        ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1", "198.18.0.1", "100::1", "localhost"]
    {
        attempts.push((address, hidden_port, own.to_owned()));
        attempts.push((address, port.parse().unwrap(), own.to_owned()));
    }
    attempts.push(("web.example", port.parse().unwrap(), "403 the server's own address".to_owned()));
    for address in host_addresses() {
        attempts.push((Box::leak(address.into_boxed_str()), port.parse().unwrap(), "403 refused".to_owned()));
    }
    let list: Vec<_> = attempts.iter().map(|(address, port, _)| json!([address, port])).collect();
    let program = format!(
        r#"
for address, port in {list}:
    def work():
        c = connect(address, port)
        c.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        return " ".join(rest(c).decode().split())
    show(outcome(work))
"#,
        list = Value::from(list)
    );
    let seen = python(&server, &id, &program).await;
    assert_eq!(seen.len(), attempts.len(), "{seen:?}");
    let is_right = |seen: &str, expected: &str| match expected.split_once(' ') {
        Some((status, words)) if status.parse::<u16>().is_ok() => {
            seen.starts_with(&format!("HTTP/1.1 {status} ")) && seen.contains(words)
        }
        _ => seen == expected,
    };
    let faults: Vec<_> =
        attempts.iter().zip(&seen).filter(|((.., expected), seen)| !is_right(seen, expected)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(hidden.connections(), 0, "the hidden host was reached");
}

/// Returns addresses of this machine that are not of its loopback.
fn host_addresses() -> Vec<String> {
    // No packet is sent.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let found = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    found.ok().map(|it| it.ip()).filter(|it| !it.is_loopback()).iter().map(ToString::to_string).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_root_a_refused_program_sees_why_in_its_own_protocol_and_waits_for_nothing() {
    if !is_root() {
        return;
    }
    let server = TestServer::start(TRANSPARENT).await;
    let id = server.spawn_with(json!({"egress": {"mode": "open"}})).await;
    let program = r#"
c = connect("10.0.0.1", 80)
c.sendall(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
show(rest(c).endswith(b"\r\n\r\n"))
c = connect("10.0.0.1", 80)
for piece in b"PUT ", b"/x HT", b"TP/1.1\r\nHost: x\r\nContent-Length: 700000\r\n\r\n", b"x" * 700000:
    c.sendall(piece)
    time.sleep(0.01)
show(rest(c)[:12].decode())
c = connect("10.0.0.1", 443)
c.sendall(b"\x16\x03\x01\x00\x05hello")
show(rest(c).hex())
def words_and_rest(port, words):
    c = connect("10.0.0.1", port)
    # It may have been reset already.
    c.sendall(words)
    rest(c)
for port, words in (22, b""), (3306, b""), (9999, b""), (9999, b"\0\1\2"), (80, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), (80, b"get /\r\n"):
    show(outcome(lambda: words_and_rest(port, words)))
def duration(port):
    begun = time.monotonic()
    outcome(lambda: words_and_rest(port, b""))
    return time.monotonic() - begun
# A busy machine may make one of them late, and not all. The agent gives 9999 half a second for its first words.
for port, longest in (22, 0.4), (3306, 0.4), (9999, 2):
    show(min(duration(port) for _ in range(5)) < longest)
"#;
    let seen = python(&server, &id, program).await;
    assert_eq!(seen[..3], ["True", "HTTP/1.1 403", "15030300020231"]);
    assert_eq!(seen[3..9], ["ConnectionResetError 104"; 6]);
    assert_eq!(seen[9..], ["True"; 3]);
    // Without a policy there is no network, in the same words as from the proxy.
    let none = server.spawn().await;
    let refused = output(&server, &none, "curl -sSi http://web.example/").await;
    assert!(refused.starts_with("HTTP/1.1 403 this sandbox has no network"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_root_streams_pass_whole_in_both_directions_and_many_at_once() {
    if !is_root() {
        return;
    }
    let (port, _task) = greeter().await;
    let settings = format!(
        "{TRANSPARENT} egress.internal=127.0.0.1:{port} egress.hosts.mail.example=127.0.0.1 \
         egress.max_connections=600 egress.max_connections_per_second=10000"
    );
    let server = TestServer::start(&settings).await;
    let id = server.spawn_with(json!({"egress": {"mode": "open"}})).await;
    let program = format!(
        r#"
# One that only listens, and has ended its own direction before it is connected.
c = connect("mail.example", {port})
c.shutdown(socket.SHUT_WR)
show(rest(c))
c = connect("mail.example", {port})
show(c.recv(100), c.getpeername()[1] == {port})
c.sendall(b"x" * 3000000)
c.shutdown(socket.SHUT_WR)
show(rest(c))
async def one(n):
    r, w = await asyncio.open_connection("mail.example", {port})
    got = await r.readline()
    w.write(b"x" * n)
    w.write_eof()
    return (got + await r.read()) == b"220 ready\r\ngot %d\r\n" % n
async def many():
    return await asyncio.gather(*[one(n) for n in range(500)])
show(sum(asyncio.run(many())))
"#
    );
    let seen = python(&server, &id, &program).await;
    assert_eq!(
        seen,
        [r"b'220 ready\r\ngot 0\r\n'", r"b'220 ready\r\n' True", r"b'got 3000000\r\n'", "500"],
        "{}",
        server.log_text()
    );
    // Each is counted, and none is left.
    server
        .until("all have ended", async || {
            let account = server.get(&format!("/sandboxes/{id}/egress")).await.ok();
            account["open"] == 0 && account["allowed"] == 502
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_root_names_resolve_in_the_box_and_questions_that_make_no_sense_are_answered() {
    if !is_root() {
        return;
    }
    let server = TestServer::start(TRANSPARENT).await;
    let id = server.spawn_with(json!({"egress": {"mode": "open"}})).await;
    let found = output(&server, &id, "getent hosts web.example; getent hosts 198.18.1.0; cat /etc/resolv.conf").await;
    let words: Vec<&str> = found.split_whitespace().collect();
    assert_eq!(words, ["198.18.1.0", "web.example", "198.18.1.0", "web.example", "nameserver", "198.18.0.2"]);
    let program = r#"
show(socket.gethostbyname("web.example"), socket.gethostbyname("localhost"), socket.gethostbyname("tidebox"))
for family in socket.AF_INET, socket.AF_UNSPEC:
    show(*{it[4][0] for it in socket.getaddrinfo("web.example", 80, family, 0, 0, socket.AI_ADDRCONFIG)})
show(*{it[4][0] for it in socket.getaddrinfo("::1", 80, 0, 0, 0, socket.AI_ADDRCONFIG)})
show(socket.gethostbyaddr("198.18.1.0")[0])
show(*[ask(question("web.example"), server)[-4:].hex() for server in ("198.18.0.2", "8.8.8.8", "2001:4860:4860::8888")])
show(*[code(ask(question("web.example", kind))) for kind in (28, 65, 64, 15, 16, 33)])
show(code(ask(question("web.example", 1, 0x2800))), code(ask(question("web.example", 252))))
show(code(ask(question("web.example", 1, 0x100, (0, 0, 0, 0)))), code(ask(question("a.example", 1, 0x100, (2, 0, 0, 0)))))
show(code(ask(question("x")[:12] + b"\xc0\x0c\0\1\0\1")), code(ask(question("web.example")[:-3])), code(ask(question("x") + b"x" * 60000)))
show(code(ask(question(".".join(["a" * 63] * 3 + ["b" * 61])))), code(ask(question(".".join(["a" * 63] * 3 + ["b" * 62])))))
# No answer, and the next question has one.
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("198.18.0.2", 53))
s.send(b"x"), s.send(b""), s.send(question("x", 1, 0x8000)), s.send(question("web.example"))
show(s.recv(600)[-4:].hex())
c = connect("9.9.9.9", 53)
for _ in range(2):
    message = question("web.example")
    c.sendall(struct.pack(">H", len(message)) + message)
    show(c.recv(600)[-4:].hex())
c.sendall(b"\xff\xff" + question("x") + b"x" * 60000)
show(code(c.recv(600)[2:]), outcome(lambda: rest(c)) in (b"", "ConnectionResetError 104"))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("8.8.8.8", 123))
def unanswered():
    s.send(b"x")
    s.settimeout(20)
    return s.recv(10)
show(outcome(unanswered))
"#;
    let seen = python(&server, &id, program).await;
    let expected = [
        "198.18.1.0 127.0.0.1 127.0.0.1",
        "198.18.1.0",
        "198.18.1.0",
        "::1",
        "web.example",
        "c6120100 c6120100 c6120100",
        "(0, 0) (0, 0) (0, 0) (0, 0) (0, 0) (0, 0)",
        "(4, 0) (4, 0)",
        "(1, 0) (1, 0)",
        "(1, 0) (1, 0) (1, 0)",
        "(0, 1) (1, 0)",
        "c6120100",
        "c6120100",
        "c6120100",
        "(1, 0) True",
        "ConnectionRefusedError 111",
    ];
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_root_a_flood_of_names_takes_no_memory_without_end_and_no_name_in_use() {
    if !is_root() {
        return;
    }
    let (host, server) = with_host("").await;
    let id = server.spawn_with(json!({"egress": {"mode": "open"}})).await;
    let program = format!(
        r#"
c = connect("web.example", {port})
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
s.connect(("198.18.0.2", 53))
codes = {{}}
for n in range(100000):
    s.send(question("n%d.%s.example" % (n, "x" * 60)))
    answer = s.recv(600)
    codes[code(answer)] = codes.get(code(answer), 0) + 1
show(codes[(0, 1)], codes[(2, 0)], len(codes))
c.sendall(b"GET /x HTTP/1.1\r\n\r\n")
show(b"GET /x" in rest(c), socket.gethostbyname("web.example"))
c = connect("web.example", {port})
c.sendall(b"GET /x HTTP/1.1\r\n\r\n")
show(b"GET /x" in rest(c))
show(max(int(line.split()[1]) for line in open("/proc/1/status") if line.startswith("VmHWM")) < 24000)
"#,
        port = host.port
    );
    let seen = python(&server, &id, &program).await;
    assert_eq!(seen, ["16383 83617 2", "True 198.18.1.0", "True", "True"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_root_a_new_policy_cuts_connections_and_a_killed_server_is_waited_for() {
    if !is_root() {
        return;
    }
    let (port, _task) = greeter().await;
    let settings = format!("{TRANSPARENT} egress.internal=127.0.0.1:{port} egress.hosts.mail.example=127.0.0.1");
    let mut server = TestServer::start(&settings).await;
    let id = server.spawn_with(json!({"egress": {"mode": "open"}})).await;
    // After the end of its connection it makes another one, at once and until the time is up.
    let held = format!(
        r#"
c = connect("mail.example", {port}, 120)
show(c.recv(100))
open("/tmp/is-open", "w").close()
show(outcome(lambda: rest(c)))
until = time.monotonic() + float(sys.argv[1])
while True:
    seen = outcome(lambda: connect("mail.example", {port}).recv(100))
    if isinstance(seen, bytes) or time.monotonic() > until:
        break
show(seen, socket.gethostbyname("mail.example"))
show("end")
"#
    );
    server.write(&id, "/tmp/held.py", &format!("{PYTHON}\n{held}")).await;
    let run = |seconds| {
        format!(
            "rm -f /tmp/is-open; python3 /tmp/held.py {seconds} > /tmp/held.txt 2>&1 & \
             while [ ! -e /tmp/is-open ]; do sleep 0.05; done"
        )
    };
    let ended = async |server: &TestServer| {
        let read = async || server.output(&id, "cat /tmp/held.txt").await;
        server.until("it has ended", async || read().await.ends_with("end\n")).await;
        read().await
    };
    output(&server, &id, &run(0)).await;
    server.put(&format!("/sandboxes/{id}/egress"), json!({"mode": "open", "deny": ["mail.example"]})).await.ok();
    assert_eq!(
        ended(&server).await,
        "b'220 ready\\r\\n'\nConnectionResetError 104\nConnectionResetError 104 198.18.1.0\nend\n"
    );
    server.put(&format!("/sandboxes/{id}/egress"), json!({"mode": "open"})).await.ok();
    output(&server, &id, &run(60)).await;
    server.kill();
    server.launch().await;
    assert_eq!(
        ended(&server).await,
        "b'220 ready\\r\\n'\nConnectionResetError 104\nb'220 ready\\r\\n' 198.18.1.0\nend\n"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_root_a_box_keeps_its_own_ports_and_cannot_undo_the_diversion() {
    if !is_root() {
        return;
    }
    let (host, server) = with_host("").await;
    let id = server.spawn_with(json!({"egress": {"mode": "open"}})).await;
    assert_eq!(server.get(&format!("/sandboxes/{id}/ports")).await.ok(), json!([]));
    let program = r#"
import os, threading
def listen(family, address, port):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, port))
    s.listen()
    def serve():
        while True:
            c, _ = s.accept()
            c.sendall(b"own " + address.encode())
            c.close()
    threading.Thread(target=serve, daemon=True).start()
for at, (family, address) in enumerate([(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, "0.0.0.0"),
        (socket.AF_INET, "198.18.0.1"), (socket.AF_INET, "10.9.9.9"), (socket.AF_INET6, "100::1")]):
    listen(family, address, 3000 + at)
for host, port in ("127.0.0.1", 3000), ("::1", 3001), ("127.0.0.5", 3002), ("198.18.0.1", 3002), ("198.18.0.1", 3003), ("100::1", 3005), ("localhost", 3000):
    show(rest(connect(host, port)))
# An address that leads out of the box does so whatever a process binds.
c = connect("10.9.9.9", 3004)
c.sendall(b"GET / HTTP/1.1\r\n\r\n")
show(rest(c)[:12])
# Neither can its root change the network.
import ctypes, struct
def netlink(kind, content):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.send(struct.pack("=IHHII", 16 + len(content), kind, 5, 1, 0) + content)
    return struct.unpack("=i", s.recv(1000)[16:20])[0]
route = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 255, 3, 254, 2, 0)
address = struct.pack("=BBBBI", 2, 32, 0, 254, 1) + struct.pack("=HH4s", 8, 2, bytes([198, 18, 0, 1]))
link = struct.pack("=BBHiII", 0, 0, 0, 1, 0, 1)
show(os.getuid(), netlink(25, route), netlink(21, address), netlink(16, link))
libc = ctypes.CDLL(None, use_errno=True)
def errno(call, *arguments):
    return ctypes.get_errno() if libc.syscall(call, *arguments) < 0 else 0
show(errno(321 if os.uname().machine == "x86_64" else 280, 0, None, 0) in (1, 22, 38), errno(438, libc.syscall(434, 1, 0), 7, 0), libc.unshare(0x10000000))
show(outcome(lambda: os.open("/proc/1/fd/7", os.O_RDONLY)), outcome(lambda: os.kill(1, 9)))
show(outcome(lambda: open("/proc/sys/net/ipv4/ip_nonlocal_bind", "w").write("1")))
"#;
    let program = format!(
        "{program}\nc = connect(\"web.example\", {})\nc.sendall(b\"GET /x HTTP/1.1\\r\\n\\r\\n\")\nshow(b\"GET /x\" in rest(c))",
        host.port
    );
    let seen = python(&server, &id, &program).await;
    let expected = [
        "b'own 127.0.0.1'",
        "b'own ::1'",
        "b'own 0.0.0.0'",
        "b'own 0.0.0.0'",
        "b'own 198.18.0.1'",
        "b'own 100::1'",
        "b'own 127.0.0.1'",
        "b'HTTP/1.1 403'",
        "0 -1 -1 -1",
        "True 1 -1",
        "PermissionError 13 None",
        "OSError 30",
        "True",
    ];
    assert_eq!(seen, expected);
    assert_eq!(server.get(&format!("/sandboxes/{id}/ports")).await.ok(), json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_root_each_user_of_a_pool_gets_out_by_its_own_policy_alone() {
    if !is_root() {
        return;
    }
    let (host, server) = with_host("pool.enabled=true pool.max_vms=1 pool.max_users_per_vm=2").await;
    let spawn = async |user: &str, egress: Value| {
        let request = server.request(reqwest::Method::POST, "/sandboxes").header("X-User-ID", user);
        let answer = crate::server::Answer::read(request.json(&json!({"egress": egress})).send().await.unwrap()).await;
        assert_eq!(answer.status, 201, "{}", answer.json());
        answer.json()["id"].as_str().unwrap().to_owned()
    };
    let run = async |user: &str, id: &str| {
        let command = json!({"command": format!("{NO_PROXY} id -u; curl -sS http://web.example:{}/x", host.port)});
        let request = server.request(reqwest::Method::POST, &format!("/sandboxes/{id}/exec")).header("X-User-ID", user);
        crate::server::Answer::read(request.json(&command).send().await.unwrap()).await.ok()["stdout"].to_string()
    };
    let one = spawn("one", json!({"mode": "open"})).await;
    let two = spawn("two", json!({"mode": "allow-list", "allow": ["other.example"]})).await;
    let (seen, refused) = (run("one", &one).await, run("two", &two).await);
    assert!(seen.contains("GET /x HTTP/1.1") && !seen.starts_with("\"0"), "{seen}");
    assert!(refused.contains("is refused: the egress policy does not allow it"), "{refused}");
    for (user, id) in [("one", one), ("two", two)] {
        let request = server.request(reqwest::Method::DELETE, &format!("/sandboxes/{id}")).header("X-User-ID", user);
        assert!(request.send().await.unwrap().status().is_success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_root_the_provider_says_that_it_cannot_divert_connections() {
    let settings = format!("{TRANSPARENT} providers.native.enabled=true");
    let builder = TestServer::builder(&settings);
    let builder = if rustix::process::geteuid().is_root() { builder.user(65_534) } else { builder };
    let server = builder.start().await;
    let words = "`providers.native.transparent_egress` needs a server that runs as root";
    let providers = server.get("/providers").await.ok();
    let native = providers.as_array().unwrap().iter().find(|it| it["name"] == "native").unwrap();
    assert!(native.to_string().contains(words), "{native}");
    assert!(server.post("/sandboxes", json!({})).await.status.is_server_error());
    let open = TestServer::start(NATIVE).await;
    let native = open.get("/providers/native").await.ok();
    assert_eq!(native["config"]["network_mode"], "loopback", "it is off unless it is asked for");
}
