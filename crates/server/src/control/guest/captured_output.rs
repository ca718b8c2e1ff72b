//! Collected output of a command, within the memory that its caller may reserve.

use std::collections::VecDeque;

use crate::budget::Reservation;

/// Minimum size in bytes of a piece of collected output.
const PIECE_BYTES_MIN: usize = 4 * 1024;
/// Maximum size in bytes of a piece of collected output.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// The beginning of a stream, in pieces. It grows without being copied, and each piece is freed
/// as it is read.
#[derive(Debug, Default)]
pub struct Collected {
    pieces: VecDeque<Vec<u8>>,
    /// Capacity of the pieces, in bytes.
    room: usize,
    len: usize,
    /// True once output was dropped; later output is dropped too.
    is_cut: bool,
}

impl Collected {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the capacity of the pieces, in bytes.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Removes and returns the first piece.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        let piece = self.pieces.pop_front()?;
        self.len -= piece.len();
        self.room -= piece.capacity();
        Some(piece)
    }

    /// Returns the whole output in one piece.
    pub fn into_bytes(mut self) -> Vec<u8> {
        if self.pieces.len() < 2 {
            return self.pieces.pop_front().unwrap_or_default();
        }
        self.pieces.into_iter().flatten().collect()
    }

    /// Appends the bytes that fit in the last piece. Returns their number.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let Some(last) = self.pieces.back_mut() else { return 0 };
        let taken = bytes.len().min(last.capacity() - last.len());
        last.extend_from_slice(&bytes[..taken]);
        self.len += taken;
        taken
    }

    /// Returns the size of the next piece: as much as there is already, so that the pieces are
    /// few and take at most twice what they hold.
    fn next_piece(&self) -> usize {
        self.room.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
    }

    fn add_piece(&mut self, bytes: usize) {
        let piece = Vec::with_capacity(bytes);
        self.room += piece.capacity();
        self.pieces.push_back(piece);
    }
}

/// Collector of both output streams of one command.
pub(in crate::control) struct Collector {
    stdout: Collected,
    stderr: Collected,
    max: usize,
    held: Reservation,
    answer_bytes: usize,
}

impl Collector {
    pub(in crate::control) fn new(max: usize, held: Reservation, answer_bytes: usize) -> Self {
        Self { stdout: Collected::default(), stderr: Collected::default(), max, held, answer_bytes }
    }

    pub(in crate::control) fn stdout(&mut self, bytes: &[u8]) {
        let beside = self.stderr.room + self.answer_bytes;
        append(&mut self.stdout, bytes, self.max, &mut self.held, beside);
    }

    pub(in crate::control) fn stderr(&mut self, bytes: &[u8]) {
        let beside = self.stdout.room + self.answer_bytes;
        append(&mut self.stderr, bytes, self.max, &mut self.held, beside);
    }

    /// Returns both streams, whether either was cut, and the memory reserved for them.
    pub(in crate::control) fn end(mut self) -> (Collected, Collected, bool, Reservation) {
        self.held.shrink_to(self.stdout.room + self.stderr.room + self.answer_bytes);
        let is_cut = self.stdout.is_cut || self.stderr.is_cut;
        (self.stdout, self.stderr, is_cut, self.held)
    }
}

/// Appends the bytes that fit below `max`, as far as memory for them can be reserved.
fn append(stream: &mut Collected, bytes: &[u8], max: usize, held: &mut Reservation, beside: usize) {
    let room = max.saturating_sub(stream.len);
    let mut rest = &bytes[..bytes.len().min(room)];
    while !rest.is_empty() && !stream.is_cut {
        let taken = stream.fill(rest);
        rest = &rest[taken..];
        if rest.is_empty() {
            break;
        }
        let piece = stream.next_piece();
        let missing = (stream.room + piece + beside).saturating_sub(held.bytes());
        if held.grow(missing).is_ok() {
            stream.add_piece(piece);
        } else {
            held.account().count_truncation();
            stream.is_cut = true;
        }
    }
    stream.is_cut |= bytes.len() > room;
}

/// Collects two complete streams, for tests.
#[cfg(test)]
pub fn collected_of(
    stdout: &[u8],
    stderr: &[u8],
    held: Reservation,
    answer_bytes: usize,
) -> (Collected, Collected, Reservation) {
    let mut collector = Collector::new(usize::MAX, held, answer_bytes);
    collector.stdout(stdout);
    collector.stderr(stderr);
    let (stdout, stderr, _, held) = collector.end();
    (stdout, stderr, held)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::budget::{Budget, Caller};

    const MIB: usize = 1 << 20;

    fn collector(total: usize, max: usize) -> (std::sync::Arc<Budget>, Collector) {
        let budget = Budget::new(total as u64);
        let held = budget.account(Caller::Address(None), None).reserve(1000).unwrap();
        (budget, Collector::new(max, held, 1000))
    }

    #[test]
    fn output_beyond_the_bound_is_cut_and_said_so() {
        let (_, mut collector) = collector(MIB, 3);
        collector.stdout(&[1, 2]);
        collector.stdout(&[3]);
        collector.stderr(&[1, 2, 3]);
        let (stdout, stderr, is_cut, held) = collector.end();
        assert_eq!((stdout.into_bytes(), stderr.into_bytes(), is_cut), (vec![1, 2, 3], vec![1, 2, 3], false));
        assert_eq!(held.bytes(), 2 * PIECE_BYTES_MIN + 1000);
        let (_, mut collector) = self::collector(MIB, 3);
        collector.stdout(&[1, 2, 3, 4]);
        let (stdout, _, is_cut, _) = collector.end();
        assert_eq!((stdout.into_bytes(), is_cut), (vec![1, 2, 3], true));
    }

    #[test]
    fn output_that_cannot_be_held_is_cut_and_nothing_follows_the_gap() {
        let (budget, mut collector) = collector(300 * 1024, 8 * MIB);
        let written: Vec<u8> = (0..=255).cycle().take(MIB).collect();
        for piece in written.chunks(100_000) {
            collector.stdout(piece);
        }
        collector.stderr(b"late");
        let (mut stdout, stderr, is_cut, held) = collector.end();
        assert!(is_cut && stdout.len() > 100 * 1024, "{}", stdout.len());
        assert_eq!(stderr.len() % 4, 0, "whole or nothing");
        assert_eq!(budget.stats().truncated_total, 1 + u64::from(stderr.len() == 0));
        assert_eq!(held.bytes(), stdout.room() + stderr.room() + 1000);
        let mut read = Vec::new();
        while let Some(piece) = stdout.pop() {
            read.extend(piece);
        }
        assert_eq!((stdout.len(), stdout.room()), (0, 0));
        assert_eq!(read, written[..read.len()]);
        drop(held);
        assert_eq!(budget.stats().used_bytes, 0);
    }
}
