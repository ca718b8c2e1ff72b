//! Admission to a preview: by a permit for its port, or by a key of the API.

use axum::extract::Request;
use axum::http::HeaderMap;

use super::headers::{cookies, token_in};
use super::target::{Asked, Target, is_of_same_sandbox};
use crate::auth::preview::{Form, PreviewKey, permit};
use crate::auth::{Demand, Denied, Principal};
use crate::http::state::Api;

/// Header in which a program sends a token.
const TOKEN: &str = "x-preview-token";

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
}

/// Returns the caller of a preview, and notes how it was admitted.
///
/// # Errors
/// [`Denied`] without a permit or a key.
pub fn admit(api: &Api, request: &mut Request) -> Result<Principal, Denied> {
    let (admission, principal) = match request.extensions().get::<Asked>() {
        Some(Asked::Port(target)) => match permitted(api, target, request) {
            Some(admission) => (admission, Principal::Anonymous),
            None => (Admission::Key, by_key(api, request.headers())?),
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
    let is_in_cookie = target.prefix.is_none()
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
