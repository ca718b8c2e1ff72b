//! Output of a command or a process as frames of raw bytes, sent as it is written.
//!
//! A frame is a byte for its kind, four for the length of what follows (big endian), and that: bytes of
//! stdout or stderr as they are, or the JSON of a position or of the exit. Nothing is encoded or copied, which
//! is where the time of NDJSON goes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use api::{FRAME_MESSAGE, FRAMES_TYPE, SOCKET_STDERR, SOCKET_STDOUT, SocketOutput};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use http_body::Frame;
use providers::{ExitStatus, ProcessEvent, ProcessEvents};

use super::{KEEP_ALIVE, answer, exit_trailer, reason_of_cut};
use crate::http::stream::flow_control::{Outflow, PIECE_BYTES_MIN};

/// Returns the response that carries the output at the speed of the client; with `position`, that of the first
/// byte, for a process.
pub fn response(output: ProcessEvents, position: Option<u64>, timeout: Option<Duration>, outflow: Outflow) -> Response {
    let mut frames = Frames {
        output,
        outflow,
        timeout,
        position,
        piece: (SOCKET_STDOUT, Bytes::new()),
        ready: VecDeque::new(),
        exit_code: None,
        is_over: false,
    };
    if let Some(seq) = position {
        frames.message(&SocketOutput::Position { seq });
    }
    let frames = futures_util::stream::unfold(frames, |mut frames| async move {
        let frame = frames.next().await?;
        Some((Ok::<_, Infallible>(frame), frames))
    });
    answer(Body::new(http_body_util::StreamBody::new(frames)), HeaderValue::from_static(FRAMES_TYPE))
}

/// Returns whether the caller asks for frames.
pub fn are_wanted(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut types = accepted.flat_map(|value| value.split(',')).filter_map(|range| range.split(';').next());
    types.any(|name| name.trim().eq_ignore_ascii_case(FRAMES_TYPE))
}

struct Frames {
    output: ProcessEvents,
    outflow: Outflow,
    /// Deadline of the command, for the message when it passes.
    timeout: Option<Duration>,
    /// Position after the output so far; `None` for a command, whose output has none.
    position: Option<u64>,
    /// Output that has arrived and is not in a frame yet.
    piece: (u8, Bytes),
    /// Parts of frames that are sent next.
    ready: VecDeque<Bytes>,
    exit_code: Option<i32>,
    is_over: bool,
}

impl Frames {
    async fn next(&mut self) -> Option<Frame<Bytes>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(Frame::data(bytes));
            }
            if self.is_over {
                return self.exit_code.take().map(exit_trailer);
            }
            let (kind, piece) = &mut self.piece;
            if !piece.is_empty() {
                let room = self.outflow.room(PIECE_BYTES_MIN, piece.len()).await;
                let part = piece.split_to(room.min(piece.len()));
                let kind = *kind;
                let length = part.len();
                self.position = self.position.map(|position| position + length as u64);
                self.ready.push_back(self.outflow.hand_out(part, length));
                return Some(Frame::data(head(kind, length).freeze()));
            }
            match tokio::time::timeout(KEEP_ALIVE, self.output.next()).await {
                Err(_) => self.push(FRAME_MESSAGE, b""),
                Ok(Some(Ok(ProcessEvent::Stdout(bytes)))) => self.piece = (SOCKET_STDOUT, bytes),
                Ok(Some(Ok(ProcessEvent::Stderr(bytes)))) => self.piece = (SOCKET_STDERR, bytes),
                Ok(Some(Ok(ProcessEvent::Position(seq)))) if self.position == Some(seq) => {}
                Ok(Some(Ok(ProcessEvent::Position(seq)))) => {
                    self.position = Some(seq);
                    self.message(&SocketOutput::Position { seq });
                }
                // Only asked for where a terminal can show it.
                Ok(Some(Ok(ProcessEvent::Screen(_)))) => {}
                Ok(Some(Ok(ProcessEvent::Exit(exit)))) => self.exit(exit),
                Ok(Some(Err(error))) => self.cut(&error),
                // A process that is not followed goes on.
                Ok(None) if self.position.is_some() => self.is_over = true,
                Ok(None) => self.cut(&providers::Error::Gone),
            }
        }
    }

    fn push(&mut self, kind: u8, bytes: &[u8]) {
        let mut frame = head(kind, bytes.len());
        frame.put_slice(bytes);
        self.ready.push_back(frame.freeze());
    }

    fn message(&mut self, message: &SocketOutput) {
        let json = serde_json::to_vec(message).expect("a message is JSON");
        self.push(FRAME_MESSAGE, &json);
    }

    fn exit(&mut self, exit: ExitStatus) {
        let ExitStatus { code: exit_code, timed_out, oom_killed, pids_exhausted, .. } = exit;
        if let Some(words) = super::timed_out(&exit, self.timeout) {
            self.push(SOCKET_STDERR, words.as_bytes());
        }
        self.message(&SocketOutput::Exit { exit_code, timed_out, oom_killed, pids_exhausted });
        self.exit_code = Some(exit_code);
        self.is_over = true;
    }

    /// Ends a stream without an exit: the box died, or its provider failed.
    fn cut(&mut self, error: &providers::Error) {
        if let Some(words) = reason_of_cut(error, self.position.is_some()) {
            self.push(SOCKET_STDERR, words.as_bytes());
        }
        self.is_over = true;
    }
}

