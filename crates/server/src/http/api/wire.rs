//! Conversions between the types of the API and those of the service. The only place that knows
//! both.

mod audit;
mod contexts;
mod egress;
mod exec;
mod images;
mod keys;
mod list;
mod ports;
mod prepare;
mod processes;
mod sandbox_stats;
mod scalars;
mod search;
mod secrets;
mod snapshots;
mod socket;
pub mod stats;
mod trees;
mod workers;

use std::time::Duration;

use axum::http::StatusCode;
use domain::{OwnerId, Quota, Resources, Room, SandboxId, SizeOptions, SpawnOptions};
use providers::{FileChange, FileChangeKind, FileInfo, Isolation, LimitKind, Unpacked, WatchRow};

use self::scalars::{given, ms, shortened};
use crate::control::Decision;
use crate::control::OwnerQuota;
use crate::control::PoolStatus;
use crate::control::ProviderDetail;
use crate::control::QuotaSummary;
use crate::control::Sandbox;
use crate::control::SpawnRequest;
use crate::control::Template;
use crate::control::Templates;
use crate::control::Usage;
use crate::events::subscription::Filter;
use crate::events::{Event, EventType};
use crate::http::error::{ApiError, malformed};
use crate::provider_registry::{Checked, Entry};

pub use audit::{AuditQuery, audit_cursor, audit_entry};
pub use contexts::{
    code, code_to_complete, completions, context, default_context, named_context, new_context, run_line,
};
pub use egress::{egress, egress_policy};
pub use exec::{bytes, exec_request, exec_result};
pub use images::{image, image_detail, pruned_images, pull_progress};
pub use keys::{created_key, key_filter, key_request, owner_key};
pub use list::{cursor, list_filter};
pub use ports::{connection, listening_port, port};
pub use processes::{background, process, process_ref, process_started};
pub use sandbox_stats::{sandbox_stats, stats_filter};
pub use scalars::{duration, mode, span, span_or_zero, time};
pub use search::{replace, replace_result, search, search_result};
pub use secrets::{secret, secret_binding, secret_for};
pub use snapshots::{fork_request, image_snapshot, snapshot, snapshot_filter, snapshot_request, warm_snapshot};
pub use socket::{SocketCommand, signal, socket_start, terminal_size};
pub use trees::{amend, amended, pack};
pub use workers::{heartbeat, lease_ttl, renewed, worker, worker_id};

fn owner(header: Option<OwnerId>, field: Option<&str>) -> Result<Option<OwnerId>, ApiError> {
    let field = field
        .map(|text| OwnerId::parse(text).map_err(|error| malformed(format!("`owner_id`: {error}"))))
        .transpose()?;
    Ok(header.or(field))
}

/// Converts the body of a spawn. The owner in the header overrides that in the body.
pub fn spawn_request(mut body: api::SpawnRequest, header: Option<OwnerId>) -> Result<SpawnRequest, ApiError> {
    let owner = owner(header, body.owner_id.as_deref())?;
    body.image = given("image", body.image)?;
    body.provider = given("provider", body.provider)?;
    let template = body.template.take();
    let snapshot = given("snapshot", body.snapshot.take())?;
    let options = spawn_options(body.into())?;
    Ok(SpawnRequest { options, owner, template: given("template", template)?, snapshot, ..SpawnRequest::default() })
}

/// Converts the options of a spawn or of a template.
pub fn spawn_options(body: api::SpawnOptions) -> Result<SpawnOptions, ApiError> {
    let api::SpawnOptions {
        image,
        provider,
        memory_mb,
        vcpus,
        disk_mb,
        pids,
        entrypoint,
        ttl,
        metadata,
        egress,
        auto_pause,
        prepare,
    } = body;
    Ok(SpawnOptions {
        image,
        provider,
        size: SizeOptions { memory_mb, vcpus, disk_mb, pids },
        entrypoint,
        ttl: ttl.map(|text| span("ttl", &text)).transpose()?,
        metadata: metadata.unwrap_or_default().0,
        egress: egress.map(|policy| egress_policy(&policy)).transpose()?,
        auto_pause: auto_pause.map(|text| span_or_zero("auto_pause", &text)).transpose()?,
        prepare: prepare.map(prepare::prepare).transpose()?,
    })
}

/// Converts the body of a spawn from a template.
pub fn template_spawn(
    name: String,
    mut body: api::TemplateSpawnRequest,
    header: Option<OwnerId>,
) -> Result<SpawnRequest, ApiError> {
    let owner_id = body.owner_id.take();
    let options = api::SpawnOptions::from(body);
    spawn_request(api::SpawnRequest { owner_id, template: Some(name), ..options.into() }, header)
}

