//! Several users in one box.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use domain::SandboxId;

use crate::{DiskUsage, Found, Guest, KernelShare, Result, Spec, Started};

/// A runtime whose boxes can be shared by users who do not trust each other.
///
/// Each user has a *slot*: an own user, mount, pid, ipc and net namespaces, a
/// private home, workspace and `/tmp`, and an own share of memory and processes.
/// What slots of a box have in common is the kernel, the box's sum of resources,
/// and its end.
///
/// Every implementation passes [`crate::conformance`]: each bullet here is a
/// case there.
#[async_trait]
pub trait Slots: fmt::Debug + Send + Sync {
    /// Makes a box that holds slots. The size in `spec` is that of all its slots
    /// together. Otherwise it is a box as [`crate::Provider::start`] makes it, and
    /// `stop`, `inventory` and the deadline of `guest` treat it as such.
    ///
    /// - It is listed in the inventory, and its slots are not.
    /// - Stopping it ends its slots with all that they held.
    /// - A box that ends by itself ends its slots.
    async fn start_host(&self, host: &SandboxId, spec: &Spec) -> Result<Started>;

    /// Makes a slot in a box, ready for [`Slots::slot_guest`]. The size in `spec` is
    /// the slot's own share, which is not above the box's. Its lifetime is the
    /// slot's own too.
    ///
    /// - Idempotent by `slot`: a repeat finds the slot that runs.
    /// - On error nothing is left behind.
    /// - A box that is not there is [`crate::Error::Gone`].
    /// - A box that [`Slots::start_host`] did not make is [`crate::Error::Invalid`].
    /// - Dropping the future leaves nothing that [`Slots::remove`] does not remove.
    async fn add(&self, host: &SandboxId, slot: &SandboxId, spec: &Spec) -> Result<Started>;

    /// Removes a slot and everything it held.
    ///
    /// - An absent one, or one of an absent box, is a success; so is a repeat.
    /// - Its commands end, and those of its neighbours go on.
    async fn remove(&self, host: &SandboxId, slot: &SandboxId) -> Result<()>;

    /// The slots of a box, known to the store or not.
    ///
    /// - One whose first process has ended is there, not alive, until it is removed.
    /// - A box that is not there has none.
    async fn list(&self, host: &SandboxId) -> Result<Vec<Found>>;

    /// The inside of a slot: everything there happens as the slot's user.
    ///
    /// - A slot that is not there is [`crate::Error::Gone`].
    /// - Slots do not see the files and processes of each other.
    /// - Works on slots that an earlier process made, if they outlive it.
    /// - A slot ends by itself at its own deadline, and its neighbours go on.
    async fn slot_guest(&self, host: &SandboxId, slot: &SandboxId) -> Result<Arc<dyn Guest>>;

    /// Measures what a slot takes of the disk, as [`crate::Provider::disk_usage`] has it.
    async fn slot_disk_usage(&self, host: &SandboxId, slot: &SandboxId) -> Option<DiskUsage> {
        let _ = (host, slot);
        None
    }

    /// Measures what a slot takes of the kernel, as [`crate::Provider::kernel_usage`] has it.
    async fn slot_kernel_usage(&self, host: &SandboxId, slot: &SandboxId, share: KernelShare) -> Option<u64> {
        let _ = (host, slot, share);
        None
    }
}
