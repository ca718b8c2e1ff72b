//! Connections to the box itself that a process asks the proxy for, since it does not know that they need none.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::target::Target;

/// Longest wait for a process of the box to take a connection.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// Connects to a process of the box; `None` if the target is another host, or nothing listens there. `own` is the port
/// of the proxy, which does not speak with itself.
pub(super) async fn dial(target: &Target, own: u16) -> Option<TcpStream> {
    if target.port == own {
        return None;
    }
    for address in addresses(&target.host) {
        if let Ok(Ok(stream)) = timeout(CONNECT_WAIT, TcpStream::connect((address, target.port))).await {
            let _ = stream.set_nodelay(true);
            return Some(stream);
        }
    }
    None
}

/// Returns whether a host is the box itself.
pub(super) fn is_the_box(host: &str) -> bool {
    !addresses(host).is_empty()
}

/// Returns the addresses of a host that is the box itself.
fn addresses(host: &str) -> Vec<IpAddr> {
    if let Ok(address) = host.parse::<IpAddr>().map(|address| address.to_canonical()) {
        return match address {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => vec![Ipv4Addr::LOCALHOST.into()],
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()],
            address if address.is_loopback() => vec![address],
            IpAddr::V4(_) | IpAddr::V6(_) => Vec::new(),
        };
    }
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_named = name == "localhost" || name.ends_with(".localhost") || is_host_name(&name);
    if is_named { vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] } else { Vec::new() }
}

/// Returns whether a name is the host name of the box. One with a dot could be that of another host too.
fn is_host_name(name: &str) -> bool {
    let system = rustix::system::uname();
    let own = system.nodename().to_string_lossy();
    !own.is_empty() && !own.contains('.') && own.eq_ignore_ascii_case(name)
}

/// Passes bytes on between a process and another of the same box.
pub(super) async fn relay(mut process: impl AsyncRead + AsyncWrite + Unpin, mut inside: TcpStream) -> io::Result<()> {
    copy_bidirectional(&mut process, &mut inside).await.map(drop)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_box_is_known_by_every_name_and_address_of_its_loopback() {
        for host in ["127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::", "::ffff:127.0.0.9", "localhost", "A.LocalHost."]
        {
            assert!(is_the_box(host), "{host}");
        }
        for host in ["198.41.0.4", "2606:4700::1", "127.1", "0", "localhost.example", "notlocalhost", ""] {
            assert!(!is_the_box(host), "{host}");
        }
        assert!(is_the_box(&rustix::system::uname().nodename().to_string_lossy()));
    }

    #[tokio::test]
    async fn only_what_listens_is_reached_and_not_the_proxy_itself() {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = |host: &str| Target::new(host.to_owned(), port).unwrap();
        assert!(dial(&target("0.0.0.0"), 1).await.is_some());
        assert!(dial(&target("localhost"), 1).await.is_some());
        assert!(dial(&target("localhost"), port).await.is_none());
        assert!(dial(&target("198.41.0.4"), 1).await.is_none());
        drop(listener);
        assert!(dial(&target("127.0.0.1"), 1).await.is_none());
    }
}
