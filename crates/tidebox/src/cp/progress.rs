//! Progress of a copy on stderr, if that is a terminal.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::image::progress::bytes;
use crate::output::{Format, Output, stderr_is_terminal};

/// Time between two updates.
const EVERY: Duration = Duration::from_millis(100);

/// Progress shown at this point.
#[derive(Debug)]
pub struct Shown {
    is_shown: bool,
}

impl Shown {
    /// Chooses by the output format and by whether stderr is a terminal.
    pub fn new(output: Output) -> Self {
        Self { is_shown: output.format == Format::Table && stderr_is_terminal() }
    }

    /// Begins a count of bytes.
    pub fn counting(&self) -> Counting {
        Counting { is_shown: self.is_shown, bytes: 0, begun: Instant::now(), shown: None }
    }

    /// Erases the line that changes.
    pub fn clear(&mut self) {
        if self.is_shown {
            let _ = write!(std::io::stderr().lock(), "\r\u{1b}[K");
        }
    }
}

/// Count of bytes that have been copied.
#[derive(Debug)]
pub struct Counting {
    is_shown: bool,
    bytes: u64,
    begun: Instant,
    shown: Option<Instant>,
}

impl Counting {
    pub fn add(&mut self, more: usize) {
        self.bytes += more as u64;
        if !self.is_shown || self.shown.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        let took = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = self.bytes.saturating_mul(1000) / took;
        let _ = write!(std::io::stderr().lock(), "\r\u{1b}[K{} at {}/s", bytes(self.bytes), bytes(rate));
    }
}
