//! Keys: the one place where they are checked. What a route asks for stands in the route table.

use axum::RequestExt;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::{OwnerId, Timestamp};

use crate::auth::token::Scope;
use crate::auth::{Access, Demand, Denied, KeyId, Principal};
use crate::http::caller::{Caller, owner};
use crate::http::e2b;
use crate::http::e2b::admission::Proven;
use crate::http::error::{ApiError, Refusal, Result};
use crate::http::key_life::KeyLife;
use crate::http::middleware::rate_limit::{Allowed, Limited};
use crate::http::policy::{Audit, Gate, Policy, Proof};
use crate::http::preview::admission::{self, Admission};
use crate::http::request_memory::Meter;
use crate::http::state::Api;
use crate::http::stream::subprotocol;

/// Refused authentication attempt, in the form for the audit history. It is put into the
/// extensions of the answer, like the [`Caller`] of other requests.
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

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        // Present on every route that asks for a worker's credential.
        let worker = parts.extensions.get::<Worker>().cloned();
        worker.ok_or_else(|| Refusal::Unauthorized("this route is for workers".to_owned()).into())
    }
}

/// Lets an authorized request through, with its [`Caller`] in its extensions. Answers 401 to
/// others, 403 to owners' keys that do not open the route, and 429 to callers above the rate limit.
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
    let Admitted { principal, wrong_key } = match admit(api, gate, offered, &mut request).await {
        Ok(admitted) => admitted,
        Err(denied) => return refuse(&request, limited.as_ref(), denied),
    };
    let named = owner_named(gate, &request);
    let caller = Caller::of(access, principal, &request, named);
    if let Some(key) = caller.owner_key() {
        key.note_use(api.control.now());
    }
    let refused = wrong_key.map(|denied| {
        limited.as_ref().map(Limited::count_attempt);
        note(&request, denied)
    });
    request.extensions_mut().insert(caller.clone());
    // A change that is recorded runs to its end, so that the record tells the truth.
    let may_be_cut = policy.audit == Audit::Nothing;
    let answer = pass_on(api, policy, limited.as_ref(), &caller, request, next);
    let mut response = KeyLife::of(&caller).pass(may_be_cut, answer).await;
    response.extensions_mut().insert(caller);
    if let Some(refused) = refused {
        response.extensions_mut().insert(refused);
    }
    response
}

/// Holder of an accepted credential.
struct Admitted {
    principal: Principal,
    /// Refusal of a wrong key sent where none is required. It counts as an attempt all the same:
    /// otherwise such routes could be used to guess keys.
    wrong_key: Option<Denied>,
}

/// Returns the principal of a request, if its credential opens the route. `offered` is an error if the
/// key among the WebSocket subprotocols cannot be read.
async fn admit(api: &Api, gate: Gate, offered: Result<(), Denied>, request: &mut Request) -> Result<Admitted, Denied> {
    let access = &api.settings.access;
    let mut wrong_key = None;
    let principal = match gate {
        Gate::Key(demand) => {
            let found = offered.and_then(|()| access.authenticate(request.headers()));
            if demand == Demand::Nothing && access.is_enabled() {
                wrong_key = found.clone().err();
            }
            access.authorize(found, demand)?
        }
        Gate::Worker(scope) => {
            let params = request.extract_parts::<RawPathParams>().await.ok();
            let named = params.iter().flatten().find(|(name, _)| *name == "worker").map(|(_, id)| id);
            let worker = admit_worker(access, api.control.now(), scope, named.unwrap_or_default(), request.headers())?;
            let principal = Principal::Worker(worker.id.clone());
            request.extensions_mut().insert(worker);
            principal
        }
        Gate::Preview => match offered {
            Ok(()) => admission::admit(api, request).await?,
            Err(denied) => return Err(denied),
        },
        Gate::UploadLink => e2b::upload_link::admit(api, request)?,
        Gate::Sandbox(proof) => e2b::admission::admit(api, proof, request).await?,
    };
    Ok(Admitted { principal, wrong_key })
}

/// Passes a request on to its route, unless the caller is above the rate limit.
async fn pass_on(
    api: &Api,
    policy: Policy,
    limited: Option<&Limited<'_>>,
    caller: &Caller,
    request: Request,
    next: Next,
) -> Response {
    let is_counted = match policy.gate {
        Gate::Key(demand) => demand != Demand::Nothing,
        Gate::Worker(_) => false,
        Gate::Preview | Gate::UploadLink | Gate::Sandbox(_) => true,
    };
    let mut allowed = None;
    if let Some(limited) = limited.filter(|_| is_counted) {
        match limited.count(caller) {
            Ok(counted) => allowed = Some(counted),
            Err(too_fast) => return limited.refuse(too_fast),
        }
    }
    let response = match check_owner(api, policy, caller, request.headers()) {
        Ok(()) => Meter::of(api, caller).pass(policy.is_vital, request, next).await,
        Err(refused) => refused.into_response(),
    };
    // The answer of a preview is that of a program in a sandbox.
    if policy.gate == Gate::Preview { response } else { marked(allowed, response) }
}

