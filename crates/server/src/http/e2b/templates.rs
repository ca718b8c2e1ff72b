//! Names of templates: those of this server's templates, snapshots, and the ones that every server has.

use std::time::Duration;

use domain::OwnerId;

use super::in_box::USER;
use super::wire;
use crate::control::{Error, Resource, SnapshotFilter, SpawnRequest, Template, Templates, user_if_possible};
use crate::http::error::{ApiError, Result};
use crate::http::state::Api;

/// Templates that every server has.
const BUILT_IN: [&str; 2] = ["base", "code-interpreter-v1"];
/// Images of E2B's registry, and the templates that stand for them.
const IMAGES: [(&str, &str); 2] = [("e2bdev/base", "base"), ("e2bdev/code-interpreter", "code-interpreter-v1")];
/// Tags that mean the newest, which is the only one here.
const TAGS: [&str; 2] = ["default", "latest"];
/// Snapshots that are searched for a name.
const SEARCHED_MAX: u32 = 1000;
/// Images that have the account that clients expect, or get it with each box.
const WITH_ACCOUNT: [&str; 2] = ["host", "mock"];
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
    if let Some(template) = template(api, name, owner).await? {
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
    if !BUILT_IN.contains(&without_tag(name)) {
        return Err(Error::NotFound(Resource::Template, name.to_owned()).into());
    }
    let image = match &api.settings.e2b.image {
        Some(image) => image.clone(),
        None => api.control.default_image().await?,
    };
    set_image(&mut request, image);
    Ok(request)
}

/// Returns the request for a sandbox of an image. E2B's own images are not on this server: its templates stand for them.
///
/// # Errors
/// If the store fails.
pub async fn spawn_of_image(
    api: &Api,
    image: &str,
    owner: Option<&OwnerId>,
    viewer: Option<&OwnerId>,
) -> Result<SpawnRequest> {
    if let Some((_, template)) = IMAGES.iter().find(|(name, _)| *name == without_tag(image)) {
        return spawn_of(api, template, owner, viewer).await;
    }
    let mut request = SpawnRequest::default();
    set_image(&mut request, image.to_owned());
    Ok(request)
}

/// Sets the image of a sandbox, which gets the account that clients expect.
fn set_image(request: &mut SpawnRequest, image: String) {
    if !WITH_ACCOUNT.contains(&image.as_str()) {
        request.options.prepare = Some(vec![user_if_possible(USER)]);
    }
    request.options.image = Some(image);
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
    Ok(BUILT_IN.contains(&without_tag(name)) || template(api, name, owner).await?.is_some())
}

/// Returns the template of a name, with its tag if there is such a template, else without a tag that means the newest.
async fn template(api: &Api, name: &str, owner: Option<&OwnerId>) -> Result<Option<Template>> {
    let among = Templates::usable_by(owner);
    let plain = without_tag(name);
    let exact = found(api.control.template(&among, name).await)?;
    if exact.is_some() || plain == name { Ok(exact) } else { found(api.control.template(&among, plain).await) }
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
    let filter = SnapshotFilter { owner: viewer.cloned(), sandbox: None, without_templates: true };
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
