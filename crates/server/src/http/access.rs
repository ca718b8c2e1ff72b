//! Who may have which route: the one place where keys are asked for.
//!
//! It is decided from the path that the router matched, so that no way of
//! writing a path leads around it, and a route that nobody thought of here is
//! closed.

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::Timestamp;

use super::Api;
use super::error::{ApiError, Refusal};
use super::limited::{Allowed, Limited};
use super::meter::Meter;
use super::openapi::Security;
use super::subprotocol;
use crate::auth::token::Scope;
use crate::auth::{Access, Asked, Demand, Denied, KeyId, Principal};
use crate::config::RouteGroup;

/// What every path begins with.
const PREFIX: &str = "/api/v1/";

/// The route of a WebSocket: a page cannot send headers of its own with it.
const SOCKET: &str = "/api/v1/sandboxes/{id}/exec/ws";

/// Routes that answer without a key, to GET and HEAD.
const OPEN: [&str; 3] = ["live", "health", "ready"];

/// An attempt to get in without the right key, as it may be written down; among
/// the extensions of its answer. The [`Principal`] of any other is there as well.
#[derive(Debug, Clone)]
pub struct Refused {
    /// Which key was tried, if one was.
    pub key_id: Option<KeyId>,
}

/// The worker that makes the request, on `/worker/*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Which; the same as in the path.
    pub id: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
}

impl<S: Send + Sync> FromRequestParts<S> for Worker {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        // It is there wherever a worker's credential was asked for.
        let worker = parts.extensions.get::<Worker>().cloned();
        worker.ok_or_else(|| Refusal::Unauthorized("this route is for workers".to_owned()).into())
    }
}

/// What stands before a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// A key, or none.
    Key(Demand),
    /// The credential of the worker in the path, with this scope.
    Worker(Scope),
}

/// What a request asks of its caller: from the matched path, or from the path as
/// it was sent where there is no route.
fn gate(matched: Option<&str>, sent: &str, method: &Method) -> Gate {
    let path = matched.unwrap_or(sent);
    let path = path.strip_prefix(PREFIX).unwrap_or_default();
    if matched.is_some() && OPEN.contains(&path) && matches!(*method, Method::GET | Method::HEAD) {
        return Gate::Key(Demand::Nothing);
    }
    Gate::Key(match path.split('/').next().unwrap_or_default() {
        "worker" if matched.is_some() && path.ends_with("/heartbeat") => return Gate::Worker(Scope::Heartbeat),
        "worker" if matched.is_some() => return Gate::Worker(Scope::Lease),
        "admin" | "images" => Demand::AdminKey,
        "quotas" => Demand::Group(RouteGroup::Quotas),
        "templates" => Demand::Group(RouteGroup::Templates),
        "providers" => Demand::Group(RouteGroup::Providers),
        "workers" => Demand::Group(RouteGroup::Workers),
        "diagnostics" => Demand::Group(RouteGroup::Diagnostics),
        "metrics" => Demand::Group(RouteGroup::Metrics),
        "events" => Demand::Group(RouteGroup::Events),
        _ => Demand::Key,
    })
}

/// What the description says of the route at `path`.
pub fn security(access: &Access, path: &str) -> Security {
    match gate(Some(path), path, &Method::GET) {
        Gate::Worker(_) => Security::Worker,
        Gate::Key(demand) => match access.asks(demand) {
            Asked::Nothing => Security::Open,
            Asked::Key => Security::Key,
            Asked::AdminKey => Security::AdminKey,
        },
    }
}

