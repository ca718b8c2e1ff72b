//! Ports of a box, and connections to them.

use std::net::{Ipv4Addr, TcpListener};

use bytes::Bytes;
use futures_util::StreamExt;
use providers::{Error, Result};

use super::case::{Case, case};
use super::connection::{Connection, input};
use super::subject::{Inside, Subject, eventually, noise, soon};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a port is listed while a process listens on it", listed, Processes),
        case!("bytes to a port and from it are passed on unchanged", unchanged, Processes),
        case!("the end of what is sent to a port is not the end of what it answers", half_closed, Processes),
        case!("many connections to one port do not mix", many, Processes),
        case!("dropping a connection ends it in the box", dropped, Processes),
        case!("the end of a box ends the connections to it", box_ends, Processes),
        case!("a port that nothing listens on is not found, and port 0 is invalid", nothing_listens),
        case!("no port of the host is listed or reached", of_host),
    ]
}

async fn open(inside: &Inside, port: u16) -> Result<Connection> {
    let (sender, input) = input();
    let output = soon("a connection", inside.guest.connect(port, input)).await?;
    Ok(Connection::new(sender, output))
}

/// Runs `script` for each connection to the port, with the connection as its stdin and stdout.
async fn serve(inside: &Inside, script: &str) -> u16 {
    // A box may share the network of the host.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    inside.write("/workspace/serve", script).await;
    let perl = format!(
        "use IO::Socket::INET; $SIG{{CHLD}} = 'IGNORE'; \
         $s = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1:{port}', ReuseAddr => 1) or die; \
         while ($c = $s->accept) {{ if (fork) {{ close $c; next }} open STDIN, '<&', $c; open STDOUT, '>&', $c; \
         close $c; close $s; exec '/bin/sh', '/workspace/serve' }}"
    );
    let busybox = format!("exec busybox nc -ll -p {port} -e /bin/sh /workspace/serve");
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
