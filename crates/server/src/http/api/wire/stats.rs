//! Conversions of metrics and diagnostics to the API.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use domain::{Quota, Site};

use super::{duration, ms, provider_health, quota_summary, time, worker};
use crate::VERSION;
use crate::config::RateLimit as RateLimitConfig;
use crate::control::Counts;
use crate::control::LeaseCounts;
use crate::control::Stored;
use crate::control::WarmFigures;
use crate::events;
use crate::http::api::metrics::sample::Snapshot;
use crate::http::state::Api;
use crate::operation_metrics::{Operation, OperationStats, mean};
use crate::process::{GOOS, goarch};
use crate::stats::{self, StoreHealth};

/// Documentation pages for operators, by area. Paths are those of the repository.
pub const REMEDIATION: [(&str, &str); 16] = [
    ("configuration", "docs/operate/configuration.md"),
    ("diagnostics", "docs/operate/diagnostics.md"),
    ("events", "docs/use/events.md"),
    ("leases", "docs/operate/workers.md"),
    ("limits", "docs/operate/configuration.md"),
    ("metrics", "docs/operate/metrics.md"),
    ("operations", "docs/operate/operations.md"),
    ("performance", "docs/develop/performance.md"),
    ("providers", "docs/operate/providers.md"),
    ("quotas", "docs/operate/quotas.md"),
    ("rate_limit", "docs/operate/rate-limiting.md"),
    ("scheduler", "docs/operate/quotas.md"),
    ("security", "docs/operate/security.md"),
    ("store", "docs/operate/operations.md"),
    ("warm_pool", "docs/operate/warm-pool.md"),
    ("workers", "docs/operate/workers.md"),
];

/// Data that diagnostics never contain.
const REDACTIONS: [&str; 7] = [
    "provider secrets",
    "registry credentials",
    "environment secrets",
    "API keys",
    "owner IDs",
    "IP addresses",
    "sandbox metadata and commands",
];

/// Converts a snapshot to the diagnostics of the API.
pub fn diagnostics(api: &Api, snapshot: &Snapshot, store: StoreHealth) -> api::Diagnostics {
    let stored = snapshot.stored.as_ref();
    api::Diagnostics {
        generated_at: time(api.control.now()),
        build: api::Build { version: VERSION.to_owned(), goos: GOOS.to_owned(), goarch: goarch().to_owned() },
        process: api::ProcessFigures {
            uptime: uptime(snapshot),
            goroutines: snapshot.tasks,
            memory: api::MemoryFigures {
                alloc: snapshot.memory.allocated,
                sys: snapshot.memory.resident,
                heap_alloc: snapshot.memory.active,
                gc_cycles: 0,
            },
            log_lines_dropped: api.settings.process.log_lines_lost(),
        },
        store: api::StoreHealth { healthy: store.healthy, latency_ms: ms(store.latency) },
        limits: limits(api),
        scheduler: scheduler(api, &snapshot.scheduler),
        warm_pool: api.control.warm_figures().into_iter().map(warm_pool).collect(),
        quotas: stored.map(|stored| quota_summary(stored.quotas)),
        rate_limit: rate_limit(&api.settings.rate_limit, snapshot.rate_limit),
        request_memory: request_memory(snapshot.request_memory),
        providers: providers(api),
        workers: stored.map(workers),
        leases: stored.map(|stored| leases(&stored.leases)),
        sandboxes: stored.map(|stored| sandboxes(&stored.sandboxes)),
        events: events(snapshot.events),
        operations: operations(&snapshot.operations),
        remediation: api::StringMap(
            REMEDIATION.into_iter().map(|(area, page)| (area.to_owned(), page.to_owned())).collect(),
        ),
        redactions: REDACTIONS.map(str::to_owned).to_vec(),
    }
}

/// Converts a snapshot to the JSON metrics of the API.
pub fn metrics(api: &Api, snapshot: &Snapshot) -> api::Metrics {
    let stored = snapshot.stored.as_ref();
    let items: Vec<api::ProviderItem> = api
        .control
        .registry()
        .entries()
        .iter()
        .map(|entry| api::ProviderItem {
            name: entry.provider.name().to_owned(),
            healthy: entry.is_healthy(),
            default: entry.is_default,
        })
        .collect();
    api::Metrics {
        uptime: uptime(snapshot),
        goroutines: snapshot.tasks,
        memory_alloc: snapshot.memory.allocated,
        memory_sys: snapshot.memory.resident,
        memory_heap_alloc: snapshot.memory.active,
        gc_cycles: 0,
        sandboxes: stored.map(|stored| sandboxes(&stored.sandboxes)),
        providers: api::ProviderFigures {
            total: items.len() as u64,
            healthy: items.iter().filter(|item| item.healthy).count() as u64,
            items,
        },
        workers: stored.map(workers),
        leases: stored.map(|stored| leases(&stored.leases)),
        events: events(snapshot.events),
        scheduler: scheduler(api, &snapshot.scheduler),
        quotas: stored.map(|stored| quota_summary(stored.quotas)),
        rate_limit: rate_limit(&api.settings.rate_limit, snapshot.rate_limit),
        operations: operations(&snapshot.operations),
    }
}

