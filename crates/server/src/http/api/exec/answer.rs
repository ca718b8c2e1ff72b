//! Answers of buffered commands. Long output is written as JSON piece by piece, as the client
//! reads it: each byte may become six, and a second copy of the whole in memory would be the
//! larger one.

use std::convert::Infallible;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64_simd::STANDARD as BASE64;
use bytes::{Buf, Bytes};

use crate::control::Collected;
use crate::control::ExecOutcome;
use crate::http::api::wire;
use crate::http::request_memory::counted;
use crate::http::stream::flow_control::{OUTFLOW_BYTES, Outflow, PIECE_BYTES_MIN};
use crate::http::stream::utf8::Text;

/// Length of output, in bytes, up to which it is answered in one piece: it fits into the memory
/// that every answer may use, however it is escaped.
const SHORT_BYTES: usize = PIECE_BYTES_MIN;
/// Largest piece of a long answer, in bytes before it is encoded.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// Returns the response with a command's output and its exit.
pub fn response(outcome: ExecOutcome, encoding: api::TextEncoding) -> Response {
    let ExecOutcome { exit, stdout, stderr, truncated, mut held } = outcome;
    if stdout.len() + stderr.len() <= SHORT_BYTES {
        let stdout = encoded(stdout, encoding);
        let stderr = encoded(stderr, encoding);
        let answer = Json(wire::exec_result(exit, stdout, stderr, truncated)).into_response();
        held.shrink_to(OUTFLOW_BYTES);
        return counted(answer, held);
    }
    let empty = wire::exec_result(exit, String::new(), String::new(), truncated);
    let frame = serde_json::to_string(&empty).expect("a result is JSON");
    let (before, rest) = frame.split_once(STDOUT).expect("a result has `stdout`");
    let (between, after) = rest.split_once(STDERR).expect("a result has `stderr`");
    let literals =
        [format!("{before}{}", &STDOUT[..STDOUT.len() - 1]), format!("\"{between}{}", &STDERR[..STDERR.len() - 1])];
    let outflow = Outflow::new(held, stdout.room() + stderr.room());
    let [first, second] = literals;
    let parts = [
        Part::Literal(first),
        Part::Output(Output::new(stdout, encoding)),
        Part::Literal(second),
        Part::Output(Output::new(stderr, encoding)),
        Part::Literal(format!("\"{after}")),
    ];
    let answer = Answer { outflow, parts: parts.into_iter().collect() };
    let pieces = futures_util::stream::unfold(answer, |mut answer| async move {
        let piece = answer.next().await?;
        Some((Ok::<_, Infallible>(piece), answer))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn encoded(output: Collected, encoding: api::TextEncoding) -> String {
    match encoding {
        api::TextEncoding::Utf8 => String::from_utf8_lossy(&output.into_bytes()).into_owned(),
        api::TextEncoding::Base64 => BASE64.encode_to_string(output.into_bytes()),
    }
}

/// Empty streams in the JSON of a result: the places where output is inserted.
const STDOUT: &str = "\"stdout\":\"\"";
const STDERR: &str = "\"stderr\":\"\"";

/// Rest of an answer.
struct Answer {
    outflow: Outflow,
    parts: std::collections::VecDeque<Part>,
}

enum Part {
    Literal(String),
    Output(Output),
}

/// Output stream that is encoded into a JSON string. The parts before and after it write the
/// quotes.
struct Output {
    collected: Collected,
    /// Rest of the piece taken last out of `collected`.
    piece: Bytes,
    /// Memory that the piece takes, in bytes.
    piece_room: usize,
    encoding: api::TextEncoding,
    text: Text,
    /// Up to two bytes that wait for a third: base64 encodes three at once.
    odd: Vec<u8>,
    is_over: bool,
}

impl Part {
    /// Returns the memory held by output, in bytes.
    fn room(&self) -> usize {
        match self {
            Part::Output(output) => output.room(),
            Part::Literal(_) => 0,
        }
    }
}

impl Answer {
    /// Returns the next piece, never empty.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.parts.front_mut()? {
                Part::Literal(text) => {
                    let text = std::mem::take(text);
                    self.parts.pop_front();
                    let counted = text.len();
                    return Some(self.outflow.hand_out(text, counted));
                }
                Part::Output(output) => {
                    let wanted = output.next_len().saturating_mul(6);
                    let room = self.outflow.room(PIECE_BYTES_MIN, wanted).await;
                    let encoded = output.encode(room / 6);
                    if output.is_over {
                        self.parts.pop_front();
                    }
                    self.outflow.keep(self.parts.iter().map(Part::room).sum());
                    if let Some(encoded) = encoded.filter(|encoded| !encoded.is_empty()) {
                        let counted = encoded.len();
                        return Some(self.outflow.hand_out(encoded, counted));
                    }
                }
            }
        }
    }
}

