//! The route tables of the two planes. The middleware reads only the policy of a row; paths without a row are closed.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{self, MethodRouter};
use domain::KeyScope;

use super::in_box::{InBox, User};
use super::{builds, connect, files, filesystem, interpreter, process, sandboxes, snapshots};
use crate::auth::Demand;
use crate::config::RouteGroup;
use crate::http::error::{ApiError, Refusal};
use crate::http::policy::{About, Gate, KEY, NamedIn, Policy, Proof, RoutePolicies, SANDBOX};
use crate::http::state::Api;

/// Asks for the key of the templates.
const TEMPLATES: Policy = Policy::of(Gate::Key(Demand::Group(RouteGroup::Templates)))
    .about(About::OwnedResource)
    .for_owners(KeyScope::Templates);

/// One route.
struct Row {
    method: Method,
    path: &'static str,
    handler: MethodRouter<Api>,
    policy: Policy,
}

fn row(method: Method, path: &'static str, handler: MethodRouter<Api>, policy: Policy) -> Row {
    Row { method, path, handler, policy }
}

/// Returns every route of the control plane.
#[rustfmt::skip]
fn control_table() -> Vec<Row> {
    use routing::{delete, get, post, put};
    const GET: Method = Method::GET;
    const POST: Method = Method::POST;
    const READ: Policy = KEY.for_owners(KeyScope::SandboxesRead);
    const WRITE: Policy = KEY.for_owners(KeyScope::SandboxesWrite);
    const READ_ONE: Policy = READ.about(About::OneSandbox(NamedIn::Path));
    const ONE: Policy = WRITE.about(About::OneSandbox(NamedIn::Path));
    const NEW: Policy = WRITE.about(About::NewSandbox);
    const OWN: Policy = READ.about(About::OwnSandboxes);
    const UPLOAD: Policy = Policy::of(Gate::UploadLink).for_owners(KeyScope::Templates);
    const SNAPSHOTS: Policy = KEY.about(About::OwnedResource).for_owners(KeyScope::Snapshots);
    vec![
        row(POST,           "/v2/sandboxes",              post(sandboxes::create),   NEW),
        row(POST,           "/sandboxes",                 post(sandboxes::create),   NEW),
        row(GET,            "/v2/sandboxes",              get(sandboxes::list),      OWN),
        row(GET,            "/sandboxes/{id}",            get(sandboxes::get),       READ_ONE),
        row(Method::DELETE, "/sandboxes/{id}",            delete(sandboxes::kill),   ONE),
        row(POST,           "/sandboxes/{id}/timeout",    post(sandboxes::timeout),  ONE),
        row(POST,           "/v2/sandboxes/{id}/connect", post(sandboxes::connect),  ONE),
        row(POST,           "/sandboxes/{id}/connect",    post(sandboxes::connect),  ONE),
        row(POST,           "/sandboxes/{id}/resume",     post(sandboxes::resume),   ONE),
        row(POST,           "/sandboxes/{id}/pause",      post(sandboxes::pause),    ONE),
        row(GET,            "/sandboxes/{id}/metrics",    get(sandboxes::metrics),   READ_ONE),
        row(Method::PUT,    "/sandboxes/{id}/network",    put(sandboxes::network),   ONE.audited("sandboxes.egress")),
        row(POST,           "/sandboxes/{id}/snapshots",  post(snapshots::take),     ONE.audited("sandboxes.snapshot").for_owners(KeyScope::Snapshots)),
        row(POST,           "/sandboxes/{id}/fork",       post(snapshots::fork),     ONE),
        row(GET,            "/snapshots",                 get(snapshots::list),      SNAPSHOTS),
        row(Method::DELETE, "/templates/{id}",            delete(snapshots::delete), SNAPSHOTS.audited("snapshots.delete")),
        row(GET,            "/templates/aliases/{alias}", get(snapshots::alias),     TEMPLATES),
        row(POST,           "/v3/templates",              post(builds::request),     TEMPLATES.audited("templates.build")),
        row(GET,            "/templates/{id}/files/{hash}", get(builds::files),      TEMPLATES),
        row(Method::PUT,    "/templates/{id}/files/{hash}", put(builds::upload),     UPLOAD),
        row(POST,           "/v2/templates/{id}/builds/{build}", post(builds::start), NEW),
        row(GET,            "/templates/{id}/builds/{build}/status", get(builds::status), TEMPLATES),
        row(POST,           "/templates/tags",            post(builds::tag),         TEMPLATES.audited("templates.tag")),
        row(Method::DELETE, "/templates/tags",            delete(builds::untag),     TEMPLATES.audited("templates.untag")),
        row(GET,            "/templates/{id}/tags",       get(builds::tags),         TEMPLATES),
    ]
}

