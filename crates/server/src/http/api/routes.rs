//! The route table: every route of the API with what it demands of a request.
//!
//! The middleware reads nothing but the [`Policy`] of the row, which is found by the path that
//! the router matched, so that no spelling of a path leads around it. What has no row is closed:
//! it asks for a key and answers that there is no such route.

use axum::http::Method;
use axum::routing::{self, MethodRouter};
use domain::KeyScope;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use super::admin::alias;
use super::openapi::{self, FILES_OF_ROUTES, IMAGES_OF_ROUTES};
use super::{
    audit, contexts, diagnostics, egress, events, exec, files, images, keys, metrics, pauses, pool, ports, previews,
    processes, providers, quotas, sandbox_stats, sandboxes, secrets, snapshots, system, templates, workers,
};
use crate::auth::Demand;
use crate::auth::token::Scope;
use crate::config::RouteGroup;
use crate::http::error::no_such_route;
use crate::http::policy::{ADMIN, About, Audit, Gate, KEY, NamedIn, OPEN, Policy, RoutePolicies};
use crate::http::state::Api;

/// Prefix of every path of the API.
const PREFIX: &str = "/api/v1";

/// The sandbox whose id is in the path.
const ONE_SANDBOX: About = About::OneSandbox(NamedIn::Path);

// Ask for the API key, unless `auth.admin_only` closes the group.
const QUOTAS: Policy = group(RouteGroup::Quotas).about(About::OwnedResource);
const TEMPLATES: Policy = group(RouteGroup::Templates).about(About::OwnedResource).for_owners(KeyScope::Templates);
const PROVIDERS: Policy = group(RouteGroup::Providers);
const WORKERS: Policy = group(RouteGroup::Workers);
const DIAGNOSTICS: Policy = group(RouteGroup::Diagnostics);
const METRICS: Policy = group(RouteGroup::Metrics).for_owners(KeyScope::Metrics);
const EVENTS: Policy = group(RouteGroup::Events).for_owners(KeyScope::Events);

const SNAPSHOTS: Policy = KEY.about(About::OwnedResource).for_owners(KeyScope::Snapshots);
// What the administrator keeps for owners.
const IMAGES: Policy = ADMIN.about(About::OwnedResource);
const SECRETS: Policy = ADMIN.about(About::OwnedResource);
const ADMIN_QUOTAS: Policy = ADMIN.about(About::OwnedResource);
const KEYS: Policy = ADMIN.about(About::OwnedResource);

const fn group(group: RouteGroup) -> Policy {
    Policy::of(Gate::Key(Demand::Group(group)))
}

/// Asks for the credential of the worker in the path.
const fn worker(scope: Scope) -> Policy {
    Policy::of(Gate::Worker(scope))
}

/// One route.
struct Row {
    method: Method,
    /// Path below [`PREFIX`].
    path: String,
    handler: Handler,
    policy: Policy,
}

