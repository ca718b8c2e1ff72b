//! Sockets that the configuration names.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::failure::Failure;
use crate::config::{self, Config};
use crate::http::BACKLOG;
use crate::http::Listeners;
use crate::http::Socket;
use crate::http::Tls;

/// Opens the listeners that the configuration names; nothing is answered yet.
pub(super) async fn open(config: &Config) -> Result<Listeners, Failure> {
    raise_descriptor_limit();
    let address = SocketAddr::new(config.server.host, config.server.port);
    let tls = match &config.server.tls {
        config::Tls { cert_file: Some(cert), key_file: Some(key) } => Some(Tls::load(cert, key)?),
        // One file without the other is a fault of the configuration.
        config::Tls { .. } => None,
    };
    let tcp = bind(address).await.map_err(|source| Failure::Listen { address, source })?;
    let unix = config.server.unix_socket.as_deref().map(Socket::bind).transpose()?;
    Ok(Listeners { tcp, tls, unix })
}

async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let tcp = TcpListener::bind(address).await?;
    // The library's own backlog is shorter than a burst of clients.
    rustix::net::listen(&tcp, BACKLOG)?;
    Ok(tcp)
}

/// Raises the limit on open descriptors to the most that the system allows. The usual 1,024 is
/// kept low for programs that use `select`; boxes have a limit of their own.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    // If this is refused, the limit stays as it was, and the bound on connections follows it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Returns the port of the TCP listener.
pub(super) fn port(listeners: &Listeners) -> Result<u16, Failure> {
    Ok(listeners.tcp.local_addr().map_err(Failure::System)?.port())
}

/// Returns the URL of the TCP listener, with the port that the kernel chose.
pub(super) fn url(listeners: &Listeners) -> Result<String, Failure> {
    let bound = listeners.tcp.local_addr().map_err(Failure::System)?;
    let scheme = if listeners.tls.is_some() { "https" } else { "http" };
    Ok(format!("{scheme}://{bound}"))
}
