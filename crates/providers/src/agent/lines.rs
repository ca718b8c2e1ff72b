//! Answers that are lines of JSON and go on until the other side ends them.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::Method;
use serde::Serialize;
use tokio::task::consume_budget;

use super::connection::{Connection, Incoming, request};
use super::request::{SHORT_WAIT, succeed, within};
use crate::{Error, Result};

/// Lines of an answer. Dropping them ends it.
pub(super) struct Lines {
    action: &'static str,
    incoming: Incoming,
    /// Bytes after the last whole line.
    rest: Rest,
    /// Longest line, in bytes.
    bytes_max: usize,
    _connection: Arc<Connection>,
}

impl Lines {
    /// Sends `question` as JSON, and waits for the head of the answer.
    pub(super) async fn of(
        action: &'static str,
        connection: &Arc<Connection>,
        path: &'static str,
        question: &impl Serialize,
        bytes_max: usize,
    ) -> Result<Lines> {
        let body: Bytes = serde_json::to_vec(question).map_err(|error| Error::failed(action, error))?.into();
        let message = request(action, Method::POST, path)?;
        let answer = async {
            let (answer, mut outgoing) = connection.begin(action, message).await?;
            outgoing.put(body, true)?;
            Ok(succeed(action, answer.await?).await?.into_body())
        };
        let incoming = within(action, SHORT_WAIT, answer).await?;
        Ok(Lines { action, incoming, rest: Rest::default(), bytes_max, _connection: Arc::clone(connection) })
    }

    /// Returns the next line; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(line) = self.rest.line() {
                return Ok(Some(line));
            }
            if self.rest.bytes.len() > self.bytes_max {
                return Err(Error::failed(self.action, "the agent sent a line that is too long"));
            }
            // Pieces of a byte that are always there would keep the deadline of the caller from being looked at.
            consume_budget().await;
            match self.incoming.piece(self.action).await? {
                Some(piece) => self.rest.bytes.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }
}

/// Bytes of lines that are not whole yet.
#[derive(Debug, Default)]
struct Rest {
    bytes: BytesMut,
    /// Number of the first of them that have no end of a line.
    searched: usize,
}

impl Rest {
    /// Takes the first line, if it is whole. Looks at each byte once, however small the pieces are.
    fn line(&mut self) -> Option<Bytes> {
        let Some(end) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return None;
        };
        let end = self.searched + end;
        self.searched = 0;
        let mut line = self.bytes.split_to(end + 1);
        line.truncate(end);
        Some(line.freeze())
    }
}

#[cfg(test)]
mod test {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn lines_are_the_same_whatever_the_pieces_are() {
        let text = b"one\n\nthree and more\nfour\nrest";
        for size in 1..=text.len() {
            let mut rest = Rest::default();
            let mut lines = Vec::new();
            for piece in text.chunks(size) {
                rest.bytes.extend_from_slice(piece);
                lines.extend(std::iter::from_fn(|| rest.line()));
            }
            assert_eq!(lines, ["one", "", "three and more", "four"]);
            assert_eq!(rest.bytes, "rest");
        }
    }

    #[test]
    fn a_long_line_in_pieces_of_a_byte_is_searched_once() {
        let mut rest = Rest::default();
        let begin = Instant::now();
        for _ in 0..2 << 20 {
            rest.bytes.extend_from_slice(b"a");
            assert!(rest.line().is_none());
        }
        // Each time from its begin it would take an hour.
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    }
}
