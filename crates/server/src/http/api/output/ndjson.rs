//! Output of a command or a process as NDJSON: one chunk per line, sent as it is written.

use std::convert::Infallible;

use api::{ChunkStream, ExecChunk};
use axum::body::Body;
use axum::http::HeaderValue;
use axum::response::Response;
use base64_simd::STANDARD as BASE64;
use bytes::Bytes;
use futures_util::StreamExt;
use http_body::Frame;
use providers::{ExitStatus, ProcessEvent, ProcessEvents};

use super::{Form, KEEP_ALIVE, answer, exit_trailer, reason_of_cut, timed_out};
use crate::http::stream::flow_control::{Outflow, PIECE_BYTES_MIN};
use crate::http::stream::utf8::Text;

/// Phase of the stream: what remains to be sent.
enum Phase {
    Running,
    Trailer(i32),
    Done,
}

/// Largest piece of output that becomes one line of base64, in bytes: as much as an agent sends
/// at once. Text has a lower bound, since each byte may become six.
const PIECE_BYTES_MAX: usize = 256 * 1024;
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a line besides its data.
const LINE_BYTES: usize = 96;

struct Lines {
    output: ProcessEvents,
    /// Output that has arrived and is not in a line yet.
    piece: Option<(ChunkStream, Bytes)>,
    outflow: Outflow,
    form: Form,
    stdout: Text,
    stderr: Text,
    phase: Phase,
    /// Position after the output in the lines so far; `None` for a command, whose output has none.
    position: Option<u64>,
}

/// Returns the response that carries the output at the speed of the client; with `position`, that of the first
/// byte, for a process.
pub fn response(output: ProcessEvents, position: Option<u64>, form: Form, outflow: Outflow) -> Response {
    let lines = Lines {
        output,
        piece: None,
        outflow,
        form,
        stdout: Text::default(),
        stderr: Text::default(),
        phase: Phase::Running,
        position,
    };
    let frames = futures_util::stream::unfold(lines, |mut lines| async move {
        let frame = lines.next().await?;
        Some((Ok::<_, Infallible>(frame), lines))
    });
    let body = Body::new(http_body_util::StreamBody::new(frames));
    answer(body, HeaderValue::from_static("application/x-ndjson"))
}

impl Lines {
    async fn next(&mut self) -> Option<Frame<Bytes>> {
        match self.phase {
            Phase::Done => None,
            Phase::Trailer(code) => {
                self.phase = Phase::Done;
                Some(exit_trailer(code))
            }
            Phase::Running => Some(Frame::data(self.lines().await)),
        }
    }

    /// Returns the next line or lines. Empty only if a trailer or the end follows.
    async fn lines(&mut self) -> Bytes {
        let mut out = Vec::new();
        while out.is_empty() {
            if let Some((stream, piece)) = self.piece.take() {
                self.part(&mut out, stream, piece).await;
                continue;
            }
            match tokio::time::timeout(KEEP_ALIVE, self.output.next()).await {
                Err(_) => self.push(&mut out, ChunkStream::Stdout, String::new()),
                Ok(Some(Ok(ProcessEvent::Stdout(bytes)))) => self.piece = Some((ChunkStream::Stdout, bytes)),
                Ok(Some(Ok(ProcessEvent::Stderr(bytes)))) => self.piece = Some((ChunkStream::Stderr, bytes)),
                Ok(Some(Ok(ProcessEvent::Exit(exit)))) => self.exit(&mut out, exit),
                Ok(Some(Ok(ProcessEvent::Position(position)))) => self.skip(&mut out, position),
                // Only asked for where a terminal can show it.
                Ok(Some(Ok(ProcessEvent::Screen(_)))) => {}
                Ok(Some(Err(error))) => self.cut(&mut out, &error),
                Ok(None) if self.position.is_some() => {
                    self.flush(&mut out);
                    self.phase = Phase::Done;
                }
                Ok(None) => self.cut(&mut out, &providers::Error::Gone),
            }
            if !matches!(self.phase, Phase::Running) && out.is_empty() {
                // An empty frame is no line, and the trailer follows.
                break;
            }
        }
        let counted = out.capacity();
        self.outflow.hand_out(out, counted)
    }