/// Returns the owner that a request without an owner's key is for. Whoever needs no key is not believed to be someone.
fn owner_named(gate: Gate, request: &Request) -> Result<Option<OwnerId>, String> {
    let extensions = request.extensions();
    match gate {
        Gate::UploadLink | Gate::Sandbox(_) => Ok(extensions.get::<Proven>().and_then(|proven| proven.owner.clone())),
        Gate::Preview if extensions.get() != Some(&Admission::Key) => Ok(None),
        Gate::Preview | Gate::Key(_) | Gate::Worker(_) => owner(request.headers()),
    }
}

/// Checks that an owner's key opens the route, and that the request names no other owner.
fn check_owner(api: &Api, policy: Policy, caller: &Caller, headers: &HeaderMap) -> Result<()> {
    let demand = match policy.gate {
        Gate::Key(demand) => demand,
        Gate::Preview | Gate::UploadLink | Gate::Worker(_) | Gate::Sandbox(_) => Demand::Key,
    };
    let checked = api.settings.access.check_owner_access(&caller.principal, demand, policy.owners);
    checked.map_err(Refusal::Forbidden)?;
    caller.check_header(headers)
}

/// Answers a request whose credential is missing or wrong.
fn refuse(request: &Request, limited: Option<&Limited<'_>>, denied: Denied) -> Response {
    let message = denied.message.to_owned();
    let refused = note(request, denied);
    let allowed = limited.map(Limited::count_attempt);
    let mut response = marked(allowed, ApiError::from(Refusal::Unauthorized(message)).into_response());
    response.extensions_mut().insert(refused);
    response
}

/// Returns whether the answer reveals if a key is right.
fn depends_on_key(gate: Gate, access: &Access, request: &Request) -> bool {
    match gate {
        Gate::Key(demand) => access.depends_on_key(demand, request.headers()),
        Gate::Worker(_) | Gate::UploadLink => true,
        Gate::Sandbox(proof) => proof != Proof::Nothing,
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

/// Returns the worker `id`, which the path names, if the credential is its own and has this scope.
fn admit_worker(
    access: &Access,
    now: Timestamp,
    scope: Scope,
    id: &str,
    headers: &HeaderMap,
) -> Result<Worker, Denied> {
    let claims = access.workers().verify(id, headers, now)?;
    if claims.scopes.contains(&scope) {
        Ok(Worker { id: claims.id, scopes: claims.scopes })
    } else {
        let message = match scope {
            Scope::Heartbeat => "the token does not have the scope `worker:heartbeat`",
            Scope::Lease => "the token does not have the scope `worker:lease`",
        };
        Err(Denied::of(message, None))
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
    use std::sync::Arc;

    use axum::http::HeaderName;
    use store::clock::SteadyClock;

    use super::*;
    use crate::auth::token::{AUDIENCE, Claims, ScopeNames, sign};
    use crate::config::{Inputs, Secret, load};
    use crate::owner_keys::OwnerKeys;

    /// Checks the credential of a worker that the path calls `named`. Returns the admitted worker or the
    /// message of the refusal.
    fn admitted(scope: Scope, named: &str, id: &str, token: &str) -> Result<String, &'static str> {
        let env = [("TIDEBOX_AUTH_WORKER_TOKEN", "shared"), ("TIDEBOX_AUTH_WORKER_SIGNING_KEY", "signing")];
        let env = env.map(|(name, value)| (name.into(), value.into())).to_vec();
        let folder = "/nonexistent".into();
        let inputs =
            Inputs { config_file: None, of_machine: None, home: None, current_dir: folder, env, is_root: true };
        let keys = Arc::new(OwnerKeys::new(Arc::new(SteadyClock::start())));
        let access = Access::new(&load(&inputs).unwrap().config.auth, keys);
        let headers = HeaderMap::from_iter([
            (HeaderName::from_static("x-worker-id"), id.parse().unwrap()),
            (HeaderName::from_static("x-worker-token"), token.parse().unwrap()),
        ]);
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        admit_worker(&access, now, scope, named, &headers).map(|worker| worker.id).map_err(|denied| denied.message)
    }

    #[test]
    fn a_worker_opens_the_paths_of_its_own_id_alone() {
        let beat = |named, id| admitted(Scope::Heartbeat, named, id, "shared");
        assert_eq!(beat("w1", "w1"), Ok("w1".to_owned()));
        for (named, id) in
            [("w2", "w1"), ("w1", "w%31"), ("w2/../w1", "w1"), ("local", "local"), ("", "w1"), ("w1\0", "w1")]
        {
            assert!(beat(named, id).is_err(), "{named}");
        }
        assert!(admitted(Scope::Heartbeat, "w1", "w1", "wrong").is_err());
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
        assert_eq!(admitted(Scope::Lease, "w1", "w1", &token), Err("the token does not have the scope `worker:lease`"));
        assert!(admitted(Scope::Heartbeat, "w1", "w1", &token).is_ok());
    }
}
