//! `/images`: the image store, for the administrator.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body as RawBody;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Deserialize;
use utoipa::IntoParams;

use super::wire;
use crate::control::Pull;
use crate::http::body::Upload;
use crate::http::caller::Owner;
use crate::http::error::{ApiError, Refusal, Result, malformed};
use crate::http::middleware::audit::Subject;
use crate::http::middleware::users::Viewer;
use crate::http::request::{Json as Body, Params};
use crate::http::request_memory::Meter;
use crate::http::state::Api;
use crate::http::stream::streamed::streamed;

/// Silence after which a stream repeats its last line.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Accepted content types of an archive. A page of another site can send other types without a
/// preflight.
const ARCHIVES: [&str; 6] = [
    "application/x-tar",
    "application/octet-stream",
    "application/gzip",
    "application/x-gzip",
    "application/zstd",
    "application/tar",
];

/// List the images on this server
#[utoipa::path(get, path = "/api/v1/images",
    operation_id = "list_images", tag = "images",
    responses((status = 200, body = Vec<api::Image>, description = "The images, by name")))]
pub async fn list(State(api): State<Api>, Viewer(Owner(viewer)): Viewer) -> Result<Json<Vec<api::Image>>> {
    Ok(Json(api.control.images(viewer.as_ref()).await?.into_iter().map(wire::image).collect()))
}

/// Get an image
///
/// By name or digest. A name may contain slashes: it is everything after `/images/`.
#[utoipa::path(get, path = "/api/v1/images/{name}",
    operation_id = "get_image", tag = "images",
    params(("name" = api::ImageName, Path, description = "A short or full name, or a digest")),
    responses(
        (status = 200, body = api::ImageDetail, description = "The image with its configuration and layers"),
        (status = 400, body = api::ErrorBody, description = "Invalid image name"),
        (status = 404, body = api::ErrorBody, description = "No such image on this server")))]
pub async fn get(State(api): State<Api>, Viewer(Owner(viewer)): Viewer, uri: Uri) -> Result<Json<api::ImageDetail>> {
    Ok(Json(wire::image_detail(api.control.image(&name_in(&uri)?, viewer.as_ref()).await?)))
}

/// Remove an image
///
/// Deleting a name also removes the image if that was its last name; a digest removes the image with all its names. A
/// pull of that name is cancelled.
#[utoipa::path(delete, path = "/api/v1/images/{name}",
    operation_id = "delete_image", tag = "images",
    params(("name" = api::ImageName, Path, description = "A short or full name, or a digest")),
    responses(
        (status = 200, body = api::Status, description = "Removed"),
        (status = 400, body = api::ErrorBody, description = "Invalid image name"),
        (status = 404, body = api::ErrorBody, description = "No such image on this server"),
        (status = 409, body = api::ErrorBody, description = "A box uses the image, or a pull under another name is in progress")))]
pub async fn remove(State(api): State<Api>, uri: Uri) -> Result<Response> {
    let name = name_in(&uri)?;
    let removed = api.control.remove_image(&name).await;
    Ok(about(&name, removed.map(|()| wire::status("deleted")).map_err(ApiError::from)))
}

/// Pull an image from its registry
///
/// Layers that the server already has are not downloaded again. The pull continues when the caller disconnects. With
/// `stream: true` the response is NDJSON, one line per step; the last line is `done` or `error`.
#[utoipa::path(post, path = "/api/v1/images/pull",
    operation_id = "pull_image", tag = "images", request_body = api::PullRequest,
    responses(
        (status = 200, description = "The pulled image, or the progress of the pull",
            content((api::Image = "application/json"), (api::PullProgress = "application/x-ndjson"))),
        (status = 400, body = api::ErrorBody, description = "No such image, login required, or no variant for this machine"),
        (status = 503, body = api::ErrorBody, description = "The registry does not answer"),
        (status = 507, body = api::ErrorBody, description = "The server's disk is full")))]
pub async fn pull(State(api): State<Api>, meter: Meter, Body(body): Body<api::PullRequest>) -> Response {
    let api::PullRequest { name, stream } = body;
    let answer = async {
        let pull = api.control.pull_image(&name, meter.account().asker()).await?;
        if stream { Ok(lines(pull)) } else { wait(pull).await.map(|image| Json(image).into_response()) }
    };
    let answer = answer.await;
    about(&name, answer)
}

/// Returns the response with the image's name as the subject for the audit history.
fn about(name: &str, answer: Result<impl IntoResponse>) -> Response {
    let subject = Extension(Subject(crate::audit::bounded(name, api::IMAGE_NAME_CHARS_MAX)));
    (subject, answer).into_response()
}

/// Waits for the end of the pull and returns the image.
async fn wait(mut pull: Pull) -> Result<api::Image> {
    while let Some(step) = pull.next().await {
        if let api::PullProgress::Done { image } = wire::pull_progress(step?) {
            return Ok(image);
        }
    }
    Err(Refusal::Internal.into())
}

/// Answers with one NDJSON line for each step.
fn lines(pull: Pull) -> Response {
    let first = line(&api::PullProgress::Resolving);
    let lines = futures_util::stream::unfold(Some((pull, first)), |state| async move {
        let (mut pull, last) = state?;
        let (text, is_last) = match tokio::time::timeout(KEEP_ALIVE, pull.next()).await {
            Err(_) => (last, false),
            Ok(Some(Ok(step))) => {
                let step = wire::pull_progress(step);
                (line(&step), matches!(step, api::PullProgress::Done { .. }))
            }
            Ok(Some(Err(error))) => (failed(error.into()), true),
            Ok(None) => (failed(Refusal::Internal.into()), true),
        };
        Some((Ok::<_, Infallible>(text.clone()), (!is_last).then_some((pull, text))))
    });
    streamed(RawBody::from_stream(lines), HeaderValue::from_static("application/x-ndjson"))
}

