//! Connections to hosts for plain HTTP.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::output::{Output, PIPE_BYTES};
use super::refusal::Refusal;
use super::requests::Accepted;

/// Begins to speak HTTP on a connection that the server makes.
pub(super) async fn open(accepted: Accepted) -> Result<SendRequest<Incoming>, Refusal> {
    let Accepted { input, reply } = accepted;
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    reply.send(Output::Requests(far)).map_err(|_| broken())?;
    let io = TokioIo::new(tokio::io::join(Input { body: input, left: Bytes::new() }, near));
    let opened = http1::Builder::new().preserve_header_case(true).handshake(io).await;
    let (sender, connection) = opened.map_err(|_| broken())?;
    // Its failure is that of the request that is under way.
    spawn_local(async move { drop(connection.with_upgrades().await) });
    Ok(sender)
}

fn broken() -> Refusal {
    Refusal::unreachable("the connection to the host broke")
}

/// Begins to speak HTTP with a process of the box itself.
pub(super) async fn inside(stream: TcpStream) -> Result<SendRequest<Incoming>, Refusal> {
    let opened = http1::Builder::new().preserve_header_case(true).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = opened.map_err(|_| Refusal::unreachable("the connection in the sandbox broke"))?;
    spawn_local(async move { drop(connection.with_upgrades().await) });
    Ok(sender)
}

/// Bytes that the host sends.
struct Input {
    body: Incoming,
    left: Bytes,
}

impl AsyncRead for Input {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.left.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => self.left = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let count = self.left.len().min(buffer.remaining());
        buffer.put_slice(&self.left.split_to(count));
        Poll::Ready(Ok(()))
    }
}
