//! Connections of a box whose agent a test plays.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use domain::{EgressEntry, EgressLists, EgressMode, EgressPolicy, OwnerId, SandboxEgress, SandboxId, Target};
use futures_util::{StreamExt, stream};
use providers::{ByteStream, EgressAnswer, EgressReason, EgressRequest, EgressRequests};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Counts, Egress, EgressConfig, EgressLimits};
use crate::events::Events;
use crate::secrets::{SealingKey, Secrets};
use store::Sqlite;
use store::clock::SteadyClock;

/// Longest time that a test waits for what has to happen.
const SOON: Duration = Duration::from_secs(10);

fn policy(mode: EgressMode, allow: &[&str], deny: &[&str]) -> EgressPolicy {
    let entries = |texts: &[&str]| texts.iter().map(|text| EgressEntry::parse(text).unwrap()).collect();
    EgressPolicy { mode, allow: entries(allow), deny: entries(deny), ..EgressPolicy::default() }
}

fn config() -> EgressConfig {
    let limits = EgressLimits {
        connections: 3,
        connections_per_second: 1000,
        bytes_per_second: None,
        bytes: None,
        idle: Duration::from_secs(60),
        connect: Duration::from_secs(5),
    };
    let local = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
    EgressConfig {
        site: policy(EgressMode::Open, &[], &[]),
        default: EgressPolicy::default(),
        owners: BTreeMap::new(),
        lists: EgressLists::new(),
        internal: vec![Target::parse("127.0.0.1").unwrap()],
        hosts: BTreeMap::from([
            ("a.example".to_owned(), local.clone()),
            ("b.example".to_owned(), local),
            ("both.example".to_owned(), vec![Ipv4Addr::new(127, 0, 0, 2).into(), Ipv4Addr::LOCALHOST.into()]),
            ("inner.example".to_owned(), vec![Ipv4Addr::new(169, 254, 169, 254).into()]),
        ]),
        limits,
        ca_file: None,
        server_ports: Vec::new(),
        memory_bytes: 64 << 20,
    }
}

/// Answer to a request, as the process sees it.
enum Outcome {
    Accepted { from_host: ByteStream, to_host: mpsc::Sender<Bytes> },
    Refused(EgressReason, String),
}

struct TestAnswer(oneshot::Sender<Outcome>);

#[async_trait]
impl EgressAnswer for TestAnswer {
    async fn accept(self: Box<Self>, input: ByteStream) -> providers::Result<ByteStream> {
        let (to_host, mut pieces) = mpsc::channel(4);
        let gone = || providers::Error::NotFound("the process has gone".to_owned());
        self.0.send(Outcome::Accepted { from_host: input, to_host }).map_err(|_| gone())?;
        // An empty piece is the end of what the process sends, and the end that of both directions.
        let mut has_ended = false;
        let from_process = stream::poll_fn(move |cx| match pieces.poll_recv(cx) {
            std::task::Poll::Ready(Some(piece)) => {
                has_ended = piece.is_empty();
                std::task::Poll::Ready(Some(Ok(piece)))
            }
            std::task::Poll::Ready(None) if has_ended => std::task::Poll::Ready(None),
            std::task::Poll::Ready(None) => std::task::Poll::Ready(Some(Err(providers::Error::Gone))),
            std::task::Poll::Pending => std::task::Poll::Pending,
        });
        Ok(from_process.boxed())
    }

    async fn refuse(self: Box<Self>, reason: EgressReason, message: &str) -> providers::Result<()> {
        let _ = self.0.send(Outcome::Refused(reason, message.to_owned()));
        Ok(())
    }
}

/// Returns the agent's end of a receiver, and the stream of its requests.
fn requests() -> (mpsc::Sender<providers::Result<EgressRequest>>, EgressRequests) {
    let (requests, received) = mpsc::channel(8);
    let received = stream::unfold(received, |mut received: mpsc::Receiver<_>| async {
        let request = received.recv().await?;
        Some((request, received))
    });
    (requests, received.boxed())
}

/// A box, with the agent's end of its requests.
struct TestBox {
    egress: Egress,
    id: SandboxId,
    requests: mpsc::Sender<providers::Result<EgressRequest>>,
    stop: CancellationToken,
    _dir: TempDir,
}

