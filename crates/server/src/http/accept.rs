//! The doors of the service: TCP, with TLS or without, and a Unix socket; what
//! holds for every connection on each; and draining.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use providers::Chain;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

mod connection;
mod intake;
mod patience;
mod places;
mod socket;
mod steady;
mod tls;

use super::peer::TrustedProxies;
use crate::budget::Budget;
use connection::Service;
use places::Places;

pub use patience::Stalled;
pub use socket::{Socket, SocketFault};
pub use tls::{Tls, TlsFault};

/// Connections at once on each door. Each may cost some tens of kilobytes that
/// are not counted.
const CONNECTIONS_MAX: usize = 4096;
/// The pause after a failed accept (out of descriptors, say), so that it cannot spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long requests under way may take to finish once we are told to stop.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// After how long silence the kernel asks whether the other machine still is
/// there, how often again, and how many questions may stay without an answer.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 4);

/// Where the service listens.
#[derive(Debug)]
pub struct Listeners {
    /// The address of `server.host` and `server.port`.
    pub tcp: TcpListener,
    /// What is spoken there below HTTP; `None` for nothing.
    pub tls: Option<Tls>,
    /// The socket of `server.unix_socket`, besides TCP.
    pub unix: Option<Socket>,
}

/// Serves `router` on every listener until told to stop, then lets requests
/// under way finish and cuts off those that do not.
pub async fn serve(
    listeners: Listeners,
    router: Router,
    memory: Arc<Budget>,
    proxies: TrustedProxies,
    stop: CancellationToken,
) {
    let Listeners { tcp, tls, unix } = listeners;
    let service = Arc::new(Service { router, memory, proxies });
    // The socket has places of its own: it is the operator's way in while the
    // network is flooded.
    let unix = async {
        if let Some(socket) = unix {
            open(Door::Unix(socket), &service, &stop).await;
        }
    };
    let reload = async {
        if let Some(tls) = &tls {
            tls.reload(&stop).await;
        }
    };
    tokio::join!(open(Door::Tcp(tcp, tls.clone()), &service, &stop), unix, reload);
}

/// One place where connections come in.
enum Door {
    Tcp(TcpListener, Option<Tls>),
    Unix(Socket),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Door {
    async fn accept(&self) -> io::Result<(Stream, Option<IpAddr>)> {
        match self {
            Door::Tcp(listener, _) => {
                let (stream, from) = listener.accept().await?;
                Ok((Stream::Tcp(stream), Some(from.ip().to_canonical())))
            }
            Door::Unix(socket) => Ok((Stream::Unix(socket.accept().await?), None)),
        }
    }
}

/// Takes connections until told to stop, then waits for those there are.
async fn open(door: Door, service: &Arc<Service>, stop: &CancellationToken) {
    let places = Places::new(places::bounded_by_descriptors(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut is_failing = false;
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = async {
                // Without a place, callers wait in the kernel's queue.
                let place = places.free().await;
                (door.accept().await, place)
            } => accepted,
        };
        let (stream, from, place) = match accepted {
            (Ok((stream, from)), place) => (stream, from, place),
            (Err(error), _) => {
                // Once, not twenty times a second for as long as it lasts.
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(error = %Chain(&error), "cannot accept a connection; trying on");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        is_failing = false;
        let bounded = from.filter(|from| !from.is_loopback() && !service.proxies.contains(*from));
        let Some(place) = places.take(place, bounded) else {
            tracing::debug!(?from, "one address has too many connections; the new one is closed");
            continue;
        };
        let (service, stop) = (Arc::clone(service), stop.clone());
        match (stream, &door) {
            (Stream::Tcp(stream), Door::Tcp(_, Some(tls))) => {
                prepare(&stream);
                let acceptor = tls.acceptor();
                connections.spawn(async move {
                    // A handshake is never a request under way.
                    let stream = tokio::select! {
                        stream = tls::shake_hands(&acceptor, stream) => stream,
                        () = stop.cancelled() => None,
                    };
                    if let Some(stream) = stream {
                        connection::converse(stream, from, place, service, stop).await;
                    }
                });
            }
            (Stream::Tcp(stream), _) => {
                prepare(&stream);
                connections.spawn(connection::converse(stream, from, place, service, stop));
            }
            (Stream::Unix(stream), _) => {
                connections.spawn(connection::converse(stream, from, place, service, stop));
            }
        }
    }
    drop(door);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_MAX, drained).await.is_err() {
        tracing::warn!("some requests did not finish in time and are cut off");
        connections.shutdown().await;
    }
}

/// Options of a connection. One that the kernel refuses only costs comfort.
fn prepare(stream: &TcpStream) {
    use rustix::net::sockopt;
    // Small answers must not wait for an acknowledgement of the last one.
    let _ = stream.set_nodelay(true);
    // A machine that vanished must not hold a command's stream open for ever.
    let (idle, interval, count) = KEEPALIVE;
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, idle);
    let _ = sockopt::set_tcp_keepintvl(stream, interval);
    let _ = sockopt::set_tcp_keepcnt(stream, count);
}
