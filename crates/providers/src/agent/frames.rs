//! Frames of a command's output as events.

use std::time::Duration;

use bytes::{Buf, Bytes};
use guest_protocol::Exit;
use guest_protocol::frame::{self, HEADER_BYTES, Kind, PAYLOAD_BYTES_MAX};

use super::wire::failure;
use crate::{Error, ExitStatus, ProcessEvent, Result, Signal};

/// The longest description of an exit or a failure, in bytes.
const LAST_BYTES_MAX: usize = 64 * 1024;
/// Length of a position, in bytes.
const POSITION_BYTES: usize = 8;

/// Parser of frames into events. Output is neither copied nor held back.
pub(super) struct Frames {
    /// The request that the frames answer, for errors.
    action: &'static str,
    arrived: Bytes,
    head: [u8; HEADER_BYTES],
    head_filled: usize,
    /// Kind of the frame that is being received, and the number of bytes still to come.
    current: Option<(Kind, usize)>,
    /// Payload of a frame that is passed on as a whole.
    last: Vec<u8>,
}

impl Frames {
    pub(super) fn of(action: &'static str) -> Frames {
        Frames {
            action,
            arrived: Bytes::new(),
            head: [0; HEADER_BYTES],
            head_filled: 0,
            current: None,
            last: Vec::new(),
        }
    }

    /// Adds the next piece, after all events of the one before were taken out.
    pub(super) fn feed(&mut self, piece: Bytes) {
        debug_assert!(self.arrived.is_empty());
        self.arrived = piece;
    }

    /// Returns the next event, or `None` when more has to arrive.
    pub(super) fn next_event(&mut self) -> Result<Option<ProcessEvent>> {
        loop {
            let Some((kind, left)) = self.current else {
                if !self.begin_frame()? {
                    return Ok(None);
                }
                continue;
            };
            let piece = self.arrived.split_to(left.min(self.arrived.len()));
            let left = left - piece.len();
            self.current = (left > 0).then_some((kind, left));
            let more = match kind {
                Kind::Stdout if !piece.is_empty() => return Ok(Some(ProcessEvent::Stdout(piece))),
                Kind::Stderr if !piece.is_empty() => return Ok(Some(ProcessEvent::Stderr(piece))),
                Kind::Stdout | Kind::Stderr => left > 0,
                Kind::Exit | Kind::Failure | Kind::Screen | Kind::Position => {
                    self.last.extend_from_slice(&piece);
                    if left == 0 {
                        return self.whole(kind).map(Some);
                    }
                    true
                }
                Kind::Start | Kind::Stdin | Kind::StdinEnd => {
                    return Err(Error::failed(self.action, "the agent sent a frame that only servers send"));
                }
            };
            if more && self.arrived.is_empty() {
                return Ok(None);
            }
        }
    }

    /// Reads the head of a frame. Returns `false` when more has to arrive.
    fn begin_frame(&mut self) -> Result<bool> {
        let taken = (HEADER_BYTES - self.head_filled).min(self.arrived.len());
        self.arrived.copy_to_slice(&mut self.head[self.head_filled..self.head_filled + taken]);
        self.head_filled += taken;
        if self.head_filled < HEADER_BYTES {
            return Ok(false);
        }
        self.head_filled = 0;
        let (kind, len) = frame::parse_header(self.head).map_err(|error| Error::failed(self.action, error))?;
        let most = match kind {
            Kind::Exit | Kind::Failure => LAST_BYTES_MAX,
            Kind::Position => POSITION_BYTES,
            Kind::Start | Kind::Stdin | Kind::StdinEnd | Kind::Stdout | Kind::Stderr | Kind::Screen => {
                PAYLOAD_BYTES_MAX
            }
        };
        if len > most {
            return Err(Error::failed(self.action, "the agent sent a frame that is too long"));
        }
        self.current = Some((kind, len));
        Ok(true)
    }

