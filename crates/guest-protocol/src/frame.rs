//! Framing of a command's streams: one byte for the kind, four for the length of the payload (big
//! endian), then the payload.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Largest payload of one frame, in bytes. A start frame holds arguments and environment, which the
/// kernel bounds at 2 MiB by default.
pub const PAYLOAD_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Length of a frame's kind and length, in bytes.
pub const HEADER_BYTES: usize = 5;

/// Kind of a frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// JSON of [`crate::Exec`], to the agent: the first frame, sent once.
    Start,
    /// Raw bytes for stdin, to the agent. Stdin ends with the request body or with
    /// [`Kind::StdinEnd`].
    Stdin,
    /// End of stdin, to the agent.
    StdinEnd,
    /// Raw bytes of stdout, from the agent.
    Stdout,
    /// Raw bytes of stderr, from the agent.
    Stderr,
    /// JSON of [`crate::Exit`], from the agent: the last frame, sent once.
    Exit,
    /// JSON of [`crate::Failure`], from the agent, instead of an exit.
    Failure,
    /// Bytes that draw the screen of a terminal, from the agent. They are not part of its output.
    Screen,
    /// Position of the next byte of output, 8 bytes, big endian, from the agent. What lies between the
    /// last byte and this position is no longer kept.
    Position,
}

const KINDS: [(u8, Kind); 9] = [
    (1, Kind::Start),
    (2, Kind::Stdin),
    (3, Kind::StdinEnd),
    (17, Kind::Stdout),
    (18, Kind::Stderr),
    (19, Kind::Exit),
    (20, Kind::Failure),
    (21, Kind::Screen),
    (22, Kind::Position),
];

/// A frame of a command's streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Kind of the payload.
    pub kind: Kind,
    /// Content of at most [`PAYLOAD_BYTES_MAX`] bytes.
    pub payload: Bytes,
}

/// The fault of bytes that are not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A kind that this version does not know.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// A payload above [`PAYLOAD_BYTES_MAX`].
    #[error("a frame of {0} bytes is too large")]
    Size(usize),
}

/// Returns the five bytes before a payload of `len` bytes.
#[must_use]
pub fn header(kind: Kind, len: usize) -> [u8; HEADER_BYTES] {
    debug_assert!(len <= PAYLOAD_BYTES_MAX);
    let code = KINDS.iter().find(|(_, k)| *k == kind).map_or(0, |(code, _)| *code);
    let [a, b, c, d] = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    [code, a, b, c, d]
}

/// Parses the bytes that [`header`] made: the kind and the length of the payload.
///
/// # Errors
/// [`Malformed`]; the rest of the stream cannot be read.
pub fn parse_header(head: [u8; HEADER_BYTES]) -> Result<(Kind, usize), Malformed> {
    let [code, len @ ..] = head;
    let kind = KINDS.iter().find(|(c, _)| *c == code).map(|(_, kind)| *kind).ok_or(Malformed::Kind(code))?;
    let len = u32::from_be_bytes(len) as usize;
    if len > PAYLOAD_BYTES_MAX { Err(Malformed::Size(len)) } else { Ok((kind, len)) }
}

/// Encodes a whole frame.
#[must_use]
pub fn encode(kind: Kind, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HEADER_BYTES + payload.len());
    out.put_slice(&header(kind, payload.len()));
    out.put_slice(payload);
    out.freeze()
}

/// Splitter of a byte stream into frames. Holds at most one incomplete frame.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Appends bytes that were received.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns whether the bytes so far end between two frames.
    #[must_use]
    pub fn is_at_boundary(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Removes and returns the next frame; `None` until it is complete.
    ///
    /// # Errors
    /// [`Malformed`]; the rest of the stream cannot be read.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Malformed> {
        let Some((head, _)) = self.buffer.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let (kind, len) = parse_header(*head)?;
        if self.buffer.len() < HEADER_BYTES + len {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        Ok(Some(Frame { kind, payload: self.buffer.split_to(len).freeze() }))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn frames_survive_any_cut_of_the_stream() {
        let sent = [(Kind::Stdout, &b"hello"[..]), (Kind::StdinEnd, b""), (Kind::Exit, b"{}")];
        let bytes: Vec<u8> = sent.iter().flat_map(|(kind, payload)| encode(*kind, payload)).collect();
        for size in 1..=bytes.len() {
            let mut decoder = Decoder::default();
            let mut got = Vec::new();
            for piece in bytes.chunks(size) {
                decoder.feed(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    got.push((frame.kind, frame.payload));
                }
            }
            assert!(decoder.is_at_boundary());
            assert_eq!(got, sent.map(|(kind, payload)| (kind, Bytes::from_static(payload))));
        }
    }

    #[test]
    fn a_frame_that_is_too_large_is_refused_before_it_is_read() {
        let mut decoder = Decoder::default();
        decoder.feed(&[17, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(decoder.next_frame(), Err(Malformed::Size(0xffff_ffff)));
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        let mut decoder = Decoder::default();
        decoder.feed(&[99, 0, 0, 0, 0]);
        assert_eq!(decoder.next_frame(), Err(Malformed::Kind(99)));
    }
}