/// Returns the handler of a remote procedure call that acts as a user.
macro_rules! as_user {
    ($call:path) => {
        routing::post(|State(api): State<Api>, InBox(id): InBox, User(user): User, request: Request| async move {
            $call(&api, &id, user.as_deref(), request).await
        })
    };
}

/// Returns the handler of a remote procedure call.
macro_rules! in_box {
    ($call:path) => {
        routing::post(|State(api): State<Api>, InBox(id): InBox, request: Request| async move {
            $call(&api, &id, request).await
        })
    };
}

/// Returns every route of the data plane.
#[rustfmt::skip]
fn data_table() -> Vec<Row> {
    use routing::{any, get, post};
    const OPEN: Policy = Policy { gate: Gate::Sandbox(Proof::Nothing), ..SANDBOX };
    const SIGNED: Policy = Policy { gate: Gate::Sandbox(Proof::TokenOrSignature), ..SANDBOX };
    const GET: Method = Method::GET;
    const POST: Method = Method::POST;
    vec![
        row(GET,  "/health",                                  get(health),                           OPEN),
        row(GET,  "/files",                                   get(files::read),                      SIGNED),
        row(POST, "/files",                                   post(files::write),                    SIGNED),
        row(POST, "/process.Process/Start",                   as_user!(process::start),              SANDBOX),
        row(POST, "/process.Process/Connect",                 in_box!(process::connect),             SANDBOX),
        row(POST, "/process.Process/List",                    in_box!(process::list),                SANDBOX),
        row(POST, "/process.Process/SendInput",               in_box!(process::input::send_input),          SANDBOX),
        row(POST, "/process.Process/StreamInput",             in_box!(process::input::stream_input),        SANDBOX),
        row(POST, "/process.Process/CloseStdin",              in_box!(process::input::close_stdin),         SANDBOX),
        row(POST, "/process.Process/SendSignal",              in_box!(process::send_signal),         SANDBOX),
        row(POST, "/process.Process/Update",                  in_box!(process::update),              SANDBOX),
        row(POST, "/process.Process/{method}",                any(connect::unimplemented),           SANDBOX),
        row(POST, "/filesystem.Filesystem/Stat",              as_user!(filesystem::stat),            SANDBOX),
        row(POST, "/filesystem.Filesystem/ListDir",           as_user!(filesystem::list_dir),        SANDBOX),
        row(POST, "/filesystem.Filesystem/MakeDir",           as_user!(filesystem::make_dir),        SANDBOX),
        row(POST, "/filesystem.Filesystem/Move",              as_user!(filesystem::move_file),       SANDBOX),
        row(POST, "/filesystem.Filesystem/Remove",            as_user!(filesystem::remove),          SANDBOX),
        row(POST, "/filesystem.Filesystem/WatchDir",          as_user!(filesystem::changes::watch_dir),       SANDBOX),
        row(POST, "/filesystem.Filesystem/CreateWatcher",     as_user!(filesystem::changes::create_watcher),  SANDBOX),
        row(POST, "/filesystem.Filesystem/GetWatcherEvents",  as_user!(filesystem::changes::watcher_events),  SANDBOX),
        row(POST, "/filesystem.Filesystem/RemoveWatcher",     in_box!(filesystem::changes::remove_watcher),   SANDBOX),
        row(POST, "/filesystem.Filesystem/{method}",          any(connect::unimplemented),           SANDBOX),
    ]
}

/// Returns every route of the code interpreter.
#[rustfmt::skip]
fn interpreter_table() -> Vec<Row> {
    use routing::{delete, get, post};
    const OPEN: Policy = Policy { gate: Gate::Sandbox(Proof::Nothing), ..SANDBOX };
    // The packages send the token with code alone.
    const CONTEXTS: Policy = Policy { gate: Gate::Sandbox(Proof::TokenOrPort), ..SANDBOX };
    const GET: Method = Method::GET;
    const POST: Method = Method::POST;
    vec![
        row(GET,            "/health",                get(interpreter::health),     OPEN),
        row(POST,           "/execute",               post(interpreter::execute),   SANDBOX),
        row(GET,            "/contexts",              get(interpreter::list),       CONTEXTS),
        row(POST,           "/contexts",              post(interpreter::create),    CONTEXTS),
        row(Method::DELETE, "/contexts/{id}",         delete(interpreter::delete),  CONTEXTS),
        row(POST,           "/contexts/{id}/restart", post(interpreter::restart),   CONTEXTS),
    ]
}

/// Builds the router of the control plane, and the policies of its routes.
pub fn control() -> (Router<Api>, RoutePolicies) {
    let (router, policies) = router(control_table());
    (router.fallback(no_such_route), policies)
}

/// Builds the router of the data plane, and the policies of its routes.
pub fn data() -> (Router<Api>, RoutePolicies) {
    let (router, policies) = router(data_table());
    (router.fallback(no_such_data_route), policies)
}

