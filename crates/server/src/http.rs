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
mod hosts;
mod images;
mod list_body;
mod meter;
mod metrics;
mod middleware;
mod ndjson;
mod openapi;
mod outflow;
mod owner;
pub mod peer;
mod policy;
mod pool;
mod ports;
mod prometheus;
mod providers;
mod quotas;
mod range;
mod request;
mod routes;
mod ruled;
mod sandboxes;
mod snapshot;
mod state;
mod strict_json;
mod subprotocol;
mod system;
mod templates;
mod text;
mod websocket;
mod wire;
mod workers;

use std::sync::Arc;

use axum::Router;
use tokio_util::sync::CancellationToken;

use self::state::Api;
use crate::control::Control;

pub use accept::{Listeners, Socket, SocketFault, Tls, TlsFault, serve};
pub use cors::Cors;
pub use hosts::Hosts;
pub use state::Settings;

/// Builds the API as a service, with all its middleware. `stop` ends the connections that have no
/// end of their own.
pub fn router(control: Arc<Control>, settings: Settings, stop: CancellationToken) -> Router {
    let (router, policies) = routes::router();
    let api = Api {
        control,
        settings: Arc::new(settings),
        stop,
        policies: Arc::new(policies),
        describe: || routes::router().0.into_openapi(),
        description: Arc::default(),
    };
    let (router, description) = router.split_for_parts();
    middleware::around(router, &description, &api)
}
