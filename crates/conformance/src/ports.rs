//! Ports of a box, and connections to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use providers::{Error, PortChange, PortChanges, Result};

use super::case::{Case, case};
use super::connection::{Connection, input};
use super::snapshots::{made_of, take_of};
use super::subject::{Inside, Subject, eventually, noise, soon};

/// More bytes than may lie between a process and its caller.
const BETWEEN_BYTES_MAX: usize = 64 << 20;
/// Time after which a direction that nothing moves in counts as held up.
const HELD_UP: Duration = Duration::from_millis(500);

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a port is listed while a process listens on it", listed, Processes, PortOwners),
        case!("bytes to a port and from it are passed on unchanged", unchanged, Processes),
        case!("the end of what is sent to a port is not the end of what it answers", half_closed, Processes),
        case!("a process that listens on another address of its box is reached", other_address, Processes),
        case!("many connections to one port do not mix", many, Processes),
        case!("more connections than may be open at once follow each other", in_turn, Processes),
        case!("a process that does not read holds up its own connection alone", unread_by_process, Processes),
        case!("a connection that is not read holds up its own process alone", unread_by_caller, Processes),
        case!("what a process has sent arrives, though it ends without reading what it was sent", early, Processes),
        case!("dropping a connection ends it in the box", dropped, Processes),
        case!("the end of a box ends the connections to it", box_ends, Processes),
        case!("a port that nothing listens on is not found, and port 0 is invalid", nothing_listens),
        case!("no port of the host is listed or reached", of_host),
        case!("a program that listens is reached in each box of a snapshot", in_copies, Processes, LiveSnapshots),
        case!("each change of the ports is reported once, also to a later receiver", watched, Processes, PortWatch),
        case!("the end of a box ends the watch of its ports", watch_ends, PortWatch),
    ]
}

async fn open(inside: &Inside, port: u16) -> Result<Connection> {
    let (sender, input) = input();
    let output = soon("a connection", inside.guest.connect(port, input)).await?;
    Ok(Connection::new(sender, output))
}

/// Runs `script` for each connection to the port, with the connection as its stdin and stdout.
async fn serve(inside: &Inside, script: &str) -> u16 {
    serve_at(inside, Ipv4Addr::LOCALHOST.into(), script).await
}

/// The same at another address; a box without Perl has a program that listens on all.
async fn serve_at(inside: &Inside, address: IpAddr, script: &str) -> u16 {
    // A box may share the network of the host.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let path = format!("/workspace/serve-{port}");
    inside.write(&path, script).await;
    let perl = format!(
        "use IO::Socket::IP; $SIG{{CHLD}} = 'IGNORE'; \
         $s = IO::Socket::IP->new(Listen => 64, LocalHost => '{address}', LocalPort => {port}, ReuseAddr => 1) or die; \
         while ($c = $s->accept) {{ if (fork) {{ close $c; next }} open STDIN, '<&', $c; open STDOUT, '>&', $c; \
         close $c; close $s; exec '/bin/sh', '{path}' }}"
    );
    let busybox = format!("exec busybox nc -ll -p {port} -e /bin/sh {path}");
    let run = format!("if command -v perl; then exec perl -e \"{}\"; else {busybox}; fi", perl.replace('$', "\\$"));
    let begun = inside.sh(&format!("({run}) > /workspace/server.log 2>&1 < /dev/null &")).await;
    assert_eq!(begun.code(), 0, "{begun:?}");
    let is_listed = || async { inside.guest.ports().await.unwrap().iter().any(|listed| listed.port == port) };
    eventually("the port is listed", is_listed).await;
    port
}

async fn listed(subject: Subject) {
    let inside = subject.start().await;
    assert_eq!(inside.guest.ports().await.unwrap(), []);
    let port = serve(&inside, "cat").await;
    let ports = inside.guest.ports().await.unwrap();
    assert!(ports.iter().all(|listed| listed.port == port), "{ports:?}");
    let (Some(pid), Some(process)) = (ports[0].pid, &ports[0].process) else { panic!("{ports:?}") };
    assert!(matches!(process.as_str(), "perl" | "busybox" | "nc"), "{process}");
    inside.sh(&format!("kill {pid}")).await;
    eventually("the port is listed no more", || async { inside.guest.ports().await.unwrap().is_empty() }).await;
}

