//! Several users in one box.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use domain::SandboxId;

use crate::{BoxStats, DiskUsage, Found, Guest, KernelShare, Result, Spec, Started};

/// A runtime whose boxes can be shared by users who do not trust each other.
///
/// Each user has a *slot*: its own user, mount, pid, ipc and net namespaces, a private home,
/// workspace and `/tmp`, and its own share of memory and processes. The slots of a box have in
/// common the kernel, the resources of the box, and its end.
///
/// Every implementation passes the suite in the crate `conformance`: each bullet here is tested by
/// a case there.
#[async_trait]
pub trait Slots: fmt::Debug + Send + Sync {
    /// Makes a box that holds slots. The size in `spec` is that of all its slots together.
    /// Otherwise the box is as [`crate::Provider::start`] makes it: [`crate::Provider::stop`],
    /// [`crate::Provider::inventory`] and [`Guest::set_deadline`] apply to it.
    ///
    /// - The box is listed in the inventory, and its slots are not.
    /// - Stopping the box ends its slots and removes all that they held.
    /// - A box that ends by itself ends its slots.
    async fn start_host(&self, host: &SandboxId, spec: &Spec) -> Result<Started>;

    /// Makes a slot in a box, ready for [`Slots::slot_guest`]. The size in `spec` is the slot's
    /// own share, which is at most the box's. Its lifetime is the slot's own too.
    ///
    /// - Idempotent by `slot`: a repeat finds the running slot.
    /// - On error nothing is left behind.
    /// - A box that does not exist is [`crate::Error::Gone`].
    /// - A box that [`Slots::start_host`] did not make is [`crate::Error::Invalid`].
    /// - Dropping the future leaves nothing that [`Slots::remove`] does not remove.
    async fn add(&self, host: &SandboxId, slot: &SandboxId, spec: &Spec) -> Result<Started>;

    /// Removes a slot and everything that it held.
    ///
    /// - Removing a slot that does not exist, or a slot of a box that does not exist, succeeds; so
    ///   does a repeat.
    /// - Its commands end, and those of its neighbours go on.
    async fn remove(&self, host: &SandboxId, slot: &SandboxId) -> Result<()>;

    /// Lists the slots of a box, whether or not the store has rows for them.
    ///
    /// - A slot whose first process has ended is listed as not alive until it is removed.
    /// - A box that does not exist has no slots.
    async fn list(&self, host: &SandboxId) -> Result<Vec<Found>>;

    /// Returns the inside of a slot, in which everything runs as the slot's user.
    ///
    /// - A slot that does not exist is [`crate::Error::Gone`].
    /// - Slots do not see the files and processes of each other.
    /// - Works on slots that an earlier process made, if they outlive it.
    /// - A slot ends by itself at its own deadline, and its neighbours go on.
    async fn slot_guest(&self, host: &SandboxId, slot: &SandboxId) -> Result<Arc<dyn Guest>>;

    /// Measures a slot's use of the disk; see [`crate::Provider::disk_usage`].
    async fn slot_disk_usage(&self, host: &SandboxId, slot: &SandboxId) -> Option<DiskUsage> {
        let _ = (host, slot);
        None
    }

    /// Measures the resources that slots of a box use; see [`crate::Provider::stats`].
    async fn slot_stats(&self, host: &SandboxId, slots: &[SandboxId]) -> Result<Vec<BoxStats>> {
        let _ = host;
        Ok(vec![BoxStats::default(); slots.len()])
    }

    /// Measures a slot's use of the kernel; see [`crate::Provider::kernel_usage`].
    async fn slot_kernel_usage(&self, host: &SandboxId, slot: &SandboxId, share: KernelShare) -> Option<u64> {
        let _ = (host, slot, share);
        None
    }
}
