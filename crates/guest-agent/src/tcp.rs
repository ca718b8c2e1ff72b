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
