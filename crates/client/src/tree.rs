//! Directories of a sandbox: their description, chosen files of them, and changes of many at once.

use api::{AmendRequest, Amended, PackRequest};
use reqwest::Method;
use reqwest::header::ACCEPT_ENCODING;

use crate::connection::{Patience, Size};
use crate::file::FileStream;
use crate::path::query;
use crate::sandbox::sandbox_path;
use crate::{Client, Result};

/// Directories.
impl Client {
    /// Describes a directory and all that is below it, as the bytes of NDJSON: a
    /// [`api::ManifestEntry`] a line, the last of the type `end`. Lines may be empty. The sandbox makes
    /// them, so they may say anything.
    ///
    /// # Errors
    /// `not_found` if nothing is at the path, `bad_request` if it is no directory; another
    /// [`crate::Error`] if no answer comes.
    pub async fn read_manifest(&self, id: &str, path: &str, checksum: bool) -> Result<FileStream> {
        let checksum = if checksum { "true" } else { "false" };
        let query = query(&[("path", path), ("checksum", checksum)]);
        let path = sandbox_path(id, &format!("/files/manifest{query}"))?;
        let request = self.request(Method::GET, &path, Patience::Long).header(ACCEPT_ENCODING, "identity");
        let response = self.send(request).await?;
        self.check_type(&response, "application/x-ndjson")?;
        Ok(FileStream::of(self, response))
    }

    /// Reads chosen files below a directory as a tar that is not compressed. Those that cannot be read are
    /// left out.
    ///
    /// # Errors
    /// `bad_request` for too many paths, or one that leads out of the directory; another
    /// [`crate::Error`] if no answer comes.
    pub async fn pack_files(&self, id: &str, request: &PackRequest) -> Result<FileStream> {
        let call = self.request(Method::POST, &sandbox_path(id, "/files/pack")?, Patience::Long);
        let call = call.header(ACCEPT_ENCODING, "identity");
        let response = self.send(self.with_json(call, request)?).await?;
        self.check_type(&response, "application/x-tar")?;
        Ok(FileStream::of(self, response))
    }

    /// Removes files below a directory, and sets modes and times. [`Amended::failures`] has those with
    /// which it failed.
    ///
    /// # Errors
    /// `bad_request` for too many paths, or one that leads out of the directory; another
    /// [`crate::Error`] if no answer comes.
    pub async fn amend_files(&self, id: &str, request: &AmendRequest) -> Result<Amended> {
        let call = self.request(Method::POST, &sandbox_path(id, "/files/amend")?, Patience::Long);
        self.call(self.with_json(call, request)?, Size::List).await
    }
}