fn uptime(snapshot: &Snapshot) -> String {
    duration(Duration::from_secs(snapshot.uptime.as_secs()))
}

fn limits(api: &Api) -> api::ReportedLimits {
    let defaults = &api.settings.defaults;
    let sizes = api.control.policy().sizes.of(&Quota::default(), Site::Here);
    api::ReportedLimits {
        max_sandboxes: defaults.max_sandboxes,
        max_sandboxes_per_owner: defaults.max_sandboxes_per_owner,
        default_exec_timeout: duration(defaults.default_exec_timeout),
        max_exec_timeout: duration(defaults.max_exec_timeout),
        max_ttl: duration(defaults.max_ttl),
        max_memory_mb: sizes.memory_mb,
        max_vcpus: sizes.vcpus,
        max_disk_mb: sizes.disk_mb,
        spawn_overflow: defaults.spawn_overflow.as_str().to_owned(),
        spawn_queue_timeout: duration(defaults.spawn_queue_timeout),
        max_spawn_queue: defaults.max_spawn_queue as u64,
    }
}

fn scheduler(api: &Api, stats: &stats::Scheduler) -> api::SchedulerFigures {
    let defaults = &api.settings.defaults;
    let average = mean(stats.wait_total, stats.dequeued_total);
    api::SchedulerFigures {
        spawn_overflow: defaults.spawn_overflow.as_str().to_owned(),
        spawn_queue_depth: stats.depth,
        max_spawn_queue: defaults.max_spawn_queue as u64,
        spawn_queue_timeout: duration(defaults.spawn_queue_timeout),
        admission_control: "serialized".to_owned(),
        spawn_queued_total: stats.queued_total,
        spawn_dequeued_total: stats.dequeued_total,
        spawn_queue_timeouts: stats.timeouts_total,
        spawn_queue_wait_count: stats.dequeued_total,
        spawn_queue_wait_total: duration(stats.wait_total),
        spawn_queue_wait_max: duration(stats.wait_max),
        spawn_queue_wait_avg: duration(average),
        spawn_queue_wait_total_ms: ms(stats.wait_total),
        spawn_queue_wait_max_ms: ms(stats.wait_max),
        spawn_queue_wait_avg_ms: ms(average),
        worker_id: stats.worker_id.clone(),
        selected_worker_id: stats.selected_worker_id.clone().unwrap_or_default(),
        eligible_workers: stats.eligible_workers,
    }
}

fn warm_pool(figures: WarmFigures) -> api::WarmPoolFigures {
    let WarmFigures { name, provider, count, ready, hits, misses, replaced, of_snapshot, oldest, error } = figures;
    api::WarmPoolFigures {
        name,
        provider,
        count,
        ready,
        oldest_ms: oldest.map(ms),
        hits_total: hits,
        misses_total: misses,
        replaced_total: replaced,
        of_snapshot_total: of_snapshot,
        error: error.map(|error| without_addresses(&error)),
    }
}

fn rate_limit(config: &RateLimitConfig, stats: stats::RateLimit) -> api::RateLimitFigures {
    api::RateLimitFigures {
        enabled: config.enabled,
        requests_per_minute: config.requests_per_minute,
        burst: config.burst,
        key_by: config.key_by.as_str().to_owned(),
        active_buckets: stats.active_buckets,
        allowed_total: stats.allowed_total,
        limited_total: stats.limited_total,
        evicted_total: stats.evicted_total,
        bucket_ttl: duration(config.bucket_ttl),
        cleanup_interval: duration(config.cleanup_interval),
    }
}

fn request_memory(stats: stats::RequestMemory) -> api::RequestMemoryFigures {
    let stats::RequestMemory { budget_bytes, used_bytes, peak_bytes, refused_total, truncated_total } = stats;
    api::RequestMemoryFigures { budget_bytes, used_bytes, peak_bytes, refused_total, truncated_total }
}

