//! What background processes write once their exec has ended: a bounded ring of
//! lines.

use std::cell::RefCell;
use std::collections::VecDeque;

use guest_protocol::CONSOLE_LINES_MAX;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// The ring's size in bytes: with short lines the count bounds it, with long
/// ones this does.
const BYTES_MAX: usize = 1024 * 1024;
/// A longer line is cut.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// A read from a background process.
const PIECE_BYTES: usize = 4096;

/// The box's console.
#[derive(Default)]
pub(crate) struct Console {
    ring: RefCell<Ring>,
}

#[derive(Default)]
struct Ring {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Ring {
    fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.bytes > BYTES_MAX || self.lines.len() > CONSOLE_LINES_MAX {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }
}

impl Console {
    /// Adds a line; bytes that are no UTF-8 become U+FFFD.
    pub(crate) fn push(&self, line: &[u8]) {
        let line = &line[..line.len().min(LINE_BYTES_MAX)];
        self.ring.borrow_mut().push(String::from_utf8_lossy(line).into_owned());
    }

    /// The newest `count` lines, oldest first.
    pub(crate) fn newest(&self, count: usize) -> Vec<String> {
        let ring = self.ring.borrow();
        ring.lines.iter().skip(ring.lines.len().saturating_sub(count)).cloned().collect()
    }

    /// Reads a pipe to its end, so that whoever writes to it never waits for us
    /// and is never ended by a broken pipe.
    pub(crate) async fn drain(&self, mut pipe: Receiver) {
        let mut line = Vec::new();
        let mut piece = [0u8; PIECE_BYTES];
        while let Ok(n @ 1..) = pipe.read(&mut piece).await {
            for part in piece[..n].split_inclusive(|b| *b == b'\n') {
                let (text, is_whole) = match part.split_last() {
                    Some((b'\n', text)) => (text, true),
                    _ => (part, false),
                };
                let room = LINE_BYTES_MAX.saturating_sub(line.len());
                line.extend_from_slice(&text[..text.len().min(room)]);
                if is_whole {
                    self.push(&line);
                    line.clear();
                }
            }
        }
        if !line.is_empty() {
            self.push(&line);
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_ring_keeps_the_newest_lines_within_both_bounds() {
        let console = Console::default();
        for n in 0..CONSOLE_LINES_MAX + 5 {
            console.push(n.to_string().as_bytes());
        }
        assert_eq!(console.newest(usize::MAX).len(), CONSOLE_LINES_MAX);
        assert_eq!(console.newest(2), [(CONSOLE_LINES_MAX + 3).to_string(), (CONSOLE_LINES_MAX + 4).to_string()]);
        for _ in 0..1000 {
            console.push(&[b'x'; LINE_BYTES_MAX * 2]);
        }
        assert_eq!(console.newest(usize::MAX).len(), BYTES_MAX / LINE_BYTES_MAX);
    }
}
