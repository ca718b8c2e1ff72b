//! `/sandboxes/{id}/files`.

pub mod archives;
pub mod search;
pub mod sync;
pub mod watch;

use axum::Json;
use axum::body::Body as RawBody;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use providers::{Chain, STREAM_BYTES_MAX};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::budget::Reservation;
use crate::http::api::wire;
use crate::http::body::{self, Upload};
use crate::http::error::{Refusal, Result, malformed};
use crate::http::range;
use crate::http::request::{Json as Body, Name, Params};
use crate::http::request_memory::{LIST_BYTES, Meter, WAIT_MAX};
use crate::http::state::Api;
use crate::http::stream::flow_control::{OUTFLOW_BYTES, flowing};
use crate::http::strict_json::{is_json, parse};

/// Largest JSON body that writes a file, in bytes.
const JSON_FILE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Query with a path in the sandbox.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PathParams {
    /// Absolute path
    #[param(value_type = api::FilePath)]
    path: String,
}

impl PathParams {
    /// Returns the path.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// Write a file
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/files",
    operation_id = "write_file", tag = "files", params(("id" = String, Path)),
    request_body = api::WriteFileRequest,
    responses(
        (status = 200, body = api::Status, description = "Written"),
        (status = 400, body = api::ErrorBody, description = "Bad path or mode, or refused by the sandbox"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 413, body = api::ErrorBody, description = "The content is too large"),
        (status = 507, body = api::ErrorBody, description = "The sandbox's disk is full")))]
pub async fn write(
    State(api): State<Api>,
    Name(id): Name,
    meter: Meter,
    request: Request,
) -> Result<Json<api::Status>> {
    let is_json = is_json(request.headers());
    let bytes = body::collect(request.into_body(), JSON_FILE_BYTES_MAX, meter.account()).await?;
    if !is_json && !bytes.is_empty() {
        return Err(Refusal::MediaType.into());
    }
    let body: api::WriteFileRequest = if bytes.is_empty() { parse(b"{}")? } else { bytes.parse(&meter).await? };
    let mode = body.mode.as_deref().map(wire::mode).transpose()?;
    let content = decoded(body.content, body.encoding, &meter).await?;
    api.control.write_file(&id, &body.path, mode, whole(content)).await?;
    Ok(wire::status("written"))
}

/// Decodes the content of a file. The request holds memory for it beside its text.
async fn decoded(content: String, encoding: api::TextEncoding, meter: &Meter) -> Result<Bytes> {
    if encoding == api::TextEncoding::Base64 {
        meter.hold(content.len() / 4 * 3).await?;
    }
    wire::bytes("content", content, encoding)
}

fn whole(content: Bytes) -> providers::ByteStream {
    stream::once(async move { Ok(content) }).boxed()
}

/// Query of a raw upload.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PutParams {
    /// Permission bits, if the body is the file's bytes; a JSON body has a field for them
    #[param(value_type = Option<api::FileMode>)]
    mode: Option<String>,
}

/// Write a file at the path in the URL
///
/// An `application/json` body is `{content, mode}`. A body of any other type is the file's bytes; the query may set its
/// mode.
#[utoipa::path(put, path = "/api/v1/sandboxes/{id}/files/{path}",
    operation_id = "upload_file", tag = "files",
    params(("id" = String, Path), ("path" = api::RelativePath, Path, description = "The absolute path without its \
                                                                                    leading slash"),
        PutParams),
    request_body(content((api::PutFileRequest = "application/json"), (Vec<u8> = "application/octet-stream"))),
    responses(
        (status = 200, body = api::Status, description = "Written"),
        (status = 400, body = api::ErrorBody, description = "Bad path or mode, or refused by the sandbox"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 413, body = api::ErrorBody, description = "The content is too large"),
        (status = 507, body = api::ErrorBody, description = "The sandbox's disk is full")))]
pub async fn put(State(api): State<Api>, uri: Uri, meter: Meter, request: Request) -> Result<Json<api::Status>> {
    let (id, path) = id_and_path(&uri)?;
    if is_json(request.headers()) {
        let bytes = body::collect(request.into_body(), JSON_FILE_BYTES_MAX, meter.account()).await?;
        if uri.query().is_some_and(|query| !query.is_empty()) {
            return Err(malformed("the query: a JSON body has `mode` as a field; leave out the query"));
        }
        let body: api::PutFileRequest = bytes.parse(&meter).await?;
        let mode = body.mode.as_deref().map(wire::mode).transpose()?;
        let content = decoded(body.content, body.encoding, &meter).await?;
        api.control.write_file(&id, &path, mode, whole(content)).await?;
        return Ok(wire::status("written"));
    }
    let upload = Upload::begin(request.into_body(), api.settings.file_bytes_max, &meter).await?;
    upload.check_announced().await?;
    let written = async {
        let Params(PutParams { mode }) = Params::of(&uri)?;
        let mode = mode.as_deref().map(wire::mode).transpose()?;
        Ok(api.control.write_file(&id, &path, mode, upload.bytes(providers::Error::Invalid)).await?)
    };
    match written.await {
        Ok(()) => Ok(wire::status("written")),
        Err(error) => Err(upload.refuse(Some(error)).await),
    }
}

