//! `/sandboxes`.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::wire;
use crate::control::ListFilter;
use crate::control::Sandbox;
use crate::control::SpawnRequest;
use crate::control::Spawned;
use crate::control::WAIT_MAX;
use crate::control::WaitFor;
use crate::http::caller::{Caller, Owner};
use crate::http::error::{Result, malformed};
use crate::http::middleware::lease_fence;
use crate::http::middleware::users::Viewer;
use crate::http::request::{Json as Body, Name, Params, Repeatable};
use crate::http::request_memory::{self, LIST_BYTES, Meter};
use crate::http::state::Api;
use crate::http::stream::list_body::{self, PART, Part};

const NEXT_CURSOR: HeaderName = HeaderName::from_static("x-next-cursor");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Spawn a sandbox
#[utoipa::path(post, path = "/api/v1/sandboxes",
    operation_id = "create_sandbox", tag = "sandboxes", request_body = api::SpawnRequest,
    params(
        ("X-User-ID" = Option<String>, Header, description = "Owner charged for the sandbox; overrides `owner_id`"),
        ("Idempotency-Key" = Option<String>, Header,
            description = "Name that you choose for this request: repeating it within 24h returns the same sandbox")),
    responses(
        (status = 201, description = "Created; `Server-Timing` breaks down the time it took", body = api::Sandbox),
        (status = 400, description = "Invalid request, or the provider does not support it", body = api::ErrorBody),
        (status = 404, description = "No such template, provider or egress list", body = api::ErrorBody),
        (status = 409, description = "Destroyed while it was being created", body = api::ErrorBody),
        (status = 429, description = "A limit is reached, or a value is above its maximum", body = api::ErrorBody),
        (status = 500, description = "The provider failed", body = api::ErrorBody),
        (status = 503, description = "No provider is healthy", body = api::ErrorBody)))]
pub async fn spawn(
    State(api): State<Api>,
    caller: Caller,
    Repeatable(key): Repeatable,
    headers: HeaderMap,
    meter: Meter,
    Body(body): Body<api::SpawnRequest>,
) -> Result<(StatusCode, HeaderMap, Json<api::Sandbox>)> {
    let key = key.map(|key| key.of(&body));
    let generation = lease_fence::generation(&headers)?;
    let asker = Some(meter.account().asker());
    let request = SpawnRequest { key, generation, asker, ..request_of(&caller, body)? };
    Ok(answer(&api, &api.control.spawn(request).await?))
}

/// Converts the body of a spawn, for the owner that the caller names or whose key it holds.
fn request_of(caller: &Caller, body: api::SpawnRequest) -> Result<SpawnRequest> {
    caller.check_named(body.owner_id.as_deref())?;
    let only_own = caller.restricted_to().is_some();
    Ok(SpawnRequest { only_own, ..wire::spawn_request(body, caller.owner()?.cloned())? })
}

/// Check whether a spawn would be admitted
#[utoipa::path(post, path = "/api/v1/sandboxes/admission",
    operation_id = "check_admission", tag = "sandboxes", request_body = api::SpawnRequest,
    params(("X-User-ID" = Option<String>, Header, description = "Owner who would be charged; overrides `owner_id`")),
    responses(
        (status = 200, description = "The decision at this moment; no sandbox is created",
            body = api::AdmissionDecision),
        (status = 400, description = "Invalid request, or the provider does not support it", body = api::ErrorBody),
        (status = 404, description = "No such template, provider or egress list", body = api::ErrorBody)))]
pub async fn admission(
    State(api): State<Api>,
    caller: Caller,
    Body(body): Body<api::SpawnRequest>,
) -> Result<Json<api::AdmissionDecision>> {
    Ok(Json(wire::decision(&api.control.decide(request_of(&caller, body)?).await?)))
}