enum Handler {
    /// Described where it is written.
    Described(UtoipaMethodRouter<Api>),
    /// For a path that OpenAPI cannot write, such as one whose last parameter spans several
    /// segments; described under the other path, if at all.
    Plain(MethodRouter<Api>, Option<&'static str>),
}

fn get(path: &str, handler: UtoipaMethodRouter<Api>, policy: Policy) -> Row {
    Row { method: Method::GET, path: path.to_owned(), handler: Handler::Described(handler), policy }
}

fn post(path: &str, handler: UtoipaMethodRouter<Api>, policy: Policy) -> Row {
    Row { method: Method::POST, ..get(path, handler, policy) }
}

fn put(path: &str, handler: UtoipaMethodRouter<Api>, policy: Policy) -> Row {
    Row { method: Method::PUT, ..get(path, handler, policy) }
}

fn delete(path: &str, handler: UtoipaMethodRouter<Api>, policy: Policy) -> Row {
    Row { method: Method::DELETE, ..get(path, handler, policy) }
}

/// Returns every route.
#[rustfmt::skip]
fn table() -> Vec<Row> {
    use About::{Events, NewSandbox, OwnSandboxes};
    const READ: Policy = KEY.for_owners(KeyScope::SandboxesRead);
    const WRITE: Policy = KEY.for_owners(KeyScope::SandboxesWrite);
    const READ_BOX: Policy = READ.about(ONE_SANDBOX);
    const WRITE_BOX: Policy = WRITE.about(ONE_SANDBOX).fenced();
    const READ_QUOTA: Policy = QUOTAS.for_owners(KeyScope::SandboxesRead);
    const READ_IMAGES: Policy = IMAGES.for_owners(KeyScope::Images);
    const READ_SECRETS: Policy = SECRETS.for_owners(KeyScope::Secrets);
    let mut rows = vec![
        // Sandboxes
        post(  "/sandboxes",                                routes!(sandboxes::spawn),               WRITE.about(NewSandbox)),
        get(   "/sandboxes",                                routes!(sandboxes::list),                READ.about(OwnSandboxes)),
        delete("/sandboxes",                                routes!(sandboxes::prune),               WRITE.about(OwnSandboxes)),
        post(  "/sandboxes/admission",                      routes!(sandboxes::admission),           READ.about(OwnSandboxes)),
        get(   "/sandboxes/stats",                          routes!(sandbox_stats::list),            READ.about(OwnSandboxes)),
        get(   "/sandboxes/{id}",                           routes!(sandboxes::get),                 READ_BOX),
        delete("/sandboxes/{id}",                           routes!(sandboxes::destroy),             WRITE_BOX),
        post(  "/sandboxes/{id}/extend",                    routes!(sandboxes::extend),              WRITE_BOX),
        post(  "/sandboxes/{id}/pause",                     routes!(pauses::pause),                  WRITE_BOX),
        post(  "/sandboxes/{id}/resume",                    routes!(pauses::resume),                 WRITE_BOX),
        get(   "/sandboxes/{id}/wait",                      routes!(sandboxes::wait),                READ_BOX),
        get(   "/sandboxes/{id}/stats",                     routes!(sandbox_stats::get),             READ_BOX),
        get(   "/sandboxes/{id}/logs",                      routes!(sandboxes::logs),                READ_BOX),
        post(  "/sandboxes/{id}/exec",                      routes!(exec::exec),                     WRITE_BOX),
        get(   "/sandboxes/{id}/exec/ws",                   routes!(exec::socket::open),              Policy { takes_key_as_protocol: true, ..WRITE_BOX }),
        get(   "/sandboxes/{id}/processes",                 routes!(processes::list),                READ_BOX),
        get(   "/sandboxes/{id}/processes/{process}",       routes!(processes::get),                 READ_BOX),
        delete("/sandboxes/{id}/processes/{process}",       routes!(processes::remove),              WRITE_BOX),
        get(   "/sandboxes/{id}/processes/{process}/output", routes!(processes::output),             READ_BOX),
        post(  "/sandboxes/{id}/processes/{process}/stdin", routes!(processes::input),               WRITE_BOX),
        post(  "/sandboxes/{id}/processes/{process}/signal", routes!(processes::signal),             WRITE_BOX),
        post(  "/sandboxes/{id}/processes/{process}/resize", routes!(processes::resize),             WRITE_BOX),
        get(   "/sandboxes/{id}/processes/{process}/attach", routes!(exec::socket::attach),           Policy { takes_key_as_protocol: true, ..WRITE_BOX }),
        post(  "/sandboxes/{id}/run",                       routes!(contexts::run_in_default),        WRITE_BOX),
        post(  "/sandboxes/{id}/contexts",                  routes!(contexts::create),               WRITE_BOX),
        get(   "/sandboxes/{id}/contexts",                  routes!(contexts::list),                 READ_BOX),
        get(   "/sandboxes/{id}/contexts/{context}",        routes!(contexts::get),                  READ_BOX),
        delete("/sandboxes/{id}/contexts/{context}",        routes!(contexts::delete),               WRITE_BOX),
        post(  "/sandboxes/{id}/contexts/{context}/run",    routes!(contexts::run),                  WRITE_BOX),
        post(  "/sandboxes/{id}/contexts/{context}/complete", routes!(contexts::complete),           WRITE_BOX),
        post(  "/sandboxes/{id}/contexts/{context}/interrupt", routes!(contexts::interrupt),         WRITE_BOX),
        post(  "/sandboxes/{id}/contexts/{context}/restart", routes!(contexts::restart),             WRITE_BOX),
        post(  "/sandboxes/{id}/files",                     routes!(files::write),                   WRITE_BOX),
        get(   "/sandboxes/{id}/files",                     routes!(files::read),                    READ_BOX),
        delete("/sandboxes/{id}/files",                     routes!(files::delete),                  WRITE_BOX),
        get(   "/sandboxes/{id}/files/list",                routes!(files::list),                    READ_BOX),
        post(  "/sandboxes/{id}/files/move",                routes!(files::move_file),               WRITE_BOX),
        post(  "/sandboxes/{id}/files/chmod",               routes!(files::chmod),                   WRITE_BOX),
        get(   "/sandboxes/{id}/files/stat",                routes!(files::stat),                    READ_BOX),
        get(   "/sandboxes/{id}/files/glob",                routes!(files::glob),                    READ_BOX),
        get(   "/sandboxes/{id}/files/watch",               routes!(files::watch::watch),                   READ_BOX),
        get(   "/sandboxes/{id}/files/archive",             routes!(files::archives::download),             READ_BOX),
        post(  "/sandboxes/{id}/files/archive",             routes!(files::archives::upload),               WRITE_BOX),
        get(   "/sandboxes/{id}/files/manifest",            routes!(files::sync::manifest),                READ_BOX),
        post(  "/sandboxes/{id}/files/pack",                routes!(files::sync::pack),                    WRITE_BOX),
        post(  "/sandboxes/{id}/files/amend",               routes!(files::sync::amend),                   WRITE_BOX),
        post(  "/sandboxes/{id}/files/search",              routes!(files::search::search),                 WRITE_BOX),
        post(  "/sandboxes/{id}/files/replace",             routes!(files::search::replace),                WRITE_BOX),
        get(   "/sandboxes/{id}/ports",                     routes!(ports::list),                    READ_BOX),
        get(   "/sandboxes/{id}/ports/{port}/connect",      routes!(ports::connect),                 Policy { takes_key_as_protocol: true, ..WRITE_BOX }),
        get(   "/sandboxes/{id}/ports/{port}/listen",       routes!(ports::listen),                  Policy { takes_key_as_protocol: true, ..WRITE_BOX.audited("sandboxes.listen") }),
        get(   "/sandboxes/{id}/ports/{port}/listen/{connection}", routes!(ports::accept),           Policy { takes_key_as_protocol: true, ..WRITE_BOX }),
        get(   "/sandboxes/{id}/egress",                    routes!(egress::show),                   READ_BOX),
        put(   "/sandboxes/{id}/egress",                    routes!(egress::replace),                WRITE_BOX.audited("sandboxes.egress")),
        post(  "/sandboxes/{id}/preview",                   routes!(previews::mint),                  WRITE_BOX),
        post(  "/sandboxes/{id}/snapshots",                 routes!(snapshots::take),                WRITE_BOX.audited("sandboxes.snapshot").for_owners(KeyScope::Snapshots)),
        post(  "/sandboxes/{id}/fork",                      routes!(snapshots::fork),                WRITE_BOX),
        // Snapshots
        get(   "/snapshots",                                routes!(snapshots::list),                SNAPSHOTS),
        get(   "/snapshots/{id}",                           routes!(snapshots::get),                 SNAPSHOTS),
        delete("/snapshots/{id}",                           routes!(snapshots::delete),              SNAPSHOTS.audited("snapshots.delete")),
        // Templates
        post(  "/templates",                                routes!(templates::create),              TEMPLATES.audited("templates.create")),
        get(   "/templates",                                routes!(templates::list),                TEMPLATES),
        get(   "/templates/{name}",                         routes!(templates::get),                 TEMPLATES),
        put(   "/templates/{name}",                         routes!(templates::update),              TEMPLATES.audited("templates.update")),
        delete("/templates/{name}",                         routes!(templates::delete),              TEMPLATES.audited("templates.delete")),
        post(  "/templates/{name}/spawn",                   routes!(templates::spawn),               TEMPLATES.about(NewSandbox).for_owners(KeyScope::SandboxesWrite)),
        // Providers and images
        get(   "/providers",                                routes!(providers::list),                PROVIDERS),
        get(   "/providers/{name}",                         routes!(providers::get),                 PROVIDERS),
        post(  "/providers/test",                           routes!(providers::test),                PROVIDERS),
        get(   "/images",                                   routes!(images::list),                   READ_IMAGES),
        post(  "/images/pull",                              routes!(images::pull),                   IMAGES.audited("images.pull")),
        post(  "/images/import",                            routes!(images::import),                 IMAGES.audited("images.import")),
        post(  "/images/prune",                             routes!(images::prune),                  IMAGES.audited("images.prune")),
        get(   "/pool/status",                              routes!(pool::status),                   KEY),
        // Quotas
        get(   "/quotas",                                   routes!(quotas::list),                   QUOTAS),
        get(   "/quotas/summary",                           routes!(quotas::summary),                QUOTAS),
        get(   "/quotas/{owner_id}",                        routes!(quotas::get),                    READ_QUOTA),
        put(   "/quotas/{owner_id}",                        routes!(quotas::save),                   QUOTAS.audited("quotas.update")),
        delete("/quotas/{owner_id}",                        routes!(quotas::delete),                 QUOTAS.audited("quotas.delete")),
        get(   "/quotas/{owner_id}/usage",                  routes!(quotas::usage),                  READ_QUOTA),
        // Secrets
        get(   "/secrets",                                  routes!(secrets::list),                  READ_SECRETS),
        get(   "/secrets/{name}",                           routes!(secrets::get),                   READ_SECRETS),
        put(   "/secrets/{name}",                           routes!(secrets::save),                  SECRETS.audited("secrets.save")),
        delete("/secrets/{name}",                           routes!(secrets::delete),                SECRETS.audited("secrets.delete")),
        // The same for operators, and what is theirs alone
        get(   "/admin/providers",                          alias(routes!(providers::list)),         ADMIN.audited("providers.list")),
        get(   "/admin/providers/{name}",                   alias(routes!(providers::get)),          ADMIN.audited("providers.get")),
        post(  "/admin/providers/test",                     alias(routes!(providers::test)),         ADMIN.audited("providers.test")),
        get(   "/admin/quotas",                             alias(routes!(quotas::list)),            ADMIN_QUOTAS.audited("quotas.list")),
        get(   "/admin/quotas/summary",                     alias(routes!(quotas::summary)),         ADMIN_QUOTAS.audited("quotas.summary")),
        get(   "/admin/quotas/{owner_id}",                  alias(routes!(quotas::get)),             ADMIN_QUOTAS.audited("quotas.get")),
        put(   "/admin/quotas/{owner_id}",                  alias(routes!(quotas::save)),            ADMIN_QUOTAS.audited("quotas.update")),
        delete("/admin/quotas/{owner_id}",                  alias(routes!(quotas::delete)),          ADMIN_QUOTAS.audited("quotas.delete")),
        get(   "/admin/quotas/{owner_id}/usage",            alias(routes!(quotas::usage)),           ADMIN_QUOTAS.audited("quotas.usage")),
        get(   "/admin/diagnostics",                        alias(routes!(diagnostics::get)),        ADMIN.audited_failures("diagnostics.list").vital()),
        get(   "/admin/metrics",                            alias(routes!(metrics::get)),            ADMIN.audited_failures("metrics.list").vital()),
        get(   "/admin/metrics/prometheus",                 alias(routes!(metrics::prometheus)),     ADMIN.audited_failures("metrics.prometheus").vital()),
        get(   "/admin/audit",                              routes!(audit::list),                    ADMIN.audited("audit.list")),
        post(  "/admin/keys",                               routes!(keys::create),                   KEYS.audited("keys.create")),
        get(   "/admin/keys",                               routes!(keys::list),                     KEYS.audited("keys.list")),
        delete("/admin/keys/{id}",                          routes!(keys::revoke),                   KEYS.audited("keys.revoke")),
        post(  "/admin/workers/{worker}/heartbeat",         routes!(workers::admin_heartbeat),       ADMIN.audited("workers.heartbeat")),
        delete("/admin/workers/{worker}",                   routes!(workers::delete),                ADMIN.audited("workers.delete")),
        // Workers
        get(   "/workers",                                  routes!(workers::list),                  WORKERS),
        get(   "/workers/{worker}",                         routes!(workers::get),                   WORKERS),
        post(  "/worker/{worker}/heartbeat",                routes!(workers::heartbeat),             worker(Scope::Heartbeat)),
        post(  "/worker/{worker}/leases/{resource}/renew",  routes!(workers::renew),                 worker(Scope::Lease)),
        // The service itself
        get(   "/live",                                     routes!(system::live),                   OPEN),
        get(   "/health",                                   routes!(system::health),                 OPEN),
        get(   "/ready",                                    routes!(system::ready),                  OPEN),
        get(   "/events",                                   routes!(events::stream),                 EVENTS.about(Events)),
        get(   "/diagnostics",                              routes!(diagnostics::get),               DIAGNOSTICS.vital()),
        get(   "/metrics",                                  routes!(metrics::get),                   METRICS.vital()),
        get(   "/metrics/prometheus",                       routes!(metrics::prometheus),            METRICS.vital()),
        get(   "/openapi.json",                             routes!(openapi::get),                   KEY.for_any_owner()),
    ];
    rows.extend(plain_rows());
    rows
}

/// Returns a row with a [plain](Handler::Plain) handler.
fn plain(
    method: Method,
    path: &str,
    handler: MethodRouter<Api>,
    described: Option<&'static str>,
    policy: Policy,
) -> Row {
    Row { method, path: path.to_owned(), handler: Handler::Plain(handler, described), policy }
}

/// Returns the routes whose paths OpenAPI cannot write.
fn plain_rows() -> Vec<Row> {
    const WRITE_FILE: Policy = KEY.about(ONE_SANDBOX).fenced().for_owners(KeyScope::SandboxesWrite);
    const READ_IMAGE: Policy = IMAGES.for_owners(KeyScope::Images);
    const REMOVE_IMAGE: Policy = IMAGES.audited("images.delete");
    const UNKNOWN: Policy = Policy { audit: Audit::Unknown, ..ADMIN };
    let file = Some("/sandboxes/{id}/files/{path}");
    let image = Some("/images/{name}");
    let mut rows = vec![
        plain(Method::PUT, "/sandboxes/{id}/files/{*path}", routing::put(files::put), file, WRITE_FILE),
        plain(Method::GET, "/images/{*name}", routing::get(images::get), image, READ_IMAGE),
        plain(Method::DELETE, "/images/{*name}", routing::delete(images::remove), image, REMOVE_IMAGE),
        plain(Method::GET, "/admin", routing::any(no_such_route), None, UNKNOWN),
        plain(Method::GET, "/admin/", routing::any(no_such_route), None, UNKNOWN),
        plain(Method::GET, "/admin/{*rest}", routing::any(no_such_route), None, UNKNOWN),
    ];
    // Files and images of these names, whose paths are those of other routes.
    for name in FILES_OF_ROUTES {
        let path = format!("/sandboxes/{{id}}/files/{name}");
        rows.push(plain(Method::PUT, &path, routing::put(files::put), None, WRITE_FILE));
    }
    for name in IMAGES_OF_ROUTES {
        let path = format!("/images/{name}");
        rows.push(plain(Method::GET, &path, routing::get(images::get), None, READ_IMAGE));
        rows.push(plain(Method::DELETE, &path, routing::delete(images::remove), None, REMOVE_IMAGE));
    }
    rows
}

/// Builds the router with its description, and the policies of its routes.
pub fn router() -> (OpenApiRouter<Api>, RoutePolicies) {
    let mut router = OpenApiRouter::with_openapi(openapi::base());
    let mut policies = RoutePolicies::default();
    for Row { method, path, handler, policy } in table() {
        policies.add(&format!("{PREFIX}{path}"), &method, policy);
        router = match handler {
            Handler::Described(handler) => router.routes(handler),
            Handler::Plain(handler, described) => {
                if let Some(described) = described {
                    policies.add(&format!("{PREFIX}{described}"), &method, policy);
                }
                router.route(&format!("{PREFIX}{path}"), handler)
            }
        };
    }
    (router, policies)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::auth::OwnerAccess;

    #[test]
    fn a_row_has_the_method_and_the_path_of_its_handler() {
        for Row { method, path, handler, .. } in table() {
            let Handler::Described((_, paths, _)) = handler else { continue };
            let (declared, item) = paths.paths.first_key_value().unwrap();
            assert_eq!(*declared, format!("{PREFIX}{path}"), "{method}");
            let has_it = match method {
                Method::GET => item.get.is_some(),
                Method::PUT => item.put.is_some(),
                Method::POST => item.post.is_some(),
                _ => item.delete.is_some(),
            };
            assert!(has_it && paths.paths.len() == 1, "{method} {path}");
        }
    }

    #[test]
    fn the_rows_of_a_path_ask_for_the_same_credential_about_the_same_sandboxes() {
        let (_, policies) = router();
        for (path, rows) in &policies.0 {
            for (method, policy) in rows {
                assert_eq!(policy.gate, rows[0].1.gate, "{method} {path}");
                let is_spawn = rows.iter().any(|(_, policy)| policy.about == About::NewSandbox);
                assert!(is_spawn || policy.about == rows[0].1.about, "{method} {path}");
            }
        }
    }

    #[test]
    fn what_has_no_row_is_closed() {
        let (_, policies) = router();
        let gate = |path, method| policies.of(path, &method).gate;
        assert_eq!(gate(None, Method::GET), KEY.gate);
        assert_eq!(gate(Some("/a/route/of/the/future"), Method::GET), KEY.gate);
        assert_eq!(gate(Some("/api/v1/live"), Method::HEAD), OPEN.gate);
        assert_eq!(gate(Some("/api/v1/live"), Method::POST), KEY.gate);
        assert_eq!(gate(Some("/api/v1/admin/{*rest}"), Method::PUT), ADMIN.gate);
        assert_eq!(gate(Some("/api/v1/images/{*name}"), Method::PUT), ADMIN.gate);
        let heartbeat = Some("/api/v1/worker/{worker}/heartbeat");
        assert_eq!(gate(heartbeat, Method::DELETE), Gate::Worker(Scope::Heartbeat));
    }

    #[test]
    fn every_change_of_a_sandbox_is_fenced_and_no_reading_is() {
        let (_, policies) = router();
        let rows = policies.0.iter().flat_map(|(path, rows)| rows.iter().map(move |row| (path, row)));
        for (path, (method, policy)) in rows.filter(|(_, (_, policy))| policy.about == ONE_SANDBOX) {
            // A WebSocket is opened by reading, and what it does is no reading.
            let is_change = *method != Method::GET || policy.takes_key_as_protocol;
            assert_eq!(policy.is_fenced, is_change, "{method} {path}");
        }
    }

    /// Returns the rows with their paths below the prefix.
    fn rows(policies: &RoutePolicies) -> impl Iterator<Item = (&str, &Method, &Policy)> {
        policies.0.iter().flat_map(|(path, rows)| {
            let path = path.strip_prefix(PREFIX).unwrap();
            rows.iter().map(move |(method, policy)| (path, method, policy))
        })
    }

    #[test]
    fn every_route_below_a_sandbox_is_about_it() {
        let (_, policies) = router();
        for (path, method, policy) in rows(&policies).filter(|(path, ..)| path.starts_with("/sandboxes")) {
            assert_ne!(policy.about, About::Nothing, "{method} {path}");
            assert_eq!(policy.about == ONE_SANDBOX, path.contains("{id}"), "{method} {path}");
        }
    }

    /// A key of an owner's sees the owner's, so no row may forget to ask.
    #[test]
    fn every_route_of_what_an_owner_may_have_says_so() {
        let (_, policies) = router();
        for (path, method, policy) in rows(&policies) {
            let group = path.trim_start_matches("/admin").split('/').nth(1).unwrap_or_default();
            let is_expected = match group {
                "sandboxes" => !matches!(policy.about, About::Nothing | About::OwnedResource),
                "events" => policy.about == About::Events,
                "templates" if path.ends_with("/spawn") => policy.about == About::NewSandbox,
                "snapshots" | "templates" | "secrets" | "images" | "quotas" | "keys" => {
                    policy.about == About::OwnedResource
                }
                // The service itself, which no owner has a part of.
                "audit" | "diagnostics" | "health" | "live" | "metrics" | "openapi.json" | "pool" | "providers"
                | "ready" | "worker" | "workers" | "{*rest}" | "" => policy.about == About::Nothing,
                _ => panic!("say of {path} whether an owner may have it"),
            };
            assert!(is_expected, "{method} {path}: {:?}", policy.about);
        }
    }

    #[test]
    fn changes_of_rules_and_listening_are_audited_outside_of_admin_and_nothing_else_is() {
        let (_, policies) = router();
        for (path, method, policy) in rows(&policies).filter(|(path, ..)| !path.starts_with("/admin")) {
            let group = path.split('/').nth(1).unwrap();
            // A WebSocket is opened by reading.
            let listens = path.ends_with("/listen");
            let is_change = (*method != Method::GET || listens) && policy.about != About::NewSandbox;
            let is_rule = ["templates", "quotas", "images", "secrets", "snapshots"].contains(&group)
                || path.ends_with("/egress")
                || path.ends_with("/snapshots")
                || listens;
            let is_audited = is_change && is_rule;
            match policy.audit {
                Audit::Always(action) => assert!(is_audited && action.starts_with(group), "{method} {path}: {action}"),
                Audit::Nothing => assert!(!is_audited, "{method} {path}"),
                Audit::Failures(_) | Audit::Unknown => panic!("{method} {path}"),
            }
        }
    }

    #[test]
    fn a_route_asks_for_the_key_of_its_group() {
        let (_, policies) = router();
        for (path, method, policy) in rows(&policies) {
            let gate = match path.split('/').nth(1).unwrap() {
                "live" | "health" | "ready" => OPEN.gate,
                "admin" | "images" | "secrets" => ADMIN.gate,
                "quotas" => QUOTAS.gate,
                "templates" => TEMPLATES.gate,
                "providers" => PROVIDERS.gate,
                "workers" => WORKERS.gate,
                "diagnostics" => DIAGNOSTICS.gate,
                "metrics" => METRICS.gate,
                "events" => EVENTS.gate,
                "worker" if path.ends_with("/heartbeat") => Gate::Worker(Scope::Heartbeat),
                "worker" => Gate::Worker(Scope::Lease),
                _ => KEY.gate,
            };
            assert_eq!(policy.gate, gate, "{method} {path}");
        }
    }

    /// A key of an owner opens no row that this table does not name.
    #[test]
    fn a_route_asks_a_key_of_an_owner_for_the_scope_of_its_group() {
        use KeyScope::{Events, Images, Metrics, SandboxesRead, SandboxesWrite, Secrets, Snapshots, Templates};

        /// Changes of things that are the operator's.
        const OPERATORS: [&str; 4] = ["images", "quotas", "secrets", "metrics"];
        let (_, policies) = router();
        for (path, method, policy) in rows(&policies) {
            let reads = *method == Method::GET;
            let group = path.split('/').nth(1).unwrap();
            let scope = match group {
                "sandboxes" if path.ends_with("/snapshots") => Some(Snapshots),
                "sandboxes" if path.ends_with("/admission") => Some(SandboxesRead),
                "sandboxes" if reads && !policy.takes_key_as_protocol => Some(SandboxesRead),
                "sandboxes" => Some(SandboxesWrite),
                "snapshots" => Some(Snapshots),
                "templates" if path.ends_with("/spawn") => Some(SandboxesWrite),
                "templates" => Some(Templates),
                "events" => Some(Events),
                _ if OPERATORS.contains(&group) && !reads => None,
                "quotas" if path.contains("{owner_id}") => Some(SandboxesRead),
                "images" => Some(Images),
                "secrets" => Some(Secrets),
                "metrics" => Some(Metrics),
                _ => None,
            };
            let expected = match scope {
                Some(scope) => OwnerAccess::Scope(scope),
                None if path == "/openapi.json" => OwnerAccess::Any,
                None => OwnerAccess::Closed,
            };
            assert_eq!(policy.owners, expected, "{method} {path}");
        }
    }

    #[test]
    fn what_has_no_row_is_closed_to_keys_of_owners() {
        let (_, policies) = router();
        let owners = |path, method| policies.of(path, &method).owners;
        assert_eq!(owners(Some("/a/route/of/the/future"), Method::GET), OwnerAccess::Closed);
        assert_eq!(owners(Some("/api/v1/admin/{*rest}"), Method::PUT), OwnerAccess::Closed);
        // There is nothing to be had.
        assert_eq!(owners(None, Method::GET), OwnerAccess::Any);
    }

    #[test]
    fn every_admin_route_asks_for_the_admin_key_and_is_audited() {
        let (_, policies) = router();
        for (path, rows) in policies.0.iter().filter(|(path, _)| path.starts_with("/api/v1/admin")) {
            for (method, policy) in rows {
                assert_eq!(policy.gate, ADMIN.gate, "{method} {path}");
                assert_ne!(policy.audit, Audit::Nothing, "{method} {path}");
            }
        }
    }
}