impl TestBox {
    async fn new(config: EgressConfig, own: EgressPolicy) -> TestBox {
        Self::owned(config, None, SandboxEgress { template: None, own }).await
    }

    async fn owned(config: EgressConfig, owner: Option<&str>, policies: SandboxEgress) -> TestBox {
        let stop = CancellationToken::new();
        let dir = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&dir.path().join("store.db"), [7; 10]).await.unwrap();
        let secrets = Arc::new(Secrets::new(Arc::new(store), SealingKey::new(&[7; 32])));
        let clock = Arc::new(SteadyClock::start());
        let egress = Egress::new(config, secrets, Arc::new(Events::default()), clock, stop.clone());
        let id = SandboxId::from_entropy([1; 10]);
        let (requests, received) = requests();
        let owner = owner.map(|owner| OwnerId::parse(owner).unwrap());
        egress.serve(&id, owner.as_ref(), &policies, 0, received);
        TestBox { egress, id, requests, stop, _dir: dir }
    }

    async fn ask(&self, host: &str, port: u16) -> Outcome {
        let (answer, outcome) = oneshot::channel();
        let request = EgressRequest { host: host.to_owned(), port, answer: Box::new(TestAnswer(answer)) };
        self.requests.send(Ok(request)).await.unwrap();
        timeout(SOON, outcome).await.expect("an answer").unwrap()
    }

    /// Opens a connection, and returns it with the host's end.
    async fn open(&self, host: &str, listener: &TcpListener) -> (ByteStream, mpsc::Sender<Bytes>, TcpStream) {
        let asked = self.ask(host, port(listener)).await;
        let Outcome::Accepted { from_host, to_host } = asked else { panic!("{host} is refused") };
        (from_host, to_host, listener.accept().await.unwrap().0)
    }

    async fn refused(&self, host: &str, port: u16) -> (EgressReason, String) {
        match self.ask(host, port).await {
            Outcome::Refused(reason, words) => (reason, words),
            Outcome::Accepted { .. } => panic!("{host}:{port} is reached"),
        }
    }

    fn counts(&self) -> Counts {
        self.egress.account_of(&self.id).0
    }

    /// Waits until the numbers are as they have to be.
    async fn until(&self, wanted: impl Fn(&Counts) -> bool) {
        let soon = async {
            while !wanted(&self.counts()) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(SOON, soon).await.unwrap_or_else(|_| panic!("{:?}", self.counts()));
    }
}

impl Drop for TestBox {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().unwrap().port()
}

