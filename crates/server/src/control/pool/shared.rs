//! A provider whose boxes are slots in the boxes of another provider.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{Asker, Metadata, Resources, SandboxId, Timestamp};
use providers::{
    Backend, BoxDisk, BoxStats, Chain, DiskUsage, Error, Facts, Found, Guest, Health, ImageSource, KernelShare, Phase,
    Provider, Result, Slots, Spec, Started,
};

use super::super::policy::ORPHAN_GRACE;
use store::clock::{self, Clock};
use store::{PoolHost, Store};

/// Memory for the agent of a shared box, in mebibytes.
const OWN_MEMORY_MB: u32 = 16;
/// Processes for the agent of a shared box.
const OWN_PIDS: u32 = 16;
/// Number of tries to add a slot, since a box may end between two steps.
const ATTEMPTS: usize = 2;

/// A provider that makes a slot for a sandbox with a place in a shared box, and a box for any
/// other.
pub struct SharedBoxes {
    inner: Arc<dyn Provider>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for SharedBoxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBoxes").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl SharedBoxes {
    pub fn new(inner: Arc<dyn Provider>, store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { inner, store, clock }
    }

    fn holder(&self) -> Result<&dyn Slots> {
        self.inner.slots().ok_or_else(|| {
            let missing = self.inner.facts().missing.join(" ");
            let name = self.inner.name();
            Error::NotSupported(format!(
                "the provider `{name}` cannot keep several users apart in one box, as `pool.enabled` requires. \
                 {missing}"
            ))
        })
    }

    async fn host_of(&self, id: &SandboxId) -> Result<Option<PoolHost>> {
        self.store.host_of(id).await.map_err(|error| failed("find the shared box", error))
    }