/// Returns the head of a frame, with room for a short payload.
fn head(kind: u8, length: usize) -> BytesMut {
    let mut head = BytesMut::with_capacity(128);
    head.put_u8(kind);
    head.put_u32(u32::try_from(length).expect("a piece is at most a few MiB"));
    head
}

#[cfg(test)]
mod test {
    use futures_util::stream;
    use http_body_util::BodyExt;

    use super::*;
    use crate::budget::{Budget, Caller};

    async fn body(
        events: Vec<providers::Result<ProcessEvent>>,
        position: Option<u64>,
    ) -> (Vec<(u8, Vec<u8>)>, Option<HeaderValue>) {
        let account = Budget::new(1 << 20).account(Caller::Address(None), None);
        let outflow = Outflow::new(account.nothing(), 0);
        let response = response(stream::iter(events).boxed(), position, Some(Duration::from_secs(2)), outflow);
        let collected = response.into_body().collect().await.unwrap();
        let code = collected.trailers().and_then(|trailers| trailers.get("x-exit-code")).cloned();
        let bytes = collected.to_bytes();
        let (mut rest, mut frames) = (&bytes[..], Vec::new());
        while let Some((head, after)) = rest.split_first_chunk::<5>() {
            let [kind, length @ ..] = *head;
            let (payload, after) = after.split_at(u32::from_be_bytes(length) as usize);
            frames.push((kind, payload.to_vec()));
            rest = after;
        }
        assert!(rest.is_empty(), "whole frames only");
        (frames, code)
    }

    fn exit(code: i32, timed_out: bool) -> providers::Result<ProcessEvent> {
        Ok(ProcessEvent::Exit(ExitStatus {
            code,
            timed_out,
            oom_killed: false,
            signal: None,
            pids_exhausted: false,
            duration: Duration::ZERO,
        }))
    }

    fn frame(kind: u8, bytes: &[u8]) -> (u8, Vec<u8>) {
        (kind, bytes.to_vec())
    }

    #[tokio::test]
    async fn output_is_sent_as_it_is_and_the_exit_follows_it() {
        let large = vec![0xff; 100_000];
        let events = vec![
            Ok(ProcessEvent::Stdout(Bytes::from_static(b"\xff\0\n"))),
            Ok(ProcessEvent::Stderr(large.clone().into())),
            exit(3, false),
        ];
        let (frames, code) = body(events, None).await;
        assert_eq!(frames.first(), Some(&frame(SOCKET_STDOUT, b"\xff\0\n")));
        assert_eq!(frames.last(), Some(&frame(FRAME_MESSAGE, br#"{"type":"exit","exit_code":3}"#)));
        let middle = &frames[1..frames.len() - 1];
        assert!(middle.iter().all(|(kind, _)| *kind == SOCKET_STDERR));
        assert!(middle.iter().flat_map(|(_, bytes)| bytes).eq(&large), "cut into pieces where memory is short");
        assert_eq!(code, Some(HeaderValue::from(3)));
    }

    #[tokio::test]
    async fn an_end_that_is_not_the_commands_is_told_on_stderr() {
        let (frames, code) = body(vec![exit(124, true)], None).await;
        assert!(frames[0].0 == SOCKET_STDERR && frames[0].1.starts_with(api::TIMED_OUT.as_bytes()), "{frames:?}");
        assert_eq!(frames[1], frame(FRAME_MESSAGE, br#"{"type":"exit","exit_code":124,"timed_out":true}"#));
        assert_eq!(code, Some(HeaderValue::from(124)));
        let (frames, code) = body(vec![Err(providers::Error::Gone)], None).await;
        assert_eq!((frames, code), (vec![frame(SOCKET_STDERR, api::SANDBOX_ENDED.as_bytes())], None));
    }

    #[tokio::test]
    async fn output_that_can_be_read_on_ends_without_words_of_the_server() {
        let events =
            || vec![Ok(ProcessEvent::Stdout(Bytes::from_static(b"x"))), Err(providers::Error::failed("x", "y"))];
        let (frames, code) = body(events(), Some(0)).await;
        assert_eq!((frames.last(), code), (Some(&frame(SOCKET_STDOUT, b"x")), None), "words would count as output");
        let (frames, _) = body(events(), None).await;
        assert_eq!(frames.last(), Some(&frame(SOCKET_STDERR, api::PROVIDER_FAILED.as_bytes())));
    }

    #[tokio::test]
    async fn a_process_begins_with_its_position_and_may_end_without_an_exit() {
        let output = || Ok(ProcessEvent::Stdout(Bytes::from_static(b"x")));
        let at = |seq| Ok(ProcessEvent::Position(seq));
        let (frames, code) = body(vec![at(4), output(), at(5), output(), at(9), output()], Some(4)).await;
        let position = |seq: u8| frame(FRAME_MESSAGE, format!("{{\"type\":\"position\",\"seq\":{seq}}}").as_bytes());
        let x = || frame(SOCKET_STDOUT, b"x");
        assert_eq!(frames, [position(4), x(), x(), position(9), x()]);
        assert_eq!(code, None);
    }

    #[test]
    fn frames_are_asked_for_by_name() {
        for (accept, wanted) in [
            ("application/octet-stream", true),
            ("application/x-ndjson;q=0.5, Application/Octet-Stream;q=0.9", true),
            ("*/*", false),
            ("application/*", false),
            ("application/x-ndjson", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(are_wanted(&headers), wanted, "{accept}");
        }
        assert!(!are_wanted(&HeaderMap::new()));
    }
}
