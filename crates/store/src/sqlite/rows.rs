//! Conversion between rows and records.

use std::time::Duration;

use domain::{
    Lease, Metadata, OwnerId, Resources, SandboxId, SizeOptions, SpawnOptions, State, StopReason, Timestamp, WorkerId,
};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::super::error::{Error, Result};
use super::super::sandboxes::Sandbox;
use super::super::templates::Template;
use super::built::built;
use super::policies::policy;
use super::prepare::prepare;
use super::terms::terms;

pub(super) const SANDBOX_COLUMNS: &str = "id, state, provider, image, memory_mb, vcpus, disk_mb, pids, metadata, \
                                          owner_id, worker_id, created_at, expires_at, ended_at, error, \
                                          auto_pause_ms, terms";
pub(super) const TEMPLATE_COLUMNS: &str = "name, owner_id, image, provider, memory_mb, vcpus, disk_mb, pids, entrypoint, ttl_ms, metadata, egress, \
                                           auto_pause_ms, prepare, created_at, updated_at, built";
pub(super) const LEASE_COLUMNS: &str = "resource_id, holder_id, generation, expires_at";

pub(super) fn ms(at: Timestamp) -> i64 {
    at.as_millisecond()
}

pub(super) fn ttl_ms(ttl: Option<Duration>) -> Option<i64> {
    ttl.map(|ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX))
}

pub(super) fn metadata_text(metadata: &Metadata) -> String {
    serde_json::to_string(metadata).expect("a map of strings is JSON")
}

pub(super) fn stop_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Requested => "requested",
        StopReason::Expired => "expired",
        StopReason::Vanished => "vanished",
        StopReason::Abandoned => "abandoned",
        StopReason::Unfinished => "unfinished",
    }
}

pub(super) fn sandbox_id(text: &str) -> Result<SandboxId> {
    SandboxId::parse(text).map_err(|_| Error::Corrupt(format!("sandbox id `{text}`")))
}

pub(super) fn count(rows: i64) -> u64 {
    u64::try_from(rows).unwrap_or(0)
}

pub(super) fn worker_id(text: &str) -> Result<WorkerId> {
    WorkerId::parse(text).map_err(|_| Error::Corrupt(format!("worker id `{text}`")))
}

pub(super) fn words(row: &SqliteRow, column: &str) -> Result<Vec<String>> {
    let text: String = row.try_get(column)?;
    serde_json::from_str(&text).map_err(|error| Error::Corrupt(format!("{column}: {error}")))
}

fn duration(row: &SqliteRow, column: &str) -> Result<Option<Duration>> {
    let ms: Option<i64> = row.try_get(column)?;
    Ok(ms.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))))
}

fn time(row: &SqliteRow, column: &str) -> Result<Timestamp> {
    Ok(crate::clock::from_ms(row.try_get(column)?))
}

fn metadata(row: &SqliteRow) -> Result<Metadata> {
    let text: String = row.try_get("metadata")?;
    serde_json::from_str(&text).map_err(|error| Error::Corrupt(format!("metadata: {error}")))
}

pub(super) fn resources(row: &SqliteRow) -> Result<Resources> {
    Ok(Resources {
        memory_mb: row.try_get("memory_mb")?,
        vcpus: row.try_get("vcpus")?,
        disk_mb: row.try_get("disk_mb")?,
        pids: row.try_get("pids")?,
    })
}

pub(super) fn sandbox(row: &SqliteRow) -> Result<Sandbox> {
    let state: String = row.try_get("state")?;
    let owner: Option<String> = row.try_get("owner_id")?;
    Ok(Sandbox {
        id: sandbox_id(&row.try_get::<String, _>("id")?)?,
        state: State::parse(&state).ok_or_else(|| Error::Corrupt(format!("state `{state}`")))?,
        provider: row.try_get("provider")?,
        image: row.try_get("image")?,
        resources: resources(row)?,
        metadata: metadata(row)?,
        owner: owner.map(OwnerId::stored),
        worker: worker_id(row.try_get("worker_id")?)?,
        created_at: time(row, "created_at")?,
        expires_at: time(row, "expires_at")?,
        ended_at: row.try_get::<Option<i64>, _>("ended_at")?.map(crate::clock::from_ms),
        error: row.try_get("error")?,
        auto_pause: duration(row, "auto_pause_ms")?,
        terms: terms(row.try_get::<Option<String>, _>("terms")?.as_deref())?,
    })
}

pub(super) fn lease(row: &SqliteRow) -> Result<Lease> {
    Ok(Lease {
        resource: row.try_get("resource_id")?,
        holder: worker_id(row.try_get("holder_id")?)?,
        generation: count(row.try_get("generation")?),
        expires_at: crate::clock::from_ms(row.try_get("expires_at")?),
    })
}

pub(super) fn template(row: &SqliteRow) -> Result<Template> {
    let owner: String = row.try_get("owner_id")?;
    Ok(Template {
        name: row.try_get("name")?,
        owner: (!owner.is_empty()).then(|| OwnerId::stored(owner)),
        options: SpawnOptions {
            image: row.try_get("image")?,
            provider: row.try_get("provider")?,
            size: SizeOptions {
                memory_mb: row.try_get("memory_mb")?,
                vcpus: row.try_get("vcpus")?,
                disk_mb: row.try_get("disk_mb")?,
                pids: row.try_get("pids")?,
            },
            entrypoint: row.try_get("entrypoint")?,
            ttl: duration(row, "ttl_ms")?,
            metadata: metadata(row)?,
            egress: policy(row.try_get::<Option<String>, _>("egress")?.as_deref())?,
            auto_pause: duration(row, "auto_pause_ms")?,
            prepare: prepare(row.try_get::<Option<String>, _>("prepare")?.as_deref())?,
        },
        built: built(row.try_get::<Option<String>, _>("built")?.as_deref())?,
        created_at: time(row, "created_at")?,
        updated_at: time(row, "updated_at")?,
    })
}
