//! Files in a sandbox: uploads, downloads and changes.

use api::{ChmodRequest, FileInfo, MoveRequest, Status, WriteFileRequest};
use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use reqwest::{Body, Method, Response, StatusCode};
use tokio::io::AsyncRead;
use tokio::time::timeout;
use tokio_util::io::ReaderStream;

use crate::connection::{Patience, Size};
use crate::error::{LocalRead, innermost};
use crate::path::{file_segments, query};
use crate::sandbox::sandbox_path;
use crate::{Client, Error, Result};

/// Bytes read from a source at once: large enough that the cost of system calls does not show,
/// small enough that memory stays flat.
const UPLOAD_CHUNK_BYTES: usize = 256 * 1024;

/// Largest JSON request that writes a file, in bytes.
const FILE_REQUEST_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A range of bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte, counted from 0.
    pub start: u64,
    /// Last byte, included; the end of the file if absent.
    pub end: Option<u64>,
}

/// Files in a sandbox.
impl Client {
    /// Writes the file at the absolute `path` in the sandbox `id`, with the bytes of `source` to
    /// its end. Missing parents are made, and the file appears whole or not at all. `size`, the
    /// number of bytes if known, lets the server refuse early.
    ///
    /// # Errors
    /// [`Error::Argument`] for a path that is not absolute, ends with a slash, or has `.` or `..`
    /// in it. [`Error::Io`] if `source` fails, [`Error::Api`] if the server refuses, another
    /// [`Error`] if no answer comes.
    pub async fn write_file(
        &self,
        id: &str,
        path: &str,
        source: impl AsyncRead + Send + 'static,
        size: Option<u64>,
    ) -> Result<Status> {
        self.write_file_stream(id, path, ReaderStream::with_capacity(source, UPLOAD_CHUNK_BYTES), size).await
    }

    /// Writes a file from a stream of pieces, like [`Client::write_file`].
    ///
    /// # Errors
    /// Those of [`Client::write_file`]; [`Error::Io`] if `content` fails.
    pub async fn write_file_stream(
        &self,
        id: &str,
        path: &str,
        content: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
        size: Option<u64>,
    ) -> Result<Status> {
        let path = sandbox_path(id, &format!("/files/{}", file_segments(path)?))?;
        let chunks = content.map_err(LocalRead);
        let mut request = self
            .request(Method::PUT, &path, Patience::Long)
            .header(CONTENT_TYPE, "application/octet-stream")
            .body(Body::wrap_stream(chunks));
        if let Some(size) = size {
            request = request.header(CONTENT_LENGTH, size);
        }
        self.call(request, Size::Small).await
    }

    /// Writes a file that is in memory, at any absolute path and with any permission bits.
    ///
    /// # Errors
    /// [`Error::TooLarge`] above 64 MiB of JSON, [`Error::Api`] if the server refuses, another
    /// [`Error`] if no answer comes.
    pub async fn write_file_whole(&self, id: &str, file: &WriteFileRequest) -> Result<Status> {
        let request = self.request(Method::POST, &sandbox_path(id, "/files")?, Patience::Long);
        self.call(self.with_json_up_to(FILE_REQUEST_BYTES_MAX, request, file)?, Size::Small).await
    }

    /// Reads a file, or a range of it, as a stream. A range beyond the end of the file is empty.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses (`not_found`; `bad_request` if it is not a regular
    /// file), another [`Error`] if no answer comes.
    pub async fn read_file(&self, id: &str, path: &str, range: Option<Range>) -> Result<FileStream> {
        let path = sandbox_path(id, &format!("/files{}", query(&[("path", path)])))?;
        let mut request = self.request(Method::GET, &path, Patience::Long);
        if let Some(Range { start, end }) = range {
            let end = end.map(|end| end.to_string()).unwrap_or_default();
            request = request.header(RANGE, format!("bytes={start}-{end}"));
        }
        let response = self.send_any(request).await?;
        match (response.status(), range) {
            (StatusCode::RANGE_NOT_SATISFIABLE, Some(_)) if total(&response).is_some() => {
                return Ok(FileStream { client: self.clone(), response, outside: true });
            }
            (StatusCode::PARTIAL_CONTENT, Some(_)) => {}
            (status, Some(_)) if status.is_success() => {
                return Err(self.protocol(format!("status {status} for a range request")));
            }
            (status, _) if !status.is_success() => return Err(self.refusal(response).await),
            _ => {}
        }
        self.check_type(&response, "application/octet-stream")?;
        Ok(FileStream { client: self.clone(), response, outside: false })
    }