/// Returns the sandbox and the file that a URL names: the part after `/files` is the path,
/// percent-decoded once. Parsed from the URL itself, since the router's parameters depend on
/// whether the path equals a fixed route.
fn id_and_path(uri: &Uri) -> Result<(String, String)> {
    let raw = uri.path();
    let rest = raw.strip_prefix("/api/v1/sandboxes/").unwrap_or(raw);
    let (id, rest) = rest.split_once('/').unwrap_or((rest, ""));
    Ok((percent_decoded(id)?, percent_decoded(rest.strip_prefix("files").unwrap_or(rest))?))
}

fn percent_decoded(raw: &str) -> Result<String> {
    let bytes = percent_encoding::percent_decode_str(raw);
    bytes.decode_utf8().map(String::from).map_err(|_| malformed("the path is not percent-encoded UTF-8"))
}

/// Read a file
///
/// Returns the file's bytes. Supports `Range` with a single range.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files",
    operation_id = "read_file", tag = "files", params(("id" = String, Path), PathParams),
    responses(
        (status = 200, description = "The whole file", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "The requested range", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 400, body = api::ErrorBody, description = "Not a regular file, or a bad path"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or file"),
        (status = 416, body = api::ErrorBody, description = "The range is outside the file")))]
pub async fn read(
    State(api): State<Api>,
    Name(id): Name,
    Params(params): Params<PathParams>,
    meter: Meter,
    headers: HeaderMap,
) -> Result<Response> {
    let held = meter.account().reserve_within(STREAM_BYTES_MAX + OUTFLOW_BYTES, WAIT_MAX).await?;
    let Some(wanted) = range::wanted(&headers) else {
        let file = api.control.read_file(&id, &params.path, 0, None).await?;
        // Files of the kernel, as in `/proc`, report a size of 0 and are not empty.
        let length = Some(file.info.size).filter(|size| *size > 0);
        return Ok(content(file, held, StatusCode::OK, length, None));
    };
    let size = api.control.read_file(&id, &params.path, 0, Some(0)).await?.info.size;
    let (first, length) = wanted.within(size).ok_or(Refusal::Range(size))?;
    let file = api.control.read_file(&id, &params.path, first, Some(length)).await?;
    let part = format!("bytes {first}-{}/{size}", first + length - 1);
    Ok(content(file, held, StatusCode::PARTIAL_CONTENT, Some(length), Some(part)))
}

