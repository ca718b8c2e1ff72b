//! Snapshots, forks, and names of templates.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use domain::{KeyScope, SandboxId, SnapshotId, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use super::paging::{self, PAGE};
use super::query::Query;
use super::sandboxes::{domain_of, refused, seen};
use super::{builds, templates, wire};
use crate::control::{Error, ForkRequest, NewSnapshotRequest, Resource, Snapshot, SnapshotCursor, SnapshotFilter};
use crate::http::caller::{Caller, Owner};
use crate::http::error::{Result, malformed};
use crate::http::middleware::audit::Subject;
use crate::http::middleware::users::Viewer;
use crate::http::request::{Json as Body, Name};
use crate::http::request_memory::Meter;
use crate::http::state::Api;

/// Most copies of one request, as E2B has it.
const FORKS_MAX: usize = 20;

/// A request for a snapshot.
#[derive(Debug, Deserialize)]
pub struct NewSnapshot {
    name: Option<String>,
    memory: Option<bool>,
}

/// A request for copies of a sandbox.
#[derive(Debug, Deserialize)]
pub struct Fork {
    timeout: Option<u64>,
    count: Option<usize>,
}

/// Takes a snapshot of a sandbox.
pub async fn take(
    State(api): State<Api>,
    Name(id): Name,
    Body(NewSnapshot { name, memory }): Body<NewSnapshot>,
) -> Result<Response> {
    seen(&api, &id).await?;
    let snapshot = api.control.take_snapshot(&id, NewSnapshotRequest { name, memory }).await?;
    let subject = Extension(Subject(snapshot.id.to_string()));
    Ok((subject, (StatusCode::CREATED, Json(described(&snapshot)))).into_response())
}

fn described(snapshot: &Snapshot) -> Value {
    let names: Vec<&str> = snapshot.name.as_deref().into_iter().collect();
    json!({"snapshotID": snapshot.id.as_str(), "names": names})
}

/// Lists snapshots, the newest first.
pub async fn list(State(api): State<Api>, Viewer(Owner(viewer)): Viewer, query: Query) -> Result<Response> {
    let limit = query.number("limit", (1, PAGE))?.unwrap_or(PAGE);
    let after = paging::after(&query, cursor)?;
    let sandbox = match query.get("sandboxID").map(SandboxId::parse) {
        None => None,
        Some(Ok(id)) => Some(id),
        // A sandbox that cannot exist has no snapshots.
        Some(Err(_)) => return Ok(Json(json!([])).into_response()),
    };
    let filter = SnapshotFilter { owner: viewer, sandbox, without_templates: true };
    let limit = u32::try_from(limit).unwrap_or(1);
    let mut found = api.control.snapshots(&filter, after.as_ref(), limit + 1).await?;
    let has_more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next = found.last().filter(|_| has_more);
    let next = next.map(|last| format!("{}-{}", last.created_at.as_millisecond(), last.id));
    let name = query.get("name");
    let named = found.iter().filter(|snapshot| name.is_none() || snapshot.name.as_deref() == name);
    Ok((paging::next(next), Json(named.map(described).collect::<Vec<_>>())).into_response())
}

fn cursor(text: &str) -> Option<SnapshotCursor> {
    let (at, id) = text.split_once('-')?;
    let created_at = Timestamp::from_millisecond(at.parse().ok()?).ok()?;
    Some(SnapshotCursor { created_at, id: SnapshotId::parse(id).ok()? })
}

/// Removes a template that a build made, or a snapshot, which is a template to E2B. Templates that were stored are left
/// to the API.
pub async fn delete(
    State(api): State<Api>,
    caller: Caller,
    Owner(owner): Owner,
    Viewer(Owner(viewer)): Viewer,
    Name(name): Name,
) -> Result<(Extension<Subject>, StatusCode)> {
    let may_change_templates = caller.owner_key().is_none_or(|key| key.scopes().allow(KeyScope::Templates));
    if may_change_templates && builds::delete(&api, &name, owner.as_ref()).await? {
        return Ok((Extension(Subject(name)), StatusCode::NO_CONTENT));
    }
    let missing = || Error::NotFound(Resource::Snapshot, name.clone());
    let id = templates::snapshot(&api, &name, viewer.as_ref()).await?.ok_or_else(missing)?;
    api.control.delete_snapshot(&id, viewer.as_ref()).await?;
    Ok((Extension(Subject(id)), StatusCode::NO_CONTENT))
}

/// Makes copies of a sandbox: all or none.
pub async fn fork(
    State(api): State<Api>,
    Name(id): Name,
    meter: Meter,
    headers: HeaderMap,
    Body(Fork { timeout, count }): Body<Fork>,
) -> Result<Response> {
    let row = seen(&api, &id).await?;
    let count = count.unwrap_or(1);
    if !(1..=FORKS_MAX).contains(&count) {
        return Err(malformed(format!("`count` must be 1 to {FORKS_MAX}")));
    }
    let ttl = match timeout {
        Some(seconds) => wire::lifetime(seconds)?,
        None => api.control.lifetime_within(row.owner.as_ref(), wire::TIMEOUT).await?,
    };
    let asker = Some(meter.account().asker());
    let request = ForkRequest { count, ttl: Some(ttl), asker, ..ForkRequest::default() };
    let copies = api.control.fork(&id, request).await.map_err(refused)?;
    let domain = domain_of(&api, &headers);
    let copies = copies.iter().map(|copy| json!({"sandbox": wire::sandbox(&api, copy, Some(&domain))}));
    Ok((StatusCode::CREATED, Json(copies.collect::<Vec<_>>())).into_response())
}

/// Tells whether a template exists.
pub async fn alias(State(api): State<Api>, Owner(owner): Owner, Name(name): Name) -> Result<Json<Value>> {
    if templates::exists(&api, &name, owner.as_ref()).await? {
        return Ok(Json(json!({"templateID": name, "public": false})));
    }
    Err(Error::NotFound(Resource::Template, name).into())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written_and_nothing_else_is() {
        let id = SnapshotId::from_entropy([7; 10]);
        let read = cursor(&format!("1700000000000-{id}")).unwrap();
        assert_eq!((read.created_at.as_second(), read.id), (1_700_000_000, id));
        for text in ["", "-", "x-y", "1700000000000-", "1700000000000"] {
            assert!(cursor(text).is_none(), "{text}");
        }
    }
}