    /// Turns as much of a piece into a line as there is memory for.
    async fn part(&mut self, out: &mut Vec<u8>, stream: ChunkStream, mut piece: Bytes) {
        // Base64 takes four bytes for three; JSON up to six for one.
        let (times, each, most) = if self.form.base64 { (4, 3, PIECE_BYTES_MAX) } else { (6, 1, TEXT_BYTES_MAX) };
        let wanted = piece.len().min(most).div_ceil(each) * times + LINE_BYTES;
        let room = self.outflow.room(PIECE_BYTES_MIN, wanted).await;
        let part = piece.split_to((room.saturating_sub(LINE_BYTES) / times * each).clamp(1, piece.len()));
        if !piece.is_empty() {
            self.piece = Some((stream, piece));
        }
        self.data(out, stream, &part);
    }

    fn data(&mut self, out: &mut Vec<u8>, stream: ChunkStream, bytes: &[u8]) {
        if self.form.base64 {
            self.position = self.position.map(|position| position + bytes.len() as u64);
            return push_base64(out, stream, bytes, self.position);
        }
        if self.position.is_some() {
            // What is held back of the other stream would come after this, and be missing for a client
            // that reads on from here.
            let (other, text) = match stream {
                ChunkStream::Stderr => (ChunkStream::Stdout, self.stdout.end()),
                ChunkStream::Stdout | ChunkStream::Exit | ChunkStream::Gap => (ChunkStream::Stderr, self.stderr.end()),
            };
            if !text.is_empty() {
                self.push(out, other, text);
            }
        }
        let (text, held) = match stream {
            ChunkStream::Stderr => (self.stderr.take(bytes), self.stderr.held()),
            ChunkStream::Stdout | ChunkStream::Exit | ChunkStream::Gap => (self.stdout.take(bytes), self.stdout.held()),
        };
        let after = self.position.map(|position| position + bytes.len() as u64);
        if !text.is_empty() {
            // A client reads on before the character that is not complete.
            self.position = after.map(|after| after - held as u64);
            self.push(out, stream, text);
        }
        self.position = after;
    }

    /// Goes on at another position.
    fn skip(&mut self, out: &mut Vec<u8>, position: u64) {
        let Some(lost) = self.position.and_then(|before| position.checked_sub(before)) else { return };
        if lost > 0 {
            self.flush(out);
            self.position = Some(position);
            self.push(out, ChunkStream::Gap, lost.to_string());
        }
    }

    fn push(&self, out: &mut Vec<u8>, stream: ChunkStream, data: String) {
        write(
            out,
            &ExecChunk { stream, data, seq: self.position, timed_out: false, oom_killed: false, pids_exhausted: false },
        );
    }

    /// Writes the incomplete characters held back, with U+FFFD in their place.
    fn flush(&mut self, out: &mut Vec<u8>) {
        for (stream, text) in [(ChunkStream::Stdout, self.stdout.end()), (ChunkStream::Stderr, self.stderr.end())] {
            if !text.is_empty() {
                self.push(out, stream, text);
            }
        }
    }

    fn say(&self, out: &mut Vec<u8>, message: &str) {
        if self.form.base64 {
            push_base64(out, ChunkStream::Stderr, message.as_bytes(), self.position);
        } else {
            self.push(out, ChunkStream::Stderr, message.to_owned());
        }
    }

    fn exit(&mut self, out: &mut Vec<u8>, exit: ExitStatus) {
        self.flush(out);
        if let Some(words) = timed_out(&exit, self.form.timeout) {
            self.say(out, &words);
        }
        if self.form.exit_event {
            let chunk = ExecChunk {
                stream: ChunkStream::Exit,
                data: exit.code.to_string(),
                seq: self.position,
                timed_out: exit.timed_out,
                oom_killed: exit.oom_killed,
                pids_exhausted: exit.pids_exhausted,
            };
            write(out, &chunk);
        }
        self.phase = Phase::Trailer(exit.code);
    }

    /// Ends a stream without an exit: the box died, or its provider failed.
    fn cut(&mut self, out: &mut Vec<u8>, error: &providers::Error) {
        // Without words, what is held back is not said either: its reader begins with it again.
        if let Some(words) = reason_of_cut(error, self.position.is_some()) {
            self.flush(out);
            self.say(out, words);
        }
        self.phase = Phase::Done;
    }
}

