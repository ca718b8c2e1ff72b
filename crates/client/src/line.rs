//! Splitting of a byte stream into lines.

use std::io::BufRead as _;

use bytes::{Buf, Bytes};

/// Maximum length of a line: the largest chunk that a box can send (4 MiB) in base64, and the JSON
/// around it. A server that sends more is not a Tidebox server.
pub(crate) const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Buffer for received bytes and an incomplete line.
#[derive(Debug)]
pub(crate) struct Lines {
    partial: Vec<u8>,
    unread: Bytes,
    /// Longest line, in bytes.
    max: usize,
}

impl Default for Lines {
    fn default() -> Self {
        Self::up_to(LINE_BYTES_MAX)
    }
}

/// A line that is too long.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LineTooLong;

impl Lines {
    /// Returns a buffer for lines of at most `max` bytes.
    pub(crate) fn up_to(max: usize) -> Self {
        Self { partial: Vec::new(), unread: Bytes::new(), max }
    }

    /// Returns the length of the longest line, in bytes.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Adds received bytes. Only valid after [`Lines::next`] returned `None`.
    pub(crate) fn push(&mut self, bytes: Bytes) {
        debug_assert!(self.unread.is_empty(), "lines are taken before more is added");
        self.unread = bytes;
    }

    /// Returns the next complete line without its newline, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, LineTooLong> {
        // Reads from memory cannot fail. `skip_until` is the standard library's fast search for a
        // byte.
        let length = (&mut &self.unread[..]).skip_until(b'\n').unwrap_or(0);
        if self.partial.len() + length > self.max {
            return Err(LineTooLong);
        }
        let complete = length > 0 && self.unread[length - 1] == b'\n';
        if !complete {
            self.partial.extend_from_slice(&self.unread);
            self.unread.clear();
            return Ok(None);
        }
        let end = self.unread.split_to(length);
        let end = &end.slice(..length - 1);
        if self.partial.is_empty() {
            return Ok(Some(end.clone()));
        }
        self.partial.extend_from_slice(end);
        Ok(Some(Bytes::from(std::mem::take(&mut self.partial))))
    }

    /// Returns whether the bytes so far end in the middle of a line.
    pub(crate) fn is_partial(&self) -> bool {
        !self.partial.is_empty() || self.unread.has_remaining()
    }
}

#[cfg(test)]
mod test {
    use bytes::Bytes;

    use super::{LINE_BYTES_MAX, LineTooLong, Lines};

    fn all(pieces: &[&'static [u8]]) -> (Vec<Bytes>, bool) {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for piece in pieces {
            lines.push(Bytes::from_static(piece));
            while let Some(line) = lines.next().unwrap() {
                found.push(line);
            }
        }
        (found, lines.is_partial())
    }

    #[test]
    fn lines_are_the_same_however_they_are_cut() {
        let text = b"one\n\nthree and more\nfour\n";
        let whole = all(&[text]);
        assert_eq!(whole.0, ["one", "", "three and more", "four"]);
        assert!(!whole.1);
        for at in 0..text.len() {
            assert_eq!(all(&[&text[..at], &text[at..]]), whole, "{at}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(all(&bytes), whole);
    }

    #[test]
    fn an_end_without_a_newline_is_no_line() {
        assert_eq!(all(&[b"one\ntw"]), (vec![Bytes::from_static(b"one")], true));
    }

    #[test]
    fn a_line_without_end_is_refused_at_its_bound() {
        let mut lines = Lines::default();
        let piece = Bytes::from(vec![b'x'; LINE_BYTES_MAX / 2]);
        for _ in 0..2 {
            lines.push(piece.clone());
            assert_eq!(lines.next(), Ok(None));
        }
        lines.push(piece);
        assert_eq!(lines.next(), Err(LineTooLong));
    }
}
