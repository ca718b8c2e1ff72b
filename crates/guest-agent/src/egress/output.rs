//! Bytes that a process sends to a host.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, DuplexStream};

use crate::link;

/// Bytes of a request that wait between the proxy and the server.
pub(super) const PIPE_BYTES: usize = 64 * 1024;

/// Bytes that a process sends to a host, as it writes them or as the proxy has rewritten them.
#[derive(Debug)]
pub(crate) enum Output {
    /// All bytes of a tunnel.
    Tunnel(link::Output),
    /// Requests of plain HTTP.
    Requests(DuplexStream),
}

impl Output {
    /// Returns the next bytes; `None` once there are no more.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<std::io::Result<Bytes>>> {
        let stream = match self {
            Output::Tunnel(output) => return output.poll_piece(cx),
            Output::Requests(stream) => stream,
        };
        let mut piece = Vec::with_capacity(PIPE_BYTES);
        Poll::Ready(match ready!(pin!(stream.read_buf(&mut piece)).poll(cx)) {
            Ok(0) => None,
            // The bytes may wait long for their reader.
            Ok(_) => Some(Ok(Bytes::copy_from_slice(&piece))),
            Err(error) => Some(Err(error)),
        })
    }
}
