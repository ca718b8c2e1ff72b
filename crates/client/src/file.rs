//! Files in a sandbox.

use std::time::Duration;

use api::{ChmodRequest, FileInfo, MoveRequest, Status};
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use reqwest::{Body, Method, Response, StatusCode};
use tokio::io::AsyncRead;
use tokio::time::timeout;
use tokio_util::io::ReaderStream;

use crate::connection::Patience;
use crate::error::{LocalRead, innermost};
use crate::path::{file_segments, query};
use crate::sandbox::sandbox_path;
use crate::{Client, Error, Result};

/// How much is read from a source at once: large enough that system calls do
/// not show, small enough that memory stays flat.
const UPLOAD_CHUNK_BYTES: usize = 256 * 1024;

/// Which bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first, counted from 0.
    pub start: u64,
    /// The last, included; to the end if absent.
    pub end: Option<u64>,
}

impl Client {
    /// Writes a file from `source` to its end; missing parents are made, and the
    /// file appears whole or not at all. `size`, if known, lets the server
    /// refuse early.
    ///
    /// # Errors
    /// [`Error::Io`] if `source` fails; the server's refusal, or that it cannot
    /// be spoken to.
    pub async fn write_file(
        &self,
        id: &str,
        path: &str,
        source: impl AsyncRead + Send + 'static,
        size: Option<u64>,
    ) -> Result<Status> {
        let path = sandbox_path(id, &format!("/files/{}", file_segments(path)?))?;
        let chunks = ReaderStream::with_capacity(source, UPLOAD_CHUNK_BYTES).map_err(LocalRead);
        let mut request = self
            .request(Method::PUT, &path, Patience::Long)
            .header(CONTENT_TYPE, "application/octet-stream")
            .body(Body::wrap_stream(chunks));
        if let Some(size) = size {
            request = request.header(CONTENT_LENGTH, size);
        }
        self.call(request).await
    }

    /// Reads a file, or a range of it, as it comes.
    ///
    /// # Errors
    /// The server's refusal (`not_found`, `bad_request` for what is no regular
    /// file), or that it cannot be spoken to.
    pub async fn read_file(&self, id: &str, path: &str, range: Option<Range>) -> Result<FileStream> {
        let path = sandbox_path(id, &format!("/files{}", query(&[("path", path)])))?;
        let mut request = self.request(Method::GET, &path, Patience::Long);
        if let Some(Range { start, end }) = range {
            let end = end.map(|end| end.to_string()).unwrap_or_default();
            request = request.header(RANGE, format!("bytes={start}-{end}"));
        }
        let response = self.send(request).await?;
        if range.is_some() && response.status() != StatusCode::PARTIAL_CONTENT {
            return Err(self.protocol(format!("status {} to a request for a part of a file", response.status())));
        }
        Ok(FileStream { response })
    }

    /// Deletes a file, or a directory: one with entries only if `recursive`.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn delete_file(&self, id: &str, path: &str, recursive: bool) -> Result<Status> {
        let recursive = if recursive { "true" } else { "false" };
        let query = query(&[("path", path), ("recursive", recursive)]);
        self.delete(&sandbox_path(id, &format!("/files{query}"))?, Patience::Long).await
    }

    /// The entries of a directory, sorted by name; links are described themselves.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn list_files(&self, id: &str, path: &str) -> Result<Vec<FileInfo>> {
        self.get(&sandbox_path(id, &format!("/files/list{}", query(&[("path", path)])))?).await
    }

    /// Describes one file, directory or link.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn stat_file(&self, id: &str, path: &str) -> Result<FileInfo> {
        self.get(&sandbox_path(id, &format!("/files/stat{}", query(&[("path", path)])))?).await
    }

    /// The paths that match a pattern of `*`, `?`, `[...]`, `{a,b}`, `**`.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn glob_files(&self, id: &str, pattern: &str) -> Result<Vec<String>> {
        self.get(&sandbox_path(id, &format!("/files/glob{}", query(&[("pattern", pattern)])))?).await
    }

    /// Moves a file or directory; a file at the new path is replaced.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn move_file(&self, id: &str, old_path: &str, new_path: &str) -> Result<Status> {
        let request = MoveRequest { old_path: old_path.to_owned(), new_path: new_path.to_owned() };
        self.send_json(Method::POST, &sandbox_path(id, "/files/move")?, &request, Patience::Short).await
    }

    /// Sets the permission bits, octal such as `755`.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn chmod_file(&self, id: &str, path: &str, mode: &str) -> Result<Status> {
        let request = ChmodRequest { path: path.to_owned(), mode: mode.to_owned() };
        self.send_json(Method::POST, &sandbox_path(id, "/files/chmod")?, &request, Patience::Short).await
    }
}

/// The content of a file as it comes.
#[derive(Debug)]
pub struct FileStream {
    response: Response,
}

impl FileStream {
    /// How long a read may wait for the next bytes.
    pub const SILENCE_MAX: Duration = Duration::from_secs(60);

    /// How many bytes come, if the server says so.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.response.content_length()
    }

    /// The server's word on which part of the file this is, such as
    /// `bytes 0-9/100`; none for a whole file.
    #[must_use]
    pub fn content_range(&self) -> Option<&str> {
        self.response.headers().get(CONTENT_RANGE)?.to_str().ok()
    }

    /// The next bytes; none at the end.
    ///
    /// # Errors
    /// [`Error::Cut`] if the connection ends before the file does,
    /// [`Error::Timeout`] if nothing comes for [`FileStream::SILENCE_MAX`].
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        timeout(Self::SILENCE_MAX, self.response.chunk())
            .await
            .map_err(|_| Error::Timeout { after: Self::SILENCE_MAX })?
            .map_err(|error| Error::Cut { what: "the file was complete", reason: innermost(&error) })
    }
}
