//! Listeners of the proxy, and the connections to them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use guest_protocol::{EGRESS_CONNECTIONS_MAX, Network};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::requests::Requests;
use super::{http, socks, transparent};
use crate::diverted::PROXY_PORT;
use crate::tcp::bind;

/// User of the proxy's password.
pub(super) const USER: &str = "tidebox";
/// Length of the random password.
const PASSWORD_BYTES: usize = 16;
/// Longest wait for the whole head of a request: a process that sends it byte for byte would keep its
/// place for ever.
const HEAD_WAIT: Duration = Duration::from_secs(30);
/// Pause before the next accept when no descriptor is left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A proxy that listens.
#[derive(Debug)]
pub(super) struct Proxy {
    addresses: Vec<SocketAddr>,
    /// Password where processes that are not the box's can reach the proxy.
    password: Option<String>,
    requests: Rc<Requests>,
    permits: Arc<Semaphore>,
}

impl Proxy {
    /// Starts to listen on the loopback.
    pub(super) fn listen(network: Network, requests: Rc<Requests>) -> io::Result<Rc<Proxy>> {
        let (port, password) = match network {
            Network::Loopback => (PROXY_PORT, None),
            Network::Own => (0, None),
            Network::Shared => (0, Some(password()?)),
        };
        let first = bind(Ipv4Addr::LOCALHOST.into(), port).or_else(|_| bind(Ipv4Addr::LOCALHOST.into(), 0))?;
        // A box without IPv6 has no second one.
        let second = bind(Ipv6Addr::LOCALHOST.into(), first.local_addr()?.port()).ok();
        match network {
            Network::Loopback | Network::Own => requests.allow_inside(first.local_addr()?.port()),
            // The loopback is that of the host, which a process reaches by itself or not at all.
            Network::Shared => {}
        }
        let listeners = [Some(first), second].into_iter().flatten().collect();
        Proxy::serve(listeners, password, requests)
    }

    /// Starts to serve on sockets that listen on the loopback, and which the kernel leads further
    /// connections of the box to.
    pub(super) fn listen_on(sockets: Vec<OwnedFd>, requests: Rc<Requests>) -> io::Result<Rc<Proxy>> {
        let listeners =
            sockets.into_iter().map(|socket| TcpListener::from_std(socket.into())).collect::<io::Result<Vec<_>>>()?;
        if let Some(first) = listeners.first() {
            requests.allow_inside(first.local_addr()?.port());
        }
        Proxy::serve(listeners, None, requests)
    }

    fn serve(listeners: Vec<TcpListener>, password: Option<String>, requests: Rc<Requests>) -> io::Result<Rc<Proxy>> {
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
        let permits = Arc::new(Semaphore::new(EGRESS_CONNECTIONS_MAX));
        let proxy = Rc::new(Proxy { addresses, password, requests, permits });
        for listener in listeners {
            spawn_local(accept(Rc::clone(&proxy), listener));
        }
        Ok(proxy)
    }

    pub(super) fn port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }

    pub(super) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    pub(super) fn is_at(&self, address: IpAddr, port: u16) -> bool {
        self.addresses.contains(&SocketAddr::new(address, port))
    }
}

/// Returns a random password, which fits a URL as it is.
fn password() -> io::Result<String> {
    let mut bytes = [0; PASSWORD_BYTES];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

async fn accept(proxy: Rc<Proxy>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Beyond the limit a process sees the end of its connection at once, instead of a wait.
                if let Ok(permit) = Arc::clone(&proxy.permits).try_acquire_owned() {
                    spawn_local(serve(Rc::clone(&proxy), stream, Rc::new(permit)));
                }
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Serves one connection of a process. If it was meant for the proxy, its first byte is the protocol.
async fn serve(proxy: Rc<Proxy>, stream: TcpStream, permit: Rc<OwnedSemaphorePermit>) {
    if let Some(names) = proxy.requests.names() {
        // A connection that was led here still has the address that the process asked for.
        let Ok(asked) = stream.local_addr() else { return };
        if !asked.ip().is_loopback() {
            return transparent::serve(stream, asked, &proxy.requests, names, permit, HEAD_WAIT).await;
        }
    }
    let mut first = [0];
    let Ok(Ok(1)) = timeout(HEAD_WAIT, stream.peek(&mut first)).await else { return };
    let credentials = proxy.password().map(|password| (USER, password));
    if first == [socks::VERSION] {
        socks::serve(stream, &proxy.requests, credentials, permit, HEAD_WAIT).await;
    } else {
        http::serve(stream, Rc::clone(&proxy.requests), credentials, permit, HEAD_WAIT).await;
    }
}

#[cfg(test)]
mod test {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::LocalSet;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_that_does_not_finish_its_head_loses_its_place() {
        let local = LocalSet::new();
        let slow = async {
            let proxy = Proxy::listen(Network::Own, Rc::default()).unwrap();
            for begin in [&b""[..], b"GET http://a/ HT", b"CONNECT a:1 HTTP/1.1\r\nA: b\r\n", b"\x05\x02\x00"] {
                let mut stream = TcpStream::connect(proxy.addresses[0]).await.unwrap();
                stream.write_all(begin).await.unwrap();
                let started = Instant::now();
                // An answer or none, and then the end.
                let _ = stream.read_to_end(&mut Vec::new()).await;
                let waited = started.elapsed();
                assert!(HEAD_WAIT <= waited && waited <= 2 * HEAD_WAIT, "{begin:?}: {waited:?}");
            }
            assert_eq!(proxy.permits.available_permits(), EGRESS_CONNECTIONS_MAX);
        };
        local.run_until(slow).await;
    }

    #[tokio::test]
    async fn a_taken_port_is_replaced_by_a_free_one() {
        let local = LocalSet::new();
        let two = async {
            let first = Proxy::listen(Network::Loopback, Rc::default()).unwrap();
            let second = Proxy::listen(Network::Loopback, Rc::default()).unwrap();
            assert_ne!(first.port(), second.port());
            assert!(second.is_at(Ipv4Addr::LOCALHOST.into(), second.port()));
            assert!(!second.is_at(Ipv4Addr::LOCALHOST.into(), first.port()));
            assert!(!second.is_at(Ipv4Addr::UNSPECIFIED.into(), second.port()));
        };
        local.run_until(two).await;
    }
}