async fn all(mut from_host: ByteStream) -> Result<Vec<u8>, providers::Error> {
    let mut all = Vec::new();
    while let Some(piece) = timeout(SOON, from_host.next()).await.expect("more bytes, or the end") {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

#[tokio::test]
async fn bytes_pass_both_ways_and_each_way_has_its_own_end() {
    let (host, test) = (listener().await, TestBox::new(config(), policy(EgressMode::Open, &[], &[])).await);
    let (from_host, to_host, mut stream) = test.open("A.Example.", &host).await;
    to_host.send("question".into()).await.unwrap();
    to_host.send(Bytes::new()).await.unwrap();
    let mut question = String::new();
    stream.read_to_string(&mut question).await.unwrap();
    assert_eq!(question, "question");
    assert_eq!(test.counts().open, 1);
    stream.write_all(b"answer").await.unwrap();
    drop(stream);
    assert_eq!(all(from_host).await.unwrap(), b"answer");
    drop(to_host);
    test.until(|counts| counts.open == 0).await;
    let expected = Counts { allowed: 1, bytes_sent: 8, bytes_received: 6, ..Counts::default() };
    assert_eq!((test.counts(), test.egress.totals()), (expected, expected));
}

#[tokio::test]
async fn what_a_policy_lacks_is_refused_with_the_reason_and_never_dialled() {
    let host = listener().await;
    let own = policy(EgressMode::AllowList, &["a.example", "inner.example"], &[]);
    let test = TestBox::new(config(), own).await;
    for (name, words) in [
        ("b.example", "egress to b.example:PORT is refused: the egress policy does not allow it"),
        ("127.0.0.1", "does not allow it"),
        ("inner.example", "the address is link-local; only the operator can allow it"),
    ] {
        let (reason, said) = test.refused(name, port(&host)).await;
        assert_eq!(reason, EgressReason::Denied, "{said}");
        assert!(said.contains(&words.replace("PORT", &port(&host).to_string())), "{said}");
    }
    for (name, refusal) in [
        ("a b", EgressReason::Malformed),
        ("2130706433", EgressReason::Malformed),
        ("[::1%25lo]", EgressReason::Malformed),
        ("a\u{1b}[31m", EgressReason::Malformed),
    ] {
        let (reason, said) = test.refused(name, port(&host)).await;
        assert_eq!(reason, refusal, "{said}");
        assert!(said.chars().all(|c| !c.is_control()), "{said:?}");
    }
    assert!(timeout(Duration::from_millis(50), host.accept()).await.is_err());
    let (counts, decisions) = test.egress.account_of(&test.id);
    assert_eq!((counts.allowed, counts.denied, counts.failed), (0, 3, 4));
    assert_eq!(decisions.last().map(|first| first.host.as_str()), Some("b.example"));
}

#[tokio::test]
async fn of_the_addresses_of_a_name_only_those_that_are_allowed_are_dialled() {
    // Both addresses listen; 127.0.0.2 comes first and is not among the internal ones.
    let host = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let other = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), port(&host))).await.unwrap();
    let test = TestBox::new(config(), policy(EgressMode::Open, &[], &[])).await;
    let (_from, _to, stream) = test.open("both.example", &host).await;
    assert_eq!(stream.local_addr().unwrap().ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    assert!(timeout(Duration::from_millis(50), other.accept()).await.is_err());
}

#[tokio::test]
async fn every_policy_has_to_let_a_connection_through() {
    let host = listener().await;
    let open = policy(EgressMode::Open, &[], &[]);
    let listed = policy(EgressMode::AllowList, &["a.example"], &[]);
    let own = |own: &EgressPolicy| SandboxEgress { template: None, own: own.clone() };
    let by_template = SandboxEgress { template: Some(listed.clone()), own: open.clone() };
    let by_site = EgressConfig { site: listed.clone(), ..config() };
    let by_owner = EgressConfig { owners: BTreeMap::from([("alice".to_owned(), listed.clone())]), ..config() };
    for (config, owner, policies) in [
        (config(), None, own(&listed)),
        (config(), None, by_template),
        (by_site, None, own(&open)),
        (by_owner.clone(), Some("alice"), own(&open)),
    ] {
        let test = TestBox::owned(config, owner, policies).await;
        assert_eq!(test.refused("b.example", port(&host)).await.0, EgressReason::Denied);
        drop(test.open("a.example", &host).await);
    }
    let another = TestBox::owned(by_owner, Some("bob"), own(&open)).await;
    drop(another.open("b.example", &host).await);
}

#[tokio::test]
async fn a_new_policy_holds_at_once_and_for_open_connections() {
    let (host, test) = (listener().await, TestBox::new(config(), policy(EgressMode::Open, &[], &[])).await);
    let (from_a, _to_a, mut a) = test.open("a.example", &host).await;
    let (mut from_b, to_b, mut b) = test.open("b.example", &host).await;
    let own = policy(EgressMode::AllowList, &["b.example"], &[]);
    test.egress.update(&test.id, None, &SandboxEgress { template: None, own });
    let mut rest = Vec::new();
    let _ = timeout(SOON, a.read_to_end(&mut rest)).await.expect("the end of the connection");
    drop(from_a);
    assert_eq!(test.refused("a.example", port(&host)).await.0, EgressReason::Denied);
    to_b.send("still".into()).await.unwrap();
    let mut still = [0; 5];
    timeout(SOON, b.read_exact(&mut still)).await.unwrap().unwrap();
    b.write_all(b"here").await.unwrap();
    assert_eq!(from_b.next().await.unwrap().unwrap(), "here");
    let (_, decisions) = test.egress.account_of(&test.id);
    let cut = decisions.iter().filter_map(|decision| decision.reason.as_deref());
    assert!(cut.into_iter().any(|reason| reason.starts_with("the policy has changed")), "{decisions:?}");
}