/// Writes a chunk of base64. It needs no JSON escapes, so it is encoded in place: this is where
/// the time of a large stream goes.
fn push_base64(out: &mut Vec<u8>, stream: ChunkStream, bytes: &[u8], seq: Option<u64>) {
    let name = match stream {
        ChunkStream::Stdout => "stdout",
        ChunkStream::Stderr => "stderr",
        ChunkStream::Exit => "exit",
        ChunkStream::Gap => "gap",
    };
    out.reserve(bytes.len() / 3 * 4 + 64);
    out.extend_from_slice(format!("{{\"stream\":\"{name}\",\"data\":\"").as_bytes());
    BASE64.encode_append(bytes, out);
    match seq {
        Some(seq) => out.extend_from_slice(format!("\",\"seq\":{seq}}}\n").as_bytes()),
        None => out.extend_from_slice(b"\"}\n"),
    }
}

fn write(out: &mut Vec<u8>, chunk: &ExecChunk) {
    serde_json::to_writer(&mut *out, chunk).expect("a chunk is JSON, and a vector takes it");
    out.push(b'\n');
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use futures_util::stream;
    use http_body_util::BodyExt;

    use super::super::EXIT_CODE;
    use super::*;
    use crate::budget::{Budget, Caller};

    async fn body(
        events: Vec<providers::Result<ProcessEvent>>,
        base64: bool,
        exit_event: bool,
    ) -> (String, Option<HeaderValue>) {
        numbered(events, None, base64, exit_event).await
    }

    async fn numbered(
        events: Vec<providers::Result<ProcessEvent>>,
        position: Option<u64>,
        base64: bool,
        exit_event: bool,
    ) -> (String, Option<HeaderValue>) {
        let form = Form { is_raw: false, base64, exit_event, timeout: Some(Duration::from_secs(2)) };
        let account = Budget::new(1 << 20).account(Caller::Address(None), None);
        let response = response(stream::iter(events).boxed(), position, form, Outflow::new(account.nothing(), 0));
        let collected = response.into_body().collect().await.unwrap();
        let code = collected.trailers().and_then(|trailers| trailers.get(EXIT_CODE)).cloned();
        (String::from_utf8(collected.to_bytes().to_vec()).unwrap(), code)
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

    #[tokio::test]
    async fn the_exit_code_is_a_trailer_and_a_chunk_only_if_asked_for() {
        let events = || vec![Ok(ProcessEvent::Stdout(Bytes::from_static(b"hi\n"))), exit(3, false)];
        let chunk = "{\"stream\":\"stdout\",\"data\":\"hi\\n\"}\n";
        assert_eq!(body(events(), false, false).await, (chunk.to_owned(), Some(HeaderValue::from(3))));
        let (text, _) = body(events(), false, true).await;
        assert_eq!(text, format!("{chunk}{{\"stream\":\"exit\",\"data\":\"3\"}}\n"));
    }

    #[tokio::test]
    async fn base64_is_exact() {
        let (text, _) =
            body(vec![Ok(ProcessEvent::Stderr(Bytes::from_static(b"\xff\0"))), exit(0, false)], true, false).await;
        assert_eq!(text, "{\"stream\":\"stderr\",\"data\":\"/wA=\"}\n");
    }

    #[tokio::test]
    async fn a_timeout_is_told_on_stderr() {
        let (text, code) = body(vec![exit(124, true)], false, true).await;
        assert!(text.contains("its timeout of 2s"), "{text}");
        assert!(text.ends_with("{\"stream\":\"exit\",\"data\":\"124\",\"timed_out\":true}\n"), "{text}");
        assert_eq!(code, Some(HeaderValue::from(124)));
    }

    #[tokio::test]
    async fn a_box_that_dies_is_told_on_stderr_and_has_no_exit_code() {
        let (text, code) = body(vec![Err(providers::Error::Gone)], false, true).await;
        assert!(text.contains("the sandbox ended"), "{text}");
        assert_eq!(code, None);
    }

    #[tokio::test]
    async fn output_that_can_be_read_on_ends_where_it_can_be_read_on() {
        // The second byte of a character is missing.
        let piece = Bytes::from_static(b"h\xc3");
        let events = vec![Ok(ProcessEvent::Stdout(piece)), Err(providers::Error::failed("x", "y"))];
        let (text, code) = numbered(events, Some(0), false, true).await;
        assert_eq!((text.as_str(), code), ("{\"stream\":\"stdout\",\"data\":\"h\",\"seq\":1}\n", None));
    }
}