fn failed(error: ApiError) -> Bytes {
    error.log();
    let api::ErrorBody { code, message } = api::ErrorBody::from(&error);
    line(&api::PullProgress::Error { code, message })
}

fn line(step: &api::PullProgress) -> Bytes {
    let mut line = serde_json::to_vec(step).expect("a step is JSON");
    line.push(b'\n');
    line.into()
}

/// Query of an import.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ImportParams {
    /// Name of the image; required if the archive contains no name, and then the archive must hold exactly one image
    #[param(value_type = Option<api::ImageName>)]
    name: Option<String>,
}

/// Import images from an archive
///
/// The body is an archive from `docker save`, a tar of an OCI layout, or a tar of a root file system, plain or
/// compressed with gzip or zstd. Its type may also be `application/x-tar`, `application/gzip` or `application/zstd`.
#[utoipa::path(post, path = "/api/v1/images/import",
    operation_id = "import_image", tag = "images", params(ImportParams),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 201, body = Vec<api::Image>, description = "The imported images"),
        (status = 400, body = api::ErrorBody, description = "Not an image archive, or an archive without a name"),
        (status = 413, body = api::ErrorBody, description = "The archive is larger than `images.max_image_mb`"),
        (status = 507, body = api::ErrorBody, description = "The server's disk is full")))]
pub async fn import(
    State(api): State<Api>,
    Params(params): Params<ImportParams>,
    meter: Meter,
    request: Request,
) -> Result<Response> {
    if http_body::Body::is_end_stream(request.body()) {
        return Err(malformed("the body is empty: send the archive as the body"));
    }
    if !is_archive(request.headers()) {
        return Err(Refusal::ArchiveType.into());
    }
    let name = params.name.unwrap_or_default();
    let upload = Upload::begin(request.into_body(), api.settings.image_bytes_max, &meter).await?;
    upload.check_announced().await.map_err(too_large)?;
    let asked = Some(name.as_str()).filter(|name| !name.is_empty());
    let imported =
        api.control.import_images(asked, upload.bytes(images::Error::Invalid), meter.account().asker()).await;
    let answer = match imported {
        Ok(images) => {
            let images: Vec<_> = images.into_iter().map(wire::image).collect();
            Ok((StatusCode::CREATED, Json(images)))
        }
        Err(error) => Err(too_large(upload.refuse(Some(error.into())).await)),
    };
    Ok(about(&name, answer))
}

/// Replaces an error about size by one that names the setting of the bound.
fn too_large(error: ApiError) -> ApiError {
    let ApiError::Request(Refusal::TooLarge(max)) = error else { return error };
    let text = format!("the archive is larger than {max} bytes; raise `images.max_image_mb` to accept it");
    crate::control::Error::TooLarge(text).into()
}

/// Returns whether a request's body is said to be an archive.
pub fn is_archive(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    ARCHIVES.iter().any(|archive| essence.eq_ignore_ascii_case(archive))
}

/// Remove images that no box uses
#[utoipa::path(post, path = "/api/v1/images/prune",
    operation_id = "prune_images", tag = "images", request_body = api::PruneImagesRequest,
    responses((status = 200, body = api::PrunedImages, description = "Images that were removed")))]
pub async fn prune(
    State(api): State<Api>,
    Body(body): Body<api::PruneImagesRequest>,
) -> Result<Json<api::PrunedImages>> {
    Ok(Json(wire::pruned_images(api.control.prune_images(body.all).await?)))
}

/// Returns the name at the end of a URL, percent-decoded once. Parsed from the URL itself,
/// since the router's parameters depend on whether the path equals a fixed route.
fn name_in(uri: &Uri) -> Result<String> {
    let raw = uri.path().strip_prefix("/api/v1/images/").unwrap_or_default();
    let name = percent_encoding::percent_decode_str(raw).decode_utf8();
    let name = name.map_err(|_| malformed("the path is not percent-encoded UTF-8"))?;
    Ok(name.into_owned())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_name_is_all_that_stands_behind_images() {
        let check = |path: &str, expected: Option<&str>| {
            let uri: Uri = format!("/api/v1/images/{path}").parse().unwrap();
            assert_eq!(name_in(&uri).ok().as_deref(), expected, "{path}");
        };
        check("python", Some("python"));
        check("localhost:5000/a/b:1", Some("localhost:5000/a/b:1"));
        check("localhost%3A5000%2Fa@sha256:ab?x=1", Some("localhost:5000/a@sha256:ab"));
        check("a%252fb", Some("a%2fb"));
        check("%ff", None);
    }

    #[test]
    fn only_what_a_page_cannot_send_unasked_is_an_archive() {
        let is = |kind: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(kind) = kind {
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_str(kind).unwrap());
            }
            is_archive(&headers)
        };
        assert!(is(Some("application/x-tar")) && is(Some("Application/GZIP; x=y")));
        for kind in [
            None,
            Some(""),
            Some("text/plain"),
            Some("application/x-www-form-urlencoded"),
            Some("multipart/form-data; boundary=application/x-tar"),
        ] {
            assert!(!is(kind), "{kind:?}");
        }
    }
}