/// Returns the first message of a TLS client that shows a name.
fn client_hello(name: &str) -> Bytes {
    let vector = |width: usize, content: &[u8]| {
        let count = content.len().to_be_bytes();
        [&count[count.len() - width..], content].concat()
    };
    let entry = [vec![0], vector(2, name.as_bytes())].concat();
    let extension = [vec![0, 0], vector(2, &vector(2, &entry))].concat();
    let body = [vec![3, 3], vec![7; 32], vec![0], vec![0, 2, 0x13, 1], vec![1, 0], vector(2, &extension)].concat();
    [vec![22, 3, 1], vector(2, &[vec![1], vector(3, &body)].concat())].concat().into()
}

#[tokio::test]
async fn a_tls_client_has_to_show_the_name_that_it_asked_for() {
    let (host, test) = (listener().await, TestBox::new(config(), policy(EgressMode::Open, &[], &[])).await);
    let (_from, to_host, mut stream) = test.open("a.example", &host).await;
    let hello = client_hello("a.example");
    for byte in hello.chunks(1) {
        to_host.send(Bytes::copy_from_slice(byte)).await.unwrap();
    }
    let mut seen = vec![0; hello.len()];
    timeout(SOON, stream.read_exact(&mut seen)).await.unwrap().unwrap();
    assert_eq!(seen, hello);
    for hello in [client_hello("b.example"), client_hello("127.0.0.1"), Bytes::from_static(&[22, 3, 1, 0, 1, 9])] {
        let (from_host, to_host, mut stream) = test.open("a.example", &host).await;
        to_host.send(hello).await.unwrap();
        let alert = all(from_host).await.unwrap();
        drop(to_host);
        assert_eq!(alert, [21, 3, 3, 0, 2, 2, 49], "access denied");
        let mut seen = Vec::new();
        let _ = timeout(SOON, stream.read_to_end(&mut seen)).await.expect("the end of the connection");
        assert_eq!(seen, b"", "nothing of it reaches the host");
    }
    test.until(|counts| counts.denied == 3).await;
    // By address there is no name to show.
    let (_from, to_host, stream) = test.open("127.0.0.1", &host).await;
    to_host.send(client_hello("b.example")).await.unwrap();
    stream.readable().await.unwrap();
}

#[tokio::test]
async fn a_box_has_only_so_many_connections_and_bytes() {
    let host = listener().await;
    let mut limited = config();
    limited.limits.bytes = Some(1000);
    let test = TestBox::new(limited, policy(EgressMode::Open, &[], &[])).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(test.open("a.example", &host).await);
    }
    let (reason, words) = test.refused("a.example", port(&host)).await;
    assert!(reason == EgressReason::Busy && words.contains("maximum of 3 open connections"), "{words}");
    let (mut from_host, _to_host, mut stream) = open.pop().unwrap();
    drop(open);
    for _ in 0..2 {
        stream.write_all(&[1; 700]).await.unwrap();
        from_host.next().await.unwrap().unwrap();
    }
    stream.write_all(&[1; 700]).await.unwrap();
    assert!(all(from_host).await.is_err(), "it is reset");
    test.until(|counts| counts.open == 0).await;
    let (reason, words) = test.refused("a.example", port(&host)).await;
    assert!(reason == EgressReason::Denied && words.contains("used up the bytes"), "{words}");
}

#[tokio::test]
async fn a_connection_that_is_silent_is_closed() {
    let host = listener().await;
    let mut hasty = config();
    hasty.limits.idle = Duration::from_millis(50);
    let test = TestBox::new(hasty, policy(EgressMode::Open, &[], &[])).await;
    let (_from, _to, mut stream) = test.open("a.example", &host).await;
    let mut rest = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut rest)).await.expect("the end of the connection");
    test.until(|counts| counts.open == 0).await;
}

