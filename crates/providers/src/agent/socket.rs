//! Unix sockets of agents.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use guest_protocol::SOCKET_BUFFER_BYTES;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::UnixStream;

/// Connects to a socket that was opened as a path: what is there by now may be another file.
///
/// # Errors
/// Those of the system.
pub(crate) async fn connect_unix(socket: &OwnedFd) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await?;
    // On failure there are more turns between the two.
    let _ = set_socket_send_buffer_size(&stream, SOCKET_BUFFER_BYTES);
    Ok(stream)
}
