//! Answers that are streams of JSON, one value per line.

use reqwest::Response;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::error::innermost;
use crate::line::{LineTooLong, Lines};
use crate::{Client, Error, Result};

/// Values of an answer, one per line.
#[derive(Debug)]
pub(crate) struct LineStream {
    client: Client,
    response: Response,
    lines: Lines,
    /// Name of a line, with its article, for error texts.
    line: &'static str,
    /// Event that ends the stream, for error texts.
    until: &'static str,
}

impl LineStream {
    /// Returns the lines of an answer. Error texts call each `line`, and say that the stream broke before `until`.
    pub(crate) fn new(
        client: &Client,
        response: Response,
        lines: Lines,
        line: &'static str,
        until: &'static str,
    ) -> Self {
        Self { client: client.clone(), response, lines, line, until }
    }

    /// Returns the answer.
    pub(crate) fn response(&self) -> &Response {
        &self.response
    }

    /// Returns the next value. Cancel-safe: no line is lost by dropping this future.
    ///
    /// # Errors
    /// [`Error::Cut`] at the end of the stream, [`Error::Timeout`] if the server sends nothing for
    /// [`crate::Options::silence_max`], [`Error::Protocol`] for a line that cannot be read.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<T> {
        loop {
            let line = self.lines.next().map_err(|LineTooLong| {
                self.client.protocol(format!("{} is longer than {} bytes", self.line, self.lines.max()))
            })?;
            if let Some(line) = line {
                return serde_json::from_slice(&line)
                    .map_err(|error| self.client.protocol(format!("cannot parse {}: {error}", self.line)));
            }
            let after = self.client.silence_max();
            let chunk = timeout(after, self.response.chunk())
                .await
                .map_err(|_| Error::Timeout { after })?
                .map_err(|error| Error::Cut { what: self.until, reason: innermost(&error) })?;
            let Some(chunk) = chunk else {
                return Err(Error::Cut { what: self.until, reason: "the stream ended".into() });
            };
            self.lines.push(chunk);
        }
    }
}
