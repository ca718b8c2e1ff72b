//! Pool mode: whose a request is, and `/pool/status`.

use axum::Json;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Api;
use super::error::{ApiError, Result, malformed};
use super::request::{Owner, Params};
use crate::auth::Principal;
use crate::control::{Error, Resource};

/// Routes about sandboxes.
const SANDBOXES: &str = "/api/v1/sandboxes";
/// Routes about one sandbox.
const ONE_SANDBOX: &str = "/api/v1/sandboxes/{id}";
/// The one route about sandboxes that lies elsewhere.
const TEMPLATE_SPAWN: &str = "/api/v1/templates/{name}/spawn";
/// What happens in sandboxes.
const EVENTS: &str = "/api/v1/events";

/// The user whose sandboxes the request may know of; `None` for all of them: pool
/// mode is off, or the administrator asks.
///
/// Set by [`apart`] on the way in.
#[derive(Debug, Clone, Default)]
pub struct Viewer(pub Owner);

impl<S: Send + Sync> FromRequestParts<S> for Viewer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        Ok(parts.extensions.get::<Viewer>().cloned().unwrap_or_default())
    }
}

/// Keeps users apart in pool mode: a request about sandboxes must say whose it
/// is, and the sandboxes of others are not there for it. On every route, so that
/// no handler can forget it.
pub async fn apart(
    State(api): State<Api>,
    matched: Option<MatchedPath>,
    params: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let route = matched.as_ref().map_or("", MatchedPath::as_str);
    let about_sandboxes = route == SANDBOXES || route.starts_with("/api/v1/sandboxes/") || route == TEMPLATE_SPAWN;
    if !api.control.separates_users() || !about_sandboxes && route != EVENTS {
        return next.run(request).await;
    }
    let params = match params {
        Ok(params) => params,
        Err(rejection) => return malformed(format!("the path: {rejection}")).into_response(),
    };
    let (mut parts, body) = request.into_parts();
    match viewer(&api, route, &params, &mut parts).await {
        Ok(viewer) => {
            parts.extensions.insert(viewer);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(refused) => refused.into_response(),
    }
}

async fn viewer(api: &Api, route: &str, params: &RawPathParams, parts: &mut Parts) -> Result<Viewer> {
    let Owner(owner) = Owner::from_request_parts(parts, api).await?;
    let makes_one = parts.method == Method::POST && [SANDBOXES, TEMPLATE_SPAWN].contains(&route);
    let is_admin = matches!(parts.extensions.get(), Some(Principal::Admin(_)));
    let user = match owner {
        // A place must be somebody's.
        owner if is_admin && (owner.is_some() || !makes_one) => return Ok(Viewer::default()),
        Some(user) => user,
        None => {
            return Err(malformed(
                "`X-User-ID` is missing; users share boxes here (`pool.enabled`), so every request says whose it is",
            ));
        }
    };
    let named = if route == EVENTS { listened_to(&parts.uri)? } else { named(route, params) };
    for id in named {
        if !api.control.may_know(&id, &user).await? {
            return Err(Error::NotFound(Resource::Sandbox, id).into());
        }
    }
    Ok(Viewer(Owner(Some(user))))
}

/// The sandbox in the path, decoded, if the route has one.
pub(super) fn named(route: &str, params: &RawPathParams) -> Vec<String> {
    let ids = params.iter().filter(|(name, _)| route.starts_with(ONE_SANDBOX) && *name == "id");
    ids.map(|(_, id)| id.to_owned()).collect()
}

/// The sandboxes whose events are asked for. Those of all sandboxes would tell
/// about other users.
fn listened_to(uri: &Uri) -> Result<Vec<String>> {
    let Params(query): Params<Vec<(String, String)>> = Params::of(uri)?;
    let ids: Vec<String> = query.into_iter().filter(|(name, _)| name == "sandbox_id").map(|(_, id)| id).collect();
    if ids.is_empty() {
        return Err(malformed("`sandbox_id` is missing; where users share boxes, only the administrator hears of all"));
    }
    Ok(ids)
}

/// How full the shared boxes are
#[utoipa::path(get, path = "/api/v1/pool/status", tag = "system",
    responses((status = 200, body = api::PoolStatus, description = "The figures are there when pool mode is on")))]
pub async fn status(State(api): State<Api>) -> Result<Json<api::PoolStatus>> {
    Ok(Json(super::wire::pool_status(api.control.pool_status().await?)))
}