/// Builds the router of the code interpreter, and the policies of its routes.
pub fn interpreter() -> (Router<Api>, RoutePolicies) {
    let (router, policies) = router(interpreter_table());
    (router.fallback(no_such_data_route), policies)
}

fn router(table: Vec<Row>) -> (Router<Api>, RoutePolicies) {
    let mut policies = RoutePolicies::default();
    let router = table.into_iter().fold(Router::new(), |router, Row { method, path, handler, policy }| {
        policies.add(path, &method, policy);
        router.route(path, handler)
    });
    (router, policies)
}

/// Returns whether the body of a request may come as slowly as it likes: the input of a process is sent as it is typed.
pub fn is_unhurried(path: &str) -> bool {
    path.ends_with("/process.Process/StreamInput")
}

/// Tells that a sandbox runs.
async fn health(_: InBox) -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Answers a request to the control plane without a route.
async fn no_such_route(uri: Uri) -> ApiError {
    Refusal::NoE2bRoute(uri.path().chars().take(200).collect()).into()
}

/// Answers a request to a sandbox without a route.
async fn no_such_data_route(_: InBox, uri: Uri) -> ApiError {
    no_such_route(uri).await
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::auth::OwnerAccess;
    use crate::http::policy::Audit;

    fn rows(table: fn() -> Vec<Row>) -> impl Iterator<Item = (Method, &'static str, Policy)> {
        table().into_iter().map(|Row { method, path, policy, .. }| (method, path, policy))
    }

    #[test]
    fn the_control_plane_asks_for_the_key_and_the_data_plane_for_the_token() {
        for (method, path, policy) in rows(control_table) {
            let is_upload = path.ends_with("/files/{hash}") && method == Method::PUT;
            let is_keyed = matches!(policy.gate, Gate::Key(Demand::Key | Demand::Group(_)));
            assert!(if is_upload { policy.gate == Gate::UploadLink } else { is_keyed }, "{method} {path}");
        }
        for (method, path, policy) in rows(interpreter_table) {
            let expected = match path {
                "/health" => Proof::Nothing,
                "/execute" => Proof::Token,
                _ => Proof::TokenOrPort,
            };
            assert_eq!(policy.gate, Gate::Sandbox(expected), "{method} {path}");
        }
        for (method, path, policy) in rows(data_table) {
            let expected = match path {
                "/health" => Proof::Nothing,
                "/files" => Proof::TokenOrSignature,
                _ => Proof::Token,
            };
            assert_eq!(policy.gate, Gate::Sandbox(expected), "{method} {path}");
        }
    }

    #[test]
    fn every_route_of_the_control_plane_says_what_it_is_about() {
        for (method, path, policy) in rows(control_table) {
            let expected = match path {
                "/v2/sandboxes" | "/sandboxes" if method == Method::POST => About::NewSandbox,
                "/v2/templates/{id}/builds/{build}" => About::NewSandbox,
                "/templates/{id}/files/{hash}" if method == Method::PUT => About::Nothing,
                "/v2/sandboxes" => About::OwnSandboxes,
                _ if path.contains("sandboxes/{id}") => About::OneSandbox(NamedIn::Path),
                _ => About::OwnedResource,
            };
            assert_eq!(policy.about, expected, "{method} {path}");
        }
    }

    #[test]
    fn every_route_of_the_control_plane_says_which_keys_of_owners_open_it() {
        use KeyScope::{SandboxesRead, SandboxesWrite, Snapshots, Templates};
        for (method, path, policy) in rows(control_table) {
            let scope = match (&method, path) {
                (_, "/v2/templates/{id}/builds/{build}") => SandboxesWrite,
                (_, "/snapshots" | "/templates/{id}" | "/sandboxes/{id}/snapshots") => Snapshots,
                (_, path) if path.contains("/templates") => Templates,
                (&Method::GET, _) => SandboxesRead,
                _ => SandboxesWrite,
            };
            assert_eq!(policy.owners, OwnerAccess::Scope(scope), "{method} {path}");
        }
    }

    /// As on the routes of the API that do the same.
    #[test]
    fn changes_of_rules_and_snapshots_are_audited_and_nothing_else_is() {
        for (method, path, policy) in rows(control_table).chain(rows(data_table)).chain(rows(interpreter_table)) {
            let is_audited = method != Method::GET
                && !path.ends_with("/files/{hash}")
                && ["/network", "/snapshots", "/v3/templates"].iter().any(|end| path.ends_with(end))
                || method != Method::GET && ["/templates/{id}", "/templates/tags"].contains(&path);
            assert_eq!(policy.audit != Audit::Nothing, is_audited, "{method} {path}");
        }
    }

    #[test]
    fn what_has_no_row_is_closed() {
        for (_, policies) in [control(), data(), interpreter()] {
            assert_eq!(policies.of(None, &Method::GET).gate, KEY.gate);
            assert_eq!(policies.of(Some("/a/route/of/the/future"), &Method::GET).gate, KEY.gate);
        }
    }
}
