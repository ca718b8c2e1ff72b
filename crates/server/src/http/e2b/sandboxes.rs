//! `/sandboxes` and `/v2/sandboxes`: the lives of sandboxes.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use domain::{EgressMode, KeyScope, State as Life, Timestamp};
use serde_json::{Value, json};

use super::network::Network;
use super::paging::{self, PAGE};
use super::query::{Query, decoded, form};
use super::{templates, wire};
use crate::auth::box_token::Purpose;
use crate::control::{Cursor, Error, Limit, ListFilter, Sandbox};
use crate::http::caller::{Caller, Owner};
use crate::http::error::{ApiError, Result, malformed};
use crate::http::middleware::users::Viewer;
use crate::http::request::{Json as Body, Name, Repeatable};
use crate::http::request_memory::{Meter, SMALL_BYTES};
use crate::http::state::Api;

/// Memory for the answer with one sandbox, whose labels may take 16 KiB.
const ROW_BYTES: usize = 20 * 1024;

/// Makes a sandbox.
pub async fn create(
    State(api): State<Api>,
    caller: Caller,
    Viewer(Owner(viewer)): Viewer,
    Repeatable(key): Repeatable,
    headers: HeaderMap,
    meter: Meter,
    Body(body): Body<Value>,
) -> Result<Response> {
    let key = key.map(|key| key.of(&body));
    let owner = caller.owner()?.cloned();
    let body: wire::NewSandbox = read(body)?;
    let mut request = templates::spawn_of(&api, &body.template_id, owner.as_ref(), viewer.as_ref()).await?;
    body.fill(&mut request)?;
    request.owner = owner;
    request.only_own = caller.restricted_to().is_some();
    request.key = key;
    request.asker = Some(meter.account().asker());
    let spawned = api.control.spawn(request).await.map_err(refused)?;
    let answer = wire::sandbox(&api, &spawned.sandbox, Some(&domain_of(&api, &headers)));
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

/// Returns the details of a sandbox. A key that may only read does not get the token, which runs commands.
pub async fn get(State(api): State<Api>, caller: Caller, Name(id): Name, headers: HeaderMap) -> Result<Json<Value>> {
    let row = seen(&api, &id).await?;
    let internet = match api.control.egress_of(&id).await {
        Ok(egress) => Some(egress.policies.own.mode != EgressMode::None),
        Err(_) => None,
    };
    let mut detail = wire::detail(&row, internet, &domain_of(&api, &headers));
    if caller.owner_key().is_none_or(|key| key.scopes().allow(KeyScope::SandboxesWrite)) {
        detail["envdAccessToken"] = wire::token(&api, Purpose::Access, &row).into();
    }
    Ok(Json(detail))
}

/// Returns a sandbox that is shown: one that is being made, or has failed, is not.
pub async fn seen(api: &Api, id: &str) -> Result<Sandbox> {
    let row = api.control.sandbox(id).await?;
    if matches!(row.state, Life::Running | Life::Paused) { Ok(row) } else { Err(missing(id)) }
}

fn missing(id: &str) -> ApiError {
    Error::NotFound(crate::control::Resource::Sandbox, id.to_owned()).into()
}

/// Lists sandboxes, the newest first unless the query says otherwise.
pub async fn list(
    State(api): State<Api>,
    Viewer(Owner(viewer)): Viewer,
    meter: Meter,
    query: Query,
) -> Result<Response> {
    let filter = filter(&query)?;
    let rows = usize::try_from(filter.limit.unwrap_or(0)).unwrap_or(0);
    meter.hold(SMALL_BYTES + rows * ROW_BYTES).await?;
    let page = api.control.sandboxes_known_to(viewer, filter).await?;
    let next = page.next.map(|Cursor { created_at_ms, row }| format!("{created_at_ms}-{row}"));
    Ok((paging::next(next), Json(page.sandboxes.iter().map(wire::listed).collect::<Vec<_>>())).into_response())
}

/// Reads the filter of a list.
fn filter(query: &Query) -> Result<ListFilter> {
    let states = match query.get("state").filter(|states| !states.is_empty()) {
        None => vec![Life::Running, Life::Paused],
        Some(states) => states
            .split(',')
            .map(|state| match state {
                "running" => Ok(Life::Running),
                "paused" => Ok(Life::Paused),
                _ => Err(malformed("`state` must be `running`, `paused`, or both with a comma")),
            })
            .collect::<Result<_>>()?,
    };
    let oldest_first = match query.get("order") {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(_) => return Err(malformed("`order` must be `asc` or `desc`")),
    };
    let created_from = query.get("startedAfter").map(|text| {
        text.parse::<Timestamp>().map_err(|_| malformed("`startedAfter` must be a time such as 2026-01-31T12:00:00Z"))
    });
    let after = paging::after(query, cursor)?;
    Ok(ListFilter {
        states,
        oldest_first,
        created_from: created_from.transpose()?,
        made_of: query.get("template").map(str::to_owned),
        metadata: labels(query.get("metadata").unwrap_or_default()),
        limit: query.number("limit", (1, PAGE))?.or(Some(PAGE)).and_then(|limit| u32::try_from(limit).ok()),
        after,
        ..ListFilter::default()
    })
}

/// Reads labels: a form within the query, whose names and values are encoded once more.
fn labels(text: &str) -> domain::Metadata {
    form(text).into_iter().map(|(name, value)| (decoded(&name), decoded(&value))).collect()
}

fn cursor(text: &str) -> Option<Cursor> {
    let (created_at_ms, row) = text.split_once('-')?;
    Some(Cursor { created_at_ms: created_at_ms.parse().ok()?, row: row.parse().ok()? })
}

/// Destroys a sandbox.
pub async fn kill(State(api): State<Api>, Name(id): Name) -> Result<StatusCode> {
    seen(&api, &id).await?;
    api.control.destroy(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets the lifetime of a sandbox from now; none ends it.
pub async fn timeout(
    State(api): State<Api>,
    Name(id): Name,
    Body(wire::Timeout { timeout }): Body<wire::Timeout>,
) -> Result<StatusCode> {
    seen(&api, &id).await?;
    match timeout {
        0 => api.control.end_lifetime(&id).await?,
        seconds => drop(api.control.extend(&id, wire::lifetime(seconds)?).await.map_err(refused)?),
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Has a sandbox run for at least a time, and returns what is needed to use it.
pub async fn connect(
    State(api): State<Api>,
    Name(id): Name,
    headers: HeaderMap,
    Body(wire::Connect { timeout, memory }): Body<wire::Connect>,
) -> Result<Response> {
    wire::check_memory(memory)?;
    let row = seen(&api, &id).await?;
    let lifetime = match timeout {
        Some(seconds) => wire::lifetime(seconds)?,
        None => api.control.lifetime_within(row.owner.as_ref(), wire::TIMEOUT).await?,
    };
    let reopened = api.control.reopen(&id, lifetime).await.map_err(refused)?;
    let status = if reopened.was_paused { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(wire::sandbox(&api, &reopened.sandbox, Some(&domain_of(&api, &headers))))).into_response())
}

/// Resumes a sandbox, as very old SDKs ask.
pub async fn resume(state: State<Api>, name: Name, headers: HeaderMap, body: Body<wire::Connect>) -> Result<Response> {
    let State(api) = &state;
    if seen(api, &name.0).await?.state == Life::Running {
        return Err(Error::from(crate::control::Conflict::NotPaused { sandbox: id_of(&name.0)? }).into());
    }
    connect(state, name, headers, body).await
}

/// Pauses a sandbox.
pub async fn pause(
    State(api): State<Api>,
    Name(id): Name,
    Body(wire::Pause { memory }): Body<wire::Pause>,
) -> Result<StatusCode> {
    wire::check_memory(memory)?;
    seen(&api, &id).await?;
    if !api.control.put_away(&id).await? {
        return Err(Error::from(crate::control::Conflict::Paused { sandbox: id }).into());
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Replaces the rules on connections out of a sandbox.
pub async fn network(State(api): State<Api>, Name(id): Name, Body(network): Body<Network>) -> Result<StatusCode> {
    seen(&api, &id).await?;
    api.control.set_egress(&id, network.policy(None)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns what a sandbox uses now, as the only sample: none is kept.
pub async fn metrics(State(api): State<Api>, Name(id): Name, query: Query) -> Result<Json<Vec<Value>>> {
    const SECONDS: (u64, u64) = (0, i64::MAX as u64);
    let row = seen(&api, &id).await?;
    let (start, end) = (query.number("start", SECONDS)?, query.number("end", SECONDS)?);
    if row.state != Life::Running {
        return Ok(Json(Vec::new()));
    }
    let stats = api.control.stats_of(&id).await?;
    let now = u64::try_from(stats.at.as_second()).unwrap_or(0);
    if start.is_some_and(|start| start > now) || end.is_some_and(|end| end < now) {
        return Ok(Json(Vec::new()));
    }
    let memory = stats.used.memory_bytes.unwrap_or(0);
    let processors = stats.load.map_or(0.0, |load| load.processors);
    Ok(Json(vec![json!({
        "timestamp": wire::time(stats.at),
        "timestampUnix": now,
        "cpuCount": row.resources.vcpus,
        "cpuUsedPct": (processors * 100.0 / f64::from(row.resources.vcpus.max(1)) * 100.0).round() / 100.0,
        "memUsed": memory,
        "memTotal": u64::from(row.resources.memory_mb) << 20,
        "memCache": 0,
        "diskUsed": stats.used.disk_bytes.unwrap_or(0),
        "diskTotal": u64::from(row.resources.disk_mb) << 20,
    })]))
}

/// Reads a body that was read as a value before.
fn read<T: serde::de::DeserializeOwned>(body: Value) -> Result<T> {
    serde_path_to_error::deserialize(body).map_err(|error| malformed(format!("`{}`: {}", error.path(), error.inner())))
}

/// Words the refusal of a lifetime above the maximum as E2B does: as a fault of the request.
pub fn refused(error: Error) -> ApiError {
    if let Error::LimitReached(limit @ (Limit::AboveMaximum { .. } | Limit::DurationTooLong { .. })) = &error {
        return malformed(limit.to_string().replace("`ttl`", "`timeout`"));
    }
    error.into()
}

fn id_of(id: &str) -> Result<domain::SandboxId> {
    domain::SandboxId::parse(id).map_err(|_| missing(id))
}

/// Returns the domain of the sandboxes' host names, with the port that the request came to.
pub fn domain_of(api: &Api, headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| port.parse::<u16>().is_ok());
    let domain = &api.settings.preview_domain;
    port.map_or_else(|| domain.clone(), |port| format!("{domain}:{port}"))
}

#[cfg(test)]
mod test {
    use super::*;

    fn of(query: &str) -> Result<ListFilter, String> {
        let uri = format!("/v2/sandboxes?{query}").parse().unwrap();
        filter(&Query::of(&uri)).map_err(|error| error.message())
    }

    #[test]
    fn labels_are_encoded_three_times() {
        let filter = of("metadata=k%3Dv%252520w%26x%3D%25C3%25A4&state=paused&limit=2&order=asc").unwrap();
        let expected = [("k", "v w"), ("x", "\u{e4}")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(filter.metadata, expected.into());
        assert_eq!((filter.states, filter.limit, filter.oldest_first), (vec![Life::Paused], Some(2), true));
    }

    #[test]
    fn a_bare_list_has_both_states_newest_first_and_a_bound() {
        let filter = of("").unwrap();
        assert_eq!(filter.states, [Life::Running, Life::Paused]);
        assert_eq!((filter.limit, filter.oldest_first, filter.metadata.len()), (Some(100), false, 0));
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_refused_by_name() {
        for (query, word) in [
            ("state=creating", "`state`"),
            ("state=running,,", "`state`"),
            ("order=up", "`order`"),
            ("startedAfter=yesterday", "`startedAfter`"),
            ("limit=0", "`limit`"),
            ("limit=101", "`limit`"),
            ("limit=x", "`limit`"),
            ("nextToken=x", "`nextToken`"),
        ] {
            assert!(of(query).unwrap_err().contains(word), "{query}");
        }
    }

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        assert_eq!(cursor("1700000000000-42"), Some(Cursor { created_at_ms: 1_700_000_000_000, row: 42 }));
    }
}
