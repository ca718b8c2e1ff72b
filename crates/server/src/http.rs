//! The HTTP fronts: each is a folder, `api` and `preview`. What they share is beside them: connections
//! (`accept`), what a request passes before its handler (`middleware`), streams (`stream`), the
//! extractors of requests, and the single mapping from errors to statuses.

mod accept;
mod api;
mod authority;
mod body;
mod caller;
mod error;
mod key_life;
mod middleware;
pub mod peer;
mod policy;
mod preview;
mod range;
mod request;
mod request_memory;
mod site;
mod state;
mod stream;
mod strict_json;

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use self::policy::Policies;
use self::site::{Renderers, Sites};
use self::state::{Api, Shared};
use crate::control::Control;

pub use accept::{BACKLOG, Listeners, Socket, SocketFault, Tls, TlsFault, serve};
pub use middleware::cors::{Cors, is_of_sandbox};
pub use middleware::hosts::Hosts;
pub use state::Settings;

/// Builds the API and the previews as services, with all their middleware. `stop` ends the connections that have no
/// end of their own.
pub fn sites(control: Arc<Control>, settings: Settings, stop: CancellationToken) -> Sites {
    let (router, routes) = api::routes::router();
    let policies = Policies { api: routes, preview: preview::POLICY };
    // What a preview answers itself is for programs too; `preview::pages` shows it to people.
    let renderers = Renderers { api: api::error::render, preview: api::error::render };

    let description = OnceLock::new();
    let api = Api::of(Shared {
        control,
        settings,
        stop,
        policies,
        renderers,
        describe: || api::routes::router().0.into_openapi(),
        description,
    });
    let (router, description) = router.split_for_parts();
    let domain = api.settings.preview_domain.to_ascii_lowercase();
    let path_proxy = api.settings.path_proxy;
    Sites {
        path_proxy,
        previews: middleware::previews(&api),
        api: middleware::around(router, &description, &api),
        renderers,
        domain,
    }
}
