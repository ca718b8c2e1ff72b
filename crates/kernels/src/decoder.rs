//! The segments of a driver's messages, within the output of its code.

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};
use memchr::memmem;

use crate::{MESSAGE_BYTES_MAX, Message};

/// Largest segment, in bytes: what Linux writes to a pipe in one piece (`PIPE_BUF` in pipe(7)).
pub const SEGMENT_BYTES_MAX: usize = 4096;
/// First byte of a segment, the record separator of ASCII, which hardly any output contains.
const FIRST: u8 = 0x1e;
/// Bytes of a marker in text.
const MARKER_BYTES: usize = 32;
/// Bytes before the payload: the first byte, the marker, the payload's length as four hexadecimal digits, and `.` for
/// the last segment of a message or `+` for any other.
const HEAD_BYTES: usize = 1 + MARKER_BYTES + 4 + 1;

/// Text that only a driver was told, with which its segments begin.
#[derive(Clone, PartialEq, Eq)]
pub struct Marker(String);

impl Marker {
    /// Makes a marker of 16 random bytes.
    #[must_use]
    pub fn new(random: [u8; MARKER_BYTES / 2]) -> Self {
        Self(random.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Parses its text; `None` if it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (text.len() == MARKER_BYTES && text.bytes().all(is_hex)).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Marker(..)")
    }
}

/// Piece of what a kernel writes.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Output of the code.
    Output(Bytes),
    /// Message of the driver.
    Message(Message),
    /// End of a message that was dropped.
    Dropped,
}

/// Bytes that no driver writes: the code has interfered with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("a message of the kernel has more than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    #[error("a segment of the kernel has a malformed head")]
    Head,
    #[error("a message of the kernel is malformed: {0}")]
    Message(String),
}

/// Decoder of one of the two streams that a kernel writes.
#[derive(Debug)]
pub struct Decoder {
    /// First byte and marker of a segment.
    prefix: memmem::Finder<'static>,
    /// Bytes that were not taken apart yet.
    pending: BytesMut,
    /// Payload of the segments of a message that is not complete.
    message: Vec<u8>,
    /// True while the rest of a message is dropped.
    is_dropping: bool,
}

impl Decoder {
    /// Makes a decoder of the segments with a marker.
    #[must_use]
    pub fn new(marker: &Marker) -> Self {
        let prefix: Vec<u8> = std::iter::once(FIRST).chain(marker.0.bytes()).collect();
        Self {
            prefix: memmem::Finder::new(&prefix).into_owned(),
            pending: BytesMut::new(),
            message: Vec::new(),
            is_dropping: false,
        }
    }

    /// Returns the number of bytes of a message that is not complete.
    #[must_use]
    pub fn message_bytes(&self) -> usize {
        self.message.len()
    }

    /// Drops a message that is not complete, with what is still to come of it.
    pub fn drop_message(&mut self) {
        self.message = Vec::new();
        self.is_dropping = true;
    }

    /// Forgets what it holds, because bytes after it are missing.
    pub fn skip(&mut self) {
        self.pending.clear();
        self.message = Vec::new();
        self.is_dropping = false;
    }

    /// Takes bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Returns the next piece of the bytes taken; `None` if more are needed. Adjacent output may come in several.
    ///
    /// # Errors
    /// [`Broken`] for what no driver writes.
    pub fn next_piece(&mut self) -> Result<Option<Piece>, Broken> {
        loop {
            match self.prefix.find(&self.pending) {
                Some(0) => {}
                Some(start) => return Ok(Some(Piece::Output(self.pending.split_to(start).freeze()))),
                None => {
                    let known = self.pending.len() - self.partial_prefix();
                    return Ok((known > 0).then(|| Piece::Output(self.pending.split_to(known).freeze())));
                }
            }
            let Some(head) = self.pending.get(..HEAD_BYTES) else { return Ok(None) };
            let (length, is_last) = payload(&head[1 + MARKER_BYTES..]).ok_or(Broken::Head)?;
            if self.pending.len() < HEAD_BYTES + length {
                return Ok(None);
            }
            self.pending.advance(HEAD_BYTES);
            let payload = self.pending.split_to(length);
            if self.is_dropping {
                if is_last {
                    self.is_dropping = false;
                    return Ok(Some(Piece::Dropped));
                }
                continue;
            }
            if self.message.len() + length > MESSAGE_BYTES_MAX {
                return Err(Broken::TooLong);
            }
            self.message.extend_from_slice(&payload);
            if is_last {
                let message = std::mem::take(&mut self.message);
                let parsed = serde_json::from_slice(&message).map_err(|error| Broken::Message(error.to_string()))?;
                return Ok(Some(Piece::Message(parsed)));
            }
        }
    }

    /// Returns the number of bytes at the end that may be the beginning of a segment.
    fn partial_prefix(&self) -> usize {
        let prefix = self.prefix.needle();
        let from = self.pending.len().saturating_sub(prefix.len() - 1);
        let tail = &self.pending[from..];
        memchr::memchr_iter(FIRST, tail)
            .map(|at| &tail[at..])
            .find(|rest| prefix.starts_with(rest))
            .map_or(0, <[u8]>::len)
    }
}

