//! Ports of the box: what listens, and connections to it.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use guest_protocol::{
    Boot, Connect, Failure, FailureKind, ListeningPort, Network, PORT_CHANGE_EVERY, PORT_CHANGES_BURST, PortChange,
    RESET_TRAILER, WatchPorts,
};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::harness::{Agent, Pieces, WAIT, answer, header, within};

/// A connection through the agent.
pub struct Connection {
    /// Taken at the end of what is sent.
    pub sender: Option<mpsc::Sender<Bytes>>,
    body: Incoming,
}

impl Connection {
    async fn open(agent: &mut Agent, port: u16) -> Result<Connection, Failure> {
        Connection::open_by(agent, "/connect", &Connect { port }).await
    }

    pub async fn open_by(agent: &mut Agent, path: &str, question: &impl Serialize) -> Result<Connection, Failure> {
        let (sender, receiver) = mpsc::channel(1);
        let (name, value) = header(question);
        let response = agent.send("POST", path, Pieces(receiver).boxed_unsync(), &[(name, &value)]).await;
        if response.status().is_success() {
            return Ok(Connection { sender: Some(sender), body: response.into_body() });
        }
        Err(answer::<serde_json::Value>(response).await.unwrap_err())
    }

    pub async fn send(&self, bytes: impl Into<Bytes>) {
        within(self.sender.as_ref().unwrap().send(bytes.into())).await.unwrap();
    }

    /// Returns the next bytes, or the reset of the connection; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Bytes, String>> {
        let frame = match within(self.body.frame()).await? {
            Ok(frame) => frame,
            Err(error) => return Some(Err(error.to_string())),
        };
        Some(frame.into_data().map_err(|frame| {
            let trailers = frame.into_trailers().unwrap();
            assert!(trailers.contains_key(RESET_TRAILER), "{trailers:?}");
            "a reset, as a trailer".to_owned()
        }))
    }

    pub async fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(piece) = self.next().await {
            all.extend_from_slice(&piece.unwrap());
        }
        all
    }
}

/// Listens at `address` and serves one connection. The listener is closed before the connection is
/// served.
fn serving<T: Send + 'static>(
    address: &str,
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    let listener = TcpListener::bind(address).unwrap();
    let at = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        drop(listener);
        serve(stream)
    });
    (at, thread)
}

fn read_all(mut stream: &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).map(|_| all)
}

/// Ends a thread, which has finished but for its last steps.
async fn joined<T: Send + 'static>(thread: JoinHandle<T>) -> T {
    within(tokio::task::spawn_blocking(|| thread.join().unwrap())).await.unwrap()
}

async fn failure(agent: &mut Agent, port: u16) -> Failure {
    Connection::open(agent, port).await.map(|_| ()).unwrap_err()
}

