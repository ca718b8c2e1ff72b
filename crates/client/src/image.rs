//! Images of the server's image store.

use api::{Image, ImageDetail, PruneImagesRequest, PrunedImages, PullProgress, PullRequest, Status};
use futures_util::TryStreamExt as _;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use reqwest::{Body, Method};
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;

use crate::connection::{Patience, Size};
use crate::error::LocalRead;
use crate::line::Lines;
use crate::line_stream::LineStream;
use crate::path::{query, segment};
use crate::{Client, Error, Result};

/// Bytes of an archive read at once.
const UPLOAD_CHUNK_BYTES: usize = 256 * 1024;

/// Images.
impl Client {
    /// Returns every image on the server, by name.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn images(&self) -> Result<Vec<Image>> {
        self.get_list("/images").await
    }

    /// Returns an image with its configuration and layers, by name or digest.
    ///
    /// # Errors
    /// `not_found` if it is not on the server; another [`Error`] if no answer comes.
    pub async fn image(&self, name: &str) -> Result<ImageDetail> {
        self.call(self.request(Method::GET, &image_path(name)?, Patience::Short), Size::List).await
    }

    /// Makes the server pull an image from its registry and streams the progress. Dropping the
    /// stream does not stop the pull.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn pull_image(&self, name: &str) -> Result<PullStream> {
        let request = PullRequest { name: name.to_owned(), stream: true };
        let http = self.request(Method::POST, "/images/pull", Patience::Long);
        let response = self.send(self.with_json(http, &request)?).await?;
        self.check_type(&response, "application/x-ndjson")?;
        let until = "the image was ready; the server may still be pulling it";
        let steps = LineStream::new(self, response, Lines::default(), "a progress line", until);
        Ok(PullStream { steps, ended: false })
    }

    /// Uploads a tar archive of images (plain, gzip or zstd) from `source` to its end, and returns
    /// the images. `name` is given to an image that the archive does not name; `size`, the number
    /// of bytes if known, lets the server refuse early.
    ///
    /// # Errors
    /// [`Error::Io`] if `source` fails, [`Error::Api`] if the server refuses, another [`Error`] if
    /// no answer comes.
    pub async fn import_images(
        &self,
        name: Option<&str>,
        source: impl AsyncRead + Send + 'static,
        size: Option<u64>,
    ) -> Result<Vec<Image>> {
        let pairs: Vec<_> = name.map(|name| ("name", name)).into_iter().collect();
        let chunks = ReaderStream::with_capacity(source, UPLOAD_CHUNK_BYTES).map_err(LocalRead);
        let mut request = self
            .request(Method::POST, &format!("/images/import{}", query(&pairs)), Patience::Long)
            .header(CONTENT_TYPE, "application/x-tar")
            .body(Body::wrap_stream(chunks));
        if let Some(size) = size {
            request = request.header(CONTENT_LENGTH, size);
        }
        self.call(request, Size::List).await
    }

    /// Removes a name from its image, and the image with its last name. A digest removes the image
    /// with all its names.
    ///
    /// # Errors
    /// `not_found` if it is not on the server, `conflict` while a sandbox uses it or it is being
    /// pulled under another name; another [`Error`] if no answer comes.
    pub async fn remove_image(&self, name: &str) -> Result<Status> {
        self.delete(&image_path(name)?, Patience::Long).await
    }

    /// Removes images that no sandbox uses: all of them if `all`, else only those without a name.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn prune_images(&self, all: bool) -> Result<PrunedImages> {
        let request = self.request(Method::POST, "/images/prune", Patience::Long);
        self.call(self.with_json(request, &PruneImagesRequest { all })?, Size::List).await
    }
}

fn image_path(name: &str) -> Result<String> {
    Ok(format!("/images/{}", segment("the image's name", name)?))
}

/// Progress of a pull, as a stream.
#[derive(Debug)]
pub struct PullStream {
    steps: LineStream,
    ended: bool,
}

impl PullStream {
    /// Returns the next step; `None` after [`PullProgress::Done`] or an error.
    ///
    /// # Errors
    /// [`Error::Api`] if the pull fails. [`Error::Cut`], [`Error::Timeout`] or [`Error::Protocol`]
    /// if the server sends no more, nothing for [`crate::Options::silence_max`], or a line that
    /// cannot be read: the outcome is then unknown.
    pub async fn next(&mut self) -> Result<Option<PullProgress>> {
        if self.ended {
            return Ok(None);
        }
        let step = self.read().await;
        self.ended = matches!(step, Ok(PullProgress::Done { .. }) | Err(_));
        step.map(Some)
    }

    async fn read(&mut self) -> Result<PullProgress> {
        let step = self.steps.next().await?;
        let PullProgress::Error { code, message } = step else { return Ok(step) };
        let response = self.steps.response();
        let request_id = response.headers().get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        Err(Error::Api { status: response.status().as_u16(), code, message, request_id })
    }
}
