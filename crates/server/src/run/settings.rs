//! Translation of the configuration into the settings of each part.

use std::sync::Arc;
use std::time::Instant;

use domain::{Caps, Configured, Limits, Places, Resources, SizeOptions, SizeRules, SpawnOptions};

use super::machine;
use crate::admission::QueuePolicy;
use crate::auth::Access;
use crate::auth::preview::PreviewKey;
use crate::budget::Budget;
use crate::config::{Config, Overflow, WarmPool};
use crate::control::AuditBounds;
use crate::control::ORPHAN_GRACE;
use crate::control::Policy;
use crate::control::WarmEntry;
use crate::egress::{EgressConfig, EgressLimits};
use crate::http::Cors;
use crate::http::E2b;
use crate::http::Hosts;
use crate::http::Settings;
use crate::owner_keys::OwnerKeys;
use crate::process::Process;
use crate::rate_limit::RateLimiter;
use store::{Kept, KeptRows, PoolBounds, SnapshotBounds};

/// Returns the number of ended sandboxes whose rows are kept.
pub(super) fn kept(config: &Config) -> Kept {
    let keep = &config.retention;
    Kept {
        failed: KeptRows { total: keep.max_failed, per_owner: keep.max_failed_per_owner },
        destroyed: KeptRows { total: keep.max_destroyed, per_owner: keep.max_destroyed_per_owner },
    }
}

/// Returns the limits and defaults of decisions; `as_worker` for a server with a control plane.
pub(super) fn policy(config: &Config, as_worker: bool) -> Policy {
    let defaults = &config.defaults;
    Policy {
        limits: Limits {
            ttl_default: defaults.ttl,
            // A control plane requests a while more than the lifetime that it grants.
            ttl_max: if as_worker { defaults.max_ttl + ORPHAN_GRACE } else { defaults.max_ttl },
            exec_timeout_default: defaults.default_exec_timeout,
            exec_timeout_max: defaults.max_exec_timeout,
        },
        caps: Caps { max_sandboxes: defaults.max_sandboxes, max_sandboxes_per_owner: defaults.max_sandboxes_per_owner },
        resources: Resources { memory_mb: defaults.memory_mb, vcpus: defaults.vcpus, disk_mb: 0, pids: defaults.pids },
        sizes: SizeRules::new(
            Configured {
                memory_mb: defaults.max_memory_mb,
                vcpus: defaults.max_vcpus,
                disk_mb: defaults.max_disk_mb,
                pids: Some(defaults.max_pids.max(defaults.pids)),
            },
            machine::measure(&config.data_dir),
        ),
        services: services(config),
        queue: QueuePolicy {
            enabled: defaults.spawn_overflow == Overflow::Queue,
            pool: config.pool.overflow == Overflow::Queue,
            timeout: defaults.spawn_queue_timeout,
            places: Places { all: defaults.max_spawn_queue, of_one: defaults.max_spawn_queue_per_owner },
        },
        pool: config
            .pool
            .enabled
            .then_some(PoolBounds { hosts_max: config.pool.max_vms, places: config.pool.max_users_per_vm }),
        image: defaults.image.clone(),
        output_bytes_max: config.limits.max_output_bytes,
        retention: config.retention.destroyed,
        audit: AuditBounds {
            retention: config.auth.admin_audit_retention,
            entries_max: config.auth.admin_audit_max_entries,
        },
        templates_max: config.limits.max_templates,
        keys_max: config.auth.max_keys,
        snapshots: SnapshotBounds {
            count: config.snapshots.max,
            per_owner: config.snapshots.max_per_owner,
            bytes: config.snapshots.max_mb << 20,
            left_bytes: 0,
        },
        quotas_max: config.limits.max_quotas,
        reserve_disk_bytes: config.limits.reserve_disk_mb << 20,
        reserve_inodes: config.limits.reserve_inodes,
        leases: config.leases,
        allows_reverse: config.ports.reverse,
        port_watch_interval: config.ports.watch_interval,
        has_workers: !config.workers.is_empty(),
        warm_pool: config.warm_pool.iter().map(warm_entry).collect(),
    }
}

/// Returns the names of the providers whose boxes another service makes.
fn services(config: &Config) -> Vec<String> {
    let custom = config.providers.custom.enabled.then(|| config.providers.custom.name.clone());
    let e2b = config.providers.e2b.enabled.then(|| providers::e2b::NAME.to_owned());
    custom.into_iter().chain(e2b).collect()
}

fn warm_entry((name, config): (&String, &WarmPool)) -> WarmEntry {
    let WarmPool { template, provider, image, memory_mb, vcpus, disk_mb, pids, count, max_age, snapshot } =
        config.clone();
    WarmEntry {
        name: name.clone(),
        template,
        options: SpawnOptions {
            provider,
            image,
            size: SizeOptions { memory_mb, vcpus, disk_mb, pids },
            ..SpawnOptions::default()
        },
        count: count as usize,
        max_age,
        snapshot,
    }
}

/// Returns the settings of connections out of sandboxes of a server that listens on `port`.
pub(crate) fn egress(config: &Config, port: u16) -> EgressConfig {
    let ca_file = config.secrets.ca_file.clone();
    let config = &config.egress;

    EgressConfig {
        site: config.site(),
        default: config.default_policy(),
        owners: config.owner_policies(),
        lists: config.targets_of_lists(),
        internal: config.internal.clone(),
        hosts: config.hosts.clone(),
        limits: EgressLimits {
            connections: config.max_connections,
            connections_per_second: config.max_connections_per_second,
            bytes_per_second: limit(config.max_bytes_per_second),
            bytes: limit(config.max_mb << 20),
            idle: config.idle_timeout,
            connect: config.connect_timeout,
        },
        ca_file,
        server_ports: vec![port],
        memory_bytes: config.max_memory_mb << 20,
    }
}

/// Returns a configured limit; 0 is none.
fn limit(number: u64) -> Option<u64> {
    Some(number).filter(|number| *number > 0)
}

/// Returns the settings of the HTTP API of a server that started at `started`.
pub(super) fn http(
    config: &Config,
    preview_key: PreviewKey,
    owner_keys: Arc<OwnerKeys>,
    process: Process,
    started: Instant,
) -> Settings {
    let mut names = config.server.allowed_hosts.clone();
    names.push(config.server.preview_domain.clone());
    if config.compat.e2b.enabled {
        // Where E2B's SDKs look for the control plane of a domain.
        names.push(format!("api.{}", config.server.preview_domain));
    }
    Settings {
        hosts: Hosts::for_bind(config.server.host, config.auth.enabled, names),
        access: Access::new(&config.auth, owner_keys),
        memory: Budget::new(config.limits.request_memory_mb << 20),
        rate_limiter: RateLimiter::new(&config.rate_limit).map(Arc::new),
        cors: Cors::new(&config.server.cors_allowed_origins, &config.server.preview_domain, config.auth.enabled),
        preview_domain: config.server.preview_domain.clone(),
        path_proxy: config.server.path_proxy,
        preview_key,
        e2b: E2b { is_enabled: config.compat.e2b.enabled, image: config.compat.e2b.image.clone() },
        file_bytes_max: config.limits.max_file_bytes,
        image_bytes_max: config.images.max_image_mb << 20,
        defaults: config.defaults.clone(),
        rate_limit: config.rate_limit.clone(),
        series_per_sandbox: config.metrics.per_sandbox,
        process,
        started,
    }
}
