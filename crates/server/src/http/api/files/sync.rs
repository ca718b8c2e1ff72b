//! `/sandboxes/{id}/files/manifest`, `…/pack` and `…/amend`: what a synchronization needs.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::archives::Passing;
use crate::http::api::wire;
use crate::http::error::Result;
use crate::http::request::{Json as Body, Name, Params};
use crate::http::request_memory::Meter;
use crate::http::state::Api;

/// Memory held for the account of changes: its failures, and as much again while they become JSON.
const AMENDED_BYTES: usize = 2 * providers::AMENDED_BYTES_MAX;

/// Query of a manifest.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ManifestParams {
    /// Absolute path of the directory
    #[param(value_type = api::FilePath)]
    path: String,
    /// True to add the SHA-256 of each file
    #[serde(default)]
    checksum: bool,
}

/// Describe a directory
///
/// NDJSON, one line for the directory and for each entry below it, each directory before its entries; compressed if
/// `Accept-Encoding` allows it. Paths are percent-encoded, byte by byte. The last line has the type `end`; without it,
/// entries are missing. Empty lines keep the connection alive. The sandbox writes the lines: trust them only as far as
/// you trust the sandbox.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files/manifest",
    operation_id = "list_manifest", tag = "files",
    params(("id" = String, Path), ManifestParams),
    responses(
        (status = 200, description = "The entries", content((api::ManifestEntry = "application/x-ndjson"))),
        (status = 400, body = api::ErrorBody, description = "Not a directory, or the provider does not support manifests"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or directory")))]
pub async fn manifest(
    State(api): State<Api>,
    Name(id): Name,
    Params(params): Params<ManifestParams>,
    meter: Meter,
    headers: HeaderMap,
) -> Result<Response> {
    let passing = Passing::begin(&headers, &meter).await?;
    let lines = api.control.manifest(&id, &params.path, params.checksum).await?;
    Ok(passing.answer(lines, "application/x-ndjson"))
}

/// Download selected files
///
/// A tar of files below a directory, in the order of `paths`; compressed if `Accept-Encoding` allows it. Directories
/// are packed without their content. Missing and unreadable files are left out.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/files/pack",
    operation_id = "pack_files", tag = "files", params(("id" = String, Path)),
    request_body = api::PackRequest,
    responses(
        (status = 200, description = "The tar", body = Vec<u8>, content_type = "application/x-tar"),
        (status = 400, body = api::ErrorBody,
            description = "Too many paths, a path that leads out of the directory, or the provider does not support archives"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or directory")))]
pub async fn pack(
    State(api): State<Api>,
    Name(id): Name,
    meter: Meter,
    headers: HeaderMap,
    Body(body): Body<api::PackRequest>,
) -> Result<Response> {
    let request = wire::pack(body)?;
    let passing = Passing::begin(&headers, &meter).await?;
    Ok(passing.answer(api.control.pack(&id, &request).await?, "application/x-tar"))
}

/// Change many files
///
/// Removes files below a directory, then sets modes and times. Does not follow links. The response lists the paths that
/// failed; the other changes are made.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/files/amend",
    operation_id = "amend_files", tag = "files", params(("id" = String, Path)),
    request_body = api::AmendRequest,
    responses(
        (status = 200, body = api::Amended, description = "Changes that were made, and changes that failed"),
        (status = 400, body = api::ErrorBody,
            description = "Too many paths, a path that leads out of the directory, a bad mode, or not supported by the provider"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or directory")))]
pub async fn amend(
    State(api): State<Api>,
    Name(id): Name,
    meter: Meter,
    Body(body): Body<api::AmendRequest>,
) -> Result<Json<api::Amended>> {
    let request = wire::amend(body)?;
    meter.hold(AMENDED_BYTES).await?;
    Ok(Json(wire::amended(api.control.amend_files(&id, &request).await?)))
}