#[tokio::test]
async fn bytes_go_both_ways_unchanged_and_the_end_of_one_way_is_not_that_of_the_other() {
    let mut agent = Agent::start().await;
    let sent: Vec<u8> = (0..8_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    // The answer begins only after the end of the question.
    let (at, echo) = serving("127.0.0.1:0", |mut stream| {
        let all = read_all(&stream).unwrap();
        stream.write_all(&all).unwrap();
    });
    let mut connection = Connection::open(&mut agent, at.port()).await.unwrap();
    for piece in sent.chunks(100_000) {
        connection.send(piece.to_vec()).await;
    }
    connection.sender = None;
    assert!(connection.rest().await == sent);
    joined(echo).await;
    agent.end().await;
}

#[tokio::test]
async fn a_process_that_has_said_all_still_hears() {
    let mut agent = Agent::start().await;
    let (at, process) = serving("127.0.0.1:0", |mut stream| {
        stream.write_all(b"welcome").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        read_all(&stream).unwrap()
    });
    let mut connection = Connection::open(&mut agent, at.port()).await.unwrap();
    assert_eq!(connection.rest().await, b"welcome");
    for piece in 0..100 {
        connection.send(format!("{piece} ")).await;
    }
    connection.sender = None;
    let heard = String::from_utf8(joined(process).await).unwrap();
    assert_eq!(heard, (0..100).map(|piece| format!("{piece} ")).collect::<String>());
    agent.end().await;
}

#[tokio::test]
async fn a_caller_that_hangs_up_resets_the_connection() {
    let mut agent = Agent::start().await;
    let (at, process) = serving("127.0.0.1:0", |mut stream| {
        stream.write_all(b"welcome").unwrap();
        read_all(&stream).unwrap_err().kind()
    });
    let mut connection = Connection::open(&mut agent, at.port()).await.unwrap();
    connection.send("half a quest").await;
    assert_eq!(connection.next().await.unwrap().unwrap(), "welcome");
    drop(connection);
    assert_eq!(joined(process).await, std::io::ErrorKind::ConnectionReset);
    agent.end().await;
}

#[tokio::test]
async fn a_process_that_resets_is_an_error_and_no_end() {
    let mut agent = Agent::start().await;
    let (at, process) = serving("127.0.0.1:0", |stream| {
        let mut first = [0; 3];
        (&stream).read_exact(&mut first).unwrap();
        // With bytes that were not read, the kernel resets.
        stream.set_nonblocking(false).unwrap();
        stream.peek(&mut first).unwrap();
    });
    let mut connection = Connection::open(&mut agent, at.port()).await.unwrap();
    connection.send("one and more").await;
    joined(process).await;
    assert!(connection.next().await.unwrap().is_err());
    agent.end().await;
}

#[tokio::test]
async fn a_port_that_nothing_listens_on_is_not_found() {
    let mut agent = Agent::start().await;
    let (at, process) = serving("127.0.0.1:0", drop);
    Connection::open(&mut agent, at.port()).await.unwrap();
    joined(process).await;
    let refused = failure(&mut agent, at.port()).await;
    let expected = format!("nothing listens on port {} in the box", at.port());
    assert_eq!((refused.kind, refused.message), (FailureKind::NotFound, expected));
    assert_eq!(failure(&mut agent, 0).await.kind, FailureKind::Invalid);
    agent.end().await;
}

#[tokio::test]
async fn every_address_of_the_box_is_reached() {
    let mut agent = Agent::start().await;
    for address in ["127.0.0.1:0", "0.0.0.0:0", "127.0.0.77:0", "[::1]:0", "[::]:0"] {
        let (at, process) = serving(address, |mut stream| stream.write_all(b"here").unwrap());
        let mut connection =
            Connection::open(&mut agent, at.port()).await.unwrap_or_else(|it| panic!("{address}: {it:?}"));
        assert_eq!(connection.rest().await, b"here", "{address}");
        joined(process).await;
    }
    agent.end().await;
}

#[tokio::test]
async fn a_caller_that_does_not_read_stops_its_own_connection_only() {
    let mut agent = Agent::start().await;
    let (at, endless) = serving("127.0.0.1:0", |mut stream| {
        let piece = [0; 64 * 1024];
        stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut written = 0_usize;
        while let Ok(more) = stream.write(&piece) {
            written += more;
        }
        written
    });
    let stalled = Connection::open(&mut agent, at.port()).await.unwrap();
    let written = joined(endless).await;
    assert!(written < 64 * 1024 * 1024, "{written} bytes went to a caller that does not read");
    let (at, other) = serving("127.0.0.1:0", |mut stream| stream.write_all(b"here").unwrap());
    assert_eq!(Connection::open(&mut agent, at.port()).await.unwrap().rest().await, b"here");
    joined(other).await;
    drop(stalled);
    agent.end().await;
}

#[tokio::test]
async fn hundreds_of_connections_are_open_at_once_and_go_with_their_callers() {
    let mut agent = Agent::start().await;
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut open = Vec::new();
    for _ in 0..300 {
        let connection = Connection::open(&mut agent, port).await.unwrap();
        let (accepted, _) = within(listener.accept()).await.unwrap();
        open.push((connection, accepted));
    }
    for (number, (connection, accepted)) in open.iter_mut().enumerate() {
        connection.send(format!("{number:03}")).await;
        let mut heard = [0; 3];
        within(tokio::io::AsyncReadExt::read_exact(accepted, &mut heard)).await.unwrap();
        assert_eq!(heard, format!("{number:03}").as_bytes());
    }
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count();
    assert!(descriptors() >= 300);
    drop(open);
    crate::harness::eventually("the agent has closed them", || descriptors() < 100).await;
    agent.end().await;
}

const LISTENER: &str = "\
import os, socket, sys
s = socket.create_server(('127.0.0.1', 0))
print(s.getsockname()[1], os.getpid(), flush=True)
c, _ = s.accept()
c.sendall(b'from inside')
c.close()
s.accept()
";

#[tokio::test]
async fn a_port_is_listed_with_the_process_that_holds_it() {
    let mut agent = Agent::start().await;
    let exec = agent.command(&["python3", "-c", LISTENER]);
    let mut running = agent.open(&exec).await;
    let (_, line) = within(running.next()).await.unwrap();
    let line = String::from_utf8(line.to_vec()).unwrap();
    let (port, pid) = line.trim().split_once(' ').unwrap();
    let ports: Vec<ListeningPort> = agent.ask("/ports", &()).await.unwrap();
    let mine = ports.iter().find(|it| it.port.to_string() == port).unwrap();
    let expected = ListeningPort {
        port: mine.port,
        address: Ipv4Addr::LOCALHOST.into(),
        pid: Some(pid.parse().unwrap()),
        process: Some("python3".to_owned()),
    };
    assert_eq!(*mine, expected);
    assert!(ports.is_sorted_by_key(|it| (it.port, it.address)), "{ports:?}");
    drop(running);
    agent.nothing_is_alive().await;
    agent.end().await;
}

#[tokio::test]
async fn on_a_shared_network_only_ports_of_the_boxs_own_processes_are_seen_and_reached() {
    let boot = Boot { deadline_ms: 600_000, network: Network::Shared, ..Boot::default() };
    let mut agent = Agent::start_with(boot).await;
    let (of_host, process) = serving("127.0.0.1:0", drop);
    let exec = agent.command(&["python3", "-c", LISTENER]);
    let mut running = agent.open(&exec).await;
    let (_, line) = within(running.next()).await.unwrap();
    let own: u16 = String::from_utf8(line.to_vec()).unwrap().split(' ').next().unwrap().parse().unwrap();
    let ports: Vec<ListeningPort> = agent.ask("/ports", &()).await.unwrap();
    assert_eq!(ports.iter().map(|it| it.port).collect::<Vec<_>>(), [own]);
    assert_eq!(failure(&mut agent, of_host.port()).await.kind, FailureKind::NotFound);
    assert_eq!(Connection::open(&mut agent, own).await.unwrap().rest().await, b"from inside");
    // The host's own process still waits for its connection.
    TcpStream::connect(of_host).unwrap();
    joined(process).await;
    drop(running);
    agent.nothing_is_alive().await;
    agent.end().await;
}

/// Changes of ports, as the agent reports them.
struct Changes {
    body: Incoming,
    buffer: bytes::BytesMut,
}

impl Changes {
    async fn watch(agent: &mut Agent) -> Changes {
        let question = serde_json::to_vec(&WatchPorts { interval_ms: 20 }).unwrap();
        let response = agent
            .send(
                "POST",
                "/ports/watch",
                http_body_util::Full::from(question).map_err(|never| match never {}).boxed_unsync(),
                &[],
            )
            .await;
        assert!(response.status().is_success());
        Changes { body: response.into_body(), buffer: bytes::BytesMut::new() }
    }

    /// Returns the next change; `None` at the end.
    async fn next(&mut self) -> Option<PortChange> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                return Some(serde_json::from_slice(&self.buffer.split_to(end + 1)).unwrap());
            }
            self.buffer.extend_from_slice(within(self.body.frame()).await?.unwrap().data_ref().unwrap());
        }
    }
}

