//! The API in front: the route table, extractors, one file a resource, and the
//! one map from error to status.

mod accept;
mod body;
mod error;
mod exec;
mod files;
mod guard;
mod ndjson;
mod openapi;
mod providers;
mod quotas;
mod range;
mod request;
mod sandboxes;
mod system;
mod templates;
mod wire;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::routing::put;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::control::Control;

pub use accept::serve;
pub use guard::Hosts;
pub use openapi::document;

/// What handlers share.
#[derive(Debug, Clone)]
pub struct Api {
    control: Arc<Control>,
    settings: Arc<Settings>,
}

/// What handlers need to know beside the control.
#[derive(Debug)]
pub struct Settings {
    /// Shown on spawn responses.
    pub preview_domain: String,
    /// The largest file that one request may write, in bytes.
    pub file_bytes_max: u64,
    /// Which `Host` headers are answered.
    pub hosts: Hosts,
    /// When the server started.
    pub started: Instant,
}

/// The routes that are also there below `/admin`, where they ask for the admin
/// key. Their paths are given without what stands before them.
fn shared_routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(quotas::list))
        .routes(routes!(quotas::summary))
        .routes(routes!(quotas::get, quotas::save, quotas::delete))
        .routes(routes!(quotas::usage))
        // An owner may be called so as well.
        .route("/quotas/summary", put(quotas::save_summary).delete(quotas::delete_summary))
}

/// Every route, with its description.
fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(openapi::base())
        .nest("/api/v1", shared_routes())
        .nest("/api/v1/admin", openapi::aliases(shared_routes()))
        .routes(routes!(sandboxes::spawn, sandboxes::list, sandboxes::prune))
        .routes(routes!(sandboxes::admission))
        .routes(routes!(sandboxes::get, sandboxes::destroy))
        .routes(routes!(sandboxes::extend))
        .routes(routes!(sandboxes::wait))
        .routes(routes!(sandboxes::logs))
        .routes(routes!(exec::exec))
        .routes(routes!(files::write, files::read, files::delete))
        .routes(routes!(files::list))
        .routes(routes!(files::move_file))
        .routes(routes!(files::chmod))
        .routes(routes!(files::stat))
        .routes(routes!(files::glob))
        .routes(routes!(templates::create, templates::list))
        .routes(routes!(templates::get, templates::update, templates::delete))
        .routes(routes!(templates::spawn))
        .routes(routes!(providers::list))
        .routes(routes!(providers::get))
        .routes(routes!(providers::test))
        .routes(routes!(system::health))
        .routes(routes!(system::live))
        .routes(routes!(system::ready))
        .routes(routes!(openapi::get))
}

/// The API as a service, guards included.
pub fn router(control: Arc<Control>, settings: Settings) -> Router {
    let api = Api { control, settings: Arc::new(settings) };
    let (mut router, _) = routes().split_for_parts();
    // The description knows no path over several segments, so this one is told
    // to both. Files of these names can be written too, although their paths
    // belong to other methods.
    router = router.route("/api/v1/sandboxes/{id}/files/{*path}", put(files::put));
    for name in ["list", "move", "chmod", "stat", "glob"] {
        router = router.route(&format!("/api/v1/sandboxes/{{id}}/files/{name}"), put(files::put));
    }
    let router = router
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::method_not_allowed)
        .with_state(api.clone());
    guard::around(router, api)
}
