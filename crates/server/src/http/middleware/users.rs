//! Users of shared boxes: those of one user are hidden from the others in pool mode.

use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::Uri;
use axum::http::request::Parts;

use crate::auth::Principal;
use crate::control::{Error, Resource};
use crate::http::error::{ApiError, Result, malformed};
use crate::http::owner::Owner;
use crate::http::policy::{About, Policy};
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
pub async fn separate(api: &Api, policy: Policy, request: Request) -> Result<Request> {
    if !api.control.separates_users() || policy.about == About::Nothing {
        return Ok(request);
    }
    let (mut parts, body) = request.into_parts();
    let params = RawPathParams::from_request_parts(&mut parts, &()).await;
    let params = params.map_err(|rejection| malformed(format!("the path: {rejection}")))?;
    let viewer = viewer(api, policy.about, &params, &mut parts).await?;
    parts.extensions.insert(viewer);
    Ok(Request::from_parts(parts, body))
}

async fn viewer(api: &Api, about: About, params: &RawPathParams, parts: &mut Parts) -> Result<Viewer> {
    let Owner(owner) = Owner::from_request_parts(parts, api).await?;
    let is_admin = matches!(parts.extensions.get(), Some(Principal::Admin(_)));
    let user = match owner {
        // An administrator may leave out the user, but a spawn needs one.
        owner if is_admin && (owner.is_some() || about != About::NewSandbox) => return Ok(Viewer::default()),
        Some(user) => user,
        None => {
            return Err(malformed(
                "`X-User-ID` is missing; users share boxes here (`pool.enabled`), so every request says whose it is",
            ));
        }
    };
    let ids = match about {
        About::Events => listened_to(&parts.uri)?,
        About::OneSandbox => named(params).map(str::to_owned).into_iter().collect(),
        About::Nothing | About::OwnSandboxes | About::NewSandbox => Vec::new(),
    };
    for id in ids {
        if !api.control.may_know(&id, &user).await? {
            return Err(Error::NotFound(Resource::Sandbox, id).into());
        }
    }
    Ok(Viewer(Owner(Some(user))))
}

/// Returns the id of the sandbox in the path, decoded.
pub(super) fn named(params: &RawPathParams) -> Option<&str> {
    params.iter().find(|(name, _)| *name == "id").map(|(_, id)| id)
}

/// Returns the sandboxes in the query of the events. It must name some, since the events of all
/// sandboxes would reveal other users.
fn listened_to(uri: &Uri) -> Result<Vec<String>> {
    let Params(query): Params<Vec<(String, String)>> = Params::of(uri)?;
    let ids: Vec<String> = query.into_iter().filter(|(name, _)| name == "sandbox_id").map(|(_, id)| id).collect();
    if ids.is_empty() {
        return Err(malformed("`sandbox_id` is missing; where users share boxes, only the administrator hears of all"));
    }
    Ok(ids)
}
