//! Pool mode: whose a request is, and `/pool/status`.

use axum::Json;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::OwnerId;

use super::Api;
use super::error::{ApiError, Result, malformed};
use super::request::Owner;
use crate::control::{Error, Resource};

/// Routes about sandboxes.
const SANDBOXES: &str = "/api/v1/sandboxes";
/// Routes about one sandbox.
const ONE_SANDBOX: &str = "/api/v1/sandboxes/{id}";
/// The one route about sandboxes that lies elsewhere.
const TEMPLATE_SPAWN: &str = "/api/v1/templates/{name}/spawn";

/// The user whose sandboxes the request may know of; `None` for all of them.
///
/// Set by [`apart`] on the way in.
#[derive(Debug, Clone, Default)]
pub struct Viewer(pub Option<OwnerId>);

impl<S: Send + Sync> FromRequestParts<S> for Viewer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        Ok(parts.extensions.get::<Viewer>().cloned().unwrap_or_default())
    }
}

/// Marks a request that may know of every sandbox even in pool mode: who checks
/// keys sets it for the administrator's.
#[derive(Debug, Clone, Copy)]
pub struct SeesAll;

/// Keeps users apart in pool mode: a request about sandboxes must say whose it
/// is, and the sandboxes of others are not there for it. On every route, so that
/// no handler can forget it.
pub async fn apart(
    State(api): State<Api>,
    matched: Option<MatchedPath>,
    params: RawPathParams,
    request: Request,
    next: Next,
) -> Response {
    let route = matched.as_ref().map_or("", MatchedPath::as_str);
    let about_sandboxes = route == SANDBOXES || route.starts_with("/api/v1/sandboxes/") || route == TEMPLATE_SPAWN;
    if !about_sandboxes || !api.control.separates_users() {
        return next.run(request).await;
    }
    let id = params.iter().find(|(name, _)| route.starts_with(ONE_SANDBOX) && *name == "id").map(|(_, id)| id);
    let (mut parts, body) = request.into_parts();
    match viewer(&api, &mut parts, id).await {
        Ok(viewer) => {
            parts.extensions.insert(viewer);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(refused) => refused.into_response(),
    }
}

async fn viewer(api: &Api, parts: &mut Parts, id: Option<&str>) -> Result<Viewer> {
    let Owner(owner) = Owner::from_request_parts(parts, api).await?;
    if parts.extensions.get::<SeesAll>().is_some() {
        return Ok(Viewer(None));
    }
    let user = owner.ok_or_else(|| {
        malformed(
            "`X-User-ID` is missing; users share boxes here (`pool.enabled`), so every request must say whose it is",
        )
    })?;
    if let Some(id) = id
        && !api.control.may_know(id, &user).await?
    {
        return Err(Error::NotFound(Resource::Sandbox, id.to_owned()).into());
    }
    Ok(Viewer(Some(user)))
}

/// How full the shared boxes are
#[utoipa::path(get, path = "/api/v1/pool/status", tag = "system",
    responses((status = 200, body = api::PoolStatus, description = "The figures are there when pool mode is on")))]
pub async fn status(State(api): State<Api>) -> Result<Json<api::PoolStatus>> {
    Ok(Json(super::wire::pool_status(api.control.pool_status().await?)))
}
