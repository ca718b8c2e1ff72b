//! Answers that are lines of JSON and go on until the other side ends them.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::Method;
use serde::Serialize;

use super::connection::{Connection, Incoming, request};
use super::request::{SHORT_WAIT, succeed, within};
use crate::{Error, Result};

/// Lines of an answer. Dropping them ends it.
pub(super) struct Lines {
    action: &'static str,
    incoming: Incoming,
    /// Bytes after the last line.
    buffer: BytesMut,
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
        Ok(Lines { action, incoming, buffer: BytesMut::new(), bytes_max, _connection: Arc::clone(connection) })
    }

    /// Returns the next line; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let mut line = self.buffer.split_to(end + 1);
                line.truncate(end);
                return Ok(Some(line.freeze()));
            }
            if self.buffer.len() > self.bytes_max {
                return Err(Error::failed(self.action, "the agent sends a line that is too long"));
            }
            match self.incoming.piece(self.action).await? {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }
}
