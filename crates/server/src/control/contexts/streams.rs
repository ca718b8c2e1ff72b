//! The two streams that a kernel writes, taken apart.

use kernels::{Broken, Decoder, Marker, Piece};
use providers::ProcessEvent;

/// Stream of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Decoders of the streams of a kernel.
#[derive(Debug)]
pub(super) struct Streams {
    stdout: Decoder,
    stderr: Decoder,
    /// Stream whose bytes came last.
    last: Stream,
    position: u64,
}

impl Streams {
    /// Returns decoders for output from a position on.
    pub(super) fn new(marker: &Marker, position: u64) -> Self {
        Self { stdout: Decoder::new(marker), stderr: Decoder::new(marker), last: Stream::Stdout, position }
    }

    /// Returns the position after what was taken.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the number of bytes of messages that are not complete.
    pub(super) fn message_bytes(&self) -> usize {
        self.stdout.message_bytes() + self.stderr.message_bytes()
    }

    /// Drops the messages that are not complete.
    pub(super) fn drop_messages(&mut self) {
        for decoder in [&mut self.stdout, &mut self.stderr] {
            if decoder.message_bytes() > 0 {
                decoder.drop_message();
            }
        }
    }

    /// Drops messages that are not complete and have more bytes than these.
    pub(super) fn drop_messages_above(&mut self, max: usize) {
        if self.message_bytes() > max {
            self.drop_messages();
        }
    }

    /// Takes output of the process.
    pub(super) fn push(&mut self, event: ProcessEvent) {
        match event {
            ProcessEvent::Stdout(bytes) => {
                self.position += bytes.len() as u64;
                self.last = Stream::Stdout;
                self.stdout.push(&bytes);
            }
            ProcessEvent::Stderr(bytes) => {
                self.position += bytes.len() as u64;
                self.last = Stream::Stderr;
                self.stderr.push(&bytes);
            }
            // What lies between is no longer kept.
            ProcessEvent::Position(position) if position != self.position => {
                self.position = position;
                self.stdout.skip();
                self.stderr.skip();
            }
            ProcessEvent::Position(_) | ProcessEvent::Screen(_) | ProcessEvent::Exit(_) => {}
        }
    }

    /// Returns the next piece of what was taken last.
    ///
    /// # Errors
    /// [`Broken`] for what no driver writes.
    pub(super) fn next_piece(&mut self) -> Result<Option<(Stream, Piece)>, Broken> {
        let decoder = match self.last {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        Ok(decoder.next_piece()?.map(|piece| (self.last, piece)))
    }
}