#[tokio::test]
async fn a_host_that_refuses_and_a_name_without_address_are_failures() {
    let test = TestBox::new(config(), policy(EgressMode::Open, &[], &[])).await;
    let free = port(&listener().await);
    let (reason, words) = test.refused("a.example", free).await;
    assert!(reason == EgressReason::Unreachable && words.contains("the host refuses"), "{words}");
    let mut nowhere = config();
    nowhere.hosts.insert("c.example".to_owned(), Vec::new());
    let test = TestBox::new(nowhere, policy(EgressMode::Open, &[], &[])).await;
    let (reason, words) = test.refused("c.example", free).await;
    assert!(reason == EgressReason::Unreachable && words.contains("no address"), "{words}");
}

#[tokio::test]
async fn the_port_of_the_server_has_to_be_named() {
    let host = listener().await;
    let own = EgressConfig { server_ports: vec![port(&host)], ..config() };
    let test = TestBox::new(own.clone(), policy(EgressMode::Open, &[], &[])).await;
    let (_, words) = test.refused("a.example", port(&host)).await;
    assert!(words.contains("the server's own address"), "{words}");
    let named = Target::parse(&format!("127.0.0.1:{}", port(&host))).unwrap();
    let test = TestBox::new(EgressConfig { internal: vec![named], ..own }, policy(EgressMode::Open, &[], &[])).await;
    drop(test.open("a.example", &host).await);
}