    /// Deletes a file, a link or a directory; a directory with entries only if `recursive`.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn delete_file(&self, id: &str, path: &str, recursive: bool) -> Result<Status> {
        let recursive = if recursive { "true" } else { "false" };
        let query = query(&[("path", path), ("recursive", recursive)]);
        self.delete(&sandbox_path(id, &format!("/files{query}"))?, Patience::Long).await
    }

    /// Returns the entries of a directory, sorted by name; links are not followed.
    ///
    /// # Errors
    /// `not_found` if there is no such directory, `bad_request` if it has more entries than one
    /// answer can describe (16 MiB); another [`Error`] if no answer comes.
    pub async fn list_files(&self, id: &str, path: &str) -> Result<Vec<FileInfo>> {
        self.get_list(&sandbox_path(id, &format!("/files/list{}", query(&[("path", path)])))?).await
    }

    /// Describes one file, directory or link; a link is not followed.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn stat_file(&self, id: &str, path: &str) -> Result<FileInfo> {
        self.get(&sandbox_path(id, &format!("/files/stat{}", query(&[("path", path)])))?).await
    }

    /// Returns the paths that match an absolute pattern of `*`, `?`, `[...]`, `{a,b}` and `**`,
    /// sorted; an empty list if none does.
    ///
    /// # Errors
    /// `bad_request` for more than 10,000 matches; another [`Error`] if no answer comes.
    pub async fn glob_files(&self, id: &str, pattern: &str) -> Result<Vec<String>> {
        self.get_list(&sandbox_path(id, &format!("/files/glob{}", query(&[("pattern", pattern)])))?).await
    }

    /// Moves a file or directory; a file at the new path is replaced.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn move_file(&self, id: &str, old_path: &str, new_path: &str) -> Result<Status> {
        let request = MoveRequest { old_path: old_path.to_owned(), new_path: new_path.to_owned() };
        self.send_json(Method::POST, &sandbox_path(id, "/files/move")?, &request, Patience::Short).await
    }

    /// Sets the permission bits of a file: `mode` is octal, such as `755`.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn chmod_file(&self, id: &str, path: &str, mode: &str) -> Result<Status> {
        let request = ChmodRequest { path: path.to_owned(), mode: mode.to_owned() };
        self.send_json(Method::POST, &sandbox_path(id, "/files/chmod")?, &request, Patience::Short).await
    }
}

/// Returns the size of the whole file, from the answer to a request for a range.
fn total(response: &Response) -> Option<u64> {
    response.headers().get(CONTENT_RANGE)?.to_str().ok()?.rsplit_once('/')?.1.parse().ok()
}

/// Content of a file, as a stream, and what the server sent about it.
#[derive(Debug)]
pub struct FileStream {
    client: Client,
    response: Response,
    /// True if the range lies beyond the end: the body is then an error, not content.
    outside: bool,
}

impl FileStream {
    pub(crate) fn of(client: &Client, response: Response) -> FileStream {
        FileStream { client: client.clone(), response, outside: false }
    }

    /// Returns the number of bytes in the whole stream, if the server sent it; 0 for a range beyond
    /// the end.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        if self.outside { Some(0) } else { self.response.content_length() }
    }

    /// Returns the size of the whole file in bytes, if the server sent it.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        total(&self.response).or_else(|| self.length())
    }

    /// Returns the range that the server sends, such as `bytes 0-9/100`, or `bytes */100` for a
    /// range beyond the end; `None` for a whole file.
    #[must_use]
    pub fn content_range(&self) -> Option<&str> {
        self.header(CONTENT_RANGE.as_str())
    }

    /// Returns the permission bits, four octal digits, if the server sent them.
    #[must_use]
    pub fn mode(&self) -> Option<&str> {
        self.header(api::FILE_MODE_HEADER)
    }

    /// Returns the time of the content's last change (RFC 3339, UTC), if the server sent it.
    #[must_use]
    pub fn modified(&self) -> Option<&str> {
        self.header(api::FILE_MODIFIED_HEADER)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// Returns the next bytes; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Cut`] if the connection ends before the file does, [`Error::Timeout`] if nothing
    /// comes for [`crate::Options::silence_max`].
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.outside {
            return Ok(None);
        }
        let after = self.client.silence_max();
        timeout(after, self.response.chunk())
            .await
            .map_err(|_| Error::Timeout { after })?
            .map_err(|error| Error::Cut { what: "the file was complete", reason: innermost(&error) })
    }
}
