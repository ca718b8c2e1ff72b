//! `/metrics` as JSON, and `/metrics/prometheus`.

mod prometheus;
pub mod sample;

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;

use providers::ImageSnapshots;

use self::prometheus::{Format, Kind, MetricFamily};
use self::sample::Snapshot;
use super::wire;
use crate::VERSION;
use crate::control::ListFilter;
use crate::control::SandboxStats;
use crate::control::StatTotals;
use crate::control::Stored;
use crate::control::WarmFigures;
use crate::control::totals;
use crate::http::caller::Caller;
use crate::http::state::Api;
use crate::process::{GOOS, Usage, goarch};
use crate::stats::{RateLimit, RequestMemory, Scheduler, StoreHealth};

/// Longest wait for the resources that sandboxes use: what is not known by then is left out.
const SANDBOXES_WAIT: Duration = Duration::from_secs(3);

/// Get metrics as JSON
#[utoipa::path(get, path = "/api/v1/metrics",
    operation_id = "get_metrics", tag = "system",
    responses((status = 200, body = api::Metrics, description = "The current metrics")))]
pub async fn get(State(api): State<Api>) -> Json<api::Metrics> {
    let snapshot = Snapshot::take(&api).await;
    Json(wire::stats::metrics(&api, &snapshot))
}

/// Get metrics for Prometheus
///
/// Text format 0.0.4, or OpenMetrics 1.0.0 if `Accept` prefers it.
#[utoipa::path(get, path = "/api/v1/metrics/prometheus",
    operation_id = "get_prometheus_metrics", tag = "system",
    responses((status = 200, description = "The current metrics",
        content((String = "text/plain"), (String = "application/openmetrics-text")))))]