#[tokio::test]
async fn where_no_memory_is_left_a_box_that_sends_is_cut_and_an_idle_one_is_not() {
    let host = listener().await;
    let scarce = EgressConfig { memory_bytes: 1 << 20, ..config() };
    let test = TestBox::new(scarce, policy(EgressMode::Open, &[], &[])).await;
    let mut idle = test.open("a.example", &host).await;
    let mut cut = Vec::new();
    // The host of each takes nothing, so that the first bytes of the process wait.
    for _ in 0..2 {
        let (from_host, to_host, stream) = test.open("a.example", &host).await;
        let piece = Bytes::from(vec![b'x'; 8 << 20]);
        to_host.send(piece).await.unwrap();
        cut.push((from_host, to_host, stream));
    }
    test.until(|counts| counts.open < 3).await;
    let (_, decisions) = test.egress.account_of(&test.id);
    let reasons: Vec<_> = decisions.iter().filter_map(|decision| decision.reason.as_deref()).collect();
    assert!(reasons.iter().all(|reason| reason.contains("waiting for hosts")) && !reasons.is_empty(), "{reasons:?}");
    drop(cut);
    test.until(|counts| counts.open == 1).await;
    idle.1.send("still".into()).await.unwrap();
    let mut still = [0; 5];
    timeout(SOON, idle.2.read_exact(&mut still)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_process_that_hangs_up_ends_the_connection_to_the_host() {
    let (host, test) = (listener().await, TestBox::new(config(), policy(EgressMode::Open, &[], &[])).await);
    let (from_host, to_host, mut stream) = test.open("a.example", &host).await;
    drop((from_host, to_host));
    let end = timeout(SOON, stream.read(&mut [0; 8])).await.expect("the end of the connection");
    assert!(end.is_err(), "it is reset");
    test.until(|counts| counts.open == 0).await;
}

#[tokio::test]
async fn a_later_receiver_takes_over_and_connections_go_on() {
    let host = listener().await;
    let mut test = TestBox::new(config(), policy(EgressMode::Open, &[], &[])).await;
    let (mut from_host, to_host, mut stream) = test.open("a.example", &host).await;
    let (later, received) = requests();
    let own = policy(EgressMode::AllowList, &["a.example"], &[]);
    test.egress.serve(&test.id, None, &SandboxEgress { template: None, own }, 0, received);
    // The agent ends the earlier one.
    drop(std::mem::replace(&mut test.requests, later));
    drop(test.open("a.example", &host).await);
    assert_eq!(test.refused("b.example", port(&host)).await.0, EgressReason::Denied);
    assert!(test.egress.is_served(&test.id));
    stream.write_all(b"still").await.unwrap();
    assert_eq!(from_host.next().await.unwrap().unwrap(), "still");
    to_host.send("here".into()).await.unwrap();
    let mut here = [0; 4];
    timeout(SOON, stream.read_exact(&mut here)).await.unwrap().unwrap();
    drop(std::mem::replace(&mut test.requests, requests().0));
    let unserved = async {
        while test.egress.is_served(&test.id) {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, unserved).await.expect("the end of the receiver is seen");
}

#[tokio::test]
async fn the_service_ends_with_every_connection() {
    let (host, test) = (listener().await, TestBox::new(config(), policy(EgressMode::Open, &[], &[])).await);
    let _open = test.open("a.example", &host).await;
    assert!(test.egress.is_served(&test.id));
    test.stop.cancel();
    timeout(SOON, test.egress.ended()).await.unwrap();
    assert!(!test.egress.is_served(&test.id));
    assert_eq!(test.counts().open, 0);
}

/// Returns the first message of a TLS client with this server name.
fn hello_with(name: &str) -> Vec<u8> {
    let vector = |width: usize, content: &[u8]| {
        let count = content.len().to_be_bytes();
        [&count[count.len() - width..], content].concat()
    };
    let names = vector(2, &[vec![0], vector(2, name.as_bytes())].concat());
    let extensions = vector(2, &[vec![0, 0], vector(2, &names)].concat());
    let body = [vec![3, 3], vec![7; 32], vec![0], vector(2, &[0x13, 0x01]), vector(1, &[0]), extensions].concat();
    let message = [vec![1], vector(3, &body)].concat();
    [vec![22, 3, 1], vector(2, &message)].concat()
}

#[tokio::test]
async fn a_denied_name_is_not_reached_by_an_address_or_another_name_either() {
    let host = listener().await;
    let test = TestBox::new(config(), policy(EgressMode::Open, &[], &["b.example", "*.bad.example"])).await;
    let request = |name: &str| format!("GET / HTTP/1.1\r\nhost: {name}\r\n\r\n").into_bytes();
    for (asked, first) in [
        ("127.0.0.1", hello_with("b.example")),
        ("127.0.0.1", hello_with("x.BAD.example")),
        ("127.0.0.1", request("b.example")),
        ("127.0.0.1", request("B.Example.:80")),
        ("a.example", request("b.example")),
    ] {
        let (from_host, to_host, mut stream) = test.open(asked, &host).await;
        let denied = test.counts().denied;
        for piece in first.chunks(20) {
            to_host.send(Bytes::copy_from_slice(piece)).await.unwrap();
        }
        test.until(|counts| counts.denied > denied).await;
        let mut reached = Vec::new();
        let _ = timeout(SOON, stream.read_to_end(&mut reached)).await.expect("the end");
        assert!(reached.is_empty(), "{asked}: {}", String::from_utf8_lossy(&reached));
        let (_, decisions) = test.egress.account_of(&test.id);
        assert!(
            decisions.iter().any(|it| it.reason.as_ref().is_some_and(|it| it.contains("the egress policy denies")))
        );
        drop((from_host, to_host));
    }
    for (asked, first) in [
        ("127.0.0.1", hello_with("a.example")),
        ("127.0.0.1", request("a.example")),
        ("127.0.0.1", b"PING\r\n".to_vec()),
        ("127.0.0.1", b"half a line".to_vec()),
        ("a.example", b"HALF".to_vec()),
    ] {
        let (_from_host, to_host, mut stream) = test.open(asked, &host).await;
        to_host.send(first.clone().into()).await.unwrap();
        to_host.send(Bytes::new()).await.unwrap();
        let mut reached = Vec::new();
        timeout(SOON, stream.read_to_end(&mut reached)).await.expect("the end").unwrap();
        assert_eq!(reached, first);
    }
}

#[tokio::test]
async fn an_address_that_cannot_be_tried_counts_as_one_of_the_host() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // In a process by itself, which has no descriptor left.
    if std::env::var_os("TIDEBOX_TEST_ALONE").is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["an_address_that_cannot_be_tried", "--nocapture"]).env("TIDEBOX_TEST_ALONE", "1");
        let output = alone.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let other = IpAddr::from([198, 41, 0, 4]);
    assert!(!super::account::is_own(other) && super::account::is_own(Ipv4Addr::LOCALHOST.into()));
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: before.maximum }).unwrap();
    let is_own = super::account::is_own(other);
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(is_own);
}
