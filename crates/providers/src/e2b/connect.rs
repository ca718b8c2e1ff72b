//! The Connect protocol to the inside of a sandbox, with JSON: unary calls, and streams of the service.
//! <https://connectrpc.com/docs/protocol>

use std::marker::PhantomData;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use reqwest::header::CONTENT_TYPE;
use reqwest::{RequestBuilder, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::fault::Fault;
use super::http;

/// Content type of streams.
const STREAM_TYPE: &str = "application/connect+json";
/// Largest message of a stream, in bytes.
const MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes before a message: flags, and its length.
const HEAD_BYTES: usize = 5;
/// Flags of a message.
const MESSAGE: u8 = 0;
/// Flag of a message that is compressed.
const COMPRESSED: u8 = 1;
/// Flag of the last envelope.
const END: u8 = 2;
/// Interval at which the service sends something, in seconds.
const KEEP_ALIVE_S: u64 = 15;
/// The longest silence of a stream: the service sends something every [`KEEP_ALIVE_S`].
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Adds what all calls have, and the deadline of what the call is about, if it has one.
pub(super) fn call(request: RequestBuilder, timeout: Option<Duration>) -> RequestBuilder {
    let request = request.header("connect-protocol-version", "1");
    match timeout.map(|timeout| timeout.as_millis()) {
        // The protocol allows ten digits; a later deadline is kept here alone.
        Some(milliseconds) if milliseconds < 10_000_000_000 => {
            request.header("connect-timeout-ms", milliseconds.max(1).to_string())
        }
        _ => request,
    }
}

/// Makes a unary call.
pub(super) async fn unary<T: DeserializeOwned>(
    request: RequestBuilder,
    message: &impl Serialize,
    bytes_max: usize,
    after: Duration,
) -> Result<T, Fault> {
    http::json(call(request, None).json(message), bytes_max, after).await
}

/// Makes a call that the service answers with a stream.
pub(super) async fn server_stream<T: DeserializeOwned>(
    request: RequestBuilder,
    message: &impl Serialize,
    timeout: Option<Duration>,
    after: Duration,
) -> Result<Messages<T>, Fault> {
    let message = serde_json::to_vec(message).map_err(|error| Fault::Protocol(error.to_string()))?;
    let request = call(request, timeout)
        .header(CONTENT_TYPE, STREAM_TYPE)
        .header("keepalive-ping-interval", KEEP_ALIVE_S)
        .body(envelope(&message));
    let response = http::send(request, after).await?;
    let found = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = found.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case(STREAM_TYPE) {
        let found: String = found.chars().take(100).collect();
        return Err(Fault::Protocol(format!("a stream has the type {found:?} instead of {STREAM_TYPE}")));
    }
    Ok(Messages { response, envelopes: Envelopes::default(), is_over: false, message: PhantomData })
}

fn envelope(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + message.len());
    bytes.put_u8(MESSAGE);
    // No message of ours comes near 4 GiB.
    bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    bytes.put_slice(message);
    bytes.freeze()
}