async fn unchanged(subject: Subject) {
    let inside = subject.start().await;
    let port = serve(&inside, "cat").await;
    let sent = noise(3_000_000);
    let mut connection = open(&inside, port).await.unwrap();
    connection.exchange(&sent).await;
    // The process ends with its input, and so does the connection.
    assert_eq!(soon("the end of the process", connection.output.next()).await.unwrap().unwrap(), Bytes::new());
    assert!(soon("the end", connection.output.next()).await.is_none());
}

async fn half_closed(subject: Subject) {
    let inside = subject.start().await;
    let port = serve(&inside, "wc -c").await;
    let mut connection = open(&inside, port).await.unwrap();
    connection.send("12345").await;
    connection.send("678").await;
    connection.sender = None;
    assert_eq!(std::str::from_utf8(&connection.rest().await).unwrap().trim(), "8");
}

async fn many(subject: Subject) {
    let inside = subject.start().await;
    let port = serve(&inside, "cat").await;
    let mut connections = Vec::new();
    for _ in 0..12 {
        connections.push(open(&inside, port).await.unwrap());
    }
    for (number, connection) in connections.iter_mut().enumerate() {
        connection.send(format!("{number:04}")).await;
    }
    for (number, connection) in connections.iter_mut().enumerate().rev() {
        assert_eq!(connection.read(4).await, format!("{number:04}").as_bytes());
    }
}

async fn other_address(subject: Subject) {
    let inside = subject.start().await;
    let has_v6 = inside.sh("grep -q '^0*1 ' /proc/net/if_inet6").await.code() == 0;
    let v6 = has_v6.then_some(Ipv6Addr::LOCALHOST.into());
    for address in [Ipv4Addr::new(127, 0, 0, 2).into()].into_iter().chain(v6) {
        let port = serve_at(&inside, address, "cat").await;
        open(&inside, port).await.unwrap().echo().await;
    }
}

async fn in_turn(subject: Subject) {
    const CONNECTIONS: usize = 600;
    let inside = subject.start().await;
    let port = serve(&inside, "cat").await;
    for _ in 0..CONNECTIONS {
        // A program that accepts late has a queue, which may be full.
        drop(open(&inside, port).await.unwrap());
    }
    open(&inside, port).await.unwrap().echo().await;
}

async fn unread_by_process(subject: Subject) {
    let inside = subject.start().await;
    let port = serve(&inside, "read -r word; until [ -e /workspace/go ]; do sleep 0.05; done; wc -c").await;
    let mut held = open(&inside, port).await.unwrap();
    held.send("word\n").await;
    let sender = held.sender.take().unwrap();
    let piece = Bytes::from(vec![7; 1 << 20]);
    let mut sent = 0;
    // What lies between takes some of it, and then no more.
    while tokio::time::timeout(HELD_UP, sender.send(piece.clone())).await.is_ok() {
        sent += piece.len();
        assert!(sent < BETWEEN_BYTES_MAX, "{sent} bytes wait for a process that does not read");
    }
    let other = serve(&inside, "cat").await;
    let mut other = open(&inside, other).await.unwrap();
    other.exchange(&noise(1_000_000)).await;
    inside.write("/workspace/go", "").await;
    drop(sender);
    assert_eq!(std::str::from_utf8(&held.rest().await).unwrap().trim(), sent.to_string());
}

async fn unread_by_caller(subject: Subject) {
    let inside = subject.start().await;
    let port = serve(&inside, &format!("head -c {BETWEEN_BYTES_MAX} /dev/zero; echo > /workspace/over")).await;
    let mut held = open(&inside, port).await.unwrap();
    held.sender = None;
    let other = serve(&inside, "cat").await;
    let mut other = open(&inside, other).await.unwrap();
    other.exchange(&noise(1_000_000)).await;
    let is_over = async { eventually("the process has sent all", || inside.exists("/workspace/over")).await };
    assert!(tokio::time::timeout(HELD_UP, is_over).await.is_err(), "all that it sends waits for its reader");
    let rest = held.rest().await;
    assert!(rest.len() == BETWEEN_BYTES_MAX && rest.iter().all(|byte| *byte == 0), "{} bytes came", rest.len());
}

async fn early(subject: Subject) {
    let inside = subject.start().await;
    let port = serve(&inside, "read -r word; echo refused").await;
    for _ in 0..10 {
        let mut connection = open(&inside, port).await.unwrap();
        connection.send("word\n").await;
        let sender = connection.sender.take().unwrap();
        let piece = Bytes::from(vec![7; 70_000]);
        // It ends once nothing takes the pieces any more, or waits for ever.
        let sending = async {
            while sender.send(piece.clone()).await.is_ok() {}
            std::future::pending::<()>().await;
        };
        let mut said = Vec::new();
        let reading = async {
            while let Some(Ok(piece)) = soon("what the process has said", connection.output.next()).await {
                if piece.is_empty() {
                    break;
                }
                said.extend_from_slice(&piece);
            }
        };
        tokio::select! {
            () = sending => {}
            () = reading => {}
        }
        assert_eq!(std::str::from_utf8(&said).unwrap(), "refused\n");
    }
}

