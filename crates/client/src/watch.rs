//! Changes of a sandbox's files.

use api::FileChange;
use reqwest::{Method, Response};
use tokio::time::timeout;

use crate::connection::Patience;
use crate::error::innermost;
use crate::line::{LINE_BYTES_MAX, LineTooLong, Lines};
use crate::path::query;
use crate::sandbox::sandbox_path;
use crate::{Client, Error, EventStream, Result};

/// Changes of files.
impl Client {
    /// Opens the stream of changes of a file, or of a directory's entries; `recursive`, of all that is
    /// below it.
    ///
    /// # Errors
    /// `not_found` if nothing is at the path, `bad_request` for too many directories; another
    /// [`Error`] if no answer comes.
    pub async fn watch_files(&self, id: &str, path: &str, recursive: bool) -> Result<FileChangeStream> {
        let recursive = if recursive { "true" } else { "false" };
        let query = query(&[("path", path), ("recursive", recursive)]);
        let path = sandbox_path(id, &format!("/files/watch{query}"))?;
        let response = self.send(self.request(Method::GET, &path, Patience::Long)).await?;
        self.check_type(&response, "text/event-stream")?;
        Ok(FileChangeStream { client: self.clone(), response, lines: Lines::default() })
    }
}

/// Stream of changes of files. Dropping it ends the watch.
#[derive(Debug)]
pub struct FileChangeStream {
    client: Client,
    response: Response,
    lines: Lines,
}

impl FileChangeStream {
    /// Returns the next change; `None` if the path is gone, or the sandbox.
    ///
    /// # Errors
    /// [`Error::Cut`] if the connection broke, [`Error::Timeout`] if the server sent nothing for
    /// [`EventStream::SILENCE_MAX`], [`Error::Protocol`] for a change that cannot be read.
    pub async fn next(&mut self) -> Result<Option<FileChange>> {
        loop {
            let line = self.lines.next().map_err(|LineTooLong| {
                self.client.protocol(format!("a change line is longer than {LINE_BYTES_MAX} bytes"))
            })?;
            if let Some(line) = line {
                // The type is in the data too; comments only keep the connection alive.
                let Some(data) = line.strip_prefix(b"data: ") else { continue };
                let change = serde_json::from_slice(data);
                return change
                    .map(Some)
                    .map_err(|error| self.client.protocol(format!("cannot parse a change: {error}")));
            }
            let after = EventStream::SILENCE_MAX;
            let chunk = timeout(after, self.response.chunk())
                .await
                .map_err(|_| Error::Timeout { after })?
                .map_err(|error| Error::Cut { what: "the next change", reason: innermost(&error) })?;
            match chunk {
                Some(chunk) => self.lines.push(chunk),
                None => return Ok(None),
            }
        }
    }
}