/// Returns the length of a segment's payload and whether it is the last of its message; `None` if it is malformed.
fn payload(head: &[u8]) -> Option<(usize, bool)> {
    let (digits, last) = head.split_at_checked(4)?;
    let length = usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    let is_last = match last {
        b"." => true,
        b"+" => false,
        _ => return None,
    };
    (length <= SEGMENT_BYTES_MAX - HEAD_BYTES).then_some((length, is_last))
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn marker() -> Marker {
        Marker::new([7; 16])
    }

    /// Returns the segments of a message, as a driver writes them.
    fn segments(message: &str, payload_bytes: usize) -> Vec<u8> {
        let chunks: Vec<_> = message.as_bytes().chunks(payload_bytes).collect();
        let last = chunks.len() - 1;
        let segment = |(at, chunk): (usize, &&[u8])| {
            let end = if at == last { '.' } else { '+' };
            [format!("\x1e{}{:04x}{end}", marker(), chunk.len()).as_bytes(), chunk].concat()
        };
        chunks.iter().enumerate().flat_map(segment).collect()
    }

    /// Returns the output and the messages of a stream that arrives in chunks.
    fn decoded(stream: &[u8], chunk: usize) -> Result<(Vec<u8>, Vec<Message>), Broken> {
        let mut decoder = Decoder::new(&marker());
        let (mut output, mut messages) = (Vec::new(), Vec::new());
        for chunk in stream.chunks(chunk) {
            decoder.push(chunk);
            while let Some(piece) = decoder.next_piece()? {
                match piece {
                    Piece::Output(bytes) => output.extend_from_slice(&bytes),
                    Piece::Message(message) => messages.push(message),
                    Piece::Dropped => panic!("nothing was dropped"),
                }
            }
        }
        Ok((output, messages))
    }

    proptest! {
        #[test]
        fn output_and_messages_come_apart_wherever_the_stream_is_cut(
            before in proptest::collection::vec(prop_oneof![Just(FIRST), any::<u8>()], 0..80),
            after in proptest::collection::vec(prop_oneof![Just(FIRST), Just(b'0'), any::<u8>()], 0..80),
            value in "[a-zé\"]{0,60}",
            payload_bytes in 1..40_usize,
            chunk in 1..50_usize,
        ) {
            let error = serde_json::json!({"type": "error", "run": 3, "name": "E", "value": value, "traceback": ""});
            // Of output that ends with the first byte of a segment, no more is known.
            let after = [after, vec![b'.']].concat();
            let stream = [before.clone(), segments(&error.to_string(), payload_bytes), after.clone()].concat();
            let (output, messages) = decoded(&stream, chunk).unwrap();
            prop_assert_eq!(output, [before, after].concat());
            let expected = Message::Error { run: 3, name: "E".into(), value, traceback: String::new() };
            prop_assert_eq!(messages, vec![expected]);
        }

        #[test]
        fn no_bytes_after_a_marker_panic(tail in proptest::collection::vec(any::<u8>(), 0..200), chunk in 1..50_usize) {
            let head = format!("\x1e{}", marker());
            let _ = decoded(&[head.as_bytes(), &tail].concat(), chunk);
        }
    }

    #[test]
    fn what_no_driver_writes_is_refused() {
        let head = format!("\x1e{}", marker());
        for (tail, expected) in [("00zz.", Broken::Head), ("0001?x", Broken::Head), ("0fff.", Broken::Head)] {
            assert_eq!(decoded(format!("{head}{tail}").as_bytes(), 7), Err(expected), "{tail}");
        }
        for message in ["", "{", "[]", r#"{"type":"other"}"#, r#"{"type":"end","run":-1}"#] {
            let segment = format!("{head}{:04x}.{message}", message.len());
            assert!(matches!(decoded(segment.as_bytes(), 9), Err(Broken::Message(_))), "{message}");
        }
        let piece = segments(&"x".repeat(4000), 4000);
        let endless: Vec<u8> = [&piece[..piece.len() - 4001], b"+", &piece[piece.len() - 4000..]].concat();
        assert_eq!(decoded(&endless.repeat(MESSAGE_BYTES_MAX / 4000 + 1), 65536), Err(Broken::TooLong));
    }

    #[test]
    fn a_message_that_was_dropped_is_gone_to_its_end_and_the_next_one_is_not() {
        let end = r#"{"type":"end","run":1}"#;
        let mut decoder = Decoder::new(&marker());
        let all = segments(end, 8);
        decoder.push(&all[..60]);
        assert_eq!(decoder.next_piece(), Ok(None));
        assert_eq!(decoder.message_bytes(), 8);
        decoder.drop_message();
        decoder.push(&[&all[60..], segments(end, 100).as_slice()].concat());
        assert_eq!(decoder.next_piece(), Ok(Some(Piece::Dropped)));
        assert_eq!(decoder.next_piece(), Ok(Some(Piece::Message(Message::End { run: 1 }))));
    }

    #[test]
    fn a_marker_is_what_it_was_made_as_and_nothing_else() {
        assert_eq!(Marker::parse(&marker().to_string()), Some(marker()));
        for other in ["", "07", &"g".repeat(32), &"A".repeat(32), &"0".repeat(33)] {
            assert_eq!(Marker::parse(other), None, "{other}");
        }
    }
}
