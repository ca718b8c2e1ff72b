//! TLS handshakes. They cost a client nothing and the server a signature, so they are limited
//! per address and in all.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::ready;
use std::time::Duration;

use parking_lot::Mutex;
use providers::Chain;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::{StartHandshake, TlsStream};

use crate::http::error::{ApiError, Refusal};
use crate::http::stream::paced_read::{Rule, Ruled};

/// Time that a client may take for the handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Most bytes read of an incomplete `ClientHello`. Those of today's clients have two kilobytes.
const HELLO_BYTES_MAX: usize = 16 * 1024;
/// Time that a client without TLS may take to read the refusal.
const PLAIN_MAX: Duration = Duration::from_secs(1);
/// First byte of a TLS connection: the record type `handshake`.
const HANDSHAKE_RECORD: u8 = 0x16;

/// Concurrency limits of handshakes: at most half of the processors compute for them at a time,
/// and one for each address.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    of_one: Arc<Mutex<HashMap<Option<IpAddr>, Arc<Semaphore>>>>,
}

/// Permits of one handshake step, released on drop.
#[derive(Debug)]
struct Turn {
    // Released in this order.
    _all: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
    _line: Line,
}

/// Registration of an address that has handshakes waiting or running. The last one dropped
/// removes the address.
#[derive(Debug)]
struct Line {
    turns: Turns,
    address: Option<IpAddr>,
    own: Option<Arc<Semaphore>>,
}

impl Turns {
    pub(super) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { all: Arc::new(Semaphore::new((processors / 2).max(1))), of_one: Arc::default() }
    }

    /// Waits for the permits of one step.
    async fn take(self, address: Option<IpAddr>) -> Turn {
        let own = {
            let mut of_one = self.of_one.lock();
            Arc::clone(of_one.entry(address).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        let all = Arc::clone(&self.all);
        let line = Line { turns: self, address, own: Some(Arc::clone(&own)) };
        let own = permit(own).await;
        Turn { _all: permit(all).await, _own: own, _line: line }
    }

    /// Drives `handshake` to its end, with a permit for each poll.
    async fn run<F: Future + Unpin>(&self, address: Option<IpAddr>, mut handshake: F) -> F::Output {
        let mut waiting = None;
        poll_fn(|context| {
            let wait = waiting.get_or_insert_with(|| Box::pin(self.clone().take(address)));
            let turn = ready!(wait.as_mut().poll(context));
            waiting = None;
            let polled = Pin::new(&mut handshake).poll(context);
            drop(turn);
            polled
        })
        .await
    }
}

async fn permit(of: Arc<Semaphore>) -> OwnedSemaphorePermit {
    match of.acquire_owned().await {
        Ok(permit) => permit,
        // The semaphore is never closed.
        Err(_) => std::future::pending().await,
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut of_one = self.turns.of_one.lock();
        self.own = None;
        if of_one.get(&self.address).is_some_and(|own| Arc::strong_count(own) == 1) {
            of_one.remove(&self.address);
        }
    }
}

/// Bytes of the `ClientHello` that may still be read.
#[derive(Debug)]
struct Left(usize);

impl Rule for Left {
    fn at_once(&mut self) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the first message is too long"));
        }
        Ok(self.0)
    }

    fn came(&mut self, bytes: usize) -> io::Result<()> {
        self.0 -= bytes;
        Ok(())
    }
}

/// Performs the TLS handshake. Returns `None` if it fails or takes longer than
/// [`HANDSHAKE_MAX`], and for plain HTTP, which is answered with a hint.
pub(super) async fn shake_hands(
    config: Arc<ServerConfig>,
    stream: TcpStream,
    turns: &Turns,
    address: Option<IpAddr>,
) -> Option<TlsStream<TcpStream>> {
    let shaken = async {
        let mut first = [0];
        if stream.peek(&mut first).await.is_ok_and(|read| read == 1 && first[0] != HANDSHAKE_RECORD) {
            if first[0].is_ascii_uppercase() {
                refuse_plain(stream).await;
            }
            return None;
        }
        let hello = LazyConfigAcceptor::new(Acceptor::default(), Ruled::new(stream, Left(HELLO_BYTES_MAX))).await;
        let shaken = async {
            let StartHandshake { accepted, io, .. } = hello?;
            let handshake = StartHandshake::from_parts(accepted, io.stream);
            // Any step may be the one that signs.
            turns.run(address, pin!(async { handshake.into_stream(config).await })).await
        };
        shaken.await.inspect_err(|error| tracing::debug!(error = %Chain(error), "a handshake failed")).ok()
    };
    tokio::time::timeout(HANDSHAKE_MAX, shaken).await.ok().flatten()
}

/// Answers a client that speaks HTTP without TLS.
async fn refuse_plain(mut stream: TcpStream) {
    let error = ApiError::from(Refusal::NeedsTls);
    let status = error.status();
    let body = serde_json::to_string(&api::ErrorBody::from(&error)).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let answered = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing with unread bytes would make the kernel reset the connection, and the answer
        // would be lost.
        while stream.read(&mut [0; 1024]).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(PLAIN_MAX, answered).await;
}

#[cfg(test)]
mod test {
    use futures_util::FutureExt;
    use tokio::net::TcpListener;

    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some([192, 0, 2, last].into())
    }

    #[tokio::test]
    async fn handshakes_of_one_address_wait_for_each_other_and_not_those_of_another() {
        let turns = Turns { all: Arc::new(Semaphore::new(2)), of_one: Arc::default() };
        let first = turns.clone().take(address(1)).await;
        let mut second = pin!(turns.clone().take(address(1)));
        assert!(second.as_mut().now_or_never().is_none());
        let other = turns.clone().take(address(2)).now_or_never().expect("another address has its own turn");
        // The third address waits for one of the two that compute, and no longer.
        let mut third = pin!(turns.clone().take(address(3)));
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        let third = third.as_mut().now_or_never();
        assert!(third.is_some() && second.as_mut().now_or_never().is_none());
        drop(other);
        let second = second.as_mut().now_or_never();
        assert!(second.is_some());
        drop((second, third));
        assert!(turns.of_one.lock().is_empty());
    }

    #[tokio::test]
    async fn a_first_message_without_an_end_is_not_read_on() {
        let config =
            ServerConfig::builder_with_provider(Arc::new(tokio_rustls::rustls::crypto::ring::default_provider()));
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = tokio_rustls::rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = config.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        // Records of a ClientHello that announces 60,000 bytes.
        let mut sent = vec![HANDSHAKE_RECORD, 3, 1, 0x10, 0, 1, 0, 0xea, 0x60, 3, 3];
        sent.resize(5 + 0x1000, 0);
        for _ in 0..4 {
            sent.extend([HANDSHAKE_RECORD, 3, 1, 0x10, 0]);
            sent.resize(sent.len() + 0x1000, 0);
        }
        client.write_all(&sent).await.unwrap();
        let turns = Turns::new();
        let shaken = shake_hands(Arc::new(config), stream, &turns, address(1));
        let shaken = tokio::time::timeout(HANDSHAKE_MAX / 2, shaken).await.expect("the rest is not waited for");
        assert!(shaken.is_none());
    }
}
