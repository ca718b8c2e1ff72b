//! Ports of the box that a caller listens on.

use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use bytes::BytesMut;
use guest_protocol::{
    Boot, FailureKind, LISTEN_CONNECTIONS_MAX, Listen, ListenAccept, ListenRefuse, ListenRow, Network,
};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use crate::harness::{Agent, WAIT, answer, within};
use crate::ports::Connection;

/// Lines of a listener.
struct Listener {
    port: u16,
    body: Incoming,
    buffer: BytesMut,
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

impl Listener {
    async fn open(agent: &mut Agent) -> Listener {
        let port = free_port();
        let question = Full::from(serde_json::to_vec(&Listen { port }).unwrap());
        let response = agent.send("POST", "/listen", question.boxed_unsync(), &[]).await;
        if !response.status().is_success() {
            panic!("{:?}", answer::<serde_json::Value>(response).await);
        }
        Listener { port, body: response.into_body(), buffer: BytesMut::new() }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream
    }

    async fn next(&mut self) -> u64 {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                return serde_json::from_slice::<ListenRow>(&self.buffer.split_to(end + 1)).unwrap().id;
            }
            self.buffer.extend_from_slice(within(self.body.frame()).await.unwrap().unwrap().data_ref().unwrap());
        }
    }
}

async fn read(mut stream: TcpStream) -> std::io::Result<usize> {
    tokio::task::spawn_blocking(move || stream.read(&mut [0; 8])).await.unwrap()
}

#[tokio::test]
async fn connections_beyond_the_bound_wait_until_others_end() {
    let mut agent = Agent::start().await;
    let mut listener = Listener::open(&mut agent).await;
    let streams: Vec<_> = (0..LISTEN_CONNECTIONS_MAX + 1).map(|_| listener.connect()).collect();
    let mut numbers = Vec::new();
    for _ in 0..LISTEN_CONNECTIONS_MAX {
        numbers.push(listener.next().await);
    }
    let more = tokio::time::timeout(std::time::Duration::from_millis(100), listener.next()).await;
    assert!(more.is_err(), "{more:?}");
    let taken = Connection::open_by(&mut agent, "/listen/accept", &ListenAccept { id: numbers[0] }).await.unwrap();
    agent.ask::<serde_json::Value>("/listen/refuse", &ListenRefuse { id: numbers[1] }).await.unwrap();
    listener.next().await;
    drop((taken, streams));
    agent.end().await;
}

#[tokio::test]
async fn a_connection_is_taken_or_refused_once() {
    let mut agent = Agent::start().await;
    let mut listener = Listener::open(&mut agent).await;
    let (first, second) = (listener.connect(), listener.connect());
    let (one, other) = (listener.next().await, listener.next().await);
    let taken = Connection::open_by(&mut agent, "/listen/accept", &ListenAccept { id: one }).await.unwrap();
    agent.ask::<serde_json::Value>("/listen/refuse", &ListenRefuse { id: other }).await.unwrap();
    for id in [one, other, 999] {
        let again = Connection::open_by(&mut agent, "/listen/accept", &ListenAccept { id }).await.map(|_| ());
        assert_eq!(again.unwrap_err().kind, FailureKind::NotFound);
        let again = agent.ask::<serde_json::Value>("/listen/refuse", &ListenRefuse { id }).await;
        assert_eq!(again.unwrap_err().kind, FailureKind::NotFound);
    }
    taken.send("hello").await;
    assert_eq!(read(first).await.unwrap(), 5);
    assert_eq!(read(second).await.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    agent.end().await;
}

#[tokio::test]
async fn on_a_shared_network_no_port_is_listened_on() {
    let boot = Boot { deadline_ms: 600_000, network: Network::Shared, ..Boot::default() };
    let mut agent = Agent::start_with(boot).await;
    let refused = agent.ask::<serde_json::Value>("/listen", &Listen { port: free_port() }).await;
    assert_eq!(refused.unwrap_err().kind, FailureKind::NotSupported);
    agent.end().await;
}
