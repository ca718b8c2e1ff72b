//! Output of the commands of a build, line by line.

/// Longest line that is kept together, in bytes.
const LINE_BYTES_MAX: usize = 4096;

/// Lines of a stream that comes in pieces.
#[derive(Debug, Default)]
pub(super) struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// Takes a piece, and passes on the lines that it completes.
    pub(super) fn take(&mut self, piece: &[u8], mut line: impl FnMut(&str)) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let room = LINE_BYTES_MAX.saturating_sub(self.begun.len());
            self.begun.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                self.end(&mut line);
            }
        }
    }

    /// Passes on what is left.
    pub(super) fn end(&mut self, mut line: impl FnMut(&str)) {
        let text = String::from_utf8_lossy(&self.begun);
        let text = text.trim_end_matches(['\n', '\r']);
        // A progress bar writes over its line, and the last state counts.
        let text = text.rsplit('\r').next().unwrap_or_default();
        if !text.is_empty() {
            line(text);
        }
        self.begun.clear();
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn lines_are_whole_however_they_come() {
        for (pieces, expected) in [
            (&["a\nb\n"][..], &["a", "b"][..]),
            (&["a", "b\nc"], &["ab", "c"]),
            (&["a\r\n", "\n", "\r\n"], &["a"]),
            (&["10 %\r20 %\r30 %\n"], &["30 %"]),
            (&["\u{e4}"], &["\u{e4}"]),
            (&[""], &[]),
        ] {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for piece in pieces {
                lines.take(piece.as_bytes(), |line| found.push(line.to_owned()));
            }
            lines.end(|line| found.push(line.to_owned()));
            assert_eq!(found, expected, "{pieces:?}");
        }
    }

    #[test]
    fn a_line_without_an_end_takes_little_memory() {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for _ in 0..1000 {
            lines.take(&[b'x'; 1024], |line| found.push(line.len()));
        }
        lines.take(b"\nnext\n", |line| found.push(line.len()));
        assert_eq!(found, [LINE_BYTES_MAX, 4]);
    }
}
