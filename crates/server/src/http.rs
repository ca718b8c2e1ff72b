//! The HTTP fronts: each is a folder, `api`, `preview` and `e2b`. What they share is beside them: connections
//! (`accept`), what a request passes before its handler (`middleware`), streams (`stream`), the
//! extractors of requests, and the single mapping from errors to statuses.

mod accept;
mod api;
mod authority;
mod body;
mod caller;
mod e2b;
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

use axum::response::Response;
use tokio_util::sync::CancellationToken;

use self::error::ApiError;
use self::policy::Policies;
use self::site::{E2bSites, Renderers, Sites};
use self::state::{Api, Shared};
use crate::control::Control;

pub use accept::{BACKLOG, Listeners, Socket, SocketFault, Tls, TlsFault, serve};
pub use middleware::cors::{Cors, is_of_sandbox};
pub use middleware::hosts::Hosts;
pub use state::{E2b, Settings};

/// Renders an error of a preview: in the words of E2B where they are asked for, else as the API does, because programs
/// read it. `preview::pages` shows it to people.
fn render_preview(error: &ApiError, response: &mut Response) {
    if e2b::error::has_words(error) {
        e2b::error::render(error, response);
    } else {
        api::error::render(error, response);
    }
}

/// Builds the API and the previews as services, with all their middleware. `stop` ends the connections that have no
/// end of their own.
pub fn sites(control: Arc<Control>, settings: Settings, stop: CancellationToken) -> Sites {
    let (router, routes) = api::routes::router();
    let (e2b_control, e2b_control_policies) = e2b::routes::control();
    let (e2b_data, e2b_data_policies) = e2b::routes::data();
    let (e2b_interpreter, e2b_interpreter_policies) = e2b::routes::interpreter();
    let policies = Policies {
        api: routes,
        preview: preview::POLICY,
        e2b_control: e2b_control_policies,
        e2b_data: e2b_data_policies,
        e2b_interpreter: e2b_interpreter_policies,
    };
    let renderers = Renderers {
        api: api::error::render,
        preview: render_preview,
        e2b: e2b::error::render,
        e2b_interpreter: e2b::interpreter::render,
    };

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
    let e2b = api.settings.e2b.is_enabled.then(|| E2bSites {
        control: middleware::around_e2b(e2b_control, &api),
        data: middleware::around_e2b(e2b_data, &api),
        interpreter: middleware::around_e2b(e2b_interpreter, &api),
    });
    Sites {
        e2b,
        path_proxy,
        previews: middleware::previews(&api),
        api: middleware::around(router, &description, &api),
        renderers,
        domain,
    }
}
