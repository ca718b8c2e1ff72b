//! Unix sockets of agents.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use guest_protocol::SOCKET_BUFFER_BYTES;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::UnixStream;

use crate::Error;

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

/// Returns whether `error`, of [`connect_unix`] or of opening its socket, means that nothing listens there
/// now. A listener that closes resets the connections that it has not accepted.
pub(crate) fn nothing_listens(error: &io::Error) -> bool {
    [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused, io::ErrorKind::ConnectionReset].contains(&error.kind())
}

/// Converts an error of [`connect_unix`], or of opening its socket: a box without a listener is gone.
pub(crate) fn unreached(action: &'static str, error: io::Error) -> Error {
    if nothing_listens(&error) { Error::Gone } else { Error::failed(action, error) }
}

#[cfg(test)]
mod test {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn an_agent_that_ends_before_it_accepts_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        assert!(nothing_listens(&UnixStream::connect(&path).unwrap_err()), "no socket yet");
        let listener = UnixListener::bind(&path).unwrap();
        let waiting = UnixStream::connect(&path).unwrap();
        drop(listener);
        let error = waiting.take_error().unwrap().unwrap();
        assert!(nothing_listens(&error), "{error}");
        assert!(nothing_listens(&UnixStream::connect(&path).unwrap_err()), "no listener any more");
    }
}
