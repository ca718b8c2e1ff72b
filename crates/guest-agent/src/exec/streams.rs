//! The streams of a command between its pipes, or its terminal, and HTTP/2.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use guest_protocol::frame::{Decoder, Frame, HEADER_BYTES, Kind, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustix::io::ioctl_fionread;
use rustix::pipe::fcntl_setpipe_size;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::terminal;
use crate::console::{Console, Lines};
use crate::failure::{Result, invalid};

/// The first read; most commands write less.
const READ_BYTES_FIRST: usize = 16 * 1024;
/// One read of a command that writes much. Below a tracer each call costs as much
/// as a copy of 100 kB.
const READ_BYTES_MAX: usize = 256 * 1024;
/// One read of what goes to the console; a pipe holds as much.
const CONSOLE_BYTES_MAX: usize = 64 * 1024;
/// Less than this is worth a little patience after the first time.
const SMALL_BYTES: usize = 4 * 1024;
/// So long may a small piece wait for company if one has just been sent.
const PATIENCE: Duration = Duration::from_millis(1);
/// A background process that writes all the time gets 64 KiB each so often.
const CONSOLE_PAUSE: Duration = Duration::from_millis(5);

/// How far an exec has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The main process runs.
    Running,
    /// The main process has ended; its children may hold the pipes.
    Ended,
    /// What is in the pipes now is the last that is sent.
    Finishing,
}

/// Sends what a pipe gives, if there is one, until it ends or the exec does. Gives
/// the pipe back if somebody still holds its other end. Of a terminal, the end is
/// an error that says that nobody has it open any more.
pub(super) async fn pump(
    pipe: Option<pipe::Receiver>,
    kind: Kind,
    to: mpsc::Sender<Bytes>,
    mut phase: watch::Receiver<Phase>,
) -> Option<pipe::Receiver> {
    let pipe = pipe?;
    let mut last: Option<usize> = None;
    let mut at_once = READ_BYTES_FIRST;
    let mut small_sent: Option<Instant> = None;
    loop {
        if last.is_none() {
            tokio::select! {
                biased;
                Ok(_) = phase.wait_for(|phase| *phase == Phase::Finishing) => {
                    last = Some(available(&pipe));
                }
                ready = pipe.readable() => ready.ok()?,
            }
        }
        if last == Some(0) {
            return Some(pipe);
        }
        if let Some(sent) = small_sent.take()
            && sent.elapsed() < PATIENCE
            && available(&pipe) < SMALL_BYTES
        {
            let ended = phase.wait_for(|phase| *phase >= Phase::Ended);
            let _ = tokio::time::timeout_at(sent + PATIENCE, ended).await;
        }
        // The room comes before the bytes, so that a reader who has stopped leaves
        // them in the pipe, where they stop the writer.
        let room = to.reserve().await.ok()?;
        match read(&pipe, kind, at_once.min(last.unwrap_or(at_once))) {
            Ok(None) => return None,
            Ok(Some((frame, len))) => {
                room.send(frame);
                last = last.map(|last| last - len);
                if len == at_once && at_once < READ_BYTES_MAX {
                    at_once *= 4;
                    if at_once == READ_BYTES_MAX {
                        // Without, each read gets what the usual size holds.
                        let _ = fcntl_setpipe_size(&pipe, READ_BYTES_MAX);
                    }
                }
                small_sent = (len < SMALL_BYTES).then(Instant::now);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if last.is_some() {
                    return Some(pipe);
                }
            }
            Err(_) => return None,
        }
    }
}

/// How many bytes wait in the pipe.
fn available(pipe: &pipe::Receiver) -> usize {
    ioctl_fionread(pipe).map_or(0, |len| usize::try_from(len).unwrap_or(usize::MAX))
}