/// Returns the templates that a request is about, of the owner in its query or else of all; `None` if these are
/// hidden from its `viewer`.
pub fn templates(viewer: Option<OwnerId>, owner_id: Option<&str>) -> Result<Option<Templates>, ApiError> {
    let named = owner(None, owner_id)?;
    Ok(match (viewer, named) {
        (None, named) => Some(Templates::Of(named)),
        (Some(viewer), None) => Some(Templates::UsableBy(viewer)),
        (Some(viewer), Some(named)) => (viewer == named).then_some(Templates::Of(Some(viewer))),
    })
}

/// Parses an owner's id in a path.
pub fn owner_id(text: &str) -> Result<OwnerId, ApiError> {
    OwnerId::parse(text).map_err(|error| malformed(error.to_string()))
}

/// Converts an owner's quota from the API, with its bounds checked.
pub fn quota(body: &api::QuotaRequest) -> Result<Quota, ApiError> {
    let max_sandboxes = body.max_sandboxes.unwrap_or(0);
    if max_sandboxes > Quota::SANDBOXES_MAX {
        return Err(malformed(format!("`max_sandboxes` must be at most {}", Quota::SANDBOXES_MAX)));
    }

    Ok(Quota {
        max_sandboxes,
        max_ttl: whole_seconds("max_ttl", body.max_ttl.as_deref())?,
        max_exec_timeout: whole_seconds("max_exec_timeout", body.max_exec_timeout.as_deref())?,
        max_memory_mb: size_or_zero("max_memory_mb", body.max_memory_mb, Resources::MEMORY_MB)?,
        max_vcpus: size_or_zero("max_vcpus", body.max_vcpus, Resources::VCPUS)?,
        max_disk_mb: size_or_zero("max_disk_mb", body.max_disk_mb, Resources::DISK_MB)?,
    })
}

/// Parses a duration of a quota; zero if it is left out.
fn whole_seconds(field: &str, text: Option<&str>) -> Result<Duration, ApiError> {
    let Some(text) = text else { return Ok(Duration::ZERO) };
    let duration =
        domain::parse_duration(text).map_err(|error| malformed(format!("`{field}`: `{}` {error}", shortened(text))))?;
    Quota::whole_seconds(duration).map_err(|error| malformed(format!("`{field}` {error}")))
}

/// Checks a size of a quota against its range. It may be 0, also by being left out, to inherit the
/// configured one.
fn size_or_zero(field: &str, value: Option<u32>, (least, most): (u32, u32)) -> Result<u32, ApiError> {
    match value.unwrap_or(0) {
        0 => Ok(0),
        value if (least..=most).contains(&value) => Ok(value),
        _ => Err(malformed(format!("`{field}` must be 0, to inherit, or from {} to {most}", least.max(1)))),
    }
}

/// Converts an owner's quota to the API.
pub fn owner_quota(own: &OwnerQuota) -> api::OwnerQuota {
    api::OwnerQuota {
        owner_id: own.owner.to_string(),
        max_sandboxes: own.quota.max_sandboxes,
        max_ttl: duration(own.quota.max_ttl),
        max_exec_timeout: duration(own.quota.max_exec_timeout),
        max_memory_mb: own.quota.max_memory_mb,
        max_vcpus: own.quota.max_vcpus,
        max_disk_mb: own.quota.max_disk_mb,
        created_at: time(own.created_at),
        updated_at: time(own.updated_at),
    }
}

/// Converts an owner's usage and limits to the API.
pub fn usage(usage: &Usage) -> api::OwnerUsage {
    api::OwnerUsage {
        owner_id: usage.owner.to_string(),
        active_sandboxes: usage.active_sandboxes,
        max_sandboxes: usage.max_sandboxes,
        max_ttl: duration(usage.max_ttl),
        max_exec_timeout: duration(usage.max_exec_timeout),
        max_memory_mb: usage.ceilings.memory_mb,
        max_vcpus: usage.ceilings.vcpus,
        max_disk_mb: usage.ceilings.disk_mb,
        quota_configured: usage.quota_configured,
    }
}

/// Converts the counts of quotas to the API.
pub fn quota_summary(summary: QuotaSummary) -> api::QuotaSummary {
    let QuotaSummary { total, with_max_sandboxes, with_max_ttl, with_max_exec_timeout } = summary;
    api::QuotaSummary { total, with_max_sandboxes, with_max_ttl, with_max_exec_timeout }
}

