//! Readers of the output of a background process.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use guest_protocol::frame::{HEADER_BYTES, Kind, parse_header};
use guest_protocol::output::Read;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::table::{Counted, Process, Processes};
use crate::{Attach, AttachFrom, Error, ProcessEvent, ProcessEvents, ProcessInput, Result};

impl Processes {
    /// Begins to read the output of a process.
    pub(crate) fn attach(&self, number: u64, attach: Attach) -> Result<ProcessEvents> {
        let process = self.get(number)?;
        let (first, end) = {
            let ring = process.ring.lock();
            (ring.first(), ring.end())
        };
        let mut screen = None;
        let position = match attach.from {
            AttachFrom::Position(position) if position > end => {
                return Err(Error::Invalid(format!("the process has written {end} bytes so far, not {position}")));
            }
            AttachFrom::Position(position) => position,
            AttachFrom::Screen if process.terminal.lock().is_some() => {
                let (bytes, next) = all(&process, first);
                screen = Some(bytes);
                next
            }
            AttachFrom::Screen => first,
        };
        let mut feeding = JoinSet::new();
        if let Some(input) = attach.input {
            feeding.spawn(feed(Arc::clone(&process), input));
        }
        let reader = Reader {
            news: process.news.subscribe(),
            counted: Counted::of(&process, position),
            process,
            screen,
            position,
            is_begun: false,
            follow: attach.follow,
            dead: self.dead.clone(),
            _feeding: feeding,
        };
        let events = stream::unfold(Some(reader), |reader| async move {
            let mut reader = reader?;
            match reader.next().await {
                Ok(None) => None,
                Ok(Some(event @ ProcessEvent::Exit(_))) => Some((Ok(event), None)),
                Ok(Some(event)) => Some((Ok(event), Some(reader))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(events.boxed())
    }
}

/// Returns all output that is kept from `position` on, and the position after it. A terminal draws its screen from it.
fn all(process: &Process, mut position: u64) -> (Bytes, u64) {
    let ring = process.ring.lock();
    let mut bytes = BytesMut::new();
    loop {
        match ring.read(position) {
            Read::Frame(frame, next) => {
                bytes.extend_from_slice(&frame[HEADER_BYTES..]);
                position = next;
            }
            Read::Lost(oldest) => position = oldest,
            Read::Nothing => return (bytes.freeze(), position),
        }
    }
}

/// Passes the input of a reader on.
async fn feed(process: Arc<Process>, mut input: BoxStream<'static, ProcessInput>) {
    while let Some(next) = input.next().await {
        match next {
            // A process without an open stdin drops what is written, as one that has closed it.
            ProcessInput::Bytes(bytes) => drop(process.give(bytes).await),
            ProcessInput::End => process.end_input().await,
        }
    }
}

/// A reader of a process's output.
struct Reader {
    process: Arc<Process>,
    news: watch::Receiver<()>,
    /// Bytes that draw the screen, until they were sent.
    screen: Option<Bytes>,
    /// Position of the byte that comes next.
    position: u64,
    /// True once the reader knows the position.
    is_begun: bool,
    follow: bool,
    dead: CancellationToken,
    counted: Counted,
    _feeding: JoinSet<()>,
}

impl Reader {
    /// Returns the next event; `None` at the newest output if the reader does not follow.
    async fn next(&mut self) -> Result<Option<ProcessEvent>> {
        if let Some(screen) = self.screen.take() {
            return Ok(Some(ProcessEvent::Screen(screen)));
        }
        if !std::mem::replace(&mut self.is_begun, true) {
            return Ok(Some(ProcessEvent::Position(self.position)));
        }
        loop {
            if self.dead.is_cancelled() {
                return Err(Error::Gone);
            }
            self.news.mark_unchanged();
            // Before the ring: what is written before the end is in it.
            let exit = self.process.exit();
            let read = self.process.ring.lock().read(self.position);
            match read {
                Read::Frame(frame, next) => {
                    self.position = next;
                    self.counted.sent(next);
                    return Ok(Some(output(&frame)));
                }
                Read::Lost(oldest) => {
                    self.position = oldest;
                    self.counted.sent(oldest);
                    return Ok(Some(ProcessEvent::Position(oldest)));
                }
                Read::Nothing => {}
            }
            if exit.is_some() || !self.follow {
                return Ok(exit.map(ProcessEvent::Exit));
            }
            let changed = self.dead.run_until_cancelled(self.news.changed()).await;
            if !matches!(changed, Some(Ok(()))) {
                return Err(Error::Gone);
            }
        }
    }
}

/// Returns the output that a frame of the ring holds.
fn output(frame: &Bytes) -> ProcessEvent {
    let is_stderr = frame.first_chunk().is_some_and(|head| matches!(parse_header(*head), Ok((Kind::Stderr, _))));
    let bytes = frame.slice(HEADER_BYTES..);
    if is_stderr { ProcessEvent::Stderr(bytes) } else { ProcessEvent::Stdout(bytes) }
}
