//! Admission to a preview: by a permit for its port, or by a key of the API.

use axum::extract::Request;
use axum::http::HeaderMap;
use domain::PortAccess;

use super::headers::{cookies, token_in};
use super::target::{Asked, Target, is_of_same_sandbox};
use crate::auth::box_token::{self, Purpose};
use crate::auth::preview::{Form, PreviewKey, permit};
use crate::auth::{Demand, Denied, Principal};
use crate::http::state::Api;

/// Header in which a program sends a token.
const TOKEN: &str = "x-preview-token";
/// Header in which a client sends the traffic token of a sandbox.
const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// Credential by which a request was admitted; an extension of every request to a preview.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Permit in the host name.
    HostName,
    /// Token in the query: the URL that was given to a person.
    Link,
    /// Token in a header or a cookie.
    Token,
    /// Key of the API, or none where none is asked for.
    Key,
    /// The terms of the sandbox, which open its ports to everyone, or to holders of its traffic token.
    Terms,
    /// None of these, where the terms ask for the traffic token.
    NoTrafficToken,
}

/// Returns the caller of a preview, and notes how it was admitted.
///
/// # Errors
/// [`Denied`] without a permit or a key.
pub async fn admit(api: &Api, request: &mut Request) -> Result<Principal, Denied> {
    let asked = request.extensions().get::<Asked>().cloned();
    let (admission, principal) = match &asked {
        Some(Asked::Port(target)) => match permitted(api, target, request) {
            Some(admission) => (admission, Principal::Anonymous),
            None => match by_key(api, request.headers()) {
                Err(denied) if denied.has_ended => return Err(denied),
                // A key of the operator opens every port, also where the terms ask for the traffic token.
                Ok(principal @ (Principal::ApiKey(_) | Principal::Admin(_))) => (Admission::Key, principal),
                // What is open to everyone is open to the holder of another owner's key.
                found => match (by_terms(api, &target.sandbox, request.headers()).await, found) {
                    (Some(admission), Ok(principal)) => (admission, principal),
                    (Some(admission), Err(_)) => (admission, Principal::Anonymous),
                    (None, found) => (Admission::Key, found?),
                },
            },
        },
        // It is refused, whatever the credential.
        Some(Asked::Malformed) | None => (Admission::Key, Principal::Anonymous),
    };
    request.extensions_mut().insert(admission);
    Ok(principal)
}

fn by_key(api: &Api, headers: &HeaderMap) -> Result<Principal, Denied> {
    let access = &api.settings.access;
    access.authorize(access.authenticate_preview(headers), Demand::Key).map_err(|denied| {
        if denied.has_ended {
            return denied;
        }
        let message = "this preview requires a key, or its link has expired; open a link from `tidebox open` or POST \
                       /api/v1/sandboxes/{id}/preview, or send `X-API-Key` or `X-Preview-Token`";
        Denied { message, ..denied }
    })
}

/// Returns how the terms of a sandbox admit a request to its ports; `None` if they leave them private.
pub async fn by_terms(api: &Api, sandbox: &str, headers: &HeaderMap) -> Option<Admission> {
    match api.control.port_access(sandbox).await? {
        PortAccess::Private => None,
        PortAccess::Public => Some(Admission::Terms),
        PortAccess::Token => {
            let tried = headers.get(TRAFFIC_TOKEN).map(|token| token.as_bytes()).unwrap_or_default();
            let is_right = box_token::opens(&api.settings.preview_key, Purpose::Traffic, sandbox, tried);
            Some(if is_right { Admission::Terms } else { Admission::NoTrafficToken })
        }
    }
}

fn permitted(api: &Api, target: &Target, request: &Request) -> Option<Admission> {
    let check = PermitCheck { key: &api.settings.preview_key, target, now_s: api.control.now().as_second() };
    let headers = request.headers();
    if target.permit.as_deref().is_some_and(|permit| check.admits(Form::HostName, permit)) {
        return Some(Admission::HostName);
    }
    let query = request.uri().query().unwrap_or_default();
    if token_in(query).is_some_and(|token| check.admits_token(token)) {
        return Some(Admission::Link);
    }
    let sent = headers.get(TOKEN).and_then(|token| token.to_str().ok());
    if sent.is_some_and(|token| check.admits_token(token)) {
        return Some(Admission::Token);
    }
    // Another sandbox can set a cookie of the same name: each is tried.
    let is_in_cookie = target.has_own_host()
        && cookies(headers).any(|token| check.admits_token(token))
        && is_of_same_sandbox(headers, target, &api.settings.preview_domain);
    is_in_cookie.then_some(Admission::Token)
}

/// Check of permits for one preview.
struct PermitCheck<'a> {
    key: &'a PreviewKey,
    target: &'a Target,
    now_s: i64,
}

impl PermitCheck<'_> {
    fn admits(&self, form: Form, permit: &str) -> bool {
        self.key.admits(form, permit, &self.target.sandbox, self.target.port, self.now_s)
    }

    fn admits_token(&self, token: &str) -> bool {
        permit(token).is_some_and(|permit| self.admits(Form::Token, permit))
    }
}