async fn dropped(subject: Subject) {
    let inside = subject.start().await;
    let port = serve(&inside, "cat; echo over > /workspace/over").await;
    let mut connection = open(&inside, port).await.unwrap();
    connection.echo().await;
    assert!(!inside.exists("/workspace/over").await);
    drop(connection);
    eventually("the process sees the end", || inside.exists("/workspace/over")).await;
}

async fn box_ends(subject: Subject) {
    let inside = subject.start().await;
    let port = serve(&inside, "cat").await;
    let mut connection = open(&inside, port).await.unwrap();
    connection.echo().await;
    subject.provider().stop(&inside.id).await.unwrap();
    let last = soon("the end of the connection", connection.output.next()).await;
    assert!(matches!(last, None | Some(Err(_))), "{last:?}");
    let again = open(&inside, port).await.map(|_| ());
    assert!(matches!(again, Err(Error::Gone)), "{again:?}");
}

async fn nothing_listens(subject: Subject) {
    let inside = subject.start().await;
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let refused = open(&inside, port).await.map(|_| ());
    assert!(matches!(refused, Err(Error::NotFound(_))), "{refused:?}");
    let refused = open(&inside, 0).await.map(|_| ());
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

/// Pause between two looks at the ports.
const LOOK: Duration = Duration::from_millis(100);

async fn watch(inside: &Inside) -> PortChanges {
    soon("a watch", inside.guest.watch_ports(LOOK)).await.unwrap()
}

async fn change(changes: &mut PortChanges) -> (bool, u16) {
    let PortChange { is_open, port } = soon("a change", changes.next()).await.unwrap().unwrap();
    assert!(port.pid.is_some() && port.process.is_some(), "{port:?}");
    (is_open, port.port)
}

async fn in_copies(subject: Subject) {
    let mut origin = subject.start().await;
    let port = serve(&origin, "cat /workspace/name").await;
    let snapshot = take_of(&subject, &mut origin).await;
    let boxes = [made_of(&subject, &snapshot).await, made_of(&subject, &snapshot).await, origin];
    for inside in &boxes {
        inside.write("/workspace/name", inside.id.as_str()).await;
    }
    for inside in &boxes {
        let mut connection = open(inside, port).await.unwrap();
        connection.sender = None;
        assert_eq!(std::str::from_utf8(&connection.rest().await), Ok(inside.id.as_str()));
        let ports = inside.guest.ports().await.unwrap();
        assert!(ports.iter().any(|listed| listed.port == port), "{ports:?}");
    }
}

async fn watched(subject: Subject) {
    let inside = subject.start().await;
    let mut changes = watch(&inside).await;
    let first = serve(&inside, "cat").await;
    assert_eq!(change(&mut changes).await, (true, first));
    let mut later = watch(&inside).await;
    let end = soon("the end of the first receiver", changes.next()).await;
    assert!(end.is_none(), "{end:?}");
    let pid = inside.guest.ports().await.unwrap()[0].pid.unwrap();
    inside.sh(&format!("kill {pid}")).await;
    // It is not reported as open again.
    assert_eq!(change(&mut later).await, (false, first));
    drop(later);
    let second = serve(&inside, "cat").await;
    let mut last = watch(&inside).await;
    assert_eq!(change(&mut last).await, (true, second));
}

async fn watch_ends(subject: Subject) {
    let inside = subject.start().await;
    let mut changes = watch(&inside).await;
    subject.provider().stop(&inside.id).await.unwrap();
    let last = soon("the end of the watch", changes.next()).await;
    assert!(matches!(last, None | Some(Err(_))), "{last:?}");
    let again = inside.guest.watch_ports(LOOK).await.map(|_| ());
    assert!(matches!(again, Err(Error::Gone)), "{again:?}");
}

async fn of_host(subject: Subject) {
    let inside = subject.start().await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    assert_eq!(inside.guest.ports().await.unwrap(), []);
    let refused = open(&inside, port).await.map(|_| ());
    assert!(matches!(refused, Err(Error::NotFound(_))), "{refused:?}");
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}
