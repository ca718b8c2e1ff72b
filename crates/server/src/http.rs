//! The HTTP API: the route table, extractors, one file per resource, and the single mapping
//! from errors to statuses.

mod accept;
mod admin;
mod archives;
mod audit;
mod authority;
mod body;
mod codec;
mod cors;
mod diagnostics;
mod egress;
mod error;
mod events;
mod exec;
mod exec_answer;
mod exec_socket;
mod files;
mod frames;
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
mod pauses;
pub mod peer;
mod policy;
mod pool;
mod port_stream;
mod ports;
mod preview;
mod processes;
mod prometheus;
mod providers;
mod quotas;
mod range;
mod request;
mod routes;
mod ruled;
mod sandbox_stats;
mod sandboxes;
mod search;
mod secrets;
mod snapshot;
mod snapshots;
mod state;
mod streamed;
mod strict_json;
mod subprotocol;
mod system;
mod templates;
mod text;
mod trees;
mod watch;
mod websocket;
mod wire;
mod workers;

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use self::preview::Sites;
use self::state::{Api, Shared};
use crate::control::Control;

pub use accept::{BACKLOG, Listeners, Socket, SocketFault, Tls, TlsFault, serve};
pub use cors::{Cors, is_of_sandbox};
pub use hosts::Hosts;
pub use state::Settings;

/// Builds the API and the previews as services, with all their middleware. `stop` ends the connections that have no
/// end of their own.
pub fn sites(control: Arc<Control>, settings: Settings, stop: CancellationToken) -> Sites {
    let (router, policies) = routes::router();
    let describe = || routes::router().0.into_openapi();
    let description = OnceLock::new();
    let api = Api::of(Shared { control, settings, stop, policies, describe, description });
    let (router, description) = router.split_for_parts();
    let domain = api.settings.preview_domain.to_ascii_lowercase();
    let path_proxy = api.settings.path_proxy;
    Sites {
        path_proxy,
        previews: middleware::previews(&api),
        api: middleware::around(router, &description, &api),
        domain,
    }
}
