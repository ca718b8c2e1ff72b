//! Directories of a sandbox as archives.

use api::Unpacked;
use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_TYPE};
use reqwest::{Body, Method};

use crate::connection::{Patience, Size};
use crate::error::LocalRead;
use crate::file::FileStream;
use crate::path::query;
use crate::sandbox::sandbox_path;
use crate::{Client, Result};

/// Content type of an archive.
const TAR: &str = "application/x-tar";

/// Archives.
impl Client {
    /// Reads a directory, with names below it, or a file as a tar that is not compressed. An archive
    /// that breaks off ends with [`crate::Error::Cut`].
    ///
    /// # Errors
    /// `not_found` if nothing is at the path, `bad_request` if it is neither a file nor a directory;
    /// another [`crate::Error`] if no answer comes.
    pub async fn read_archive(&self, id: &str, path: &str) -> Result<FileStream> {
        let path = sandbox_path(id, &format!("/files/archive{}", query(&[("path", path)])))?;
        let request = self.request(Method::GET, &path, Patience::Long).header(ACCEPT_ENCODING, "identity");
        let response = self.send(request).await?;
        self.check_type(&response, TAR)?;
        Ok(FileStream::of(self, response))
    }

    /// Unpacks a tar below a directory, which is made if it is missing.
    ///
    /// # Errors
    /// `bad_request` for an archive that is malformed, cut, or would leave the directory: what was
    /// unpacked before stays. [`crate::Error::Io`] if `archive` fails, another [`crate::Error`] if no
    /// answer comes.
    pub async fn write_archive(
        &self,
        id: &str,
        path: &str,
        archive: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<Unpacked> {
        let path = sandbox_path(id, &format!("/files/archive{}", query(&[("path", path)])))?;
        let request = self.request(Method::POST, &path, Patience::Long).header(CONTENT_TYPE, TAR);
        self.call(request.body(Body::wrap_stream(archive.map_err(LocalRead))), Size::Small).await
    }
}
