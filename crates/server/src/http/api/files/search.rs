//! `/sandboxes/{id}/files/search` and `…/replace`: the content of files.

use axum::Json;
use axum::extract::State;

use crate::http::api::wire;
use crate::http::error::Result;
use crate::http::request::{Json as Body, Name};
use crate::http::request_memory::Meter;
use crate::http::state::Api;

/// Memory held for a response until it is complete: its text, and as much for all else.
const ANSWER_BYTES: usize = 2 * providers::SEARCH_TEXT_BYTES_MAX;

/// Search files
///
/// Finds matching lines in text files with ripgrep's engine, which takes linear time for every expression. `truncated`
/// is true if a limit ended the search. Links are not followed.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/files/search",
    operation_id = "search_files", tag = "files", params(("id" = String, Path)),
    request_body = api::SearchRequest,
    responses(
        (status = 200, body = api::SearchResult, description = "The matching lines; an empty list if no line matches"),
        (status = 400, body = api::ErrorBody,
            description = "Invalid expression, glob or path, or the provider does not support searching"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox, or nothing at the path")))]
pub async fn search(
    State(api): State<Api>,
    Name(id): Name,
    meter: Meter,
    Body(body): Body<api::SearchRequest>,
) -> Result<Json<api::SearchResult>> {
    let request = wire::search(body)?;
    meter.hold(ANSWER_BYTES).await?;
    Ok(Json(wire::search_result(api.control.search_files(&id, &request).await?)))
}

/// Replace text in files
///
/// Each file is replaced atomically, and keeps its mode and owner. Files of up to 8 MiB are changed (in a sandbox with
/// less than 64 MiB of memory, up to an eighth of it).
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/files/replace",
    operation_id = "replace_in_files", tag = "files", params(("id" = String, Path)),
    request_body = api::ReplaceRequest,
    responses(
        (status = 200, body = api::ReplaceResult, description = "The changed files; an empty list if no file changed"),
        (status = 400, body = api::ErrorBody,
            description = "Invalid expression, glob or path, or the provider does not support replacing"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox, or nothing at the path"),
        (status = 507, body = api::ErrorBody, description = "The sandbox's disk is full")))]
pub async fn replace(
    State(api): State<Api>,
    Name(id): Name,
    meter: Meter,
    Body(body): Body<api::ReplaceRequest>,
) -> Result<Json<api::ReplaceResult>> {
    let request = wire::replace(body)?;
    meter.hold(ANSWER_BYTES).await?;
    Ok(Json(wire::replace_result(api.control.replace_in_files(&id, &request).await?)))
}
