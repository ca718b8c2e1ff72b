//! State of the API.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use utoipa::openapi::OpenApi;

use super::middleware::cors::Cors;
use super::middleware::hosts::Hosts;
use super::policy::Policies;
use super::site::Renderers;
use crate::auth::Access;
use crate::auth::preview::PreviewKey;
use crate::budget::Budget;
use crate::config;
use crate::control::Control;
use crate::process::Process;
use crate::rate_limit::RateLimiter;

/// State shared by all handlers. Each part of a request's way clones it.
#[derive(Debug, Clone)]
pub struct Api(Arc<Shared>);

impl Api {
    pub(super) fn of(shared: Shared) -> Self {
        Self(Arc::new(shared))
    }
}

impl Deref for Api {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// Content of [`Api`].
#[derive(Debug)]
pub struct Shared {
    pub(super) control: Arc<Control>,
    pub(super) settings: Settings,
    /// Cancelled when the server is asked to stop.
    pub(super) stop: CancellationToken,
    pub(super) policies: Policies,
    pub(super) renderers: Renderers,
    /// Builds what OpenAPI says of the routes.
    pub(super) describe: fn() -> OpenApi,
    /// The OpenAPI document as JSON, built on the first request for it.
    pub(super) description: OnceLock<Bytes>,
}

/// Settings of the front for E2B's SDKs.
#[derive(Debug, Clone, Default)]
pub struct E2b {
    pub is_enabled: bool,
    /// Image of the templates that every server has; `None` for the default one.
    pub image: Option<String>,
}

/// Settings that handlers need besides the control.
#[derive(Debug)]
pub struct Settings {
    /// Domain below which the host names of previews are.
    pub preview_domain: String,
    /// True if a path may stand for a port.
    pub path_proxy: bool,
    /// Key of permits for previews.
    pub preview_key: PreviewKey,
    /// The front for E2B's SDKs.
    pub e2b: E2b,
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
    /// True to give each sandbox series of its own among the figures for Prometheus.
    pub series_per_sandbox: bool,
    /// Start of the server.
    pub started: Instant,
}
