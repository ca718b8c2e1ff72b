//! `/sandboxes/{id}/files/archive`: directories as tar.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use futures_util::StreamExt;
use providers::{ByteStream, Chain, STREAM_BYTES_MAX};

use super::PathParams;
use crate::budget::Reservation;
use crate::control::Error;
use crate::http::api::images::is_archive;
use crate::http::api::wire;
use crate::http::body::Upload;
use crate::http::error::{Refusal, Result};
use crate::http::request::{Name, Params};
use crate::http::request_memory::{Meter, WAIT_MAX};
use crate::http::state::Api;
use crate::http::stream::codec::{self, Bound, CODEC_BYTES, Encoding};
use crate::http::stream::flow_control::{OUTFLOW_BYTES, flowing};

/// Download an archive
///
/// A tar of the directory, with names relative to it, or of one file; compressed if `Accept-Encoding` allows it (zstd,
/// gzip). Modes, times, symbolic links and hard links are kept; devices, FIFOs and sockets are left out. An archive
/// without its end marker is incomplete.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files/archive",
    operation_id = "download_archive", tag = "files", params(("id" = String, Path), PathParams),
    responses(
        (status = 200, description = "The tar", body = Vec<u8>, content_type = "application/x-tar"),
        (status = 400, body = api::ErrorBody, description = "Not a file or directory, or the provider does not support archives"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or file")))]
pub async fn download(
    State(api): State<Api>,
    Name(id): Name,
    Params(params): Params<PathParams>,
    meter: Meter,
    headers: HeaderMap,
) -> Result<Response> {
    let passing = Passing::begin(&headers, &meter).await?;
    Ok(passing.answer(api.control.archive(&id, params.path()).await?, "application/x-tar"))
}

/// Memory and encoding of a response that passes on what a sandbox sends.
pub struct Passing {
    encoding: Encoding,
    held: Reservation,
    kept: usize,
}

impl Passing {
    /// Reserves the memory.
    pub async fn begin(headers: &HeaderMap, meter: &Meter) -> Result<Self> {
        let encoding = Encoding::accepted(headers);
        let codec_bytes = if encoding == Encoding::Identity { 0 } else { CODEC_BYTES };
        let kept = STREAM_BYTES_MAX + codec_bytes;
        let held = meter.account().reserve_within(kept + OUTFLOW_BYTES, WAIT_MAX).await?;
        Ok(Self { encoding, held, kept })
    }

    /// Returns the answer.
    pub fn answer(self, bytes: ByteStream, content_type: &'static str) -> Response {
        let Passing { encoding, held, kept } = self;
        let bytes = codec::encoded(bytes, encoding);
        let bytes =
            bytes.map(|piece| piece.inspect_err(|error| tracing::warn!(error = %Chain(error), "archive interrupted")));
        let mut response = Response::new(Body::from_stream(flowing(bytes.boxed(), held, kept)));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        // Content written by a guest must not run as a page of this server.
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
        headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        if let Some(name) = encoding.name() {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(name));
        }
        response
    }
}

/// Upload an archive
///
/// Unpacks a tar below a directory, which is created if it is missing. `Content-Encoding` may be zstd or gzip; the type
/// may also be `application/x-tar`. Names and links cannot lead out of the directory. After an error, entries that are
/// already unpacked stay, and the message gives their number.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/files/archive",
    operation_id = "upload_archive", tag = "files", params(("id" = String, Path), PathParams),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = api::Unpacked, description = "Unpacked"),
        (status = 400, body = api::ErrorBody,
            description = "Not a tar, a truncated tar, or a tar with an entry that cannot be unpacked there"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 413, body = api::ErrorBody, description = "The content is too large"),
        (status = 507, body = api::ErrorBody, description = "The sandbox's disk is full")))]
pub async fn upload(
    State(api): State<Api>,
    Name(id): Name,
    Params(params): Params<PathParams>,
    meter: Meter,
    request: Request,
) -> Result<Json<api::Unpacked>> {
    let is_tar = is_archive(request.headers());
    let encoding = Encoding::sent(request.headers());
    let upload = Upload::begin(request.into_body(), api.settings.file_bytes_max, &meter).await?;
    upload.check_announced().await?;
    let bound = Bound::new(api.settings.file_bytes_max);
    let unpacked = async {
        if !is_tar {
            return Err(Refusal::ArchiveType.into());
        }
        let encoding = encoding?;
        if encoding != Encoding::Identity {
            meter.hold(CODEC_BYTES).await?;
        }
        let bytes = codec::decoded(upload.bytes(providers::Error::Invalid), encoding, &bound);
        Ok(api.control.unpack(&id, params.path(), bytes).await?)
    };
    match unpacked.await {
        Ok(unpacked) => Ok(Json(wire::unpacked(unpacked))),
        Err(error) => {
            let refused = upload.refuse(Some(error)).await;
            if !bound.is_exceeded() {
                return Err(refused);
            }
            let text = "the unpacked archive is larger than `limits.max_file_bytes`; send it in parts";
            Err(Error::TooLarge(text.to_owned()).into())
        }
    }
}