/// Converts an admission decision to the API.
pub fn decision(decision: &Decision) -> api::AdmissionDecision {
    let Room { active, caps } = decision.room;
    api::AdmissionDecision {
        allowed: decision.reason.is_none(),
        queueable: decision.queueable,
        reason: decision.reason.map(str::to_owned),
        active_sandboxes: active.total,
        max_sandboxes: caps.max_sandboxes,
        active_owner_sandboxes: active.owner.unwrap_or(0),
        max_owner_sandboxes: caps.max_sandboxes_per_owner,
        max_ttl: duration(decision.max_ttl),
    }
}

/// Returns roughly the bytes that a sandbox takes in memory.
pub fn sandbox_bytes(sandbox: &Sandbox) -> usize {
    const FIXED: usize = 1024;
    let labels = sandbox.metadata.iter().map(|(key, value)| key.len() + value.len() + 128);
    FIXED + labels.sum::<usize>() + sandbox.error.as_ref().map_or(0, String::len)
}

/// Converts a sandbox to the API.
pub fn sandbox(sandbox: &Sandbox) -> api::Sandbox {
    api::Sandbox {
        id: sandbox.id.to_string(),
        state: sandbox.state.to_string(),
        provider: sandbox.provider.clone(),
        image: sandbox.image.clone(),
        memory_mb: sandbox.resources.memory_mb,
        vcpus: sandbox.resources.vcpus,
        disk_mb: Some(sandbox.resources.disk_mb).filter(|disk_mb| *disk_mb > 0),
        pids: sandbox.resources.pids,
        created_at: time(sandbox.created_at),
        expires_at: time(sandbox.expires_at),
        metadata: api::StringMap(sandbox.metadata.clone()),
        owner_id: sandbox.owner.as_ref().map(ToString::to_string),
        worker_id: Some(sandbox.worker.to_string()),
        error: sandbox.error.clone(),
        auto_pause: sandbox.auto_pause.map(duration),
        on_disk: false,
        reclaimed: None,
        preview_domain: None,
    }
}

pub fn reclaimed(reclaimed: providers::Reclaimed) -> api::Reclaimed {
    let providers::Reclaimed { memory_before_bytes, memory_after_bytes, by } = reclaimed;
    api::Reclaimed { memory_before_bytes, memory_after_bytes, by: by.as_str().to_owned() }
}

/// Splits a new template into its name and its options.
pub fn new_template(mut body: api::TemplateRequest) -> Result<(String, SpawnOptions), ApiError> {
    let name = std::mem::take(&mut body.name);
    Ok((name, spawn_options(body.into())?))
}

/// Converts a template to the API.
pub fn template(template: &Template) -> api::Template {
    let SpawnOptions { image, provider, size, entrypoint, ttl, metadata, egress, auto_pause, prepare } =
        template.options.clone();
    api::Template {
        name: template.name.clone(),
        owner_id: template.owner.as_ref().map(ToString::to_string),
        image,
        memory_mb: size.memory_mb,
        vcpus: size.vcpus,
        disk_mb: size.disk_mb,
        pids: size.pids,
        entrypoint,
        ttl: ttl.map(duration),
        provider,
        metadata: api::StringMap(metadata),
        egress: egress.map(|policy| egress::policy(&policy)),
        auto_pause: auto_pause.map(duration),
        snapshot: template.built.as_ref().map(|built| built.snapshot.to_string()),
        prepare: prepare.map(prepare::to_api),
        created_at: time(template.created_at),
        updated_at: time(template.updated_at),
    }
}

/// Converts a file's metadata to the API.
pub fn file(info: FileInfo) -> api::FileInfo {
    api::FileInfo {
        name: info.name,
        path: info.path,
        size: info.size,
        is_dir: info.is_dir,
        mod_time: time(info.modified),
        mode: format!("{:04o}", info.mode & 0o7777),
        is_symlink: info.is_symlink,
        target: info.target,
    }
}

/// Converts the health of a provider to the API.
pub fn provider_health(entry: &Entry, checked: &Checked) -> api::ProviderHealth {
    let health = &checked.health;
    let backend = entry.provider.backend();
    api::ProviderHealth {
        name: entry.provider.name().to_owned(),
        healthy: health.error.is_none(),
        default: entry.is_default,
        latency_ms: ms(checked.latency),
        last_checked: time(checked.at),
        error: health.error.clone(),
        version: backend.as_ref().map(|backend| backend.version.clone()).filter(|version| !version.is_empty()),
        runtime_count: backend.as_ref().map(|backend| backend.runtime_count.into()),
        runtimes: backend.map(|backend| backend.runtimes).unwrap_or_default(),
        capabilities: providers::capabilities(entry.provider.as_ref()).into_iter().map(str::to_owned).collect(),
        missing: entry.provider.facts().missing,
    }
}

