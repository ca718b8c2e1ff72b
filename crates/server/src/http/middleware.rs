//! The middleware: what every request passes on its way to a handler. Each part reads the
//! [`Policy`](super::policy::Policy) of the route.

pub mod audit;
pub mod auth;
pub mod lease_fence;
pub mod query;
pub mod rate_limit;
pub mod request;
pub mod users;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use utoipa::openapi::OpenApi;

use super::error;
use super::preview::{self, pages};
use super::state::Api;

/// Returns the way of requests to previews. It has no paths: they are those of programs in sandboxes.
pub fn previews(api: &Api) -> Router {
    Router::new()
        .fallback(preview::forward)
        .with_state(api.clone())
        .layer(from_fn_with_state(api.clone(), auth::pass))
        .layer(from_fn_with_state(api.clone(), audit::pass))
        .layer(from_fn_with_state(api.clone(), request::pass))
        .layer(from_fn(pages::pass))
}

/// Wraps the routes in the middleware, innermost first.
pub fn around(routes: Router<Api>, description: &OpenApi, api: &Api) -> Router {
    routes
        // Inside the next but one, which hides sandboxes of other users: those get no lease
        // generation either.
        .route_layer(from_fn_with_state(api.clone(), lease_fence::pass))
        .route_layer(from_fn_with_state(api.clone(), users::pass))
        .route_layer(from_fn_with_state(query::WithoutQuery::of(description), query::pass))
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::method_not_allowed)
        .with_state(api.clone())
        .layer(from_fn_with_state(api.clone(), auth::pass))
        .layer(from_fn_with_state(api.clone(), audit::pass))
        .layer(from_fn_with_state(api.clone(), request::pass))
}
