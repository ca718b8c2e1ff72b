//! Connections of processes that know of no proxy: the kernel leads them to the agent, and the process
//! believes to be connected to its host.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep, timeout};

use super::name_server;
use super::names::Names;
use super::output::Output;
use super::refusal::Refusal;
use super::requests::Requests;
use super::target::Target;
use crate::diverted::DNS_PORT;
use crate::link::Link;

/// Longest wait for the first bytes of a process whose connection is refused. One that speaks first
/// does so at once.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Ports of protocols in which the host speaks first: FTP, SSH, Telnet, SMTP, POP3, NNTP, IMAP,
/// submission of mail, `MySQL` and VNC. A process that waits there for its host is not kept waiting.
const HOST_SPEAKS_FIRST: [u16; 10] = [21, 22, 23, 25, 110, 119, 143, 587, 3306, 5900];
/// Longest wait for a process to take its refusal, and maximum number of bytes that it can send
/// meanwhile: a connection that is closed before they are read loses the refusal.
const REFUSED_WAIT: Duration = Duration::from_secs(2);
const REFUSED_BYTES_MAX: usize = 1024 * 1024;
/// Pause before a process that was seen to be there is looked at again.
const ALIVE_PAUSE: Duration = Duration::from_secs(1);
/// First bytes of a record of TLS that begins a connection.
const TLS: &[u8] = &[22, 3];
/// Record of TLS with the fatal alert `access_denied`.
const TLS_ALERT: &[u8] = &[21, 3, 3, 0, 2, 2, 49];
/// Methods of HTTP, and the space after them.
const METHODS: [&[u8]; 8] = [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE "];

/// Serves one connection of a process, which has asked for `asked`.
pub(super) async fn serve(
    stream: TcpStream,
    asked: SocketAddr,
    requests: &Requests,
    names: &Rc<Names>,
    permit: Rc<OwnedSemaphorePermit>,
    wait: Duration,
) {
    let address = asked.ip().to_canonical();
    if asked.port() == DNS_PORT {
        return name_server::serve_stream(stream, names, wait).await;
    }
    let name = names.hold(address);
    let answer = match Target::new(address.to_string(), asked.port()) {
        Ok(target) => tokio::select! {
            answer = requests.ask(&target) => answer,
            () = reset_by_process(&stream) => return,
        },
        Err(refusal) => Err(refusal),
    };
    match answer {
        Ok(accepted) => {
            let output = Link::open(stream, Bytes::new(), accepted.input, Rc::new((permit, name)));
            drop(accepted.reply.send(Output::Tunnel(output)));
        }
        Err(refusal) => {
            let waits = HOST_SPEAKS_FIRST.contains(&asked.port());
            refuse(stream, &refusal, if waits { Duration::ZERO } else { FIRST_WAIT }).await;
        }
    }
}

/// Waits until the process has reset its connection. One that sends nothing more may still read.
async fn reset_by_process(stream: &TcpStream) {
    while stream.peek(&mut [0]).await.is_ok() {
        sleep(ALIVE_PAUSE).await;
    }
}

/// Shows the process that its host is not reached, in the protocol that it speaks. It has `wait` to
/// begin.
async fn refuse(mut stream: TcpStream, refusal: &Refusal, wait: Duration) {
    let spoken = timeout(wait, first_words(&mut stream)).await.unwrap_or(Spoken::Other);
    let answer = match spoken {
        Spoken::Http { has_body } => refusal.answer(has_body),
        Spoken::Tls => TLS_ALERT.to_vec(),
        Spoken::Other => return reset(&stream),
    };
    let answered = async {
        stream.write_all(&answer).await?;
        stream.shutdown().await?;
        let mut rest = (&mut stream).take(REFUSED_BYTES_MAX as u64);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    // A process that does not take it has hung up, or sends without end.
    drop(timeout(REFUSED_WAIT, answered).await);
}

/// Has the process see an error and not an end, once the stream is dropped.
fn reset(stream: &TcpStream) {
    // On failure the process sees an end.
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// Protocol that a process speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spoken {
    Http {
        /// True if the answer may have a body.
        has_body: bool,
    },
    Tls,
    Other,
}

/// Reads until the protocol is known.
async fn first_words(stream: &mut TcpStream) -> Spoken {
    let mut words = Vec::new();
    loop {
        match stream.read_u8().await {
            Ok(byte) => words.push(byte),
            Err(_) => return Spoken::Other,
        }
        if let Some(spoken) = spoken(&words) {
            return spoken;
        }
    }
}

/// Returns the protocol that begins so; `None` if more is needed.
fn spoken(words: &[u8]) -> Option<Spoken> {
    if words.starts_with(TLS) {
        return Some(Spoken::Tls);
    }
    if let Some(method) = METHODS.iter().find(|method| words.starts_with(method)) {
        return Some(Spoken::Http { has_body: *method != b"HEAD " });
    }
    let may_be = METHODS.iter().chain([&TLS]).any(|begin| begin.starts_with(words));
    (!may_be).then_some(Spoken::Other)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_protocol_is_known_by_its_first_bytes_and_not_before() {
        let http = |has_body| Some(Spoken::Http { has_body });
        for (words, expected) in [
            (&b""[..], None),
            (b"P", None),
            (b"PO", None),
            (b"POST", None),
            (b"POST ", http(true)),
            (b"GET / HTTP/1.1\r\n", http(true)),
            (b"HEAD ", http(false)),
            (b"PRI", Some(Spoken::Other)),
            (b"get ", Some(Spoken::Other)),
            (b"GET\r", Some(Spoken::Other)),
            (b"SSH-2.0", Some(Spoken::Other)),
            (b"\x16", None),
            (b"\x16\x03\x01", Some(Spoken::Tls)),
            (b"\x16\x02", Some(Spoken::Other)),
            (b"\0", Some(Spoken::Other)),
        ] {
            assert_eq!(spoken(words), expected, "{words:?}");
        }
    }
}