/// Returns the response with a file. A file that shrinks meanwhile breaks the connection, so that
/// a part is never taken for the whole.
fn content(
    file: providers::FileContent,
    held: Reservation,
    status: StatusCode,
    length: Option<u64>,
    part: Option<String>,
) -> Response {
    let facts = [
        (api::FILE_MODE_HEADER, format!("{:04o}", file.info.mode & 0o7777)),
        (api::FILE_MODIFIED_HEADER, wire::time(file.info.modified)),
    ];
    let bytes = file
        .bytes
        .map(|piece| piece.inspect_err(|error| tracing::warn!(error = %Chain(error), "download interrupted")));
    let mut response = Response::new(RawBody::from_stream(flowing(bytes.boxed(), held, STREAM_BYTES_MAX)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    // Content written by a guest must not run as a page of this server.
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    for (name, value) in facts {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let Some(part) = part.and_then(|part| HeaderValue::try_from(part).ok()) {
        headers.insert(header::CONTENT_RANGE, part);
    }
    response
}

/// Query of a removal.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeleteParams {
    /// Absolute path
    #[param(value_type = api::FilePath)]
    path: String,
    /// Remove directories with their content
    #[serde(default)]
    recursive: bool,
}

/// Remove a file or directory
#[utoipa::path(delete, path = "/api/v1/sandboxes/{id}/files",
    operation_id = "delete_file", tag = "files", params(("id" = String, Path), DeleteParams),
    responses(
        (status = 200, body = api::Status, description = "Removed"),
        (status = 400, body = api::ErrorBody, description = "Directory not empty, bad path, or refused by the sandbox"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or file")))]
pub async fn delete(
    State(api): State<Api>,
    Name(id): Name,
    Params(params): Params<DeleteParams>,
) -> Result<Json<api::Status>> {
    api.control.delete_file(&id, &params.path, params.recursive).await?;
    Ok(wire::status("deleted"))
}

/// Query of a directory listing.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListParams {
    /// Absolute path; `/` by default
    #[param(value_type = Option<api::FilePath>)]
    path: Option<String>,
}

/// List a directory
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files/list",
    operation_id = "list_files", tag = "files", params(("id" = String, Path), ListParams),
    responses(
        (status = 200, body = Vec<api::FileInfo>, description = "The entries, by name"),
        (status = 400, body = api::ErrorBody, description = "Not a directory, or a bad path"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or directory")))]
pub async fn list(
    State(api): State<Api>,
    Name(id): Name,
    Params(params): Params<ListParams>,
    meter: Meter,
) -> Result<Json<Vec<api::FileInfo>>> {
    meter.hold(LIST_BYTES).await?;
    let files = api.control.list_files(&id, params.path.as_deref().unwrap_or("/")).await?;
    Ok(Json(files.into_iter().map(wire::file).collect()))
}

/// Move a file or directory
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/files/move",
    operation_id = "move_file", tag = "files", params(("id" = String, Path)),
    request_body = api::MoveRequest,
    responses(
        (status = 200, body = api::Status, description = "Moved; a file at the new path is replaced"),
        (status = 400, body = api::ErrorBody, description = "Bad path, or refused by the sandbox"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or file")))]
pub async fn move_file(
    State(api): State<Api>,
    Name(id): Name,
    Body(body): Body<api::MoveRequest>,
) -> Result<Json<api::Status>> {
    api.control.move_file(&id, &body.old_path, &body.new_path).await?;
    Ok(wire::status("moved"))
}

/// Change a mode
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/files/chmod",
    operation_id = "change_file_mode", tag = "files", params(("id" = String, Path)),
    request_body = api::ChmodRequest,
    responses(
        (status = 200, body = api::Status, description = "Changed"),
        (status = 400, body = api::ErrorBody, description = "Bad path or mode, or refused by the sandbox"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or file")))]
pub async fn chmod(
    State(api): State<Api>,
    Name(id): Name,
    Body(body): Body<api::ChmodRequest>,
) -> Result<Json<api::Status>> {
    api.control.chmod_file(&id, &body.path, wire::mode(&body.mode)?).await?;
    Ok(wire::status("chmod applied"))
}

/// Describe a file
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files/stat",
    operation_id = "stat_file", tag = "files", params(("id" = String, Path), PathParams),
    responses(
        (status = 200, body = api::FileInfo, description = "The file; for a link, the link itself"),
        (status = 400, body = api::ErrorBody, description = "Bad path"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or file")))]
pub async fn stat(
    State(api): State<Api>,
    Name(id): Name,
    Params(params): Params<PathParams>,
) -> Result<Json<api::FileInfo>> {
    Ok(Json(wire::file(api.control.stat_file(&id, &params.path).await?)))
}

/// Query of a search by name.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GlobParams {
    /// Absolute path pattern with `*`, `?`, `[...]`, `{a,b}` and `**`
    #[param(value_type = api::FilePath)]
    pattern: String,
}

/// Find files by name
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files/glob",
    operation_id = "glob_files", tag = "files", params(("id" = String, Path), GlobParams),
    responses(
        (status = 200, body = Vec<String>, description = "The matching paths, sorted"),
        (status = 400, body = api::ErrorBody, description = "A bad pattern, or more than 10,000 results"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox")))]
pub async fn glob(
    State(api): State<Api>,
    Name(id): Name,
    Params(params): Params<GlobParams>,
    meter: Meter,
) -> Result<Json<Vec<String>>> {
    meter.hold(LIST_BYTES).await?;
    Ok(Json(api.control.glob_files(&id, &params.pattern).await?))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_path_behind_files_is_decoded_once() {
        let check = |uri: &str, expected: Option<&str>| {
            let read = id_and_path(&uri.parse().unwrap()).ok();
            assert_eq!(read, expected.map(|path| ("sb-x".to_owned(), path.to_owned())), "{uri}");
        };
        let base = "/api/v1/sandboxes/sb-x/files";
        check(&format!("{base}/workspace/a%20b"), Some("/workspace/a b"));
        check(&format!("{base}/list"), Some("/list"));
        check(&format!("{base}//workspace/x"), Some("//workspace/x"));
        check(&format!("{base}/a%2520"), Some("/a%20"));
        check(&format!("{base}/a%2fb?mode=1"), Some("/a/b"));
        check(&format!("{base}/%ff"), None);
    }
}
