//! Who may have which route: the one place where keys are asked for.
//!
//! It is decided from the path that the router matched, so that no way of
//! writing a path leads around it, and a route that nobody thought of here is
//! closed.

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Api;
use super::error::{ApiError, Refusal};
use crate::auth::{Demand, Denied, KeyId};
use crate::config::RouteGroup;

/// What every path begins with.
const PREFIX: &str = "/api/v1/";

/// Routes that answer without a key, to GET and HEAD.
const OPEN: [&str; 3] = ["live", "health", "ready"];

/// An attempt to get in without the right key, as it may be written down.
#[derive(Debug)]
pub struct Refused {
    /// Which key was tried, if one was.
    pub key_id: Option<KeyId>,
    /// How.
    pub method: Method,
    /// Where, without the query.
    pub path: String,
    /// What the caller was told.
    pub message: String,
}

/// What a request asks of its caller: from the matched path, or from the path as
/// it was sent where there is no route.
fn demand(matched: Option<&str>, sent: &str, method: &Method) -> Demand {
    let path = matched.unwrap_or(sent);
    let path = path.strip_prefix(PREFIX).unwrap_or_default();
    if matched.is_some() && OPEN.contains(&path) && matches!(*method, Method::GET | Method::HEAD) {
        return Demand::Nothing;
    }
    match path.split('/').next().unwrap_or_default() {
        "admin" => Demand::AdminKey,
        "quotas" => Demand::Group(RouteGroup::Quotas),
        "templates" => Demand::Group(RouteGroup::Templates),
        "providers" => Demand::Group(RouteGroup::Providers),
        "workers" => Demand::Group(RouteGroup::Workers),
        "diagnostics" => Demand::Group(RouteGroup::Diagnostics),
        "metrics" => Demand::Group(RouteGroup::Metrics),
        "events" => Demand::Group(RouteGroup::Events),
        _ => Demand::Key,
    }
}

/// Lets the request through, with its [`Principal`](crate::auth::Principal) among its extensions, or
/// answers 401.
pub async fn pass(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let matched = matched.as_ref().map(MatchedPath::as_str);
    let demand = demand(matched, request.uri().path(), request.method());
    let access = &api.settings.access;
    match access.decide(demand, request.headers()) {
        Ok(principal) => {
            if demand == Demand::Nothing
                && let Some(denied) = access.tried_in_vain(request.headers())
            {
                on_refused(&api, &refused(&request, denied)).await;
            }
            request.extensions_mut().insert(principal);
            next.run(request).await
        }
        Err(denied) => {
            let refused = refused(&request, denied);
            on_refused(&api, &refused).await;
            ApiError::from(Refusal::Unauthorized(refused.message)).into_response()
        }
    }
}

fn refused(request: &Request, denied: Denied) -> Refused {
    Refused {
        key_id: denied.tried,
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        message: denied.message.to_owned(),
    }
}

/// Every failed attempt comes through here, before it is answered.
async fn on_refused(_: &Api, refused: &Refused) {
    let Refused { key_id, method, path, message } = refused;
    let key_id = key_id.as_ref().map(KeyId::as_str);
    tracing::debug!(key_id, %method, path, message, "a caller was refused");
}

#[cfg(test)]
mod test {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: Demand) {
        assert_eq!(demand(Some(path), path, &Method::GET), expected, "{path}");
    }

    #[test]
    fn what_a_route_asks_for_follows_from_its_matched_path() {
        check("/api/v1/live", Demand::Nothing);
        check("/api/v1/ready", Demand::Nothing);
        check("/api/v1/sandboxes/{id}", Demand::Key);
        check("/api/v1/openapi.json", Demand::Key);
        check("/api/v1/admin/providers/{name}", Demand::AdminKey);
        check("/api/v1/admin/live", Demand::AdminKey);
        check("/api/v1/templates/{name}/spawn", Demand::Group(RouteGroup::Templates));
        check("/api/v1/metrics/prometheus", Demand::Group(RouteGroup::Metrics));
        check("/api/v1/live/more", Demand::Key);
        check("/a/route/of/the/future", Demand::Key);
    }

    #[test]
    fn an_open_route_is_open_to_reading_only() {
        assert_eq!(demand(Some("/api/v1/live"), "/api/v1/live", &Method::HEAD), Demand::Nothing);
        assert_eq!(demand(Some("/api/v1/live"), "/api/v1/live", &Method::POST), Demand::Key);
    }

    #[test]
    fn a_path_without_a_route_is_never_open() {
        for path in ["/", "/live", "/api/v1/live/", "/api/v1//live", "/api/v1/%6Cive", "/api/v1/worker/w1/x"] {
            assert_eq!(demand(None, path, &Method::GET), Demand::Key, "{path}");
        }
        assert_eq!(demand(None, "/api/v1/live", &Method::GET), Demand::Key);
        assert_eq!(demand(None, "/api/v1/admin/nope", &Method::GET), Demand::AdminKey);
    }
}
