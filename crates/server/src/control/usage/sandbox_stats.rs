//! Resources that sandboxes use.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use domain::{OwnerId, Resources, SandboxId, State, Timestamp, WorkerId};
use futures_util::{StreamExt, stream};
use providers::{BoxStats, Chain, EgressBytes, LimitKind, Provider};

use super::samples::{Load, Look};
use crate::control::error::Result;
use crate::control::service::Control;
use crate::control::workers::box_host::BoxHost;
use store::clock;
use store::{ListFilter, Sandbox};

/// Rows that are read from the store at once.
const ROWS: u32 = 100;
/// Most runtimes that are asked at once.
const ASKED_MAX: usize = 16;
/// Longest wait for the answer of a runtime about all its boxes.
const LOOK_WAIT: Duration = Duration::from_secs(2);
/// Longest wait for the turn to measure a disk.
const DISK_WAIT: Duration = Duration::from_secs(2);

/// Resources that a sandbox uses, and its limits. What cannot be measured is absent.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxStats {
    pub id: SandboxId,
    pub provider: String,
    pub at: Timestamp,
    /// Time since the spawn was requested.
    pub uptime: Duration,
    pub used: BoxStats,
    pub load: Option<Load>,
    pub limits: StatLimits,
}

/// Limits of a sandbox that something enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatLimits {
    pub vcpus: Option<u32>,
    pub memory_mb: Option<u32>,
    pub pids: Option<u32>,
    pub disk_mb: Option<u32>,
}

/// Sums over sandboxes of one provider.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StatTotals {
    /// Sandboxes of which anything is known.
    pub measured: u64,
    pub processors: f64,
    pub memory_bytes: u64,
    pub processes: u64,
}

/// A running sandbox to look at.
struct Target {
    id: SandboxId,
    provider: String,
    resources: Resources,
    created_at: Timestamp,
}

impl Control {
    /// Returns the resources that a running sandbox uses, with its disk.
    ///
    /// # Errors
    /// [`crate::control::Error::Conflict`] if it does not run.
    pub async fn stats_of(&self, id: &str) -> Result<SandboxStats> {
        let sandbox = self.living(id).await?;
        let runtime = self.runtime_of(&sandbox).await?;
        let used = runtime.stats(std::slice::from_ref(&sandbox.id)).await;
        let used = used.map_err(|error| self.guest_error(&sandbox, error))?.pop().unwrap_or_default();
        let target = Target::of(&sandbox);
        let look = self.samples.keep(&target.id, used, self.age(&target), Instant::now());
        let mut stats = self.stats_from(&target, self.host_of(&sandbox), look, runtime.as_ref());
        if stats.used.disk_bytes.is_none() {
            stats.used.disk_bytes = self.disk_of(&sandbox.id, runtime.as_ref()).await;
        }
        Ok(stats)
    }