/// Listens on hundreds of ports.
const LISTENERS: &str = "\
import socket, threading
kept = [socket.create_server(('127.0.0.1', 0)) for _ in range(500)]
print('ready', flush=True)
threading.Event().wait()
";

#[tokio::test]
async fn hundreds_of_ports_are_reported_a_burst_at_once_and_then_slowly() {
    // The agent inherits it.
    let sockets =
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::NONBLOCK, Some(netlink::SOCK_DIAG))
            .unwrap();
    let sockets_fd = Some(sockets.as_raw_fd());
    let boot = Boot { deadline_ms: 600_000, network: Network::Shared, sockets_fd, ..Boot::default() };
    let mut agent = Agent::start_with(boot).await;
    let exec = agent.command(&["python3", "-c", LISTENERS]);
    let mut running = agent.open(&exec).await;
    running.until("ready").await;
    let mut changes = Changes::watch(&mut agent).await;
    let started = std::time::Instant::now();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..PORT_CHANGES_BURST + 4 {
        let change = changes.next().await.unwrap();
        assert!(change.is_open && seen.insert(change.port.port), "{change:?}");
    }
    assert!(started.elapsed() >= 3 * PORT_CHANGE_EVERY, "{:?}", started.elapsed());
    // Those that were never reported as open are not reported as closed.
    drop(running);
    agent.nothing_is_alive().await;
    // Some more may have been reported meanwhile.
    let mut closed = 0;
    while closed < 4 {
        let change = changes.next().await.unwrap();
        let is_news = if change.is_open { seen.insert(change.port.port) } else { seen.remove(&change.port.port) };
        assert!(is_news && (!change.is_open || closed == 0), "{change:?}");
        closed += u32::from(!change.is_open);
    }
    agent.end().await;
}
