//! Users of shared boxes: those of one user are hidden from the others in pool mode.

use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::Uri;
use axum::http::request::Parts;

use crate::control::Error;
use crate::control::Resource;
use crate::http::caller::{Caller, Owner};
use crate::http::error::{ApiError, Result, malformed};
use crate::http::policy::{About, NamedIn, Policy};
use crate::http::preview::target::Asked;
use crate::http::request::Params;
use crate::http::state::Api;

/// User whose sandboxes the request may see; `None` for all of them: pool mode is off, or the
/// administrator asks.
///
/// Set by [`separate`].
#[derive(Debug, Clone, Default)]
pub struct Viewer(pub Owner);

impl<S: Send + Sync> FromRequestParts<S> for Viewer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        Ok(parts.extensions.get::<Viewer>().cloned().unwrap_or_default())
    }
}

/// Separates users in pool mode: a request about sandboxes must name its user, and gets 404 for
/// the sandboxes of others. On the way to every route, so that no handler can forget it.
///
/// # Errors
/// If the request names no user, or another user's sandbox.
pub async fn separate(api: &Api, policy: Policy, request: Request) -> Result<Request> {
    if !api.control.separates_users() {
        return Ok(request);
    }
    let (mut parts, body) = request.into_parts();
    let viewer = check(api, policy.about, &mut parts).await?;
    parts.extensions.insert(viewer);
    Ok(Request::from_parts(parts, body))
}

/// Returns the user whose sandboxes the request may see.
///
/// # Errors
/// If the request names no user, or is about another user's sandbox.
pub async fn check(api: &Api, about: About, parts: &mut Parts) -> Result<Viewer> {
    if !api.control.separates_users() || matches!(about, About::Nothing | About::OwnedResource) {
        return Ok(Viewer::default());
    }
    let caller = Caller::among(&parts.extensions)?;
    let user = match caller.owner()? {
        // An administrator may leave out the user, but a spawn needs one.
        owner if caller.is_admin() && (owner.is_some() || about != About::NewSandbox) => return Ok(Viewer::default()),
        Some(user) => user.clone(),
        None if about == About::OneSandbox(NamedIn::Host) => {
            return Err(malformed(
                "users share boxes here (`pool.enabled`): send `X-User-ID`, or open the link of the preview",
            ));
        }
        None => {
            return Err(malformed(
                "`X-User-ID` is missing; users share boxes here (`pool.enabled`), so every request must say which user \
                 it is for",
            ));
        }
    };
    let ids = match about {
        About::Events => listened_to(&parts.uri)?,
        About::OneSandbox(NamedIn::Path) => named_by_path(parts).await?.into_iter().collect(),
        About::OneSandbox(NamedIn::Host) => named_by_host(parts).into_iter().collect(),
        About::Nothing | About::OwnedResource | About::OwnSandboxes | About::NewSandbox => Vec::new(),
    };
    for id in ids {
        if !api.control.may_know(&id, &user).await? {
            return Err(Error::NotFound(Resource::Sandbox, id).into());
        }
    }
    Ok(Viewer(Owner(Some(user))))
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

/// Returns the sandboxes in the query of the events. It must name some, since the events of all
/// sandboxes would reveal other users.
fn listened_to(uri: &Uri) -> Result<Vec<String>> {
    let Params(query): Params<Vec<(String, String)>> = Params::of(uri)?;
    let ids: Vec<String> = query.into_iter().filter(|(name, _)| name == "sandbox_id").map(|(_, id)| id).collect();
    if ids.is_empty() {
        return Err(malformed(
            "`sandbox_id` is missing; where users share boxes, only the administrator gets all events",
        ));
    }
    Ok(ids)
}
