//! Visibility: what one owner has is hidden from the keys of others, and in pool mode from other users.

use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::Uri;
use axum::http::request::Parts;
use domain::OwnerId;

use crate::control::Error;
use crate::control::Resource;
use crate::http::caller::{Caller, Owner};
use crate::http::error::{ApiError, Result, malformed};
use crate::http::policy::{About, NamedIn, Policy};
use crate::http::preview::target::Asked;
use crate::http::request::Params;
use crate::http::state::Api;

/// Owner whose objects alone the request may see; `None` for all of them: no key of an owner was sent, and pool
/// mode is off or the administrator asks. In pool mode it holds for sandboxes.
///
/// Set by [`separate`].
#[derive(Debug, Clone, Default)]
pub struct Viewer(pub Owner);

impl Viewer {
    /// Returns whether the request may see what is of this owner.
    pub fn sees(&self, owner: &OwnerId) -> bool {
        let Viewer(Owner(viewer)) = self;
        viewer.as_ref().is_none_or(|viewer| viewer == owner)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Viewer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        Ok(parts.extensions.get::<Viewer>().cloned().unwrap_or_default())
    }
}

/// Separates owners: a request with an owner's key gets 404 for the sandboxes of others, and so does one of another
/// user in pool mode, which must name its user. On the way to every route, so that no handler can forget it.
///
/// # Errors
/// If the request names no user, or another owner's sandbox.
pub async fn separate(api: &Api, policy: Policy, request: Request) -> Result<Request> {
    let is_restricted = Caller::among(request.extensions())?.restricted_to().is_some();
    if !is_restricted && !api.control.separates_users() {
        return Ok(request);
    }
    let (mut parts, body) = request.into_parts();
    let viewer = check(api, policy.about, &mut parts).await?;
    parts.extensions.insert(viewer);
    Ok(Request::from_parts(parts, body))
}

/// Returns the owner whose objects alone the request may see.
///
/// # Errors
/// If the request names no user, or is about another owner's sandbox.
pub async fn check(api: &Api, about: About, parts: &mut Parts) -> Result<Viewer> {
    let caller = Caller::among(&parts.extensions)?;
    let restricted_to = caller.restricted_to().cloned();
    let of_key = restricted_to.is_some();
    let viewer = match restricted_to {
        Some(owner) => Some(owner),
        None if api.control.separates_users() => user(caller, about)?,
        None => None,
    };
    let Some(viewer) = viewer else { return Ok(Viewer::default()) };
    let ids = match about {
        About::Events => listened_to(&parts.uri, of_key)?,
        About::OneSandbox(NamedIn::Path) => named_by_path(parts).await?.into_iter().collect(),
        About::OneSandbox(NamedIn::Host) => named_by_host(parts).into_iter().collect(),
        About::Nothing | About::OwnedResource | About::OwnSandboxes | About::NewSandbox => Vec::new(),
    };
    for id in ids {
        if !api.control.may_know(&id, &viewer).await? {
            return Err(Error::NotFound(Resource::Sandbox, id).into());
        }
    }
    Ok(Viewer(Owner(Some(viewer))))
}

/// Returns the user of a request in pool mode; `None` if it may see those of all users.
fn user(caller: &Caller, about: About) -> Result<Option<OwnerId>> {
    if matches!(about, About::Nothing | About::OwnedResource) {
        return Ok(None);
    }
    match caller.owner()? {
        // An administrator may leave out the user, but a spawn needs one.
        owner if caller.is_admin() && (owner.is_some() || about != About::NewSandbox) => Ok(None),
        Some(user) => Ok(Some(user.clone())),
        None if about == About::OneSandbox(NamedIn::Host) => {
            Err(malformed("users share boxes here (`pool.enabled`): send `X-User-ID`, or open the link of the preview"))
        }
        None => Err(malformed(
            "`X-User-ID` is missing; users share boxes here (`pool.enabled`), so every request must say which user \
             it is for",
        )),
    }
}

async fn named_by_path(parts: &mut Parts) -> Result<Option<String>> {
    let params = RawPathParams::from_request_parts(parts, &()).await;
    let params = params.map_err(|rejection| malformed(format!("the path: {rejection}")))?;
    Ok(named(&params).map(str::to_owned))
}

/// Returns the id of the sandbox in the path, decoded.
pub(super) fn named(params: &RawPathParams) -> Option<&str> {
    params.iter().find(|(name, _)| *name == "id").map(|(_, id)| id)
}

/// Returns the id of the sandbox that the host stands for.
fn named_by_host(parts: &Parts) -> Option<String> {
    match parts.extensions.get()? {
        Asked::Port(target) => Some(target.sandbox.clone()),
        Asked::Malformed => None,
    }
}

/// Returns the sandboxes in the query of the events. Without an owner's key it must name some, since the events of
/// all sandboxes would reveal other users.
fn listened_to(uri: &Uri, of_key: bool) -> Result<Vec<String>> {
    let Params(query): Params<Vec<(String, String)>> = Params::of(uri)?;
    let ids: Vec<String> = query.into_iter().filter(|(name, _)| name == "sandbox_id").map(|(_, id)| id).collect();
    if ids.is_empty() && !of_key {
        return Err(malformed(
            "`sandbox_id` is missing; where users share boxes, only the administrator gets all events",
        ));
    }
    Ok(ids)
}