    /// Starts the box if it does not run, and then the slot.
    async fn add(&self, host: &PoolHost, id: &SandboxId, spec: &Spec) -> Result<Vec<Phase>> {
        let holder = self.holder()?;
        let mut phases = Vec::new();
        for attempt in 1..=ATTEMPTS {
            let started = holder.start_host(&host.id, &host_spec(host, spec.lifetime, spec.asker)).await?;
            sum(&mut phases, started.phases);
            match holder.add(&host.id, id, spec).await {
                Ok(added) => {
                    sum(&mut phases, added.phases);
                    break;
                }
                Err(Error::Gone) if attempt < ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
        Ok(phases)
    }

    /// Removes a slot, and its box if it was the last slot.
    async fn remove(&self, host: &PoolHost, id: &SandboxId) -> Result<()> {
        self.holder()?.remove(&host.id, id).await?;
        let closed = self.store.leave(id).await.map_err(|error| failed("release a place", error))?;
        let Some(closed) = closed else {
            follow(self.store.as_ref(), self.inner.as_ref(), &host.id, self.clock.now(), None).await;
            return Ok(());
        };
        let removed = match self.inner.stop(&closed).await {
            Ok(()) => self.store.forget_host(&closed).await.map_err(|error| failed("forget a shared box", error)),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            // The slot is gone; the reconciler removes the closed box.
            tracing::warn!(id = %closed, error = %Chain(&error), "cannot remove an empty box; retrying later");
        }
        Ok(())
    }
}

/// Sets the expiry of the box to that of its longest slot, or to `at_least` if that is later. A
/// box that does not answer is left to the reconciler.
pub(super) async fn follow(
    store: &dyn Store,
    provider: &dyn Provider,
    host: &SandboxId,
    now: Timestamp,
    at_least: Option<Timestamp>,
) {
    let published = async {
        let stored =
            store.host_expires_at(host).await.map_err(|error| failed("read a shared box's deadline", error))?;
        let Some(last) = stored.max(at_least) else { return Ok(()) };
        let left = clock::between(now, last);
        provider.guest(host).await?.set_deadline(left + ORPHAN_GRACE).await
    };
    if let Err(error) = published.await {
        tracing::debug!(%host, error = %Chain(&error), "cannot set the deadline of a shared box");
    }
}

fn failed(action: &'static str, error: store::Error) -> Error {
    Error::failed(action, error)
}

/// Returns the spec of a box for all of its slots. Its processors are shared, and no more than
/// the host has.
fn host_spec(host: &PoolHost, lifetime: Duration, asker: Option<Asker>) -> Spec {
    let one = host.resources;
    let all = |value: u32, own: u32| value.saturating_mul(host.places).saturating_add(own);
    let machine = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let machine = u32::try_from(machine).unwrap_or(u32::MAX);
    Spec {
        image: host.image.clone(),
        resources: Resources {
            memory_mb: all(one.memory_mb, OWN_MEMORY_MB),
            vcpus: all(one.vcpus, 0).min(machine).max(one.vcpus),
            // Each slot has its own bound, if any.
            disk_mb: 0,
            pids: all(one.pids, OWN_PIDS),
        },
        entrypoint: false,
        metadata: Metadata::default(),
        lifetime,
        trust: None,
        snapshot: None,
        is_copy: false,
        // Each slot has its own.
        egress: Vec::new(),
        asker,
    }
}

/// Adds the durations of `more` to the phases of the same name.
fn sum(phases: &mut Vec<Phase>, more: Vec<Phase>) {
    for phase in more {
        match phases.iter_mut().find(|known| known.name == phase.name) {
            Some(known) => known.took += phase.took,
            None => phases.push(phase),
        }
    }
}

#[async_trait]
impl Provider for SharedBoxes {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn facts(&self) -> Facts {
        self.inner.facts()
    }

    async fn health(&self) -> Health {
        self.inner.health().await
    }

    fn backend(&self) -> Option<Backend> {
        self.inner.backend()
    }

    fn default_image(&self) -> &str {
        self.inner.default_image()
    }

    fn images(&self) -> Option<&dyn ImageSource> {
        self.inner.images()
    }

    fn check(&self, spec: &Spec) -> Result<()> {
        self.holder()?;
        if spec.entrypoint {
            return Err(Error::NotSupported(
                "`entrypoint` starts one program for a whole box, which several users share while `pool.enabled` is \
                 true; leave it out and start the program with an exec"
                    .to_owned(),
            ));
        }
        self.inner.check(spec)
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started> {
        let Some(host) = self.host_of(id).await? else { return self.inner.start(id, spec).await };
        match self.add(&host, id, spec).await {
            Ok(phases) => {
                follow(self.store.as_ref(), self.inner.as_ref(), &host.id, self.clock.now(), None).await;
                Ok(Started { phases })
            }
            Err(error) => {
                if let Err(left) = self.remove(&host, id).await {
                    tracing::warn!(%id, error = %Chain(&left), "cannot release a slot; retrying later");
                }
                Err(error)
            }
        }
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        match self.host_of(id).await? {
            Some(host) => self.remove(&host, id).await,
            None => self.inner.stop(id).await,
        }
    }

    /// Lists slots instead of the boxes that hold them.
    async fn inventory(&self) -> Result<Vec<Found>> {
        let mut found = self.inner.inventory().await?;
        // Read after the inventory: a box has its row before it exists.
        let hosts = self.store.pool_hosts().await.map_err(|error| failed("list the shared boxes", error))?;
        found.retain(|found| hosts.iter().all(|host| host.id != found.id));
        for host in hosts.iter().filter(|host| host.provider == self.name()) {
            found.extend(self.holder()?.list(&host.id).await?);
        }
        Ok(found)
    }

    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        match self.host_of(id).await? {
            Some(host) => self.holder()?.slot_guest(&host.id, id).await,
            None => self.inner.guest(id).await,
        }
    }

    fn disk(&self) -> Option<BoxDisk> {
        self.inner.disk()
    }

    async fn disk_usage(&self, id: &SandboxId) -> Option<DiskUsage> {
        match self.host_of(id).await.ok()? {
            Some(host) => self.inner.slots()?.slot_disk_usage(&host.id, id).await,
            None => self.inner.disk_usage(id).await,
        }
    }

    async fn kernel_usage(&self, id: &SandboxId, share: KernelShare) -> Option<u64> {
        match self.host_of(id).await.ok()? {
            Some(host) => self.inner.slots()?.slot_kernel_usage(&host.id, id, share).await,
            None => self.inner.kernel_usage(id, share).await,
        }
    }

    /// Measures slots by their boxes, and what is no slot at once.
    async fn stats(&self, ids: &[SandboxId]) -> Result<Vec<BoxStats>> {
        let mut by_host: BTreeMap<Option<SandboxId>, Vec<SandboxId>> = BTreeMap::new();
        for id in ids {
            let host = self.host_of(id).await?.map(|host| host.id);
            by_host.entry(host).or_default().push(id.clone());
        }
        let mut found: BTreeMap<SandboxId, BoxStats> = BTreeMap::new();
        for (host, of_host) in by_host {
            let stats = match &host {
                Some(host) => self.holder()?.slot_stats(host, &of_host).await?,
                None => self.inner.stats(&of_host).await?,
            };
            found.extend(of_host.into_iter().zip(stats));
        }
        Ok(ids.iter().map(|id| found.get(id).copied().unwrap_or_default()).collect())
    }

    async fn idle(&self) {
        self.inner.idle().await;
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_box_has_room_for_all_its_slots_and_for_itself() {
        let resources = Resources { memory_mb: 100, vcpus: 64, disk_mb: 50, pids: 10 };
        let host = PoolHost {
            id: SandboxId::from_entropy([1; 10]),
            is_open: true,
            provider: "mock".to_owned(),
            image: "host".to_owned(),
            resources,
            places: 3,
        };
        let size = host_spec(&host, Duration::from_secs(1), None).resources;
        assert!(size.memory_mb > 300 && size.pids > 30 && size.disk_mb == 0, "{size:?}");
        assert!(size.vcpus >= 64, "each may have what it was promised: {size:?}");
    }

    #[test]
    fn what_took_how_long_is_added_up_by_name() {
        let phase = |name, ms| Phase { name, took: Duration::from_millis(ms) };
        let mut phases = vec![phase("box", 1), phase("agent", 2)];
        sum(&mut phases, vec![phase("box", 4), phase("image", 8)]);
        assert_eq!(phases, [phase("box", 5), phase("agent", 2), phase("image", 8)]);
    }
}
