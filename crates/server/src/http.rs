//! The API in front: the route table, extractors, one file a resource, and the
//! one map from error to status.

mod accept;
mod access;
mod admin;
mod audit;
mod audited;
mod body;
mod cors;
mod diagnostics;
mod error;
mod events;
mod exec;
mod exec_answer;
mod exec_socket;
mod exposition;
mod fence;
mod files;
mod guard;
mod images;
mod limited;
mod listed;
mod meter;
mod metrics;
mod ndjson;
mod openapi;
mod outflow;
pub mod peer;
mod pool;
mod providers;
mod queries;
mod quotas;
mod range;
mod request;
mod ruled;
mod sandboxes;
mod subprotocol;
mod system;
mod templates;
mod text;
mod wire;
mod workers;

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::Router;
use axum::middleware;
use axum::routing::{get, put};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::queries::WithoutQuery;
use crate::auth::Access;
use crate::budget::Budget;
use crate::config;
use crate::control::Control;
use crate::process::Process;
use crate::rate_limit::RateLimiter;

pub use accept::{Listeners, Socket, SocketFault, Stalled, Tls, TlsFault, serve};
pub use cors::Cors;
pub use guard::Hosts;

/// What handlers share.
#[derive(Debug, Clone)]
pub struct Api {
    control: Arc<Control>,
    settings: Arc<Settings>,
    /// Made when it is first asked for.
    description: Arc<OnceLock<Bytes>>,
}

/// What handlers need to know beside the control.
#[derive(Debug)]
pub struct Settings {
    /// Shown on spawn responses.
    pub preview_domain: String,
    /// The largest file that one request may write, in bytes.
    pub file_bytes_max: u64,
    /// The largest archive of images that is taken, in bytes.
    pub image_bytes_max: u64,
    /// Which `Host` headers are answered.
    pub hosts: Hosts,
    /// What requests get that say nothing, and the most they may ask for.
    pub defaults: config::Defaults,
    /// How many requests one caller may make.
    pub rate_limit: config::RateLimit,
    /// The process that all this happens in.
    pub process: Process,
    /// Who may have which route.
    pub access: Access,
    /// The memory that all requests share.
    pub memory: Arc<Budget>,
    /// How fast callers may ask; `None` without a limit.
    pub rate_limiter: Option<Arc<RateLimiter>>,
    /// Which other origins' pages may use the API.
    pub cors: Cors,
    /// When the server started.
    pub started: Instant,
    /// Cancelled when it is told to stop.
    pub stop: CancellationToken,
}

/// Every route, with its description.
fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(sandboxes::spawn, sandboxes::list, sandboxes::prune))
        .routes(routes!(sandboxes::admission))
        .routes(routes!(sandboxes::get, sandboxes::destroy))
        .routes(routes!(sandboxes::extend))
        .routes(routes!(sandboxes::wait))
        .routes(routes!(sandboxes::logs))
        .routes(routes!(exec::exec))
        .routes(routes!(exec_socket::open))
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
        .routes(routes!(images::list))
        .routes(routes!(images::pull))
        .routes(routes!(images::import))
        .routes(routes!(images::prune))
        .routes(routes!(pool::status))
        .routes(routes!(system::snapshots))
        .routes(routes!(quotas::list))
        .routes(routes!(quotas::summary))
        .routes(routes!(quotas::get, quotas::save, quotas::delete))
        .routes(routes!(quotas::usage))
        .routes(admin::alias(routes!(providers::list)))
        .routes(admin::alias(routes!(providers::get)))
        .routes(admin::alias(routes!(providers::test)))
        .routes(admin::alias(routes!(quotas::list)))
        .routes(admin::alias(routes!(quotas::summary)))
        .routes(admin::alias(routes!(quotas::get, quotas::save, quotas::delete)))
        .routes(admin::alias(routes!(quotas::usage)))
        .routes(admin::alias(routes!(diagnostics::get)))
        .routes(admin::alias(routes!(metrics::get)))
        .routes(admin::alias(routes!(metrics::prometheus)))
        .routes(routes!(events::stream))
        .routes(routes!(audit::list))
        .routes(routes!(system::health))
        .routes(routes!(system::live))
        .routes(routes!(system::ready))
        .routes(routes!(workers::list))
        .routes(routes!(workers::get))
        .routes(routes!(workers::heartbeat))
        .routes(routes!(workers::renew))
        .routes(routes!(workers::admin_heartbeat))
        .routes(routes!(workers::delete))
        .routes(routes!(diagnostics::get))
        .routes(routes!(metrics::get))
        .routes(routes!(metrics::prometheus))
        .routes(routes!(openapi::get))
}

/// The API as a service, guards included.
pub fn router(control: Arc<Control>, settings: Settings) -> Router {
    let api = Api { control, settings: Arc::new(settings), description: Arc::default() };
    let (mut router, description) = routes().split_for_parts();
    // The description knows no path over several segments, so this one is told
    // to both.
    router = router.route("/api/v1/sandboxes/{id}/files/{*path}", put(files::put));
    for name in openapi::FILES_OF_ROUTES {
        router = router.route(&format!("/api/v1/sandboxes/{{id}}/files/{name}"), put(files::put));
    }
    router = router.route("/api/v1/images/{*name}", get(images::get).delete(images::remove));
    for name in openapi::IMAGES_OF_ROUTES {
        router = router.route(&format!("/api/v1/images/{name}"), get(images::get).delete(images::remove));
    }
    let router = router
        // Within the next: what is not there for a user has no generation either.
        .route_layer(middleware::from_fn_with_state(api.clone(), fence::pass))
        .route_layer(middleware::from_fn_with_state(api.clone(), pool::apart))
        .route_layer(middleware::from_fn_with_state(WithoutQuery::of(&description), queries::refuse))
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::method_not_allowed)
        .with_state(api.clone());
    guard::around(router, api)
}