    /// Returns the resources that the running sandboxes use which match and belong to `user`, newest
    /// first, without their disks. A runtime that does not answer in time leaves all of them absent.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn stats_of_all(&self, user: Option<OwnerId>, filter: ListFilter) -> Result<Vec<SandboxStats>> {
        let mut filter = ListFilter { state: Some(State::Running), limit: Some(ROWS), after: None, ..filter };
        // By worker and provider; the worker's client is chosen by any of its sandboxes.
        let mut groups: BTreeMap<(WorkerId, String), (Sandbox, Vec<Target>)> = BTreeMap::new();
        loop {
            let page = self.sandboxes_known_to(user.clone(), filter.clone()).await?;
            for sandbox in page.sandboxes {
                let target = Target::of(&sandbox);
                let key = (sandbox.worker.clone(), sandbox.provider.clone());
                groups.entry(key).or_insert_with(|| (sandbox, Vec::new())).1.push(target);
            }
            filter.after = page.next;
            if filter.after.is_none() {
                break;
            }
        }
        let looks = groups.into_values().map(|(one, targets)| self.look_at(one, targets));
        let found: Vec<Vec<(Timestamp, SandboxStats)>> =
            stream::iter(looks).buffer_unordered(ASKED_MAX).collect().await;
        let mut found: Vec<(Timestamp, SandboxStats)> = found.into_iter().flatten().collect();
        found.sort_by(|(a, of_a), (b, of_b)| b.cmp(a).then_with(|| of_a.id.as_str().cmp(of_b.id.as_str())));
        Ok(found.into_iter().map(|(_, stats)| stats).collect())
    }

    /// Looks at the sandboxes of one runtime; `one` is one of them.
    async fn look_at(&self, one: Sandbox, targets: Vec<Target>) -> Vec<(Timestamp, SandboxStats)> {
        let runtime = match self.runtime_of(&one).await {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::debug!(provider = one.provider, worker = %one.worker, error = %Chain(&error), "cannot reach sandboxes");
                return Vec::new();
            }
        };
        let now = Instant::now();
        let stale = targets.iter().filter(|target| self.samples.fresh(&target.id, now).is_none());
        let stale: Vec<SandboxId> = stale.map(|target| target.id.clone()).collect();
        let mut used: BTreeMap<&str, BoxStats> = BTreeMap::new();
        if !stale.is_empty() {
            match tokio::time::timeout(LOOK_WAIT, runtime.stats(&stale)).await {
                Ok(Ok(found)) => used.extend(stale.iter().map(SandboxId::as_str).zip(found)),
                Ok(Err(error)) => {
                    tracing::debug!(provider = one.provider, worker = %one.worker, error = %Chain(&error), "cannot measure sandboxes");
                }
                Err(_) => {
                    tracing::debug!(provider = one.provider, worker = %one.worker, "sandboxes were not measured in time")
                }
            }
        }
        let now = Instant::now();
        let look = |target: &Target| match used.get(target.id.as_str()) {
            Some(used) => self.samples.keep(&target.id, *used, self.age(target), now),
            None => {
                self.samples.fresh(&target.id, now).unwrap_or(Look { at: now, used: BoxStats::default(), load: None })
            }
        };
        let stats = |target: &Target| self.stats_from(target, self.host_of(&one), look(target), runtime.as_ref());
        targets.iter().map(|target| (target.created_at, stats(target))).collect()
    }

    fn age(&self, target: &Target) -> Duration {
        clock::between(target.created_at, self.now())
    }

    fn stats_from(&self, target: &Target, host: BoxHost<'_>, look: Look, runtime: &dyn Provider) -> SandboxStats {
        let mut used = look.used;
        if host == BoxHost::ThisServer {
            let counts = self.egress.counts_of(&target.id);
            used.egress = Some(EgressBytes { sent: counts.bytes_sent, received: counts.bytes_received });
        }
        let facts = runtime.facts();
        // Nothing may be known of a worker's provider yet.
        let holds = |name: &str| {
            matches!(host, BoxHost::Worker(_))
                || facts.limits.iter().any(|(limit, kind)| *limit == name && *kind != LimitKind::None)
        };
        let limit = |name: &str, value: u32| Some(value).filter(|value| *value > 0 && holds(name));
        let Resources { memory_mb, vcpus, disk_mb, pids } = target.resources;
        SandboxStats {
            id: target.id.clone(),
            provider: target.provider.clone(),
            at: self.now(),
            uptime: self.age(target),
            used,
            load: look.load,
            limits: StatLimits {
                vcpus: limit("vcpus", vcpus),
                memory_mb: limit("memory_mb", memory_mb),
                pids: limit("pids", pids),
                disk_mb: limit("disk_mb", disk_mb),
            },
        }
    }

    /// Returns the bytes that a sandbox takes of the disk; those of an earlier look if others are being
    /// measured.
    async fn disk_of(&self, id: &SandboxId, runtime: &dyn Provider) -> Option<u64> {
        if let Some(known) = self.samples.disk(id, Instant::now()) {
            return known;
        }
        let turn = tokio::time::timeout(DISK_WAIT, self.samples.disk_turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else { return self.samples.old_disk(id) };
        let begun = Instant::now();
        // Another request may have measured it meanwhile.
        if let Some(known) = self.samples.disk(id, begun) {
            return known;
        }
        let bytes = runtime.disk_usage(id).await.map(|usage| usage.bytes);
        self.samples.keep_disk(id, bytes, begun, Instant::now());
        bytes
    }
}

/// Returns sums over sandboxes, by provider.
#[must_use]
pub fn totals(all: &[SandboxStats]) -> BTreeMap<String, StatTotals> {
    let mut totals: BTreeMap<String, StatTotals> = BTreeMap::new();
    for SandboxStats { provider, used, load, .. } in all {
        let total = totals.entry(provider.clone()).or_default();
        let is_known = used.cpu.is_some() || used.memory_bytes.is_some() || used.processes.is_some();
        total.measured += u64::from(is_known);
        total.processors += load.map_or(0.0, |load| load.processors);
        total.memory_bytes += used.memory_bytes.unwrap_or(0);
        total.processes += used.processes.unwrap_or(0);
    }
    totals
}

impl Target {
    fn of(sandbox: &Sandbox) -> Target {
        Target {
            id: sandbox.id.clone(),
            provider: sandbox.provider.clone(),
            resources: sandbox.resources,
            created_at: sandbox.created_at,
        }
    }
}