/// Messages of a stream of the service.
pub(super) struct Messages<T> {
    response: Response,
    envelopes: Envelopes,
    is_over: bool,
    message: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Messages<T> {
    /// Returns the next message; `None` at the end. Cancel-safe.
    ///
    /// # Errors
    /// The error that ends the stream, [`Fault::Cut`] if it breaks off, [`Fault::Timeout`] if it falls silent,
    /// [`Fault::Protocol`] for what is no message.
    pub(super) async fn next(&mut self) -> Result<Option<T>, Fault> {
        if self.is_over {
            return Ok(None);
        }
        let next = self.read().await;
        self.is_over = !matches!(next, Ok(Some(_)));
        next
    }

    async fn read(&mut self) -> Result<Option<T>, Fault> {
        loop {
            if let Some(envelope) = self.envelopes.take()? {
                return match envelope {
                    Envelope::Message(message) => http::parse(&message).map(Some),
                    Envelope::End(end) => end_of(&end),
                };
            }
            let piece = tokio::time::timeout(SILENCE_MAX, self.response.chunk()).await;
            match piece.map_err(|_| Fault::Timeout(SILENCE_MAX))?.map_err(|error| http::failure(&error))? {
                Some(piece) => self.envelopes.add(&piece),
                None if self.envelopes.is_empty() => {
                    return Err(Fault::Cut("the stream ended without its last envelope".to_owned()));
                }
                None => return Err(Fault::Cut("the stream ended within an envelope".to_owned())),
            }
        }
    }
}

/// Content of the last envelope.
#[derive(Deserialize)]
struct End {
    error: Option<EndError>,
}

#[derive(Deserialize)]
struct EndError {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

fn end_of<T>(bytes: &[u8]) -> Result<Option<T>, Fault> {
    match http::parse::<End>(bytes)?.error {
        Some(EndError { code, message }) => Err(Fault::Rpc { code, message }),
        None => Ok(None),
    }
}

/// Content of an envelope.
#[derive(Debug, PartialEq, Eq)]
enum Envelope {
    Message(BytesMut),
    End(BytesMut),
}

/// Envelopes in bytes that have arrived.
#[derive(Debug, Default)]
struct Envelopes {
    buffer: BytesMut,
}

impl Envelopes {
    fn add(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Takes the first envelope, if it is whole. What is announced is checked before it has arrived.
    fn take(&mut self) -> Result<Option<Envelope>, Fault> {
        let Some(mut head) = self.buffer.get(..HEAD_BYTES) else { return Ok(None) };
        let (flags, bytes) = (head.get_u8(), head.get_u32() as usize);
        if flags & COMPRESSED != 0 {
            return Err(Fault::Protocol("a message is compressed, which was not asked for".to_owned()));
        }
        if flags != MESSAGE && flags != END {
            return Err(Fault::Protocol(format!("the flags {flags:#04x} of an envelope are not known")));
        }
        if bytes > MESSAGE_BYTES_MAX {
            return Err(Fault::Protocol(format!("a message of {bytes} bytes is larger than {MESSAGE_BYTES_MAX}")));
        }
        if self.buffer.len() < HEAD_BYTES + bytes {
            return Ok(None);
        }
        self.buffer.advance(HEAD_BYTES);
        let content = self.buffer.split_to(bytes);
        Ok(Some(if flags == END { Envelope::End(content) } else { Envelope::Message(content) }))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn taken(bytes: &[u8]) -> Vec<Result<Option<Envelope>, String>> {
        let mut envelopes = Envelopes::default();
        let mut all = Vec::new();
        // A byte at a time: no piece of the body needs to end where an envelope does.
        for byte in bytes {
            envelopes.add(&[*byte]);
            match envelopes.take() {
                Ok(None) => {}
                Ok(taken) => all.push(Ok(taken)),
                Err(fault) => {
                    all.push(Err(fault.to_string()));
                    break;
                }
            }
        }
        all
    }

    #[test]
    fn envelopes_are_taken_however_their_bytes_arrive() {
        let bytes = [&envelope(b"{}")[..], &[0, 0, 0, 0, 0], &[2, 0, 0, 0, 2, b'{', b'}']].concat();
        let expected =
            [Envelope::Message(b"{}"[..].into()), Envelope::Message(b""[..].into()), Envelope::End(b"{}"[..].into())];
        assert_eq!(taken(&bytes), expected.map(|envelope| Ok(Some(envelope))));
    }

    #[test]
    fn what_is_no_envelope_is_refused_at_its_head() {
        for (head, words) in [
            ([0, 0xff, 0xff, 0xff, 0xff], "4294967295"),
            ([0, 0, 0x80, 0, 1], "8388609"),
            ([1, 0, 0, 0, 1], "compressed"),
            ([3, 0, 0, 0, 1], "compressed"),
            ([4, 0, 0, 0, 1], "0x04"),
            ([0x80, 0, 0, 0, 1], "0x80"),
        ] {
            let taken = taken(&head);
            assert!(matches!(&taken[..], [Err(text)] if text.contains(words)), "{taken:?}");
        }
    }

    #[test]
    fn the_last_envelope_may_tell_an_error() {
        assert!(end_of::<()>(b"{}").unwrap().is_none());
        let fault = end_of::<()>(br#"{"error":{"code":"not_found","message":"x"}}"#).unwrap_err();
        assert!(fault.is_code("not_found"));
        assert!(matches!(end_of::<()>(b"hello"), Err(Fault::Protocol(_))));
    }
}
