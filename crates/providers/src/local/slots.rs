//! Slots: several users in one box.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use domain::SandboxId;
use guest_protocol::Slot;

use super::backend::Backend;
use super::boxes::Entry;
use super::builder;
use super::folder::BoxFolder;
use super::image::Image;
use super::kernel::kernel_usage;
use super::plan::{BoxPlan, Kind};
use super::{Inner, Local, measured};
use crate::{BoxStats, DiskUsage, Error, Found, Guest, KernelShare, Provider, Result, Slots, Spec, Started, disk};

/// First uid of a slot: above those that images give to people and services.
const UID_FIRST: u32 = 10_000;
/// End of the range of slot uids, below those that images give to the user `nobody`.
const UID_END: u32 = 60_000;

impl<B: Backend> Inner<B> {
    /// Makes a slot. The caller holds the lock on its box.
    async fn add(
        &self,
        host: &SandboxId,
        slot: &SandboxId,
        spec: &Spec,
        image: Option<Image>,
        entry: &Entry,
    ) -> Result<Started> {
        let (probe, _) = self.probed();
        let Some(can) = probe.can else { return Err(Error::Unavailable(probe.error.unwrap_or_default())) };
        let host_folder = self.folder(host);
        if entry.process(host_folder.pid())?.is_none_or(|process| process.has_ended()) {
            return Err(Error::Gone);
        }
        if spec.snapshot.is_some() {
            return Err(Error::NotSupported("a slot is made from an image, not from a snapshot".to_owned()));
        }
        let record = host_folder.read().unwrap_or_default();
        let (true, Some(id_base), Some((host_pid, host_started))) =
            (record.holds_slots, record.id_base, host_folder.pid())
        else {
            return Err(Error::Invalid("the box was not made to hold slots".to_owned()));
        };
        let folder = host_folder.slot(slot);
        let own = self.slots.entry(slot);
        if folder.exists() {
            if self.guest(&own, &folder).await.is_ok() {
                return Ok(Started { phases: Vec::new() });
            }
            self.clear_slot(slot, &folder).await?;
        }
        host_folder.make_slots().map_err(|error| disk::refused("make a slot", error))?;
        let image = if image.is_some() { image } else { self.take_image(spec).await? };
        let uid = free_uid(&host_folder).map_err(|error| Error::failed("make a slot", error))?;
        let kind = Kind::Slot { host: host.clone(), id_base, slot: Slot { host_pid, host_started, uid } };
        let plan = BoxPlan { id: slot, spec, folder, kind, can, image: image.as_ref(), snapshot: None };
        match builder::make(&self.backend, &plan).await {
            Ok(made) => {
                let own = self.slots.entry(slot);
                own.hold(image.filter(|_| !B::COPIES_IMAGE).map(|image| image.held));
                // The first process is a child of the box's own, whose agent reaps it.
                own.keep(Arc::new(made.process), made.guest).await;
                Ok(Started { phases: made.phases })
            }
            Err(error) => {
                if let Err(remains) = self.clear_slot(slot, &plan.folder).await {
                    tracing::warn!(id = %slot, error = %remains, "cannot remove the remains of a slot that could not \
                        be made");
                }
                Err(error)
            }
        }
    }

    /// Ends and removes a slot, if there is one. The caller holds the lock on its box.
    async fn clear_slot(&self, slot: &SandboxId, folder: &BoxFolder) -> Result<()> {
        self.clear(&self.slots.entry(slot), folder).await?;
        self.slots.forget(slot);
        Ok(())
    }

    /// Lists the slots of a box. Blocks.
    fn list_slots(&self, host: &BoxFolder) -> std::io::Result<Vec<Found>> {
        let slots = host.slots()?.into_iter();
        Ok(slots.map(|(id, folder)| Found { alive: self.slot_runs(&id, &folder), id }).collect())
    }

    /// Returns whether the first process of a slot runs.
    fn slot_runs(&self, slot: &SandboxId, folder: &BoxFolder) -> bool {
        let process = self.slots.entry(slot).process(folder.pid());
        process.is_ok_and(|process| process.is_some_and(|process| !process.has_ended()))
    }
}

/// Returns a uid that no other slot of the box has.
fn free_uid(host: &BoxFolder) -> std::io::Result<u32> {
    let slots = host.slots()?;
    let used: HashSet<u32> = slots.iter().filter_map(|(_, folder)| folder.read()?.slot_uid).collect();
    let free = (UID_FIRST..UID_END).find(|uid| !used.contains(uid));
    free.ok_or_else(|| std::io::Error::other("every user id of the box is in use"))
}

#[async_trait]
impl<B: Backend> Slots for Local<B> {
    async fn start_host(&self, host: &SandboxId, spec: &Spec) -> Result<Started> {
        self.make(host, spec, Kind::Host).await
    }

    async fn add(&self, host: &SandboxId, slot: &SandboxId, spec: &Spec) -> Result<Started> {
        self.check(spec)?;
        let inner = Arc::clone(&self.inner);
        let host = host.clone();
        let slot = slot.clone();
        let spec = spec.clone();
        let image = if inner.folder(&host).slot(&slot).exists() { None } else { inner.take_image(&spec).await? };
        // Taken here and not in the task, as at the start of a box.
        let (entry, change) = inner.boxes.change(&host).await;
        let work = async move {
            let _change = change;
            let added = inner.add(&host, &slot, &spec, image, &entry).await;
            if !inner.folder(&host).exists() {
                inner.boxes.forget(&host);
            }
            added
        };
        self.tracked(work, "make a slot").await
    }

    async fn remove(&self, host: &SandboxId, slot: &SandboxId) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let host = host.clone();
        let slot = slot.clone();
        let work = async move {
            let folder = inner.folder(&host);
            let (_entry, _change) = inner.boxes.change(&host).await;
            let removed = inner.clear_slot(&slot, &folder.slot(&slot)).await;
            if !folder.exists() {
                inner.boxes.forget(&host);
            }
            removed
        };
        self.tracked(work, "remove a slot").await
    }

    async fn list(&self, host: &SandboxId) -> Result<Vec<Found>> {
        let folder = self.inner.folder(host);
        self.listed(move |inner| inner.list_slots(&folder), "list the slots").await
    }

    async fn slot_guest(&self, host: &SandboxId, slot: &SandboxId) -> Result<Arc<dyn Guest>> {
        let folder = self.inner.folder(host).slot(slot);
        if !folder.exists() {
            return Err(Error::Gone);
        }
        self.inner.guest(&self.inner.slots.entry(slot), &folder).await
    }

    async fn slot_disk_usage(&self, host: &SandboxId, slot: &SandboxId) -> Option<DiskUsage> {
        self.inner.disk_usage(self.inner.folder(host).slot(slot)).await
    }

    async fn slot_kernel_usage(&self, host: &SandboxId, slot: &SandboxId, share: KernelShare) -> Option<u64> {
        kernel_usage(self.inner.folder(host).slot(slot).pid()?.0, share).await
    }

    async fn slot_stats(&self, host: &SandboxId, slots: &[SandboxId]) -> Result<Vec<BoxStats>> {
        let host = self.inner.folder(host);
        measured(slots.iter().map(|slot| host.slot(slot)).collect()).await
    }
}
