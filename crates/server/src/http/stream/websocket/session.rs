//! The session of a WebSocket: its bounds, its pings and its end, whatever it is for.

use std::time::Duration;

use api::{SocketKind, SocketOutput};
use bytes::Bytes;
use futures_util::{SinkExt, Stream, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as Fault, Message};
use tokio_util::io::ReaderStream;
use tokio_util::sync::CancellationToken;

use super::inflow::Counter;
use crate::budget::{Account, Reservation};
use crate::http::error::{ApiError, Refusal};
use crate::http::key_life::{KEY_ENDED, KeyLife};
use crate::http::request_memory::{SMALL_BYTES, held_with};
use crate::http::stream::paced_read::Ruled;
use crate::http::strict_json::parse_as;

/// Largest message, in bytes: the same as for JSON bodies.
const MESSAGE_BYTES_MAX: usize = crate::http::request::JSON_BYTES_MAX;
/// Interval of pings to the client. Many proxies cut connections that are quiet for long.
pub const PING_EVERY: Duration = Duration::from_secs(15);
/// Silence after which a client counts as gone, though pinged many times. It equals the time
/// for which a client may take no byte of what is sent.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Time for the last message and the client's close frame.
const FAREWELL_MAX: Duration = Duration::from_secs(5);
/// Size of reads and writes. Few clients send much.
pub const BUFFER_BYTES: usize = 8 * 1024;
/// Most bytes that are read after a message that cannot be decoded.
const GARBLED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Name of messages in errors.
pub const MESSAGE: &str = "the message";

/// End of a session.
#[derive(Debug)]
pub struct End {
    /// Last message; `None` if all is said or the client is gone.
    pub words: Option<SocketOutput>,
    code: CloseCode,
    /// True if what the client sends can no longer be decoded.
    is_garbled: bool,
}

impl End {
    /// Returns the end with a last message.
    pub fn said(words: SocketOutput) -> End {
        End { words: Some(words), code: CloseCode::Normal, is_garbled: false }
    }

    /// Returns the end without a last message.
    pub fn silent() -> End {
        End { words: None, code: CloseCode::Normal, is_garbled: false }
    }

    fn error(error: &ApiError) -> End {
        error.log();
        let api::ErrorBody { code, message } = api::ErrorBody::from(error);
        End::said(SocketOutput::Error { code, message })
    }

    /// Returns the end for a server that stops. `outcome` is what became of the session's work.
    fn stopping(outcome: &str) -> End {
        let message = format!("the server is shutting down; {outcome}");
        let words = SocketOutput::Error { code: "unavailable".to_owned(), message };
        End { words: Some(words), code: CloseCode::Away, is_garbled: false }
    }

    /// Returns the end for a read that failed.
    pub fn of_fault(fault: &Fault) -> End {
        let (code, name, message) = match fault {
            Fault::Capacity(_) => {
                let message = format!("a message may have at most {MESSAGE_BYTES_MAX} bytes; split larger data");
                (CloseCode::Size, "payload_too_large", message)
            }
            Fault::Utf8(_) => (CloseCode::Invalid, "bad_request", "a text message is not UTF-8".to_owned()),
            Fault::Protocol(error) => (CloseCode::Protocol, "bad_request", format!("invalid WebSocket data: {error}")),
            Fault::Io(error) if error.kind() == std::io::ErrorKind::OutOfMemory => {
                return End { is_garbled: true, ..End::error(&Refusal::Busy.into()) };
            }
            Fault::ConnectionClosed
            | Fault::AlreadyClosed
            | Fault::Io(_)
            | Fault::Tls(_)
            | Fault::WriteBufferFull(_)
            | Fault::AttackAttempt
            | Fault::Url(_)
            | Fault::Http(_)
            | Fault::HttpFormat(_) => return End::silent(),
        };
        let words = SocketOutput::Error { code: name.to_owned(), message };
        End { words: Some(words), code, is_garbled: true }
    }
}

impl From<ApiError> for End {
    fn from(error: ApiError) -> End {
        End::error(&error)
    }
}

/// Life of a session, which ends with the server and with the key that opened it.
#[derive(Debug)]
pub struct Life {
    pub(super) key: KeyLife,
    pub(super) stop: CancellationToken,
}

impl Life {
    /// Waits for the end of the life. `outcome` is what becomes of the session's work.
    pub async fn over(&self, outcome: &str) -> End {
        tokio::select! {
            () = self.stop.cancelled() => End::stopping(outcome),
            () = self.key.over() => {
                let message = format!("{KEY_ENDED}; {outcome}");
                let words = SocketOutput::Error { code: "unauthorized".to_owned(), message };
                End { words: Some(words), code: CloseCode::Policy, is_garbled: false }
            }
        }
    }
}

