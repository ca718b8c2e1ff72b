//! Console of the box: output of background processes after the command that started them had
//! ended, and messages of the agent.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use guest_protocol::{CONSOLE_BYTES_MAX, CONSOLE_LINES_MAX};

use crate::budget::Share;
use crate::failure::Result;
use crate::serve::rows::Rows;

/// Maximum length of a line, in bytes; a longer one is split.
const LINE_BYTES_MAX: usize = 8 * 1024;

/// The newest lines of the console.
#[derive(Debug, Default)]
pub(crate) struct Console {
    ring: RefCell<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<Rc<str>>,
    bytes: usize,
}

impl Ring {
    /// Returns the bytes that an answer with all lines takes.
    fn size(&self) -> usize {
        self.bytes + self.lines.len() * size_of::<Rc<str>>()
    }
}

impl Console {
    /// Adds a line and drops the oldest ones beyond the limits.
    pub(crate) fn push(&self, line: String) {
        let mut ring = self.ring.borrow_mut();
        ring.bytes += line.len();
        ring.lines.push_back(line.into());
        while ring.lines.len() > CONSOLE_LINES_MAX || ring.bytes > CONSOLE_BYTES_MAX {
            let Some(oldest) = ring.lines.pop_front() else { break };
            ring.bytes -= oldest.len();
        }
    }

    /// Returns the newest `count` lines, oldest first.
    ///
    /// # Errors
    /// Exhausted if other answers take all the memory that there is for them.
    pub(crate) async fn newest(&self, count: usize, mut share: Share) -> Result<Newest> {
        let bytes = self.ring.borrow().size();
        share.take(bytes).await?;
        share.gathered();
        let ring = self.ring.borrow();
        // Lines written while this waited are left out, so that the share covers the answer.
        let mut lines: Vec<Rc<str>> = Vec::new();
        let mut left = bytes;
        for line in ring.lines.iter().rev().take(count) {
            let taken = line.len() + size_of::<Rc<str>>();
            if taken > left {
                break;
            }
            left -= taken;
            lines.push(Rc::clone(line));
        }
        Ok(Newest { lines, _share: share })
    }
}

/// Lines on their way to the server, the oldest last.
#[derive(Debug)]
pub(crate) struct Newest {
    lines: Vec<Rc<str>>,
    _share: Share,
}

impl Rows for Newest {
    type Row<'a> = String;

    fn next(&mut self) -> Option<String> {
        self.lines.pop().map(|line| line.to_string())
    }
}

/// Splitter of one process's output into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// Adds every line that `bytes` completes to `console`.
    pub(crate) fn feed(&mut self, bytes: &[u8], console: &Console) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, complete) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            for part in text.chunks(LINE_BYTES_MAX) {
                let room = LINE_BYTES_MAX - self.begun.len();
                let (fits, rest) = part.split_at(room.min(part.len()));
                self.begun.extend_from_slice(fits);
                if !rest.is_empty() {
                    self.end(console);
                    self.begun.extend_from_slice(rest);
                }
            }
            if complete {
                self.end(console);
            }
        }
    }

    /// Adds the rest, which has no end of line yet, to `console`.
    pub(crate) fn finish(mut self, console: &Console) {
        if !self.begun.is_empty() {
            self.end(console);
        }
    }

    fn end(&mut self, console: &Console) {
        console.push(String::from_utf8_lossy(&self.begun).into_owned());
        self.begun.clear();
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::budget::Budget;

    fn newest(console: &Console, count: usize) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut newest = runtime.block_on(console.newest(count, Budget::of(64).share())).unwrap();
        std::iter::from_fn(|| newest.next()).collect()
    }

    #[test]
    fn lines_are_whole_wherever_the_writes_were_cut() {
        let text = b"one\n\ntwo \xff\nthree";
        for size in 1..=text.len() {
            let (console, mut lines) = (Console::default(), Lines::default());
            text.chunks(size).for_each(|piece| lines.feed(piece, &console));
            lines.finish(&console);
            assert_eq!(newest(&console, 10), ["one", "", "two \u{fffd}", "three"]);
        }
    }

    #[test]
    fn the_oldest_lines_go_first_by_count_and_by_size() {
        let console = Console::default();
        (0..CONSOLE_LINES_MAX + 5).for_each(|n| console.push(n.to_string()));
        assert_eq!(newest(&console, usize::MAX).len(), CONSOLE_LINES_MAX);
        assert_eq!(newest(&console, 1), [(CONSOLE_LINES_MAX + 4).to_string()]);
        let mut lines = Lines::default();
        lines.feed(&vec![b'x'; 3 * CONSOLE_BYTES_MAX], &console);
        let kept = newest(&console, usize::MAX);
        assert!(kept.iter().all(|line| line.len() <= LINE_BYTES_MAX));
        assert!(kept.iter().map(String::len).sum::<usize>() <= CONSOLE_BYTES_MAX);
    }
}
