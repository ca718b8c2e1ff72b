//! Envelopes of streams: a byte of flags, four bytes for the length (big endian), and a message in JSON.

use std::marker::PhantomData;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;

use crate::budget::Reservation;
use crate::http::error::{Result, RpcCode, rpc};
use crate::http::request_memory::{Meter, SMALL_BYTES, WAIT_MAX};
use crate::http::strict_json::parse_as;

/// Largest message of a client, in bytes. Clients cut what they send to a stdin into far smaller ones.
pub const MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Flags of a message.
pub(super) const MESSAGE: u8 = 0;
/// Flags of the last envelope of an answer.
pub(super) const END: u8 = 2;
/// Bytes before the message.
const HEAD_BYTES: usize = 5;
/// Time in which the body of a call with one message has to end after it; one that does not is left.
const END_WAIT: Duration = Duration::from_secs(1);

/// Returns an envelope.
pub(super) fn envelope(flags: u8, message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + message.len());
    bytes.put_u8(flags);
    // No message of ours comes near 4 GiB.
    bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    bytes.put_slice(message);
    bytes.freeze()
}

/// Messages of a client, read as they arrive.
pub struct Incoming<T> {
    body: BodyDataStream,
    buffer: BytesMut,
    /// Memory for what is in the buffer.
    held: Reservation,
    message: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Incoming<T> {
    /// Reads the messages in a body.
    pub(super) fn of(body: Body, meter: &Meter) -> Self {
        Self {
            body: body.into_data_stream(),
            buffer: BytesMut::new(),
            held: meter.account().nothing(),
            message: PhantomData,
        }
    }

    /// Returns the next message; `None` at the end of the body.
    ///
    /// # Errors
    /// `invalid_argument` for bytes that are no envelope, or no message; `resource_exhausted` for one that is too
    /// large.
    pub async fn next(&mut self) -> Result<Option<T>> {
        if !self.fill(HEAD_BYTES).await? {
            if self.buffer.is_empty() {
                return Ok(None);
            }
            return Err(rpc(RpcCode::InvalidArgument, "the body ends within the head of an envelope"));
        }
        let mut head = &self.buffer[..HEAD_BYTES];
        let (flags, bytes) = (head.get_u8(), head.get_u32() as usize);
        if flags != MESSAGE {
            return Err(rpc(
                RpcCode::InvalidArgument,
                format!("the flags {flags:#04x} of an envelope are not supported; send messages uncompressed"),
            ));
        }
        if bytes > MESSAGE_BYTES_MAX {
            return Err(rpc(
                RpcCode::ResourceExhausted,
                format!("a message of {bytes} bytes is larger than the {MESSAGE_BYTES_MAX} bytes that are accepted"),
            ));
        }
        if !self.fill(HEAD_BYTES + bytes).await? {
            return Err(rpc(RpcCode::InvalidArgument, "the body ends within a message"));
        }
        self.buffer.advance(HEAD_BYTES);
        let message = self.buffer.split_to(bytes);
        if message.is_empty() {
            return Err(rpc(RpcCode::InvalidArgument, "an envelope is empty; a message is at least `{}`"));
        }
        let parsed = parse_as("the message", &message);
        drop(message);
        self.held.shrink_to(self.buffer.len());
        parsed.map(Some)
    }

    /// Returns the only message of the body.
    ///
    /// # Errors
    /// As [`Incoming::next`]; `invalid_argument` for a body with none, or with several.
    pub(super) async fn only(&mut self) -> Result<T> {
        let exactly_one = || rpc(RpcCode::InvalidArgument, "send exactly one message with this call");
        let message = self.next().await?.ok_or_else(exactly_one)?;
        if !self.buffer.is_empty() {
            return Err(exactly_one());
        }
        match tokio::time::timeout(END_WAIT, self.fill(1)).await {
            Ok(Ok(true)) => Err(exactly_one()),
            Ok(Ok(false)) | Err(_) => Ok(message),
            Ok(Err(error)) => Err(error),
        }
    }

    /// Reads until the buffer has this many bytes. Returns false if the body ends before.
    async fn fill(&mut self, bytes: usize) -> Result<bool> {
        while self.buffer.len() < bytes {
            let Some(piece) = self.body.next().await else { return Ok(false) };
            let piece = piece.map_err(|_| rpc(RpcCode::InvalidArgument, "the body was cut off"))?;
            let buffered = self.buffer.len() + piece.len();
            if buffered > SMALL_BYTES {
                // In proportion to what has arrived: a client that announces much and sends nothing holds little.
                self.held.grow_within(buffered.saturating_sub(self.held.bytes()), WAIT_MAX).await?;
            }
            self.buffer.extend_from_slice(&piece);
        }
        Ok(true)
    }
}