/// The server's end of a WebSocket.
pub struct Session<S> {
    pub socket: WebSocketStream<Ruled<S, Counter>>,
    account: Account,
    counter: Counter,
    /// Memory that the session holds until its end.
    _held: Reservation,
}

/// Account that memory is taken from, and counter of the incoming message.
#[derive(Debug)]
pub struct Inflow {
    account: Account,
    counter: Counter,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// Begins a session after the handshake.
    pub async fn on(io: S, held: Reservation) -> Self {
        let account = held.account().clone();
        let (io, counter) = Counter::around(io, account.nothing(), BUFFER_BYTES);
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(BUFFER_BYTES)
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        Self { socket, account, counter, _held: held }
    }

    /// Returns the accounting of what the client sends.
    pub fn inflow(&self) -> Inflow {
        Inflow { account: self.account.clone(), counter: self.counter.clone() }
    }

    /// Sends the last message and closes the connection.
    pub async fn end(mut self, end: End) {
        self.counter.stop();
        // After a timeout the client may not get the last message. Nothing more is done about it.
        let _ = timeout(FAREWELL_MAX, part(&mut self.socket, end)).await;
    }
}

impl Inflow {
    /// Restarts the count, after a complete message.
    pub fn restart(&self) {
        self.counter.restart();
    }

    /// Returns the bytes of a message, counted until they are dropped. A client that may hold no
    /// more waits as it does for a box that does not read.
    ///
    /// # Errors
    /// [`Refusal::Busy`] if it waited for [`SILENCE_MAX`].
    pub async fn counted(&self, bytes: Bytes) -> Result<Bytes, ApiError> {
        if bytes.len() <= SMALL_BYTES {
            return Ok(bytes);
        }
        let held = self.account.reserve_within(bytes.len(), SILENCE_MAX).await?;
        Ok(held_with(bytes, held))
    }
}

/// Returns the type of a message.
pub fn kind(text: &str) -> Result<SocketKind, ApiError> {
    #[derive(Deserialize)]
    struct Typed {
        #[serde(rename = "type")]
        kind: SocketKind,
    }
    parse_as::<Typed>(MESSAGE, text.as_bytes()).map(|typed| typed.kind)
}

/// Waits for the next message. Only this wait counts as silence of the client, not the wait for
/// what does not take the messages.
pub async fn heard<S>(source: &mut S) -> Result<Message, End>
where
    S: Stream<Item = Result<Message, Fault>> + Unpin,
{
    match timeout(SILENCE_MAX, source.next()).await {
        Ok(Some(Ok(message))) => Ok(message),
        Ok(Some(Err(fault))) => Err(End::of_fault(&fault)),
        Ok(None) | Err(_) => Err(End::silent()),
    }
}

/// Returns the ticks at which a client is pinged.
pub fn pings() -> Interval {
    let mut pings = interval(PING_EVERY);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings.reset();
    pings
}

/// Returns a text message.
pub fn json(words: &impl Serialize) -> Message {
    Message::text(serde_json::to_string(words).expect("a message is JSON"))
}

/// Sends the last message, closes, and reads on for a while: a connection that is closed with
/// unread bytes may lose the last message.
async fn part<S>(socket: &mut WebSocketStream<S>, end: End)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if let Some(words) = end.words
        && socket.send(json(&words)).await.is_err()
    {
        return;
    }
    if socket.close(Some(CloseFrame { code: end.code, reason: "".into() })).await.is_err() {
        return;
    }
    if end.is_garbled {
        let mut raw = ReaderStream::new(socket.get_mut());
        let mut left = GARBLED_BYTES_MAX;
        while let Some(Ok(piece)) = raw.next().await
            && piece.len() < left
        {
            left -= piece.len();
        }
        return;
    }
    // The client answers with its own close frame.
    while let Some(Ok(_)) = socket.next().await {}
}

#[cfg(test)]
mod test {
    use futures_util::stream;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_silent_for_too_long_has_gone() {
        let began = Instant::now();
        let end = heard(&mut stream::pending().boxed()).await.unwrap_err();
        assert!(end.words.is_none());
        // The margin covers a timer that fires a tick late.
        let late = began.elapsed().saturating_sub(SILENCE_MAX);
        assert!(began.elapsed() >= SILENCE_MAX && late < Duration::from_secs(1), "{late:?}");
    }
}
