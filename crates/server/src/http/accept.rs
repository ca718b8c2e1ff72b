//! Listeners of the service: TCP, with or without TLS, and a Unix socket; the rules for
//! connections on each, and draining at shutdown.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use providers::Chain;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

pub mod body_timeout;
mod connection;
mod connection_limit;
mod handshake;
mod http2;
mod idle;
mod intake;
mod preface;
mod service;
mod socket;
mod tls;
mod write_timeout;

use super::peer::{self, TrustedProxies};
use super::site::Sites;
use crate::budget::Budget;
use crate::control::Control;
use connection_limit::{Place, Places, Share};
use handshake::Turns;
use service::{Origin, Service};

pub use socket::{BACKLOG, Socket, SocketFault};
pub use tls::{Tls, TlsFault};

/// Most connections at once on each listener. Each may cost some tens of kilobytes that are not
/// counted.
const CONNECTIONS_MAX: usize = 4096;
/// Pause after a failed accept (out of descriptors, say), so that it cannot spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Interval at which idle connections are closed while many are open.
const ROOM_EVERY: Duration = Duration::from_secs(1);
/// Time that requests under way may take to finish once the server is stopping.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// TCP keepalive: idle time before the first probe, the interval between probes, and the number
/// of unanswered probes that ends the connection.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 4);

/// Sockets on which the service listens.
#[derive(Debug)]
pub struct Listeners {
    /// Listener at `server.host` and `server.port`.
    pub tcp: TcpListener,
    /// TLS for the TCP listener; `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// Unix socket of `server.unix_socket`, besides TCP.
    pub unix: Option<Socket>,
}

/// Serves `sites` on every listener until `stop` is cancelled, then waits up to 10 s for
/// requests under way and cuts off the rest.
pub async fn serve(
    listeners: Listeners,
    sites: Sites,
    control: Arc<Control>,
    memory: Arc<Budget>,
    proxies: TrustedProxies,
    stop: CancellationToken,
) {
    let Listeners { tcp, tls, unix } = listeners;
    let service = Arc::new(Service { sites, control, memory, proxies });
    // The Unix socket has a connection limit of its own: it is the operator's way in while the
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
    let tcp = Door::Tcp(tcp, tls.clone().map(|tls| (tls, Turns::new())));
    tokio::join!(open(tcp, &service, &stop), unix, reload);
}

/// Listener that accepts connections.
enum Door {
    Tcp(TcpListener, Option<(Tls, Turns)>),
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

/// Accepts connections until `stop` is cancelled, then drains the open ones.
async fn open(door: Door, service: &Arc<Service>, stop: &CancellationToken) {
    let places = Places::new(connection_limit::bounded_by_descriptors(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut is_failing = false;
    // The accepted connection that waits for a free place.
    let mut new = None;
    let mut room = tokio::time::interval(ROOM_EVERY);
    room.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            _ = room.tick(), if places.is_crowded() => places.make_room(),
            accepted = door.accept(), if new.is_none() => match accepted {
                Ok((stream, from)) => {
                    is_failing = false;
                    new = New::of(stream, from, service).shared(&places);
                }
                Err(error) => {
                    // Logged once, not twenty times a second for as long as it lasts.
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(error = %Chain(&error), "cannot accept a connection; trying again");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            // Without a place, further clients wait in the kernel's backlog.
            permit = places.free(), if new.is_some() => {
                if let Some((new, share)) = new.take() {
                    let place = places.take(permit, share, new.is_trusted);
                    begin(&mut connections, new, place, &door, service, stop);
                }
            }
        }
    }
    drop((door, new));
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_MAX, drained).await.is_err() {
        tracing::warn!("some requests did not finish in time and were cut off");
        connections.shutdown().await;
    }
}

/// Accepted connection without a place yet.
struct New {
    stream: Stream,
    from: Option<IpAddr>,
    is_trusted: bool,
}

impl New {
    fn of(stream: Stream, from: Option<IpAddr>, service: &Service) -> Self {
        Self { stream, from, is_trusted: from.is_some_and(|from| service.proxies.contains(from)) }
    }

    /// Counts the connection for its address. Returns `None` if the address has its full share.
    fn shared(self, places: &Places) -> Option<(Self, Share)> {
        let share = places.share(self.from.filter(|from| !from.is_loopback() && !self.is_trusted));
        if share.is_none() {
            tracing::debug!(from = ?self.from, "one address has too many connections; closing the new one");
        }
        share.map(|share| (self, share))
    }
}

/// Starts a task that answers the requests of a connection.
fn begin(
    connections: &mut JoinSet<()>,
    new: New,
    place: Place,
    door: &Door,
    service: &Arc<Service>,
    stop: &CancellationToken,
) {
    let service = Arc::clone(service);
    let stop = stop.clone();
    let from = new.from;
    let plain = Origin { address: from, is_tls: false, is_http2: false };
    match (new.stream, door) {
        (Stream::Tcp(stream), Door::Tcp(_, Some((tls, turns)))) => {
            prepare(&stream);
            let config = tls.config();
            let turns = turns.clone();
            connections.spawn(async move {
                // A handshake is no request under way, so shutdown does not wait for it.
                let stream = tokio::select! {
                    stream = handshake::shake_hands(config, stream, &turns, from.map(peer::caller)) => stream,
                    () = place.turn().asked_to_leave() => None,
                    () = stop.cancelled() => None,
                };
                if let Some(stream) = stream {
                    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(tls::HTTP2);
                    let from = Origin { address: from, is_tls: true, is_http2 };
                    connection::converse(stream, from, place, service, stop).await;
                }
            });
        }
        (Stream::Tcp(stream), _) => {
            prepare(&stream);
            connections.spawn(connection::converse(stream, plain, place, service, stop));
        }
        (Stream::Unix(stream), _) => {
            connections.spawn(connection::converse(stream, plain, place, service, stop));
        }
    }
}

/// Sets the options of a TCP connection. A failure is ignored: the connection works without them.
fn prepare(stream: &TcpStream) {
    use rustix::net::sockopt;
    // `TCP_NODELAY`: small answers must not wait for an acknowledgement of the previous one.
    let _ = stream.set_nodelay(true);
    // Keepalive: a machine that vanished must not hold a command's stream open for ever.
    let (idle, interval, count) = KEEPALIVE;
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, idle);
    let _ = sockopt::set_tcp_keepintvl(stream, interval);
    let _ = sockopt::set_tcp_keepcnt(stream, count);
}
