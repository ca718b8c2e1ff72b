//! A command's output as the body of an answer.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use guest_protocol::Exit;
use guest_protocol::frame::{self, HEADER_BYTES, Kind};
use hyper::body::{Body, Frame};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use crate::agent::console::Console;

/// How long pipes that children of the command still hold are read on.
const LINGER: Duration = Duration::from_millis(250);
/// The first read of a command that writes little.
const READ_BYTES_MIN: usize = 4 * 1024;
/// The read of a command that writes much.
const READ_BYTES_MAX: usize = 64 * 1024;

/// Reads the command's pipes as fast as the caller reads the answer, and ends
/// with how the command ended. Dropping it before hangs up.
pub(crate) struct Output {
    console: Rc<Console>,
    pipes: [Pipe; 2],
    /// Whose turn it is, so that a loud stream does not silence the other.
    turn: usize,
    exit: oneshot::Receiver<Exit>,
    ended: Option<Ended>,
    hang_up: Option<oneshot::Sender<()>>,
}

struct Pipe {
    kind: Kind,
    receiver: Option<Receiver>,
    read_bytes: usize,
    /// Bytes that lay in the pipe when the command ended: they are its own,
    /// however late we come to read them.
    owed: u64,
}

struct Ended {
    exit: Exit,
    linger: Pin<Box<Sleep>>,
    is_over: bool,
}

impl Output {
    pub(super) fn new(
        console: Rc<Console>,
        stdout: Receiver,
        stderr: Receiver,
        exit: oneshot::Receiver<Exit>,
        hang_up: oneshot::Sender<()>,
    ) -> Self {
        let pipe = |kind, receiver| Pipe { kind, receiver: Some(receiver), read_bytes: READ_BYTES_MIN, owed: 0 };
        let pipes = [pipe(Kind::Stdout, stdout), pipe(Kind::Stderr, stderr)];
        Self { console, pipes, turn: 0, exit, ended: None, hang_up: Some(hang_up) }
    }

    /// Notices the end of the main process.
    fn poll_ended(&mut self, cx: &mut Context<'_>) {
        if self.ended.is_none()
            && let Poll::Ready(exit) = Pin::new(&mut self.exit).poll(cx)
        {
            // The supervisor always tells, unless it hung up on our behalf.
            let exit = exit.unwrap_or(Exit { code: 137, timed_out: false, oom_killed: false, duration_us: 0 });
            for pipe in &mut self.pipes {
                pipe.owed = pipe.receiver.as_ref().map_or(0, |open| rustix::io::ioctl_fionread(open).unwrap_or(0));
            }
            self.ended = Some(Ended { exit, linger: Box::pin(tokio::time::sleep(LINGER)), is_over: false });
        }
        if let Some(ended) = &mut self.ended
            && !ended.is_over
        {
            ended.is_over = ended.linger.as_mut().poll(cx).is_ready();
        }
    }

    /// The last frame. What is still open belongs to children left behind, and
    /// what they write from here on is the console's.
    fn finish(&mut self, exit: &Exit) -> Bytes {
        self.hang_up = None;
        for pipe in &mut self.pipes {
            if let Some(open) = pipe.receiver.take() {
                let console = Rc::clone(&self.console);
                tokio::task::spawn_local(async move { console.drain(open).await });
            }
        }
        let json = serde_json::to_vec(exit).unwrap_or_default();
        frame::encode(Kind::Exit, &json)
    }
}

impl Pipe {
    /// A frame with what the pipe holds; `None` at its end.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(open) = &mut self.receiver else { return Poll::Ready(None) };
        let mut out = BytesMut::zeroed(HEADER_BYTES + self.read_bytes);
        let mut space = ReadBuf::new(&mut out[HEADER_BYTES..]);
        let read = ready!(Pin::new(open).poll_read(cx, &mut space));
        let n = space.filled().len();
        if read.is_err() || n == 0 {
            self.receiver = None;
            return Poll::Ready(None);
        }
        out[..HEADER_BYTES].copy_from_slice(&frame::header(self.kind, n));
        out.truncate(HEADER_BYTES + n);
        self.owed = self.owed.saturating_sub(n as u64);
        self.read_bytes = if n == self.read_bytes { READ_BYTES_MAX } else { READ_BYTES_MIN.max(n.next_power_of_two()) };
        self.read_bytes = self.read_bytes.min(READ_BYTES_MAX);
        // A small piece must not hold on to a large buffer.
        Poll::Ready(Some(if n * 4 < out.capacity() { Bytes::copy_from_slice(&out) } else { out.freeze() }))
    }
}

impl Body for Output {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if self.hang_up.is_none() {
            return Poll::Ready(None);
        }
        self.poll_ended(cx);
        let is_over = self.ended.as_ref().is_some_and(|ended| ended.is_over);
        for at in [self.turn, 1 - self.turn] {
            let pipe = &mut self.pipes[at];
            if is_over && pipe.owed == 0 {
                continue;
            }
            if let Poll::Ready(Some(bytes)) = pipe.poll_read(cx) {
                self.turn = 1 - at;
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
        let Some(ended) = &self.ended else { return Poll::Pending };
        let is_drained = self.pipes.iter().all(|pipe| pipe.receiver.is_none());
        if !is_drained && !ended.is_over {
            return Poll::Pending;
        }
        let exit = ended.exit.clone();
        let last = self.finish(&exit);
        Poll::Ready(Some(Ok(Frame::data(last))))
    }
}