/// Lets the request through, with its [`Principal`] among its extensions, or
/// answers 401, or 429 to whoever asks too fast.
pub async fn pass(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let matched = matched.as_ref().map(MatchedPath::as_str);
    let gate = gate(matched, request.uri().path(), request.method());
    let access = &api.settings.access;
    let limited = Limited::of(&api, &request, matches!(gate, Gate::Worker(_)));
    let offered = if matched == Some(SOCKET) { subprotocol::take_key(request.headers_mut()) } else { Ok(()) };
    if let Some(limited) = &limited
        && depends_on_key(gate, access, &request)
        && let Err(too_fast) = limited.before_a_key_is_looked_at()
    {
        let mut response = limited.refuse(too_fast);
        // Like every attempt, it is counted in the audit history, in one row.
        response.extensions_mut().insert(Refused { key_id: None });
        return response;
    }
    let admitted = match gate {
        Gate::Key(Demand::Key) if offered.is_err() && access.is_enabled() => offered.map(|()| Principal::Anonymous),
        Gate::Key(demand) => access.decide(demand, request.headers()),
        Gate::Worker(scope) => admit_worker(access, api.control.now(), scope, &request).map(|worker| {
            let principal = Principal::Worker(worker.id.clone());
            request.extensions_mut().insert(worker);
            principal
        }),
    };
    let mut refused = None;
    let mut response = match admitted {
        Ok(principal) => {
            if gate == Gate::Key(Demand::Nothing)
                && let Some(denied) = access.tried_in_vain(request.headers())
            {
                limited.as_ref().map(Limited::count_attempt);
                refused = Some(note(&request, denied));
            }
            let is_counted = matches!(gate, Gate::Key(demand) if demand != Demand::Nothing);
            let counted = limited.as_ref().filter(|_| is_counted);
            let counted = counted.map(|limited| (limited, limited.count(&principal, request.headers())));
            request.extensions_mut().insert(principal.clone());
            let meter = Meter::of(&api, &principal, &request);
            let is_vital = is_vital(matched.unwrap_or_default());
            let mut response = match counted {
                None => meter.pass(is_vital, request, next).await,
                Some((_, Ok(allowed))) => marked(Some(allowed), meter.pass(is_vital, request, next).await),
                Some((limited, Err(too_fast))) => limited.refuse(too_fast),
            };
            response.extensions_mut().insert(principal);
            response
        }
        Err(denied) => {
            let message = denied.message.to_owned();
            refused = Some(note(&request, denied));
            let allowed = limited.as_ref().map(Limited::count_attempt);
            marked(allowed, ApiError::from(Refusal::Unauthorized(message)).into_response())
        }
    };
    if let Some(refused) = refused {
        response.extensions_mut().insert(refused);
    }
    response
}

/// Says whether the route tells how the server is: it answers whatever is spent.
fn is_vital(matched: &str) -> bool {
    let path = matched.strip_prefix(PREFIX).unwrap_or_default();
    let path = path.strip_prefix("admin/").unwrap_or(path);
    OPEN.contains(&path) || matches!(path, "metrics" | "metrics/prometheus" | "diagnostics")
}

/// Whether the answer tells if a key is right.
fn depends_on_key(gate: Gate, access: &Access, request: &Request) -> bool {
    match gate {
        Gate::Key(demand) => access.depends_on_key(demand, request.headers()),
        Gate::Worker(_) => true,
    }
}

/// The answer, which says what the caller may still ask.
fn marked(allowed: Option<Allowed>, mut response: Response) -> Response {
    if let Some(allowed) = allowed {
        allowed.mark(response.headers_mut());
    }
    response
}

/// The worker that the path names, if it is the caller and has this scope.
fn admit_worker(access: &Access, now: Timestamp, scope: Scope, request: &Request) -> Result<Worker, Denied> {
    let rest = request.uri().path().strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix("worker/"));
    let id = rest.and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let id = percent_encoding::percent_decode_str(id).decode_utf8_lossy();
    let claims = access.workers().verify(&id, request.headers(), now)?;
    if claims.scopes.contains(&scope) {
        Ok(Worker { id: claims.id, scopes: claims.scopes })
    } else {
        let message = match scope {
            Scope::Heartbeat => "the token does not have the scope `worker:heartbeat`",
            Scope::Lease => "the token does not have the scope `worker:lease`",
        };
        Err(Denied { message, tried: None })
    }
}