/// One frame and the length of its payload, or `None` at the end.
fn read(pipe: &pipe::Receiver, kind: Kind, at_most: usize) -> std::io::Result<Option<(Bytes, usize)>> {
    let mut frame = BytesMut::with_capacity(HEADER_BYTES + at_most);
    frame.put_bytes(0, HEADER_BYTES);
    let len = pipe.try_read_buf(&mut (&mut frame).limit(at_most))?;
    if len == 0 {
        return Ok(None);
    }
    if let Some(head) = frame.first_chunk_mut() {
        *head = header(kind, len);
    }
    // Small frames may wait in great numbers, and must not hold large buffers.
    let frame = if len < at_most / 2 { Bytes::copy_from_slice(&frame) } else { frame.freeze() };
    Ok(Some((frame, len)))
}

/// Moves what background processes write to the console until the last of them ends.
pub(super) async fn drain(pipe: pipe::Receiver, console: &Console) {
    let mut lines = Lines::default();
    let mut buffer = Vec::new();
    while pipe.readable().await.is_ok() {
        buffer.clear();
        buffer.reserve_exact(available(&pipe).clamp(1, CONSOLE_BYTES_MAX));
        let room = buffer.capacity();
        match pipe.try_read_buf(&mut (&mut buffer).limit(room)) {
            Ok(0) => break,
            Ok(len) => lines.feed(buffer.get(..len).unwrap_or_default(), console),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => break,
        }
        // Most background processes never write again.
        buffer = Vec::new();
        tokio::time::sleep(CONSOLE_PAUSE).await;
    }
    lines.finish(console);
}

/// The frames that the client sends.
#[derive(Debug)]
pub(super) struct Input {
    body: Incoming,
    decoder: Decoder,
}

impl Input {
    pub(super) fn new(body: Incoming) -> Input {
        Input { body, decoder: Decoder::default() }
    }

    /// The next frame; `None` at the end of the body or when the client has gone.
    ///
    /// # Errors
    /// Invalid for bytes that are no frame.
    pub(super) async fn next(&mut self) -> Result<Option<Frame>> {
        loop {
            let frame = self.decoder.next_frame().map_err(|malformed| invalid(malformed.to_string()))?;
            if frame.is_some() {
                return Ok(frame);
            }
            match self.body.frame().await {
                Some(Ok(piece)) => piece.data_ref().into_iter().for_each(|bytes| self.decoder.feed(bytes)),
                Some(Err(_)) | None => return Ok(None),
            }
        }
    }

    /// Writes the client's stdin frames to the command, as fast as it reads. What
    /// comes after the command has closed its stdin is taken and dropped.
    pub(super) async fn pump(mut self, mut stdin: Stdin) {
        // Frames of other kinds make no sense here, and nobody waits for them.
        while let Ok(Some(frame)) = self.next().await {
            match frame.kind {
                Kind::Stdin => stdin.write(&frame.payload).await,
                Kind::StdinEnd => stdin.end().await,
                Kind::Start | Kind::Stdout | Kind::Stderr | Kind::Exit | Kind::Failure => {}
            }
        }
        stdin.end().await;
    }
}

/// Where a command reads.
#[derive(Debug)]
pub(super) struct Stdin {
    /// `None` after its end.
    to: Option<pipe::Sender>,
    is_terminal: bool,
    /// Whether a line has been begun and not ended.
    within_line: bool,
}

impl Stdin {
    pub(super) fn new(to: Option<pipe::Sender>, is_terminal: bool) -> Stdin {
        Stdin { to, is_terminal, within_line: false }
    }

    async fn write(&mut self, bytes: &[u8]) {
        let Some(to) = &self.to else { return };
        if let Some(last) = bytes.last() {
            self.within_line = !matches!(last, b'\n' | b'\r');
        }
        if write_all(to, bytes).await.is_err() {
            self.to = None;
        }
    }

    /// Closes a pipe. A terminal stays open, so its end is typed into it: once to
    /// give away the line that was begun, and once for an end.
    async fn end(&mut self) {
        let Some(to) = self.to.take() else { return };
        if self.is_terminal {
            let keys = terminal::end_keys(&to, self.within_line);
            // A command that has gone needs no end.
            let _ = write_all(&to, &keys).await;
        }
    }
}

async fn write_all(pipe: &pipe::Sender, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        pipe.writable().await?;
        match pipe.try_write(bytes) {
            Ok(len) => bytes = bytes.get(len..).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
