//! The middleware: what every request passes on its way to a handler. Each part reads the
//! [`Policy`] of the route.
//!
//! The router wraps a route in two layers, not in one for each part: a layer copies all those inside it for
//! every request.

pub mod audit;
pub mod auth;
pub mod cors;
pub mod hosts;
pub mod lease_fence;
pub mod query;
pub mod rate_limit;
pub mod request;
pub mod users;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use utoipa::openapi::OpenApi;

use self::query::WithoutQuery;
use super::error::{self, ApiError, Refusal};
use super::policy::Policy;
use super::preview::{self, pages};
use super::state::Api;

/// Returns the way of requests to previews. It has no paths: they are those of programs in sandboxes.
pub fn previews(api: &Api) -> Router {
    Router::new()
        .fallback(preview::forward)
        .with_state(api.clone())
        .layer(from_fn_with_state(api.clone(), before_the_route))
        .layer(from_fn(pages::pass))
}

/// Wraps the routes in the middleware, innermost first.
pub fn around(routes: Router<Api>, description: &OpenApi, api: &Api) -> Router {
    let without_query = WithoutQuery::of(description);
    routes
        .route_layer(from_fn_with_state((api.clone(), without_query), on_the_route))
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::method_not_allowed)
        .with_state(api.clone())
        .layer(from_fn_with_state(api.clone(), before_the_route))
}

/// Wraps the routes of one plane for E2B's SDKs. Parameters that a route does not know are ignored.
pub fn around_e2b(routes: Router<Api>, api: &Api) -> Router {
    routes
        .route_layer(from_fn_with_state((api.clone(), WithoutQuery::default()), on_the_route))
        .method_not_allowed_fallback(error::method_not_allowed)
        .with_state(api.clone())
        .layer(from_fn_with_state(api.clone(), before_the_route))
}

/// Passes a request on to its route, or to the answer that there is none.
async fn before_the_route(State(api): State<Api>, request: Request, next: Next) -> Response {
    request::pass(&api, request, |policy, request| {
        let inner = api.clone();
        audit::pass(api.clone(), policy, request, move |request| async move {
            auth::pass(&inner, policy, request, next).await
        })
    })
    .await
}

/// Passes a request on to the handler of its route.
async fn on_the_route(
    State((api, without_query)): State<(Api, WithoutQuery)>,
    request: Request,
    next: Next,
) -> Response {
    // Set before the route.
    let Some(policy) = request.extensions().get::<Policy>().copied() else {
        return ApiError::from(Refusal::Internal).into_response();
    };
    let checked = async {
        query::check(&without_query, &request)?;
        let request = users::separate(&api, policy, request).await?;
        // After the users, which hides sandboxes of others: those get no lease generation either.
        lease_fence::check(&api, policy, request).await
    };
    match checked.await {
        Ok(request) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}
