//! Connections to the agent, over any byte stream.

use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_local;

use super::route;
use crate::agent::Agent;

/// Maximum number of streams of one connection: all commands and files, and some short requests.
const STREAMS_MAX: u32 = 2048;
/// Bytes that the server may have in flight on one stream.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// Bytes that the server may have in flight on all streams of a connection together: enough for all
/// that a server has at once. Otherwise a few commands that do not read their stdin would block the
/// stdin of all others.
const CONNECTION_WINDOW_BYTES: u32 = 576 * 1024 * 1024;
/// Large frames: fewer of them are cheaper on a unix socket, and far cheaper below a tracer.
const FRAME_BYTES_MAX: u32 = 256 * 1024;
/// Bytes that HTTP/2 buffers of a stream before the client has received them.
const SEND_BUFFER_BYTES: usize = 512 * 1024;
/// Maximum size of a request's headers: a path of 4,096 bytes, encoded for a header, takes up to
/// nine times as many.
const HEADERS_BYTES_MAX: u32 = 128 * 1024;
/// Maximum number of requests that a client may reset before the agent has handled them.
const UNSEEN_RESETS_MAX: usize = 2048;

/// Serves the client at the other end of `io` until it disconnects.
pub(super) async fn serve(
    agent: Rc<Agent>,
    io: impl AsyncRead + AsyncWrite + Unpin + 'static,
    builder: &http2::Builder<Local>,
) {
    let service = service_fn(move |request| {
        let agent = Rc::clone(&agent);
        async move { Ok::<_, Infallible>(route::answer(&agent, request).await) }
    });
    // A client that disconnects is normal, and there is nowhere to report it.
    let _ = builder.serve_connection(TokioIo::new(io), service).await;
}

/// Creates the HTTP/2 settings that all connections share.
pub(super) fn builder() -> http2::Builder<Local> {
    let mut builder = http2::Builder::new(Local);
    builder
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        // A request may be answered before its end, and what follows then is an error each. Counted over
        // the life of the connection, they would end it with all that runs.
        .max_local_error_reset_streams(None);
    builder
}

/// Executor that runs the tasks of a connection on the agent's only thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Local;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        spawn_local(future);
    }
}
