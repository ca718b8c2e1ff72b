//! Bytes between a process of a box and a host.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use domain::Host;
use futures_util::{FutureExt, StreamExt, stream};
use providers::{ByteStream, EgressAnswer, STREAM_BYTES_MAX};
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::account::Account;
use super::hello::{self, FirstBytes, HANDSHAKE, Hello};
use super::host_stream::{HostStream, ReadHalf, WriteHalf};
use super::ledger::Direction;
use super::request_head::{self, Head};
use crate::budget::Reservation;

/// Largest read of what a host sends, in bytes.
const READ_BYTES: usize = 64 * 1024;
/// TLS alert: fatal, access denied. RFC 8446 §6.
const ACCESS_DENIED: &[u8] = &[21, 3, 3, 0, 2, 2, 49];
/// Longest time for the process to take the alert.
const ALERT_WAIT: Duration = Duration::from_secs(2);
/// Longest wait of what a host sends for memory.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(60);
/// End of the head of a request, added to a head that lacks it.
const END_OF_HEAD: &[u8] = b"\r\n\r\n";
/// Longest part of a server name in a reason, in characters.
const NAME_CHARS_MAX: usize = 100;

/// Reason why an open connection was ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cut {
    /// The name that the client shows, by TLS or HTTP, is refused: the words of the refusal.
    Name(String),
    /// No byte passed for too long.
    Idle,
    /// The box has exchanged all the bytes that it may.
    Spent,
    /// No memory is left for what the process sends.
    Memory,
    /// A side went away.
    Broken,
}

/// Time of the last byte, in milliseconds since the start of the connection.
#[derive(Debug)]
struct LastByte {
    started: Instant,
    at_ms: AtomicU64,
}

impl LastByte {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn touch(&self) {
        self.at_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Returns once no byte has passed for `limit`.
    async fn idle(&self, limit: Duration) {
        loop {
            let silent = Duration::from_millis(self.now_ms().saturating_sub(self.at_ms.load(Ordering::Relaxed)));
            match limit.checked_sub(silent) {
                Some(left) if !left.is_zero() => sleep(left).await,
                Some(_) | None => return,
            }
        }
    }
}

/// Passes bytes both ways until both directions have ended, and returns the reason if it was cut.
/// A TLS client has to show the name that it asked for, and no client may show one that is denied.
pub(super) async fn run(
    account: &Arc<Account>,
    host: &Host,
    port: u16,
    stream: HostStream,
    answer: Box<dyn EgressAnswer>,
) -> Option<Cut> {
    let (read, mut write) = stream.into_split();
    let last = Arc::new(LastByte { started: Instant::now(), at_ms: AtomicU64::new(0) });
    let refused = CancellationToken::new();
    let broken = CancellationToken::new();
    let from = FromHost {
        read,
        account: Arc::clone(account),
        last: Arc::clone(&last),
        refused: refused.clone(),
        broken: broken.clone(),
        held: account.memory().nothing(),
    };
    let Ok(mut from_process) = answer.accept(from.pieces()).await else { return reset(write, Cut::Broken) };
    let to_host = ToHost { account, host, port, last: &last };
    let passed = tokio::select! {
        passed = to_host.run(&mut from_process, &mut write) => passed,
        () = broken.cancelled() => Err(Cut::Broken),
        () = last.idle(account.limits().idle) => Err(Cut::Idle),
    };
    match passed {
        Ok(()) => None,
        Err(Cut::Broken) if !account.has_bytes_left() => reset(write, Cut::Spent),
        Err(cut @ Cut::Name(_)) => {
            refused.cancel();
            drain(from_process).await;
            reset(write, cut)
        }
        Err(cut) => reset(write, cut),
    }
}

/// Reads on for a moment, so that the process gets the alert.
async fn drain(mut from_process: ByteStream) {
    let rest = async { while let Some(Ok(_)) = from_process.next().await {} };
    let _ = timeout(ALERT_WAIT, rest).await;
}

/// Resets the connection to the host, also while the other direction is held.
fn reset(write: WriteHalf, cut: Cut) -> Option<Cut> {
    write.reset();
    Some(cut)
}

/// The direction from the host.
struct FromHost {
    read: ReadHalf,
    account: Arc<Account>,
    last: Arc<LastByte>,
    /// Token that ends the direction with an alert.
    refused: CancellationToken,
    /// Token for an error of this direction.
    broken: CancellationToken,
    /// Memory of the piece that is under way.
    held: Reservation,
}

impl FromHost {
    /// Returns what the host sends until its end.
    fn pieces(self) -> ByteStream {
        let pieces = stream::unfold(Some(self), |from| async move {
            let mut from = from?;
            match from.next().await {
                Ok(Some(piece)) if from.refused.is_cancelled() => Some((Ok(piece), None)),
                Ok(Some(piece)) => Some((Ok(piece), Some(from))),
                Ok(None) => None,
                Err(error) => {
                    from.broken.cancel();
                    Some((Err(providers::Error::failed("read from a host", error)), None))
                }
            }
        });
        pieces.boxed()
    }

