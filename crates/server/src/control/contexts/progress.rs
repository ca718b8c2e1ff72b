//! Progress of a run: what its kernel has said so far.

use kernels::{Message, Piece};
use tokio::sync::mpsc;
use tokio::time::Instant as Deadline;

use super::events::RunEvent;
use super::streams::{Stream, Streams};
use crate::budget::Reservation;

/// Copies of a message that are held at once: as it came, and taken apart.
const COPIES: usize = 2;

/// Progress of a run.
pub(super) struct Progress {
    pub(super) events: mpsc::Sender<RunEvent>,
    pub(super) streams: Streams,
    pub(super) run: u64,
    pub(super) is_new: bool,
    pub(super) has_begun: [bool; 2],
    pub(super) has_ended: [bool; 2],
    pub(super) has_failed: bool,
    pub(super) held: Reservation,
    pub(super) stage: Stage,
    /// End of the stage.
    pub(super) limit: Deadline,
    /// Time at which code that was interrupted is interrupted once more.
    pub(super) again: Deadline,
    /// Errors after the deadline, which a slow reader may not delay.
    pub(super) late: Vec<RunEvent>,
}

/// Stage of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Running,
    /// It was interrupted at its deadline.
    TimedOut,
    /// It was interrupted because nobody reads what it says.
    Left,
}

impl Progress {
    /// Returns what a piece means for the reader, if anything.
    pub(super) fn take(&mut self, stream: Stream, piece: Piece) -> Option<RunEvent> {
        let at = stream as usize;
        let is_inside = self.has_begun[at] && !self.has_ended[at];
        match piece {
            Piece::Output(bytes) => is_inside.then_some(RunEvent::Output(stream, bytes)),
            Piece::Dropped => is_inside.then_some(RunEvent::Dropped),
            Piece::Message(Message::Begin { run, count }) if run == self.run => {
                let is_first = self.has_begun == [false; 2];
                self.has_begun[at] = true;
                is_first.then_some(RunEvent::Started { count, is_new: self.is_new })
            }
            Piece::Message(Message::End { run }) if run == self.run => {
                self.has_ended[at] = true;
                None
            }
            Piece::Message(Message::Result { run, main, data }) if run == self.run => {
                Some(RunEvent::Result { is_main: main, data, held: self.hand_over() })
            }
            Piece::Message(Message::Error { run, name, value, traceback }) if run == self.run => {
                self.has_failed = true;
                Some(RunEvent::Error { name, value, traceback, held: self.hand_over() })
            }
            Piece::Message(Message::Completions { run, start, matches }) if run == self.run => {
                drop(self.hand_over());
                Some(RunEvent::Completions { start, matches })
            }
            // Of a run before, which another server began.
            Piece::Message(_) => None,
        }
    }

    /// Returns the memory of a message that is complete.
    fn hand_over(&mut self) -> Reservation {
        let nothing = self.held.account().nothing();
        std::mem::replace(&mut self.held, nothing)
    }

    /// Reserves memory for a message that is not complete, or drops it.
    pub(super) fn make_room(&mut self) {
        let missing = (COPIES * self.streams.message_bytes()).saturating_sub(self.held.bytes());
        if missing > 0 && self.held.grow(missing).is_err() {
            self.held.account().count_truncation();
            self.streams.drop_messages();
            self.held.shrink_to(0);
        }
    }
}