pub async fn prometheus(State(api): State<Api>, caller: Caller, headers: HeaderMap) -> impl IntoResponse {
    let store = api.control.store_health().await;
    let snapshot = Snapshot::take(&api).await;
    let sandboxes = Sandboxes::measure(&api).await;
    let format = Format::preferred(&headers);
    // Series of sandboxes have their ids, which a key of one owner must not show of another.
    let each_sandbox = api.settings.series_per_sandbox && caller.restricted_to().is_none();
    let text = format.write(&families(&api, &snapshot, store, &sandboxes, each_sandbox));
    ([(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")], text)
}

/// Returns every metric family. Labels name providers, workers, states and operations, and sandboxes by
/// their ids where the operator asks for it, never text that a caller chose.
fn families(
    api: &Api,
    snapshot: &Snapshot,
    store: StoreHealth,
    sandboxes: &Sandboxes,
    each_sandbox: bool,
) -> Vec<MetricFamily> {
    let mut families = service(api, snapshot, store);
    families.extend(scheduler(&snapshot.scheduler));
    families.extend(image_snapshots(api));
    families.extend(warm_pool(&api.control.warm_figures()));
    families.extend(rate_limit(&snapshot.rate_limit));
    families.extend(request_memory(&snapshot.request_memory));
    families.extend(snapshot.stored.iter().flat_map(stored));
    families.extend(operations(api, snapshot));
    families.extend(egress(api));
    families.extend(sandboxes.families(each_sandbox));
    families.extend(process(api));
    families
}

fn gauge(name: &'static str, help: &'static str, value: u64) -> MetricFamily {
    MetricFamily::new(Kind::Gauge, name, help).with(&[], value as f64)
}

fn counter(name: &'static str, help: &'static str, value: u64) -> MetricFamily {
    MetricFamily::new(Kind::Counter, name, help).with(&[], value as f64)
}

fn service(api: &Api, snapshot: &Snapshot, store: StoreHealth) -> Vec<MetricFamily> {
    let build = [("version", VERSION), ("goos", GOOS), ("goarch", goarch())];
    let memory = snapshot.memory;
    let bytes = [("allocated", memory.allocated), ("active", memory.active), ("resident", memory.resident)];
    let provider_healthy =
        MetricFamily::new(Kind::Gauge, "tidebox_provider_healthy", "1 if the provider can make sandboxes, else 0.");
    vec![
        MetricFamily::new(Kind::Info, "tidebox_build", "What runs.").with(&build, 1.0),
        MetricFamily::new(Kind::Gauge, "tidebox_uptime_seconds", "Time since the start.")
            .with(&[], snapshot.uptime.as_secs_f64()),
        provider_healthy.with_each(api.control.registry().entries(), |family, entry| {
            let default = if entry.is_default { "true" } else { "false" };
            let labels = [("provider", entry.provider.name()), ("default", default)];
            family.with(&labels, f64::from(entry.is_healthy()))
        }),
        gauge("tidebox_store_healthy", "1 if the store answers, else 0.", u64::from(store.healthy)),
        MetricFamily::new(Kind::Gauge, "tidebox_store_latency_seconds", "Duration of the latest probe of the store.")
            .with(&[], store.latency.as_secs_f64()),
        gauge(
            "tidebox_max_sandboxes",
            "Maximum number of active sandboxes; 0 means no limit.",
            api.settings.defaults.max_sandboxes,
        ),
        gauge("tidebox_tasks", "Asynchronous tasks that are alive.", snapshot.tasks),
        MetricFamily::new(Kind::Gauge, "tidebox_memory_bytes", "Memory of the allocator.")
            .with_each(bytes, |family, (kind, bytes)| family.with(&[("kind", kind)], bytes as f64)),
        gauge("tidebox_event_subscribers", "Current subscribers to events.", snapshot.events.subscribers),
        counter("tidebox_events", "Events since the start.", snapshot.events.events_total),
        counter(
            "tidebox_log_lines_dropped",
            "Log lines dropped because stderr could not accept them.",
            api.settings.process.log_lines_lost(),
        ),
    ]
}

fn scheduler(stats: &Scheduler) -> [MetricFamily; 6] {
    let wait_ms = stats.wait_total.as_secs_f64() * 1000.0;
    [
        gauge("tidebox_spawn_queue_depth", "Spawns that wait for room.", stats.depth),
        counter("tidebox_spawn_queued", "Spawns that started waiting for room.", stats.queued_total),
        counter("tidebox_spawn_dequeued", "Spawns that waited and found room.", stats.dequeued_total),
        counter("tidebox_spawn_queue_timeouts", "Spawns that waited and found no room in time.", stats.timeouts_total),
        MetricFamily::new(
            Kind::Summary,
            "tidebox_spawn_queue_wait_milliseconds",
            "Wait times of spawns that found room.",
        )
        .with_sum(&[], wait_ms, stats.dequeued_total),
        gauge("tidebox_eligible_workers", "Workers eligible for the next spawn.", stats.eligible_workers),
    ]
}

fn image_snapshots(api: &Api) -> [MetricFamily; 2] {
    let of = |kind, name, help, figure: fn(&ImageSnapshots) -> f64| {
        MetricFamily::new(kind, name, help).with_each(api.control.registry().entries(), |family, entry| {
            match entry.provider.image_snapshots() {
                Some(taken) => family.with(&[("provider", entry.provider.name())], figure(&taken)),
                None => family,
            }
        })
    };
    [
        of(Kind::Gauge, "tidebox_image_snapshots", "Snapshots of images that boxes are made from.", |taken| {
            taken.snapshots.len() as f64
        }),
        of(
            Kind::Counter,
            "tidebox_image_snapshot_fallbacks",
            "Boxes that booted because a snapshot failed.",
            |taken| taken.fallbacks as f64,
        ),
    ]
}

fn warm_pool(entries: &[WarmFigures]) -> [MetricFamily; 6] {
    let of = |kind, name, help, value: fn(&WarmFigures) -> f64| {
        MetricFamily::new(kind, name, help)
            .with_each(entries, |family, entry| family.with(&[("entry", entry.name.as_str())], value(entry)))
    };
    [
        of(Kind::Gauge, "tidebox_warm_pool_wanted", "Number of boxes to keep ready.", |entry| entry.count as f64),
        of(Kind::Gauge, "tidebox_warm_pool_ready", "Number of boxes that are ready.", |entry| entry.ready as f64),
        MetricFamily::new(Kind::Counter, "tidebox_warm_pool_spawns", "Spawns that took or missed a ready box.")
            .with_each(entries, |family, WarmFigures { name, hits, misses, .. }| {
                let entry = ("entry", name.as_str());
                family
                    .with(&[entry, ("outcome", "hit")], *hits as f64)
                    .with(&[entry, ("outcome", "miss")], *misses as f64)
            }),
        of(Kind::Counter, "tidebox_warm_pool_replaced", "Boxes replaced before a spawn took them.", |entry| {
            entry.replaced as f64
        }),
        of(Kind::Counter, "tidebox_warm_pool_of_snapshot", "Boxes made from the entry's snapshot.", |entry| {
            entry.of_snapshot as f64
        }),
        of(Kind::Gauge, "tidebox_warm_pool_oldest_seconds", "Age of the oldest box that is ready.", |entry| {
            entry.oldest.unwrap_or_default().as_secs_f64()
        }),
    ]
}

fn rate_limit(stats: &RateLimit) -> [MetricFamily; 4] {
    [
        counter("tidebox_rate_limit_allowed", "Requests that the rate limiter allowed.", stats.allowed_total),
        counter("tidebox_rate_limit_blocked", "Requests that the rate limiter refused.", stats.limited_total),
        counter("tidebox_rate_limit_evicted", "Callers that the rate limiter has forgotten.", stats.evicted_total),
        gauge("tidebox_rate_limit_buckets", "Callers that the rate limiter remembers.", stats.active_buckets),
    ]
}

fn request_memory(stats: &RequestMemory) -> [MetricFamily; 5] {
    [
        gauge("tidebox_memory_budget_bytes", "Memory budget of all requests.", stats.budget_bytes),
        gauge("tidebox_memory_budget_used_bytes", "Memory that requests currently hold.", stats.used_bytes),
        gauge("tidebox_memory_budget_peak_bytes", "Peak memory that requests held.", stats.peak_bytes),
        counter(
            "tidebox_memory_budget_refused",
            "Requests refused because their callers held too much memory.",
            stats.refused_total,
        ),
        counter(
            "tidebox_memory_budget_truncated",
            "Outputs truncated because their callers held too much memory.",
            stats.truncated_total,
        ),
    ]
}

fn stored(stored: &Stored) -> [MetricFamily; 6] {
    let Stored { sandboxes, quotas, workers, leases, .. } = stored;
    let of_workers = [
        ("total", workers.len() as u64),
        ("online", stored.online()),
        ("stale", stored.stale()),
        ("unhealthy", stored.unhealthy()),
    ];
    let of_leases = [("total", leases.total()), ("active", leases.active), ("expired", leases.expired)];

    [
        MetricFamily::new(Kind::Gauge, "tidebox_sandboxes_total", "Sandboxes whose rows are kept.")
            .with_each(&sandboxes.by_state, |family, (state, count)| family.with(&[("state", state)], *count as f64)),
        MetricFamily::new(Kind::Gauge, "tidebox_sandboxes_by_provider_total", "Active sandboxes that a provider runs.")
            .with_each(&sandboxes.by_provider, |family, (provider, count)| {
                family.with(&[("provider", provider)], *count as f64)
            }),
        MetricFamily::new(Kind::Gauge, "tidebox_sandboxes_by_worker_total", "Active sandboxes that a worker holds.")
            .with_each(&sandboxes.by_worker, |family, (worker, count)| {
                family.with(&[("worker", worker)], *count as f64)
            }),
        gauge("tidebox_owner_quotas_total", "Owners with a quota.", quotas.total),
        MetricFamily::new(Kind::Gauge, "tidebox_workers_total", "Workers.").with_each(of_workers, with_status),
        MetricFamily::new(Kind::Gauge, "tidebox_leases_total", "Leases.").with_each(of_leases, with_status),
    ]
}

fn with_status(family: MetricFamily, (status, count): (&str, u64)) -> MetricFamily {
    family.with(&[("status", status)], count as f64)
}

fn egress(api: &Api) -> [MetricFamily; 3] {
    let counts = api.control.egress().totals();
    let verdicts = [("allowed", counts.allowed), ("denied", counts.denied), ("failed", counts.failed)];
    let bytes = [("sent", counts.bytes_sent), ("received", counts.bytes_received)];
    [
        gauge("tidebox_egress_open_connections", "Open connections out of sandboxes.", counts.open),
        MetricFamily::new(Kind::Counter, "tidebox_egress_connections", "Connections that sandboxes requested.")
            .with_each(verdicts, |family, (verdict, count)| family.with(&[("verdict", verdict)], count as f64)),
        MetricFamily::new(Kind::Counter, "tidebox_egress_bytes", "Bytes between sandboxes and hosts.")
            .with_each(bytes, |family, (direction, count)| family.with(&[("direction", direction)], count as f64)),
    ]
}

/// Resources that the running sandboxes use.
#[derive(Debug, Default)]
struct Sandboxes(Vec<SandboxStats>);

impl Sandboxes {
    /// Looks at all sandboxes that run here or on workers; at none while the store does not answer.
    async fn measure(api: &Api) -> Self {
        let all = api.control.stats_of_all(None, ListFilter::default());
        match tokio::time::timeout(SANDBOXES_WAIT, all).await {
            Ok(Ok(all)) => Self(all),
            Ok(Err(_)) | Err(_) => Self::default(),
        }
    }

    fn families(&self, each: bool) -> Vec<MetricFamily> {
        let totals = totals(&self.0);
        let total = |name, help, value: fn(&StatTotals) -> f64| {
            MetricFamily::new(Kind::Gauge, name, help)
                .with_each(&totals, |family, (provider, total)| family.with(&[("provider", provider)], value(total)))
        };
        let mut families = vec![
            total("tidebox_sandboxes_measured", "Running sandboxes with known resource usage.", |total| {
                total.measured as f64
            }),
            total("tidebox_sandboxes_processors", "Processors that sandboxes keep busy.", |total| total.processors),
            total("tidebox_sandboxes_memory_bytes", "Memory that sandboxes use.", |total| total.memory_bytes as f64),
            total("tidebox_sandboxes_processes", "Processes and threads of sandboxes.", |total| total.processes as f64),
        ];
        if each {
            families.extend(self.each());
        }
        families
    }

    /// Returns series for each sandbox.
    fn each(&self) -> [MetricFamily; 4] {
        let of = |kind, name, help, value: fn(&SandboxStats) -> Option<f64>| {
            MetricFamily::new(kind, name, help).with_each(&self.0, |family, stats| match value(stats) {
                Some(value) => family.with(&[("sandbox", stats.id.as_str())], value),
                None => family,
            })
        };
        [
            of(Kind::Counter, "tidebox_sandbox_cpu_seconds", "Processor time of a sandbox.", |stats| {
                stats.used.cpu.map(|cpu| cpu.as_secs_f64())
            }),
            of(Kind::Gauge, "tidebox_sandbox_memory_bytes", "Memory that a sandbox uses.", |stats| {
                stats.used.memory_bytes.map(|bytes| bytes as f64)
            }),
            of(Kind::Gauge, "tidebox_sandbox_processes", "Processes and threads of a sandbox.", |stats| {
                stats.used.processes.map(|count| count as f64)
            }),
            MetricFamily::new(Kind::Counter, "tidebox_sandbox_egress_bytes", "Bytes between a sandbox and hosts.")
                .with_each(&self.0, |family, stats| {
                    let Some(bytes) = stats.used.egress else { return family };
                    let sandbox = ("sandbox", stats.id.as_str());
                    family
                        .with(&[sandbox, ("direction", "sent")], bytes.sent as f64)
                        .with(&[sandbox, ("direction", "received")], bytes.received as f64)
                }),
        ]
    }
}

fn operations(api: &Api, snapshot: &Snapshot) -> [MetricFamily; 3] {
    let tallies = &snapshot.operations;
    [
        MetricFamily::new(Kind::Counter, "tidebox_operations", "Finished operations, by outcome.").with_each(
            tallies,
            |family, (operation, provider, tally)| {
                let operation = ("operation", operation.as_str());
                let provider = ("provider", provider.as_str());
                family
                    .with(&[operation, provider, ("outcome", "success")], tally.succeeded as f64)
                    .with(&[operation, provider, ("outcome", "failure")], tally.failed as f64)
            },
        ),
        MetricFamily::new(Kind::Histogram, "tidebox_operation_duration_seconds", "Duration of operations.").with_each(
            tallies,
            |family, (operation, provider, tally)| {
                family.with_histogram(&[("operation", operation.as_str()), ("provider", provider)], &tally.latency)
            },
        ),
        MetricFamily::new(Kind::Histogram, "tidebox_spawn_phase_duration_seconds", "Duration of the phases of spawns.")
            .with_each(api.control.operations().phases(), |family, (phase, provider, times)| {
                family.with_histogram(&[("phase", phase), ("provider", &provider)], &times)
            }),
    ]
}

/// Returns metrics of the process, named as in
/// <https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>.
fn process(api: &Api) -> Vec<MetricFamily> {
    let Usage { resident_bytes, virtual_bytes, cpu, open_fds, max_fds, threads } = api.settings.process.usage();
    let gauges = [
        ("process_resident_memory_bytes", "Resident memory size in bytes.", resident_bytes),
        ("process_virtual_memory_bytes", "Virtual memory size in bytes.", virtual_bytes),
        ("process_open_fds", "Number of open file descriptors.", open_fds),
        ("process_max_fds", "Maximum number of open file descriptors.", max_fds),
        ("process_threads", "Number of OS threads.", threads),
    ];
    let mut families: Vec<MetricFamily> =
        gauges.into_iter().filter_map(|(name, help, value)| Some(gauge(name, help, value?))).collect();
    let cpu_seconds =
        MetricFamily::new(Kind::Counter, "process_cpu_seconds", "Total user and system CPU time in seconds.");
    families.extend(cpu.map(|cpu| cpu_seconds.with(&[], cpu.as_secs_f64())));
    let started = api.settings.process.started_at.as_millisecond() as f64 / 1000.0;
    let start = MetricFamily::new(Kind::Gauge, "process_start_time_seconds", "Start time since the epoch in seconds.");
    families.push(start.with(&[], started));
    families
}
