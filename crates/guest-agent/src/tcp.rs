//! Ports that the agent itself listens on.

use std::io;
use std::net::IpAddr;

use rustix::net::listen;
use tokio::net::TcpListener;

/// Connections that wait until the agent has time for them: as many as it serves at once. Beyond
/// them the kernel drops the last packet of a handshake, and a process that waits for the other side
/// to speak may wait without end.
pub(crate) const BACKLOG: i32 = 1024;

/// Listens on a port.
pub(crate) fn bind(address: IpAddr, port: u16) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind((address, port))?;
    // The library's own is shorter.
    listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

#[cfg(test)]
mod test {
    use std::net::{Ipv4Addr, TcpStream};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_burst_of_processes_is_connected_though_none_is_accepted() {
        let listener = bind(Ipv4Addr::LOCALHOST.into(), 0).unwrap();
        let address = listener.local_addr().unwrap();
        let connect = |_| TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
        assert_eq!((0..500).map(connect).collect::<Vec<_>>().len(), 500);
    }
}
