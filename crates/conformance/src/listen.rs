//! Ports of a box that a caller listens on.

use std::time::Duration;

use futures_util::StreamExt;
use providers::{Error, PortConnections};

use super::case::{Case, case};
use super::connection::{Connection, input};
use super::subject::{Inside, Subject, eventually, noise, soon};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(
            "bytes of a connection to a listened port are passed on unchanged, both ways",
            unchanged,
            Processes,
            Listen
        ),
        case!(
            "the end of one way of a connection to a listened port is not that of the other",
            half_closed,
            Processes,
            Listen
        ),
        case!("many connections to a listened port do not mix", many, Processes, Listen),
        case!("a connection to a listened port that is not accepted is reset", refused, Processes, Listen),
        case!("dropping a connection to a listened port ends it in the box", dropped, Processes, Listen),
        case!(
            "a port has one listener, in the box or outside of it, and is free after its end",
            taken,
            Processes,
            Listen
        ),
        case!("a listened port is no port of the box", not_a_port, Processes, Listen),
        case!("the end of a box ends its listened ports", box_ends, Listen),
        case!("port 0 cannot be listened on", no_port, Listen),
    ]
}

/// A port that no box listens on by itself.
const PORT: u16 = 4000;

async fn listen(inside: &Inside, port: u16) -> PortConnections {
    soon("a listener", inside.guest.listen(port)).await.unwrap()
}

async fn accept(connections: &mut PortConnections) -> Connection {
    let connection = soon("a connection", connections.next()).await.unwrap().unwrap();
    let (sender, input) = input();
    let output = soon("an accepted connection", connection.accept(input)).await.unwrap();
    Connection::new(sender, output)
}

/// Runs `script` with a connection to the port as its stdin and stdout. Its file `$NAME.done` says that it
/// has ended.
async fn client(inside: &Inside, name: &str, script: &str) {
    let script = format!("{script}\necho > /workspace/{name}.done\n");
    inside.write(&format!("/workspace/{name}"), script).await;
    let perl = format!(
        "use IO::Socket::INET; $c = IO::Socket::INET->new(PeerAddr => '127.0.0.1:{PORT}') or die; \
         open STDIN, '<&', $c; open STDOUT, '>&', $c; close $c; exec '/bin/sh', '/workspace/{name}'"
    );
    let busybox = format!("exec busybox nc 127.0.0.1 {PORT} -e /bin/sh /workspace/{name}");
    let run = format!("if command -v perl; then exec perl -e \"{}\"; else {busybox}; fi", perl.replace('$', "\\$"));
    let run = format!("({run}); : > /workspace/{name}.ended");
    let begun = inside.sh(&format!("({run}) > /workspace/{name}.log 2>&1 < /dev/null &")).await;
    assert_eq!(begun.code(), 0, "{begun:?}");
}

/// Waits until a client has ended, at the end of its script or before.
async fn ended(inside: &Inside, name: &str) {
    let ended = format!("/workspace/{name}.ended");
    eventually("the client has ended", || inside.exists(&ended)).await;
}

/// Waits until the script of a client has come to its end.
async fn done(inside: &Inside, name: &str) {
    let done = format!("/workspace/{name}.done");
    eventually("the program has ended", || inside.exists(&done)).await;
}

async fn unchanged(subject: Subject) {
    let inside = subject.start().await;
    let mut connections = listen(&inside, PORT).await;
    let sent = noise(3_000_000);
    inside.write("/workspace/noise", &sent).await;
    client(&inside, "c", "cat /workspace/noise &\ncat > /workspace/back; wait").await;
    let mut connection = accept(&mut connections).await;
    connection.exchange(&sent).await;
    done(&inside, "c").await;
    assert!(inside.read("/workspace/back").await == sent);
}

async fn half_closed(subject: Subject) {
    let inside = subject.start().await;
    let mut connections = listen(&inside, PORT).await;
    client(&inside, "c", "wc -c").await;
    let mut connection = accept(&mut connections).await;
    connection.send("12345678").await;
    connection.sender = None;
    assert_eq!(std::str::from_utf8(&connection.rest().await).unwrap().trim(), "8");
}

async fn many(subject: Subject) {
    let inside = subject.start().await;
    let mut connections = listen(&inside, PORT).await;
    for number in 0..12 {
        client(&inside, &format!("c{number}"), &format!("read -r a; echo {number} $a")).await;
    }
    let mut open = Vec::new();
    for number in 0..12 {
        let mut connection = accept(&mut connections).await;
        connection.send(format!("to {number}\n")).await;
        open.push(connection);
    }
    let mut seen = Vec::new();
    for (number, connection) in open.iter_mut().enumerate().rev() {
        connection.sender = None;
        let line = String::from_utf8(connection.rest().await).unwrap();
        let (of_box, rest) = line.split_once(' ').unwrap();
        assert_eq!(rest, format!("to {number}\n"));
        seen.push(of_box.parse::<u32>().unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..12).collect::<Vec<_>>());
}

async fn refused(subject: Subject) {
    let inside = subject.start().await;
    let mut connections = listen(&inside, PORT).await;
    client(&inside, "c", "cat").await;
    drop(soon("a connection", connections.next()).await.unwrap().unwrap());
    // gVisor may tell of the reset where the connection is made, before there is a script.
    ended(&inside, "c").await;
    // The others go on.
    client(&inside, "d", "cat").await;
    accept(&mut connections).await.echo().await;
}

async fn dropped(subject: Subject) {
    let inside = subject.start().await;
    let mut connections = listen(&inside, PORT).await;
    client(&inside, "c", "cat").await;
    let mut connection = accept(&mut connections).await;
    connection.echo().await;
    assert!(!inside.exists("/workspace/c.done").await);
    drop(connection);
    done(&inside, "c").await;
}

async fn taken(subject: Subject) {
    let inside = subject.start().await;
    let mut connections = listen(&inside, PORT).await;
    let again = inside.guest.listen(PORT).await.map(|_| ());
    assert!(matches!(again, Err(Error::Conflict(_))), "{again:?}");
    let other = listen(&inside, PORT + 1).await;
    client(&inside, "c", "cat").await;
    let waiting = soon("a connection", connections.next()).await.unwrap().unwrap();
    drop(connections);
    // What waits is reset.
    ended(&inside, "c").await;
    drop(waiting);
    let free = async {
        loop {
            match inside.guest.listen(PORT).await {
                Ok(connections) => return connections,
                Err(Error::Conflict(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    let mut connections = soon("the port to be free again", free).await;
    client(&inside, "d", "cat").await;
    accept(&mut connections).await.echo().await;
    drop(other);
}

async fn not_a_port(subject: Subject) {
    let inside = subject.start().await;
    let _connections = listen(&inside, PORT).await;
    assert_eq!(inside.guest.ports().await.unwrap(), []);
    let reached = inside.guest.connect(PORT, input().1).await.map(|_| ());
    assert!(matches!(reached, Err(Error::NotFound(_))), "{reached:?}");
}

async fn box_ends(subject: Subject) {
    let inside = subject.start().await;
    let mut connections = listen(&inside, PORT).await;
    subject.provider().stop(&inside.id).await.unwrap();
    let last = soon("the end of the listener", connections.next()).await.map(|last| last.map(|_| ()));
    assert!(matches!(last, None | Some(Err(_))), "{last:?}");
    let again = inside.guest.listen(PORT).await.map(|_| ());
    assert!(matches!(again, Err(Error::Gone)), "{again:?}");
}

async fn no_port(subject: Subject) {
    let inside = subject.start().await;
    let refused = inside.guest.listen(0).await.map(|_| ());
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}