/// Returns the response to any spawn.
pub fn answer(api: &Api, spawned: &Spawned) -> (StatusCode, HeaderMap, Json<api::Sandbox>) {
    let timing: Vec<String> = spawned
        .phases
        .iter()
        .map(|phase| {
            let ms = phase.took.as_millis();
            let us = phase.took.subsec_micros() % 1000;
            format!("{};dur={ms}.{us:03}", phase.name)
        })
        .collect();
    let timing = HeaderValue::try_from(timing.join(", ")).ok();
    let headers = timing.into_iter().map(|value| (SERVER_TIMING, value)).collect();
    let mut sandbox = as_it_is(api, &spawned.sandbox);
    sandbox.preview_domain = Some(api.settings.preview_domain.clone());
    (StatusCode::CREATED, headers, Json(sandbox))
}

/// Returns a sandbox with what its row does not say.
pub fn as_it_is(api: &Api, row: &Sandbox) -> api::Sandbox {
    api::Sandbox { on_disk: api.control.is_on_disk(row), ..wire::sandbox(row) }
}

/// List sandboxes, newest first
#[utoipa::path(get, path = "/api/v1/sandboxes",
    operation_id = "list_sandboxes", tag = "sandboxes",
    params(
        ("owner_id" = Option<String>, Query, description = "Filter by owner"),
        ("state" = Option<String>, Query, pattern = "^(creating|running|paused|destroying|failed)$",
            description = "Filter by state: `creating`, `running`, `paused`, `destroying` or `failed`"),
        ("provider" = Option<String>, Query, description = "Filter by provider"),
        ("metadata.<key>" = Option<String>, Query, description = "Filter by the value of the label `<key>`"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000,
            description = "Maximum number of sandboxes to return; all if absent"),
        ("cursor" = Option<String>, Query, description = "Cursor of the page: `X-Next-Cursor` of the previous page")),
    responses(
        (status = 200, description = "Matching sandboxes that are not destroyed or expired", body = Vec<api::Sandbox>,
            headers(("X-Next-Cursor" = String, description = "Cursor of the next page; absent on the last page"))),
        (status = 400, description = "Invalid filter", body = api::ErrorBody)))]
pub async fn list(
    State(api): State<Api>,
    Viewer(Owner(viewer)): Viewer,
    meter: Meter,
    Params(query): Params<Vec<(String, String)>>,
) -> Result<Response> {
    let filter = wire::list_filter(query)?;
    let Some(limit) = filter.limit else {
        return everything(api, Owner(viewer), &meter, filter).await;
    };
    let held = meter.account().reserve_within(list_body::page_bytes(limit), request_memory::WAIT_MAX).await?;
    let page = api.control.sandboxes_known_to(viewer, filter).await?;
    let next = page.next.and_then(|next| HeaderValue::try_from(wire::cursor(next)).ok());
    let headers: HeaderMap = next.into_iter().map(|cursor| (NEXT_CURSOR, cursor)).collect();
    let bytes = page.sandboxes.iter().map(wire::sandbox_bytes).sum();
    Ok((headers, list_body::page(held, bytes, page.sandboxes, move |row| as_it_is(&api, row))).into_response())
}

/// Answers with all sandboxes that match, in parts.
async fn everything(api: Api, viewer: Owner, meter: &Meter, filter: ListFilter) -> Result<Response> {
    list_body::array(meter, move |next| {
        let api = api.clone();
        let viewer = viewer.0.clone();
        let part = ListFilter { limit: Some(PART), after: next.or(filter.after), ..filter.clone() };
        async move {
            let page = api.control.sandboxes_known_to(viewer, part).await?;
            let rows: Vec<_> = page.sandboxes.iter().map(|row| as_it_is(&api, row)).collect();
            Ok(Part { rows, next: page.next })
        }
    })
    .await
}

/// Remove expired sandboxes
#[utoipa::path(delete, path = "/api/v1/sandboxes",
    operation_id = "prune_sandboxes", tag = "sandboxes",
    responses((status = 200, description = "Number of rows that were removed", body = api::Pruned)))]
pub async fn prune(State(api): State<Api>, Viewer(Owner(viewer)): Viewer) -> Result<Json<api::Pruned>> {
    Ok(Json(api::Pruned { pruned: api.control.prune(viewer.as_ref()).await? }))
}

