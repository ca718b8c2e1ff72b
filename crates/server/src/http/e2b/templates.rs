//! Names of templates: those of this server's templates, snapshots, and the ones that every server has.

use std::time::Duration;

use domain::{OwnerId, PrepareCommand};

use super::wire;
use crate::control::{Error, Resource, SnapshotFilter, SpawnRequest, Templates};
use crate::http::error::{ApiError, Result};
use crate::http::state::Api;

/// Templates that every server has.
const BUILT_IN: [&str; 2] = ["base", "code-interpreter-v1"];
/// Tags that mean the newest, which is the only one here.
const TAGS: [&str; 2] = ["default", "latest"];
/// Snapshots that are searched for a name.
const SEARCHED_MAX: u32 = 1000;
/// Images that have the account that clients expect, or get it with each box.
const WITH_ACCOUNT: [&str; 2] = ["host", "mock"];
/// Command that gives a box the account that clients expect, unless its image has it, with the first free number. Where
/// no account can be added, commands run as the own user of the box.
const MAKE_USER: &str = "id user >/dev/null 2>&1 && exit 0; \
    n=1000; while grep -q \"^[^:]*:[^:]*:$n:\" /etc/passwd /etc/group; do n=$((n + 1)); done; \
    for f in /etc/passwd /etc/group; do test -z \"$(tail -c 1 $f)\" || echo >>$f; done; \
    echo \"user:x:$n:$n::/home/user:/bin/bash\" >>/etc/passwd; echo \"user:x:$n:\" >>/etc/group; \
    mkdir -p /home/user && chown $n:$n /home/user; true";

/// Returns the request for a sandbox of the template that a caller names, for `owner`. A `viewer` sees its own snapshots
/// alone.
///
/// # Errors
/// If there is none of this name.
pub async fn spawn_of(
    api: &Api,
    name: &str,
    owner: Option<&OwnerId>,
    viewer: Option<&OwnerId>,
) -> Result<SpawnRequest> {
    let plain = without_tag(name);
    if let Some(template) = found(api.control.template(&usable_by(owner), plain).await)? {
        let mut request = SpawnRequest { template: Some(template.name), ..SpawnRequest::default() };
        if template.options.ttl.is_none() {
            request.options.ttl = lifetime(api, owner).await?;
        }
        return Ok(request);
    }
    let mut request = SpawnRequest::default();
    request.options.ttl = lifetime(api, owner).await?;
    if let Some(id) = snapshot(api, name, viewer).await? {
        return Ok(SpawnRequest { snapshot: Some(id), ..request });
    }
    if !BUILT_IN.contains(&plain) {
        return Err(Error::NotFound(Resource::Template, name.to_owned()).into());
    }
    let image = match &api.settings.e2b.image {
        Some(image) => image.clone(),
        None => api.control.default_image().await?,
    };
    if !WITH_ACCOUNT.contains(&image.as_str()) {
        let make_user = PrepareCommand { command: MAKE_USER.to_owned(), ..PrepareCommand::default() };
        request.options.prepare = Some(vec![make_user]);
    }
    request.options.image = Some(image);
    Ok(request)
}

/// Returns the lifetime of a sandbox where neither its request nor its template has it.
async fn lifetime(api: &Api, owner: Option<&OwnerId>) -> Result<Option<Duration>> {
    Ok(Some(api.control.lifetime_within(owner, wire::TIMEOUT).await?))
}

/// Returns whether a template of this name can be used.
///
/// # Errors
/// If the store fails.
pub async fn exists(api: &Api, name: &str, owner: Option<&OwnerId>) -> Result<bool> {
    let plain = without_tag(name);
    Ok(BUILT_IN.contains(&plain) || found(api.control.template(&usable_by(owner), plain).await)?.is_some())
}

fn usable_by(owner: Option<&OwnerId>) -> Templates {
    owner.cloned().map_or(Templates::Of(None), Templates::UsableBy)
}

/// Returns the id of the snapshot with this id or name, the newest of several; of those of `viewer`, if there is one.
pub async fn snapshot(api: &Api, name: &str, viewer: Option<&OwnerId>) -> Result<Option<String>> {
    let plain = without_tag(name);
    match found(api.control.snapshot(plain, viewer).await) {
        Ok(Some(snapshot)) => return Ok(Some(snapshot.id.to_string())),
        Ok(None) => {}
        // Where no snapshots are kept, none has this name.
        Err(ApiError::Control(Error::NotSupported(_))) => return Ok(None),
        Err(error) => return Err(error),
    }
    let filter = SnapshotFilter { owner: viewer.cloned(), sandbox: None };
    let snapshots = api.control.snapshots(&filter, None, SEARCHED_MAX).await?;
    let named = snapshots.into_iter().find(|snapshot| snapshot.name.as_deref() == Some(plain));
    Ok(named.map(|snapshot| snapshot.id.to_string()))
}

fn without_tag(name: &str) -> &str {
    name.rsplit_once(':').filter(|(_, tag)| TAGS.contains(tag)).map_or(name, |(name, _)| name)
}

/// Turns the error that there is none into `None`.
fn found<T>(result: Result<T, Error>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::NotFound(..)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_tags_of_the_newest_are_left_out() {
        for (name, expected) in [
            ("base", "base"),
            ("base:default", "base"),
            ("base:latest", "base"),
            ("base:v1", "base:v1"),
            ("team/base", "team/base"),
            (":default", ""),
        ] {
            assert_eq!(without_tag(name), expected);
        }
    }
}