    async fn next(&mut self) -> std::io::Result<Option<Bytes>> {
        loop {
            if self.read.readable().now_or_never().is_none() {
                // The piece before is on its way, and an idle connection holds nothing.
                self.held.shrink_to(0);
            }
            tokio::select! {
                biased;
                () = self.refused.cancelled() => return Ok(Some(Bytes::from_static(ACCESS_DENIED))),
                ready = self.read.readable() => ready?,
            }
            if self.held.bytes() == 0 {
                let held = self.held.grow_within(READ_BYTES, MEMORY_WAIT_MAX).await;
                held.map_err(|_| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
            }
            let mut piece = BytesMut::with_capacity(READ_BYTES);
            match self.read.try_read_buf(&mut piece) {
                Ok(0) => return Ok(None),
                Ok(count) => {
                    self.last.touch();
                    self.account.pass(Direction::Received, count).await?;
                    return Ok(Some(piece.freeze()));
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The direction to the host.
struct ToHost<'a> {
    account: &'a Account,
    host: &'a Host,
    port: u16,
    last: &'a LastByte,
}

impl ToHost<'_> {
    async fn run(&self, from_process: &mut ByteStream, write: &mut WriteHalf) -> Result<(), Cut> {
        let denies_names = self.account.denies_names(self.port);
        // First bytes of a client that has to show a name, or that may show one that is denied.
        let mut first = (matches!(self.host, Host::Name(_)) || denies_names).then(Vec::new);
        // Memory for all that can wait here, for as long as anything does.
        let mut held = self.account.memory().nothing();
        loop {
            let piece = match from_process.next().now_or_never() {
                Some(piece) => piece,
                None => {
                    held.shrink_to(0);
                    from_process.next().await
                }
            };
            let Some(piece) = piece else { return Ok(()) };
            if held.bytes() == 0 {
                // The process may go on sending, so that it cannot be left to wait.
                held.grow(STREAM_BYTES_MAX).map_err(|_| Cut::Memory)?;
            }
            let mut piece = piece.map_err(|_| Cut::Broken)?;
            // The end of what the process sends.
            if piece.is_empty() {
                if let Some(bytes) = first.take().filter(|bytes| !bytes.is_empty()) {
                    let ended = [&bytes, END_OF_HEAD].concat();
                    if bytes[0] == HANDSHAKE || !self.is_shown(&ended, denies_names).map_err(Cut::Name)? {
                        return Err(Cut::Name("the TLS client sent an incomplete first message".to_owned()));
                    }
                    self.account.pass(Direction::Sent, bytes.len()).await.map_err(|_| Cut::Broken)?;
                    write.write_all(&bytes).await.map_err(|_| Cut::Broken)?;
                }
                write.shutdown().await.map_err(|_| Cut::Broken)?;
                continue;
            }
            if let Some(bytes) = &mut first {
                bytes.extend_from_slice(&piece);
                if !self.is_shown(bytes, denies_names).map_err(Cut::Name)? {
                    continue;
                }
                piece = first.take().unwrap_or_default().into();
            }
            self.last.touch();
            self.account.pass(Direction::Sent, piece.len()).await.map_err(|_| Cut::Broken)?;
            write.write_all(&piece).await.map_err(|_| Cut::Broken)?;
            self.last.touch();
        }
    }

    /// Checks the name in the first bytes of a client; returns false if more of them are needed.
    fn is_shown(&self, bytes: &[u8], denies_names: bool) -> Result<bool, String> {
        match hello::read(bytes) {
            FirstBytes::Incomplete => return Ok(false),
            FirstBytes::NotTls if !denies_names => {}
            FirstBytes::NotTls => match request_head::read(bytes) {
                Head::Incomplete => return Ok(false),
                Head::NotHttp => {}
                Head::Hosts(hosts) => hosts.iter().try_for_each(|name| self.check_deny_lists(name, "`Host`"))?,
                Head::Long => return Err("the head of the HTTP request is too long to find its `Host`".to_owned()),
            },
            FirstBytes::Hello(hello) => self.check(&hello)?,
            FirstBytes::Malformed => return Err("the first message of the TLS client is malformed".to_owned()),
        }
        Ok(true)
    }

    /// Checks that a TLS client shows the name that it asked for. One that asked for an address may show none.
    fn check(&self, hello: &Hello) -> Result<(), String> {
        if let Some(name) = &hello.name {
            self.check_deny_lists(name, "the server name (SNI)")?;
        }
        if matches!(self.host, Host::Address(_)) {
            return Ok(());
        }
        let Some(name) = &hello.name else {
            return Err("the TLS client sends no server name (SNI); connect by name".to_owned());
        };
        if Host::parse(name).as_ref() != Ok(self.host) {
            let name = shortened(name);
            return Err(format!("the TLS client sends the server name `{name}` (SNI) instead of the requested one"));
        }
        if hello.is_encrypted && self.account.is_listed() {
            return Err("the TLS client encrypts its server name (ECH), which an allow-list cannot check; \
                        switch that off in the client"
                .to_owned());
        }
        Ok(())
    }

    /// Refuses a name that a policy denies, whatever the connection was asked for: many hosts share an address.
    fn check_deny_lists(&self, name: &str, shown_in: &str) -> Result<(), String> {
        if self.account.denies(name, self.port) {
            return Err(format!(
                "the client sends `{}` in {shown_in}, which the egress policy denies",
                shortened(name)
            ));
        }
        Ok(())
    }
}

fn shortened(name: &str) -> String {
    name.chars().take(NAME_CHARS_MAX).collect()
}
