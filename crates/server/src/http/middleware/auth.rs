//! Keys: the one place where they are checked. What a route asks for stands in the route table.

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::Timestamp;

use crate::auth::token::Scope;
use crate::auth::{Access, Demand, Denied, KeyId, Principal};
use crate::http::error::{ApiError, Refusal};
use crate::http::meter::Meter;
use crate::http::middleware::rate_limit::{Allowed, Limited};
use crate::http::policy::{Gate, Policy};
use crate::http::preview::admission;
use crate::http::state::Api;
use crate::http::subprotocol;

/// Prefix of every API path.
const PREFIX: &str = "/api/v1/";

/// Refused authentication attempt, in the form for the audit history. It is put into the
/// extensions of the answer, like the [`Principal`] of other requests.
#[derive(Debug, Clone)]
pub struct Refused {
    /// Id of the key that was tried, if one was.
    pub key_id: Option<KeyId>,
}

/// Worker that makes the request, on `/worker/*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Id of the worker; the same as in the path.
    pub id: String,
    /// Scopes granted to the worker.
    pub scopes: Vec<Scope>,
}

impl<S: Send + Sync> FromRequestParts<S> for Worker {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        // Present on every route that asks for a worker's credential.
        let worker = parts.extensions.get::<Worker>().cloned();
        worker.ok_or_else(|| Refusal::Unauthorized("this route is for workers".to_owned()).into())
    }
}

/// Lets an authorized request through, with its [`Principal`] in its extensions. Answers 401 to
/// others, and 429 to callers above the rate limit.
pub async fn pass(api: &Api, policy: Policy, mut request: Request, next: Next) -> Response {
    let gate = policy.gate;
    let access = &api.settings.access;
    let limited = Limited::of(api, &request, matches!(gate, Gate::Worker(_)));
    let offered = if policy.takes_key_as_protocol { subprotocol::take_key(request.headers_mut()) } else { Ok(()) };
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
        Gate::Preview => offered.and_then(|()| admission::admit(api, &mut request)),
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
            let is_counted = match gate {
                Gate::Key(demand) => demand != Demand::Nothing,
                Gate::Worker(_) => false,
                Gate::Preview => true,
            };
            let counted = limited.as_ref().filter(|_| is_counted);
            let counted = counted.map(|limited| (limited, limited.count(&principal, request.headers())));
            request.extensions_mut().insert(principal.clone());
            let meter = Meter::of(api, &principal, &request);
            let mut response = match counted {
                None => meter.pass(policy.is_vital, request, next).await,
                // The answer is that of a program in a sandbox.
                Some((_, Ok(_))) if gate == Gate::Preview => meter.pass(false, request, next).await,
                Some((_, Ok(allowed))) => marked(Some(allowed), meter.pass(policy.is_vital, request, next).await),
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

/// Returns whether the answer reveals if a key is right.
fn depends_on_key(gate: Gate, access: &Access, request: &Request) -> bool {
    match gate {
        Gate::Key(demand) => access.depends_on_key(demand, request.headers()),
        Gate::Worker(_) => true,
        Gate::Preview => access.depends_on_key(Demand::Key, request.headers()),
    }
}

/// Adds the rate limit headers to an answer.
fn marked(allowed: Option<Allowed>, mut response: Response) -> Response {
    if let Some(allowed) = allowed {
        allowed.mark(response.headers_mut());
    }
    response
}

/// Returns the worker that the path names, if the credential is its own and has this scope.
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

/// Logs a failed attempt and returns it for the audit history.
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

    /// Sends a request with this id and token to `path`. Returns the admitted worker or the
    /// message of the refusal.
    fn admitted(scope: Scope, path: &str, id: &str, token: &str) -> Result<String, &'static str> {
        let env = [("TIDEBOX_AUTH_WORKER_TOKEN", "shared"), ("TIDEBOX_AUTH_WORKER_SIGNING_KEY", "signing")];
        let env = env.map(|(name, value)| (name.into(), value.into())).to_vec();
        let folder = "/nonexistent".into();
        let inputs =
            Inputs { config_file: None, of_machine: None, home: None, current_dir: folder, env, is_root: true };
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
}