/// Every failed attempt comes through here, before it is answered.
fn note(request: &Request, denied: Denied) -> Refused {
    let key_id = denied.tried.as_ref().map(KeyId::as_str);
    let path = request.uri().path();
    tracing::debug!(key_id, method = %request.method(), path, message = denied.message, "a caller was refused");
    Refused { key_id: denied.tried }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::auth::token::{AUDIENCE, Claims, ScopeNames, sign};
    use crate::config::{Inputs, Secret, load};

    #[track_caller]
    fn check(path: &str, expected: Demand) {
        assert_eq!(gate(Some(path), path, &Method::GET), Gate::Key(expected), "{path}");
    }

    #[test]
    fn what_a_route_asks_for_follows_from_its_matched_path() {
        check("/api/v1/live", Demand::Nothing);
        check("/api/v1/ready", Demand::Nothing);
        check("/api/v1/sandboxes/{id}", Demand::Key);
        check("/api/v1/openapi.json", Demand::Key);
        check("/api/v1/admin/providers/{name}", Demand::AdminKey);
        check("/api/v1/admin/live", Demand::AdminKey);
        check("/api/v1/admin/workers/{id}/heartbeat", Demand::AdminKey);
        check("/api/v1/templates/{name}/spawn", Demand::Group(RouteGroup::Templates));
        check("/api/v1/metrics/prometheus", Demand::Group(RouteGroup::Metrics));
        check("/api/v1/workers/{id}", Demand::Group(RouteGroup::Workers));
        check("/api/v1/live/more", Demand::Key);
        check("/a/route/of/the/future", Demand::Key);
    }

    #[test]
    fn routes_of_workers_ask_for_the_scope_that_they_need() {
        let gate = |path| gate(Some(path), path, &Method::POST);
        assert_eq!(gate("/api/v1/worker/{worker_id}/heartbeat"), Gate::Worker(Scope::Heartbeat));
        assert_eq!(gate("/api/v1/worker/{worker_id}/leases/{resource_id}/renew"), Gate::Worker(Scope::Lease));
        assert_eq!(gate("/api/v1/worker/{worker_id}/of-the-future"), Gate::Worker(Scope::Lease));
    }

    /// Whether a worker that shows this id and token gets through to `path`.
    fn admitted(scope: Scope, path: &str, id: &str, token: &str) -> Result<String, &'static str> {
        let env = [("TIDEBOX_AUTH_WORKER_TOKEN", "shared"), ("TIDEBOX_AUTH_WORKER_SIGNING_KEY", "signing")];
        let env = env.map(|(name, value)| (name.into(), value.into())).to_vec();
        let folder = "/nonexistent".into();
        let inputs = Inputs { config_file: None, home: None, current_dir: folder, env, is_root: true };
        let access = Access::new(&load(&inputs).unwrap().config.auth);
        let request = Request::builder().uri(path).header("x-worker-id", id).header("x-worker-token", token);
        let request = request.body(axum::body::Body::empty()).unwrap();
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        admit_worker(&access, now, scope, &request).map(|worker| worker.id).map_err(|denied| denied.message)
    }

    #[test]
    fn the_worker_of_the_path_is_known_however_its_id_is_written() {
        let beat = |path, id| admitted(Scope::Heartbeat, path, id, "shared");
        assert_eq!(beat("/api/v1/worker/w1/heartbeat", "w1"), Ok("w1".to_owned()));
        assert_eq!(beat("/api/v1/worker/w%31/heartbeat", "w1"), Ok("w1".to_owned()));
        for (path, id) in [
            ("/api/v1/worker/w2/heartbeat", "w1"),
            ("/api/v1/worker/w%31/heartbeat", "w%31"),
            ("/api/v1/worker/w%32/heartbeat", "w1"),
            ("/api/v1/worker/w2%2f..%2fw1/heartbeat", "w1"),
            ("/api/v1/worker/%6cocal/heartbeat", "local"),
            ("/api/v1/worker//heartbeat", "w1"),
            ("/api/v1/worker/w1%00/heartbeat", "w1"),
        ] {
            assert!(beat(path, id).is_err(), "{path}");
        }
        assert!(admitted(Scope::Heartbeat, "/api/v1/worker/w1/heartbeat", "w1", "wrong").is_err());
    }

    #[test]
    fn a_token_opens_only_what_its_scopes_name() {
        let claims = Claims {
            worker_id: "w1".to_owned(),
            jti: "j".to_owned(),
            aud: AUDIENCE.to_owned(),
            iat: 1_800_000_000,
            nbf: None,
            exp: 1_800_000_060,
            scopes: Some(ScopeNames::List(vec!["worker:heartbeat".to_owned()])),
        };
        let token = sign(&claims, &Secret::new("signing".to_owned()));
        let path = "/api/v1/worker/w1/leases/sb-1/renew";
        assert_eq!(admitted(Scope::Lease, path, "w1", &token), Err("the token does not have the scope `worker:lease`"));
        assert!(admitted(Scope::Heartbeat, "/api/v1/worker/w1/heartbeat", "w1", &token).is_ok());
    }

    #[test]
    fn an_open_route_is_open_to_reading_only() {
        let gate = |method| gate(Some("/api/v1/live"), "/api/v1/live", &method);
        assert_eq!(gate(Method::HEAD), Gate::Key(Demand::Nothing));
        assert_eq!(gate(Method::POST), Gate::Key(Demand::Key));
    }

    #[test]
    fn a_path_without_a_route_is_never_open() {
        for path in ["/", "/live", "/api/v1/live", "/api/v1//live", "/api/v1/%6Cive", "/api/v1/worker/w1/x"] {
            assert_eq!(gate(None, path, &Method::GET), Gate::Key(Demand::Key), "{path}");
        }
        assert_eq!(gate(None, "/api/v1/admin/nope", &Method::GET), Gate::Key(Demand::AdminKey));
    }
}