/// Get a sandbox
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}",
    operation_id = "get_sandbox", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = api::Sandbox, description = "The sandbox"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox, or it is destroyed or expired")))]
pub async fn get(State(api): State<Api>, Name(id): Name) -> Result<Json<api::Sandbox>> {
    Ok(Json(as_it_is(&api, &api.control.sandbox(&id).await?)))
}

/// Destroy a sandbox
#[utoipa::path(delete, path = "/api/v1/sandboxes/{id}",
    operation_id = "delete_sandbox", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = api::Status, description = "Destroyed, or already gone"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 500, body = api::ErrorBody, description = "The provider failed; the server retries the removal")))]
pub async fn destroy(State(api): State<Api>, Name(id): Name) -> Result<Json<api::Status>> {
    api.control.destroy(&id).await?;
    Ok(wire::status("destroyed"))
}

/// Set a new lifetime from now
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/extend",
    operation_id = "extend_sandbox", tag = "sandboxes", params(("id" = String, Path)),
    request_body = api::ExtendRequest,
    responses(
        (status = 200, body = api::Sandbox, description = "The sandbox with its new `expires_at`"),
        (status = 400, body = api::ErrorBody, description = "Invalid lifetime"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox, or it is destroyed or expired"),
        (status = 429, body = api::ErrorBody, description = "The lifetime is above the maximum")))]
pub async fn extend(
    State(api): State<Api>,
    Name(id): Name,
    Body(body): Body<api::ExtendRequest>,
) -> Result<Json<api::Sandbox>> {
    let sandbox = api.control.extend(&id, wire::span("ttl", &body.ttl)?).await?;
    Ok(Json(wire::sandbox(&sandbox)))
}

/// Query of a wait.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WaitParams {
    /// `running` (the default), `destroyed` or `failed`
    #[param(pattern = "^(running|destroyed|failed)$")]
    state: Option<String>,
    /// Maximum wait, such as `30s` (the default); at most `10m`
    #[param(value_type = Option<api::Span>)]
    timeout: Option<String>,
}

/// Wait for a state
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/wait",
    operation_id = "wait_sandbox", tag = "sandboxes", params(("id" = String, Path), WaitParams),
    responses(
        (status = 200, body = api::Sandbox, description = "The sandbox has reached the state"),
        (status = 400, body = api::ErrorBody, description = "Unknown state, or too long a wait"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 408, body = api::ErrorBody, description = "The sandbox did not reach the state in time"),
        (status = 409, body = api::ErrorBody, description = "The sandbox can no longer reach the state")))]
pub async fn wait(
    State(api): State<Api>,
    Name(id): Name,
    Params(params): Params<WaitParams>,
) -> Result<Json<api::Sandbox>> {
    let state = WaitFor::parse(params.state.as_deref().unwrap_or("running"))
        .ok_or_else(|| malformed("`state` must be running, destroyed or failed"))?;
    let timeout = wire::span("timeout", params.timeout.as_deref().unwrap_or("30s"))?;
    if timeout > WAIT_MAX {
        let max = wire::duration(WAIT_MAX);
        return Err(malformed(format!("`timeout` must be at most {max}; repeat the request when it has passed")));
    }
    Ok(Json(wire::sandbox(&api.control.wait(&id, state, timeout).await?)))
}

/// Query of the console's lines.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogParams {
    /// Number of newest lines: 100 by default, at most 10,000
    #[param(minimum = 0, maximum = 10_000)]
    lines: Option<usize>,
}

/// Read the console
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/logs",
    operation_id = "read_logs", tag = "sandboxes", params(("id" = String, Path), LogParams),
    responses(
        (status = 200, body = Vec<String>, description = "Output of background processes, oldest line first"),
        (status = 400, body = api::ErrorBody, description = "Too many lines"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox, or it is destroyed or expired")))]
pub async fn logs(
    State(api): State<Api>,
    Name(id): Name,
    Params(params): Params<LogParams>,
    meter: Meter,
) -> Result<Json<Vec<String>>> {
    meter.hold(LIST_BYTES).await?;
    Ok(Json(api.control.console(&id, params.lines.unwrap_or(100)).await?))
}
