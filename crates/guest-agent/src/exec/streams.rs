//! Transfer between the pipes of a command, or its terminal, and HTTP/2.

use std::rc::Rc;
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
use crate::agent::Agent;
use crate::console::{Console, Lines};
use crate::failure::{Result, invalid};

/// Size of the first read; most commands write less.
const READ_BYTES_FIRST: usize = 16 * 1024;
/// Size of a read of a command that writes much. Below a tracer each call costs as much as a copy
/// of 100 kB.
const READ_BYTES_MAX: usize = 256 * 1024;
/// Size of a read of output for the console; a pipe holds as much.
const CONSOLE_BYTES_MAX: usize = 64 * 1024;
/// Size below which a piece waits for more, after the first one.
const SMALL_BYTES: usize = 4 * 1024;
/// Longest wait of a small piece for more if one has just been sent.
const PATIENCE: Duration = Duration::from_millis(1);
/// Pause after each read for the console: a background process that writes all the time gets 64 KiB
/// per pause.
const CONSOLE_PAUSE: Duration = Duration::from_millis(5);

/// Phase of an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The main process runs.
    Running,
    /// The main process has ended; its children may hold the pipes.
    Ended,
    /// The bytes in the pipes now are the last that are sent.
    Finishing,
}

/// Sends the output of a pipe, if there is one, until it ends or the exec does. Returns the pipe if
/// another process still holds its other end. The end of a terminal is an error, which means that
/// no process has it open any more.
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
        // The room comes before the bytes, so that a stalled reader leaves them in the pipe, where
        // they block the writer.
        let room = to.reserve().await.ok()?;
        match read(&pipe, kind, at_once.min(last.unwrap_or(at_once))) {
            Ok(None) => return None,
            Ok(Some((frame, len))) => {
                room.send(frame);
                last = last.map(|last| last - len);
                if len == at_once && at_once < READ_BYTES_MAX {
                    at_once *= 4;
                    if at_once == READ_BYTES_MAX {
                        // Otherwise each read gets only what a pipe of the usual size holds.
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

/// Returns the number of bytes in the pipe.
fn available(pipe: &pipe::Receiver) -> usize {
    ioctl_fionread(pipe).map_or(0, |len| usize::try_from(len).unwrap_or(usize::MAX))
}

/// Reads one frame and the length of its payload, or `None` at the end.
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
    // Small frames may queue in great numbers, and must not hold large buffers.
    let frame = if len < at_most / 2 { Bytes::copy_from_slice(&frame) } else { frame.freeze() };
    Ok(Some((frame, len)))
}

/// Moves the output of background processes to the console until the last of them ends.
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

/// Frames that the client sends.
#[derive(Debug)]
pub(super) struct Input {
    body: Incoming,
    decoder: Decoder,
}

impl Input {
    pub(super) fn new(body: Incoming) -> Input {
        Input { body, decoder: Decoder::default() }
    }

    /// Returns the next frame; `None` at the end of the body or when the client has gone.
    ///
    /// # Errors
    /// Invalid for bytes that are not a frame.
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

    /// Writes the client's stdin frames to the command, as fast as it reads. Bytes that come after
    /// the command has closed its stdin are dropped.
    pub(super) async fn pump(mut self, mut stdin: Stdin) {
        // Frames of other kinds are ignored.
        while let Ok(Some(frame)) = self.next().await {
            match frame.kind {
                Kind::Stdin => stdin.write(&frame.payload).await,
                Kind::StdinEnd => stdin.end().await,
                Kind::Start
                | Kind::Stdout
                | Kind::Stderr
                | Kind::Exit
                | Kind::Failure
                | Kind::Screen
                | Kind::Position => {}
            }
        }
        stdin.end().await;
    }
}

/// Stdin of a command.
#[derive(Debug)]
pub(super) struct Stdin {
    agent: Rc<Agent>,
    /// `None` after its end.
    to: Option<pipe::Sender>,
    is_terminal: bool,
    /// True after a line was begun and not ended.
    within_line: bool,
}

impl Stdin {
    pub(super) fn new(agent: Rc<Agent>, to: Option<pipe::Sender>, is_terminal: bool) -> Stdin {
        Stdin { agent, to, is_terminal, within_line: false }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) {
        let Some(to) = &self.to else { return };
        if let Some(size) = &self.agent.size {
            size.use_now();
        }
        if let Some(last) = bytes.last() {
            self.within_line = !matches!(last, b'\n' | b'\r');
        }
        if write_all(to, bytes).await.is_err() {
            self.to = None;
        }
    }

    /// Closes a pipe. A terminal stays open, so its end is typed into it: once to submit the line
    /// that was begun, and once for an end.
    pub(super) async fn end(&mut self) {
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