/// Converts the details of a provider to the API.
pub fn provider_detail(detail: &ProviderDetail<'_>) -> api::ProviderDetail {
    let facts = detail.entry.provider.facts();
    let limits = facts.limits.into_iter().map(|(limit, kind)| {
        let kind = match kind {
            LimitKind::Hard => "hard",
            LimitKind::Soft => "soft",
            LimitKind::None => "none",
        };
        (limit.to_owned(), kind.to_owned())
    });
    let isolation = match facts.isolation {
        Isolation::Vm => "vm",
        Isolation::Container => "container",
        Isolation::None => "none",
    };
    let health = provider_health(detail.entry, &detail.checked);
    api::ProviderDetail {
        name: health.name.clone(),
        healthy: health.healthy,
        default: health.default,
        sandbox_count: detail.sandbox_count,
        health,
        config: api::ProviderConfig {
            runtime: facts.runtime,
            network_mode: facts.network_mode,
            isolation: isolation.to_owned(),
            limits: api::StringMap(limits.collect()),
        },
    }
}

/// Converts an event to the API.
pub fn event(event: &Event) -> api::Event {
    api::Event {
        id: event.id,
        kind: event.kind.as_str().to_owned(),
        sandbox_id: event.sandbox.as_ref().map(ToString::to_string),
        timestamp: time(event.at),
        data: event.data.as_object().cloned().unwrap_or_default(),
    }
}

/// Builds the filter of an event stream from its types and its sandbox.
pub fn event_filter(types: &[String], sandbox_id: Option<&str>) -> Result<Filter, ApiError> {
    let sandbox = sandbox_id
        .map(|text| SandboxId::parse(text).map_err(|error| malformed(format!("`sandbox_id`: {error}"))))
        .transpose()?;
    Ok(Filter { kinds: types.iter().map(|name| event_type(name)).collect::<Result<_, _>>()?, sandbox })
}

fn event_type(name: &str) -> Result<EventType, ApiError> {
    EventType::named(name).ok_or_else(|| {
        let known: Vec<&str> = EventType::ALL.iter().map(|kind| kind.as_str()).collect();
        malformed(format!("`type`: unknown event type `{}`; the types are {}", shortened(name), known.join(", ")))
    })
}

/// Converts a change of a file to the API.
pub fn file_change(row: WatchRow) -> api::FileChange {
    match row {
        WatchRow::Overflow => api::FileChange { kind: api::FileChange::OVERFLOW.to_owned(), path: None, is_dir: false },
        WatchRow::Change(FileChange { kind, path, is_dir, moved: _ }) => {
            let kind = match kind {
                FileChangeKind::Created => "created",
                FileChangeKind::Modified => "modified",
                FileChangeKind::Deleted => "deleted",
                FileChangeKind::Attributes => "attributes",
            };
            api::FileChange { kind: kind.to_owned(), path: Some(path), is_dir }
        }
    }
}

/// Converts the account of an archive to the API.
pub fn unpacked(unpacked: Unpacked) -> api::Unpacked {
    let Unpacked { members, bytes } = unpacked;
    api::Unpacked { members, bytes }
}

/// Returns the body of a response that only confirms an action.
pub fn status(status: &str) -> axum::Json<api::Status> {
    axum::Json(api::Status { status: status.to_owned() })
}

/// Returns the response for a created resource, with status 201.
pub fn created<T>(body: T) -> (StatusCode, axum::Json<T>) {
    (StatusCode::CREATED, axum::Json(body))
}

/// Converts the pool's counts and bounds to the API; `None` while pool mode is off.
pub fn pool_status(status: Option<PoolStatus>) -> api::PoolStatus {
    let Some(PoolStatus { counts, bounds }) = status else { return api::PoolStatus::default() };
    api::PoolStatus {
        enabled: true,
        vms: Some(counts.hosts),
        max_vms: Some(bounds.hosts_max.into()),
        total_users: Some(counts.slots),
        max_users_per_vm: Some(bounds.places.into()),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn modes_are_octal_and_nothing_else() {
        for (text, expected) in [("644", 0o644), ("0755", 0o755), ("7777", 0o7777), ("07777", 0o7777), ("0", 0)] {
            assert_eq!(mode(text).unwrap(), expected, "{text}");
        }
        for text in ["", "8", "0o644", "-1", "17777", "10000", "rwx", " 644", "000644"] {
            assert!(mode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_lifetime_is_longer_than_zero() {
        assert!(span("ttl", "0s").is_err());
        assert!(span("ttl", "-5s").is_err());
        assert_eq!(span("ttl", "1m").unwrap(), Duration::from_secs(60));
    }

    #[test]
    fn times_are_iso_8601_with_milliseconds() {
        assert_eq!(time(store::clock::from_ms(1)), "1970-01-01T00:00:00.001Z");
    }
}