    /// Parses the payload of a frame that is complete.
    fn whole(&mut self, kind: Kind) -> Result<ProcessEvent> {
        let payload = std::mem::take(&mut self.last);
        match kind {
            Kind::Failure => match serde_json::from_slice(&payload) {
                Ok(found) => Err(failure(self.action, found)),
                Err(error) => Err(Error::failed(self.action, error)),
            },
            Kind::Screen => Ok(ProcessEvent::Screen(payload.into())),
            Kind::Position => {
                let position = <[u8; POSITION_BYTES]>::try_from(payload.as_slice());
                let position = position.map_err(|error| Error::failed(self.action, error))?;
                Ok(ProcessEvent::Position(u64::from_be_bytes(position)))
            }
            Kind::Exit | Kind::Start | Kind::Stdin | Kind::StdinEnd | Kind::Stdout | Kind::Stderr => {
                let exit = serde_json::from_slice(&payload).map_err(|error| Error::failed(self.action, error))?;
                Ok(ProcessEvent::Exit(exit_status(exit)))
            }
        }
    }
}

/// Converts the end of a command.
pub(super) fn exit_status(exit: Exit) -> ExitStatus {
    let Exit { code, signal, timed_out, oom_killed, pids_exhausted, duration_us } = exit;
    let signal = signal.and_then(Signal::numbered);
    ExitStatus { code, signal, timed_out, oom_killed, pids_exhausted, duration: Duration::from_micros(duration_us) }
}

#[cfg(test)]
mod test {
    use super::*;

    fn events(pieces: &[&[u8]]) -> Result<Vec<ProcessEvent>> {
        let mut frames = Frames::of("run a command");
        let mut events = Vec::new();
        for piece in pieces {
            frames.feed(Bytes::copy_from_slice(piece));
            while let Some(event) = frames.next_event()? {
                events.push(event);
            }
        }
        Ok(events)
    }

    fn sent() -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, payload) in [
            (Kind::Stdout, &b"hello"[..]),
            (Kind::Stdout, b""),
            (Kind::Stderr, b"oh"),
            (Kind::Exit, br#"{"code":3,"duration_us":7}"#),
        ] {
            bytes.extend_from_slice(&frame::encode(kind, payload));
        }
        bytes
    }

    #[test]
    fn any_cut_of_the_stream_gives_the_same_output() {
        let bytes = sent();
        for size in 1..=bytes.len() {
            let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            let mut stdout = Vec::new();
            let mut stderr = Vec::new();
            let mut exit = None;
            for event in events(&pieces).unwrap() {
                match event {
                    ProcessEvent::Stdout(piece) => stdout.extend_from_slice(&piece),
                    ProcessEvent::Stderr(piece) => stderr.extend_from_slice(&piece),
                    ProcessEvent::Exit(status) => exit = Some(status),
                    ProcessEvent::Screen(_) | ProcessEvent::Position(_) => panic!("{event:?}"),
                }
            }
            assert_eq!((&stdout[..], &stderr[..]), (&b"hello"[..], &b"oh"[..]), "cut at {size}");
            assert_eq!(exit.map(|status| (status.code, status.duration)), Some((3, Duration::from_micros(7))));
        }
    }

    #[test]
    fn what_is_no_frame_of_an_agent_is_refused() {
        let huge = frame::header(Kind::Exit, LAST_BYTES_MAX + 1);
        for bytes in [&[99, 0, 0, 0, 0][..], &[17, 0xff, 0, 0, 0], &[1, 0, 0, 0, 0], &[2, 0, 0, 0, 1, 0], &huge] {
            assert!(matches!(events(&[bytes]), Err(Error::Failed { .. })), "{bytes:?}");
        }
        assert!(events(&[&frame::encode(Kind::Exit, b"{}")]).is_err());
    }

    #[test]
    fn output_is_not_held_back_until_its_frame_is_whole() {
        let head = frame::header(Kind::Stdout, 1000);
        assert_eq!(events(&[&head, b"abc"]).unwrap(), [ProcessEvent::Stdout(Bytes::from_static(b"abc"))]);
    }
}