/// Returns the health of all providers. Addresses are removed from their last errors.
fn providers(api: &Api) -> Vec<api::ProviderHealth> {
    let entries = api.control.registry().entries().iter();
    let shown = entries.map(|entry| {
        let health = provider_health(entry, &entry.checked());
        api::ProviderHealth { error: health.error.as_deref().map(without_addresses), ..health }
    });
    shown.collect()
}

/// Returns `text` with every IP address in it replaced by `[address]`.
fn without_addresses(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_part_of_address) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c| !is_part_of_address(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        shown.push_str(before);
        shown.push_str(if is_address(word) { "[address]" } else { word });
        rest = after;
    }
    shown.push_str(rest);
    shown
}

fn is_part_of_address(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | ':' | '[' | ']' | '%')
}

/// Returns whether a word is an IP address, with or without a port or closing punctuation.
fn is_address(word: &str) -> bool {
    let word = word.trim_end_matches(['.', ':']);
    let bare = word.trim_start_matches('[').trim_end_matches(']');
    [word, bare].iter().any(|word| word.parse::<IpAddr>().is_ok()) || word.parse::<SocketAddr>().is_ok()
}

fn workers(stored: &Stored) -> api::WorkerFigures {
    let items = stored.workers.iter().map(|seen| api::WorkerItem {
        // A worker's hostname may be an address.
        worker: api::Worker { hostname: without_addresses(&seen.worker.hostname), ..worker(seen) },
        active_sandboxes: stored.sandboxes.by_worker.get(seen.worker.id.as_str()).copied().unwrap_or(0),
    });
    api::WorkerFigures {
        total: stored.workers.len() as u64,
        online: stored.online(),
        stale: stored.stale(),
        unhealthy: stored.unhealthy(),
        items: items.collect(),
    }
}

fn leases(stats: &LeaseCounts) -> api::LeaseFigures {
    api::LeaseFigures {
        total: stats.total(),
        active: stats.active,
        expired: stats.expired,
        by_holder: stats.by_holder.clone(),
    }
}

fn sandboxes(counts: &Counts) -> api::SandboxFigures {
    api::SandboxFigures {
        total: counts.by_state.values().sum(),
        active: counts.active,
        by_state: counts.by_state.clone(),
        by_provider: counts.by_provider.clone(),
        by_worker: counts.by_worker.clone(),
    }
}

fn events(counts: events::Counts) -> api::EventFigures {
    api::EventFigures {
        subscribers: counts.subscribers,
        history_size: counts.history_size,
        events_total: counts.events_total,
    }
}

fn operations(tallies: &[(Operation, String, OperationStats)]) -> Vec<api::OperationFigures> {
    let shown = tallies.iter().map(|(operation, provider, tally)| api::OperationFigures {
        operation: operation.as_str().to_owned(),
        provider: provider.clone(),
        success_total: tally.succeeded,
        failure_total: tally.failed,
        latency_count: tally.latency.count,
        latency_total_ms: ms(tally.latency.total),
        latency_min_ms: ms(tally.latency.min),
        latency_max_ms: ms(tally.latency.max),
        latency_avg_ms: ms(tally.latency.mean()),
    });
    shown.collect()
}

#[cfg(test)]
mod test {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_page_that_is_pointed_to_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        for (area, page) in REMEDIATION {
            assert!(root.join(page).is_file(), "{area}: {page} does not exist");
        }
        assert!(REMEDIATION.is_sorted_by(|a, b| a.0 < b.0), "areas are named once, in order");
    }

    #[test]
    fn addresses_are_taken_out_of_what_a_provider_said() {
        for (said, shown) in [
            ("cannot reach http://10.1.2.3:8080/x: refused", "cannot reach http://[address]/x: refused"),
            ("peer 192.168.0.1.", "peer [address]"),
            ("tcp [fe80::1]:7423 closed", "tcp [address] closed"),
            ("at 2001:db8::5", "at [address]"),
            ("no answer within 5 s", "no answer within 5 s"),
            ("version 1.2.3 is too old: upgrade", "version 1.2.3 is too old: upgrade"),
            ("std::error::Error", "std::error::Error"),
            ("a bad face: dead::beef", "a bad face: [address]"),
            ("größe 10.0.0.1 é", "größe [address] é"),
            ("", ""),
        ] {
            assert_eq!(without_addresses(said), shown, "{said}");
        }
    }
}