impl Output {
    fn new(collected: Collected, encoding: api::TextEncoding) -> Self {
        Self {
            collected,
            piece: Bytes::new(),
            piece_room: 0,
            encoding,
            text: Text::default(),
            odd: Vec::new(),
            is_over: false,
        }
    }

    /// Returns the memory held, in bytes.
    fn room(&self) -> usize {
        self.collected.room() + if self.piece.is_empty() { 0 } else { self.piece_room }
    }

    /// Returns the number of bytes to encode next.
    fn next_len(&mut self) -> usize {
        if self.piece.is_empty() {
            let piece = self.collected.pop().unwrap_or_default();
            self.piece_room = piece.capacity();
            self.piece = Bytes::from(piece);
        }
        self.piece.len().min(PIECE_BYTES_MAX)
    }

    /// Encodes at most `most` bytes.
    fn encode(&mut self, most: usize) -> Option<Bytes> {
        let part = self.piece.split_to(most.clamp(1, PIECE_BYTES_MAX).min(self.piece.len()));
        self.is_over = part.is_empty();
        match self.encoding {
            api::TextEncoding::Utf8 => {
                let text = if self.is_over { self.text.end() } else { self.text.take(&part) };
                let mut quoted = serde_json::to_vec(&text).ok()?;
                quoted.shrink_to_fit();
                let mut quoted = Bytes::from(quoted);
                quoted.truncate(quoted.len() - 1);
                quoted.advance(1);
                Some(quoted)
            }
            api::TextEncoding::Base64 => {
                self.odd.extend_from_slice(&part);
                let odd = if self.is_over { 0 } else { self.odd.len() % 3 };
                let rest = self.odd.split_off(self.odd.len() - odd);
                let whole = std::mem::replace(&mut self.odd, rest);
                Some(Bytes::from(BASE64.encode_to_string(whole)))
            }
        }
    }
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use http_body_util::BodyExt;
    use proptest::prelude::*;
    use providers::ExitStatus;

    use super::*;
    use crate::budget::Budget;
    use crate::budget::Caller;
    use crate::control::collected_of;

    /// Returns the response to a command with this output, and the bytes that the budget counts after it.
    async fn answer(stdout: &[u8], stderr: &[u8], encoding: api::TextEncoding) -> (Vec<u8>, u64) {
        let budget = Budget::new(64 << 20);
        let account = budget.account(Caller::Address(None), None);
        let (stdout, stderr, held) =
            collected_of(stdout, stderr, account.reserve(OUTFLOW_BYTES).unwrap(), OUTFLOW_BYTES);
        let exit = ExitStatus {
            code: 3,
            timed_out: false,
            oom_killed: true,
            signal: None,
            pids_exhausted: false,
            duration: Duration::from_millis(1500),
        };
        let response = response(ExecOutcome { exit, stdout, stderr, truncated: true, held }, encoding);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        let bytes = response.into_body().collect().await.unwrap().to_bytes().to_vec();
        (bytes, budget.stats().used_bytes)
    }

    async fn check(stdout: &[u8], stderr: &[u8]) {
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let base64 = |bytes: &[u8]| BASE64.encode_to_string(bytes);
        for (encoding, encode) in
            [(api::TextEncoding::Utf8, &lossy as &dyn Fn(&[u8]) -> String), (api::TextEncoding::Base64, &base64)]
        {
            let (bytes, used) = answer(stdout, stderr, encoding).await;
            let exit = ExitStatus {
                code: 3,
                timed_out: false,
                oom_killed: true,
                signal: None,
                pids_exhausted: false,
                duration: Duration::from_millis(1500),
            };
            let expected = wire::exec_result(exit, encode(stdout), encode(stderr), true);
            assert_eq!(String::from_utf8(bytes).unwrap(), serde_json::to_string(&expected).unwrap());
            assert_eq!(used, 0);
        }
    }

    #[tokio::test]
    async fn a_long_answer_is_the_same_text_as_a_short_one_would_be() {
        let all: Vec<u8> = (0..=255).cycle().take(200_001).collect();
        check(b"", b"").await;
        check(b"short", "\u{1F600}".as_bytes()).await;
        check(&all, b"").await;
        check(&[1; 100_000], &all).await;
        check("a\u{20AC}\u{1F600}\"\\\n".repeat(20_000).as_bytes(), &[0xF0; 10_000]).await;
    }

    proptest! {
        #[test]
        fn any_output_is_encoded_as_if_in_one_piece(seed in prop::collection::vec(any::<u8>(), 1..400), times in 1usize..60) {
            let stdout = seed.repeat(times);
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(check(&stdout, &seed));
        }
    }
}
