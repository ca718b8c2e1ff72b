//! Splitting of a raw stream into frames: a byte for the kind, four for the length (big endian), the payload.

use api::{FRAME_MESSAGE, SOCKET_STDERR, SOCKET_STDOUT};
use bytes::{Buf, Bytes};

const HEAD_BYTES: usize = 5;
/// Largest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Length up to which a frame of stderr is one piece: the server's own words are recognized by their text.
const WORDS_BYTES_MAX: usize = 1024;

/// A frame, or a part of one that holds output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Stdout(Bytes),
    Stderr(Bytes),
    /// JSON.
    Message(Bytes),
}

#[derive(Debug, Clone, Copy)]
struct Current {
    kind: u8,
    /// Number of bytes still to come.
    left: usize,
    /// True if the frame is one piece, however it arrives.
    is_whole: bool,
}

/// Received bytes and an incomplete frame.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    unread: Bytes,
    head: [u8; HEAD_BYTES],
    head_filled: usize,
    /// The frame that is being received.
    current: Option<Current>,
    /// Payload so far of a frame that is one piece.
    whole: Vec<u8>,
}

impl Frames {
    /// Adds received bytes. Only valid after [`Frames::next`] returned `None`.
    pub(crate) fn push(&mut self, bytes: Bytes) {
        debug_assert!(self.unread.is_empty(), "frames are taken before more is added");
        self.unread = bytes;
    }

    /// Returns the next piece, if there is one. Output is neither copied nor held back.
    ///
    /// # Errors
    /// The fault of the stream, which cannot be read any further.
    pub(crate) fn next(&mut self) -> Result<Option<Piece>, String> {
        loop {
            let Some(Current { kind, left, is_whole }) = self.current else {
                if !self.begin()? {
                    return Ok(None);
                }
                continue;
            };
            let mut piece = self.unread.split_to(left.min(self.unread.len()));
            let left = left - piece.len();
            self.current = (left > 0).then_some(Current { kind, left, is_whole });
            if is_whole {
                self.whole.extend_from_slice(&piece);
                piece = if left == 0 { std::mem::take(&mut self.whole).into() } else { Bytes::new() };
            }
            // An empty message only keeps the connection alive.
            if !piece.is_empty() {
                return Ok(Some(match kind {
                    SOCKET_STDOUT => Piece::Stdout(piece),
                    SOCKET_STDERR => Piece::Stderr(piece),
                    _ => Piece::Message(piece),
                }));
            }
            if left > 0 && self.unread.is_empty() {
                return Ok(None);
            }
        }
    }

    /// Reads the head of a frame. Returns `false` when more has to arrive.
    fn begin(&mut self) -> Result<bool, String> {
        let taken = (HEAD_BYTES - self.head_filled).min(self.unread.len());
        self.unread.copy_to_slice(&mut self.head[self.head_filled..self.head_filled + taken]);
        self.head_filled += taken;
        if self.head_filled < HEAD_BYTES {
            return Ok(false);
        }
        self.head_filled = 0;
        let [kind, length @ ..] = self.head;
        let length = u32::from_be_bytes(length) as usize;
        match kind {
            SOCKET_STDOUT | SOCKET_STDERR => {}
            FRAME_MESSAGE if length <= MESSAGE_BYTES_MAX => {}
            FRAME_MESSAGE => return Err(format!("a message has {length} bytes")),
            _ => return Err(format!("unknown frame kind {kind}")),
        }
        let is_whole = kind == FRAME_MESSAGE || kind == SOCKET_STDERR && length <= WORDS_BYTES_MAX;
        self.current = Some(Current { kind, left: length, is_whole });
        Ok(true)
    }

    /// Returns whether the bytes so far end in the middle of a frame.
    pub(crate) fn is_partial(&self) -> bool {
        self.head_filled > 0 || self.current.is_some() || self.unread.has_remaining()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(payload);
        bytes
    }

    #[derive(Default)]
    struct Found {
        stdout: Vec<u8>,
        stderr: Vec<u8>,
        messages: Vec<Vec<u8>>,
        is_partial: bool,
    }

    /// Returns the content of a stream that arrives in these pieces.
    fn all<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Found, String> {
        let mut frames = Frames::default();
        let Found { mut stdout, mut stderr, mut messages, .. } = Found::default();
        for piece in pieces {
            frames.push(Bytes::copy_from_slice(piece));
            while let Some(piece) = frames.next()? {
                match piece {
                    Piece::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                    Piece::Stderr(bytes) => stderr.extend_from_slice(&bytes),
                    Piece::Message(bytes) => messages.push(bytes.to_vec()),
                }
            }
        }
        Ok(Found { stdout, stderr, messages, is_partial: frames.is_partial() })
    }

    #[test]
    fn frames_are_the_same_however_they_are_cut() {
        let sent = [(1, &b"hello"[..]), (0, b""), (2, b"oh"), (1, b""), (1, b"\xff\0"), (0, b"{}")];
        let bytes: Vec<u8> = sent.iter().flat_map(|(kind, payload)| frame(*kind, payload)).collect();
        for size in 1..=bytes.len() {
            let found = all(bytes.chunks(size)).unwrap();
            assert_eq!((&found.stdout[..], &found.stderr[..]), (&b"hello\xff\0"[..], &b"oh"[..]), "{size}");
            assert!(found.messages == [b"{}"] && !found.is_partial, "{size}");
        }
        for cut in 1..bytes.len() {
            let whole = sent.iter().scan(0, |end, (_, payload)| {
                *end += HEAD_BYTES + payload.len();
                Some(*end)
            });
            let is_whole = whole.into_iter().any(|end| end == cut);
            assert_eq!(all([&bytes[..cut]].into_iter()).unwrap().is_partial, !is_whole, "{cut}");
        }
    }

    #[test]
    fn short_words_on_stderr_are_one_piece_and_output_is_not_held_back() {
        let mut frames = Frames::default();
        for (at, byte) in frame(SOCKET_STDERR, b"the sandbox ended\n").into_iter().enumerate() {
            frames.push(Bytes::copy_from_slice(&[byte]));
            let piece = frames.next().unwrap();
            let whole = (at == 22).then(|| Piece::Stderr(Bytes::from_static(b"the sandbox ended\n")));
            assert_eq!(piece, whole);
        }
        frames.push(Bytes::from_static(b"\x01\0\0\0\x09abc"));
        assert_eq!(frames.next().unwrap(), Some(Piece::Stdout(Bytes::from_static(b"abc"))));
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for bytes in [&[9, 0, 0, 0, 0][..], &[0, 0xff, 0, 0, 0], &[0, 0, 1, 0, 1]] {
            assert!(all([bytes].into_iter()).is_err(), "{bytes:?}");
        }
    }
}
