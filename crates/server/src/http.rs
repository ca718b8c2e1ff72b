//! The HTTP API: the route table, extractors, one file per resource, and the single mapping
//! from errors to statuses.

mod accept;
mod admin;
mod audit;
mod body;
mod cors;
mod diagnostics;
mod error;
mod events;
mod exec;
mod exec_answer;
mod exec_socket;
mod files;
mod images;
mod list_body;
mod meter;
mod metrics;
mod middleware;
mod ndjson;
mod openapi;
mod outflow;
pub mod peer;
mod pool;
mod prometheus;
mod providers;
mod quotas;
mod range;
mod request;
mod routes;
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
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use self::routes::Policies;
use crate::auth::Access;
use crate::budget::Budget;
use crate::config;
use crate::control::Control;
use crate::process::Process;
use crate::rate_limit::RateLimiter;

pub use accept::{Listeners, Socket, SocketFault, Stalled, Tls, TlsFault, serve};
pub use cors::Cors;
pub use middleware::request::Hosts;

/// State shared by all handlers.
#[derive(Debug, Clone)]
pub struct Api {
    control: Arc<Control>,
    settings: Arc<Settings>,
    /// Cancelled when the server is asked to stop.
    stop: CancellationToken,
    policies: Arc<Policies>,
    /// The OpenAPI document as JSON, built on the first request for it.
    description: Arc<OnceLock<Bytes>>,
}

/// Settings that handlers need besides the control.
#[derive(Debug)]
pub struct Settings {
    /// Domain of preview URLs in spawn responses.
    pub preview_domain: String,
    /// Largest file that one request may write, in bytes.
    pub file_bytes_max: u64,
    /// Largest image archive that one request may import, in bytes.
    pub image_bytes_max: u64,
    /// Accepted `Host` headers.
    pub hosts: Hosts,
    /// Values for what a request leaves out, and the maxima of what it may ask for.
    pub defaults: config::Defaults,
    /// Requests that one caller may make.
    pub rate_limit: config::RateLimit,
    /// The server process.
    pub process: Process,
    /// Rules of which credentials open which routes.
    pub access: Access,
    /// Memory budget shared by all requests.
    pub memory: Arc<Budget>,
    /// Rate limiter; `None` without a limit.
    pub rate_limiter: Option<Arc<RateLimiter>>,
    /// Other origins whose pages may use the API.
    pub cors: Cors,
    /// Start of the server.
    pub started: Instant,
}

/// Builds the API as a service, with all its middleware. `stop` ends the connections that have no
/// end of their own.
pub fn router(control: Arc<Control>, settings: Settings, stop: CancellationToken) -> Router {
    let (router, policies) = routes::router();
    let (settings, policies) = (Arc::new(settings), Arc::new(policies));
    let api = Api { control, settings, stop, policies, description: Arc::default() };
    let (router, description) = router.split_for_parts();
    middleware::around(router, &description, &api)
}
