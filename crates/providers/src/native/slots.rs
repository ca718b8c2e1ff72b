//! Slots: several users in one box.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use domain::SandboxId;
use guest_protocol::Slot;

use super::builder::{BoxPlan, Kind};
use super::image::Image;
use super::record::BoxFolder;
use super::{Inner, Native};
use crate::disk::refused;
use crate::local::boxes::Entry;
use crate::local::kernel::kernel_usage;
use crate::{DiskUsage, Error, Found, Guest, KernelShare, Provider, Result, Slots, Spec, Started};

/// First uid of a slot: above those that images give to people and services.
const UID_FIRST: u32 = 10_000;
/// End of the range of slot uids, below those that images give to the user `nobody`.
const UID_END: u32 = 60_000;

impl Inner {
    /// Makes a slot. The caller holds the lock on its box.
    async fn add(
        &self,
        host: &SandboxId,
        slot: &SandboxId,
        spec: &Spec,
        image: Option<Image>,
        entry: &Entry,
    ) -> Result<Started> {
        let (allowed, _) = self.host();
        let Some(can) = allowed.can else { return Err(Error::Unavailable(allowed.error.unwrap_or_default())) };
        let host_folder = self.maker.folders.of(host);
        if entry.process(host_folder.pid())?.is_none_or(|process| process.has_ended()) {
            return Err(Error::Gone);
        }
        let record = host_folder.read().unwrap_or_default();
        let (true, Some(id_base), Some((host_pid, host_started))) =
            (record.holds_slots, record.id_base, host_folder.pid())
        else {
            return Err(Error::Invalid("the box was not made to hold slots".to_owned()));
        };
        let failed = |error: std::io::Error| Error::failed("make a slot", error);
        let folder = host_folder.slot(slot);
        let own = self.slots.entry(slot);
        if folder.exists() {
            if self.guest(&own, &folder).await.is_ok() {
                return Ok(Started { phases: Vec::new() });
            }
            self.clear_slot(slot, &folder).await?;
        }
        host_folder.make_slots().map_err(|error| refused("make a slot", error))?;
        let image = if image.is_some() { image } else { self.take_image(spec).await? };
        let uid = free_uid(&host_folder).map_err(failed)?;
        let what = BoxPlan {
            cgroups: self.maker.cgroups.of_slot(host, slot),
            kind: Kind::Slot { id_base, slot: Slot { host_pid, host_started, uid } },
            resources: &spec.resources,
            lifetime: spec.lifetime,
            can,
            folder,
            image: image.as_ref(),
        };
        match self.maker.make(&what).await {
            Ok(made) => {
                // The first process is a child of the box's own, whose agent reaps it.
                let took = image.as_ref().map(Image::phase);
                let own = self.slots.entry(slot);
                own.hold(image.map(|image| image.held));
                own.set_process(Arc::new(made.process));
                *own.guest.lock().await = Some(Arc::new(made.guest));
                Ok(Started { phases: took.into_iter().chain(made.phases).collect() })
            }
            Err(error) => {
                if let Err(remains) = self.clear_slot(slot, &what.folder).await {
                    tracing::warn!(id = %slot, error = %remains, "what is left of a slot that could not be made cannot be removed");
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
}

/// Returns a uid that no other slot of the box has.
fn free_uid(host: &BoxFolder) -> std::io::Result<u32> {
    let slots = host.slots()?;
    let used: HashSet<u32> = slots.iter().filter_map(|(_, folder)| folder.read()?.slot_uid).collect();
    let free = (UID_FIRST..UID_END).find(|uid| !used.contains(uid));
    free.ok_or_else(|| std::io::Error::other("every user of the box has a slot"))
}

#[async_trait]
impl Slots for Native {
    async fn start_host(&self, host: &SandboxId, spec: &Spec) -> Result<Started> {
        self.make(host, spec, Kind::Host).await
    }

    async fn add(&self, host: &SandboxId, slot: &SandboxId, spec: &Spec) -> Result<Started> {
        self.check(spec)?;
        let (inner, host, slot, spec) = (Arc::clone(&self.inner), host.clone(), slot.clone(), spec.clone());
        let image =
            if inner.maker.folders.of(&host).slot(&slot).exists() { None } else { inner.take_image(&spec).await? };
        // Taken here and not in the task, as at the start of a box.
        let (entry, change) = inner.boxes.change(&host).await;
        let work = async move {
            let _change = change;
            let added = inner.add(&host, &slot, &spec, image, &entry).await;
            if !inner.maker.folders.of(&host).exists() {
                inner.boxes.forget(&host);
            }
            added
        };
        self.tracked(work, "make a slot").await
    }

    async fn remove(&self, host: &SandboxId, slot: &SandboxId) -> Result<()> {
        let (inner, host, slot) = (Arc::clone(&self.inner), host.clone(), slot.clone());
        let work = async move {
            let folder = inner.maker.folders.of(&host);
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
        let (inner, folder) = (Arc::clone(&self.inner), self.inner.maker.folders.of(host));
        let list = move || -> std::io::Result<Vec<Found>> {
            let alive = |id: &SandboxId, folder: &BoxFolder| {
                let process = inner.slots.entry(id).process(folder.pid());
                process.is_ok_and(|process| process.is_some_and(|process| !process.has_ended()))
            };
            Ok(folder.slots()?.into_iter().map(|(id, folder)| Found { alive: alive(&id, &folder), id }).collect())
        };
        let listed = tokio::task::spawn_blocking(list).await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        listed.map_err(|error| Error::failed("list the slots", error))
    }

    async fn slot_guest(&self, host: &SandboxId, slot: &SandboxId) -> Result<Arc<dyn Guest>> {
        let folder = self.inner.maker.folders.of(host).slot(slot);
        if !folder.exists() {
            return Err(Error::Gone);
        }
        self.inner.guest(&self.inner.slots.entry(slot), &folder).await
    }

    async fn slot_disk_usage(&self, host: &SandboxId, slot: &SandboxId) -> Option<DiskUsage> {
        self.inner.disk_usage(self.inner.maker.folders.of(host).slot(slot)).await
    }

    async fn slot_kernel_usage(&self, host: &SandboxId, slot: &SandboxId, share: KernelShare) -> Option<u64> {
        kernel_usage(self.inner.maker.folders.of(host).slot(slot).pid()?.0, share).await
    }
}
