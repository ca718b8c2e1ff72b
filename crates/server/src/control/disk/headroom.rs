//! Disk space for another box, and for what is kept of one.

use host_disk::Room;
use providers::{Provider, Spec};

use super::reservations::Reservation;
use crate::control::error::{Error, Result};
use crate::control::full::{Full, Write};
use crate::control::limit::Limit;
use crate::control::service::Control;
use crate::control::workers::placement::Offer;
use store::Sandbox;

/// Free bytes that hold what a box has in its files without a look at them.
const AMPLE_BYTES: u64 = 32 << 30;

impl Control {
    /// Returns whether this server has disk space for a box.
    ///
    /// # Errors
    /// The reason, if it has none and no other worker has the provider.
    pub(in crate::control) fn has_room(&self, offer: &Offer, spec: &Spec) -> Result<bool> {
        let Some(provider) = offer.here.as_deref() else { return Ok(false) };
        match self.check_room(provider, spec.resources.disk_mb) {
            Ok(()) => Ok(true),
            Err(_) if offer.elsewhere => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Checks that the disk of this server's `provider` has more free than its reserve, and
    /// beyond it the disk bound of the new box. Boxes fill their bound as they write, so several
    /// may have been promised the same space. If the reserve is then reached, the largest box is
    /// ended.
    ///
    /// # Errors
    /// [`Error::Full`] if the reserve is reached, [`Error::LimitReached`] with the largest bound
    /// that can be requested.
    fn check_room(&self, provider: &dyn Provider, disk_mb: u32) -> Result<()> {
        let Some(beyond) = self.room_beyond(provider)? else { return Ok(()) };
        let beyond_mb = beyond >> 20;
        if provider.disk().is_some_and(|disk| disk.holds_bounded) && u64::from(disk_mb) > beyond_mb {
            let provider = provider.name().to_owned();
            return Err(Limit::DiskBound { disk_mb, provider, max_mb: beyond_mb }.into());
        }
        Ok(())
    }

    /// Keeps room for what a sandbox has in files, and in memory if that is to be written too, on the disk of
    /// its provider: what is written counts as the disk usage of no box, and others would be ended for it. What
    /// is being written of other sandboxes counts until it is, on whichever disk. `None` if nothing is known of
    /// the disk.
    ///
    /// # Errors
    /// [`Error::Full`] if the reserve is reached, or would be.
    pub(in crate::control) async fn keep_room(
        &self,
        provider: &dyn Provider,
        sandbox: &Sandbox,
        with_files: bool,
        with_memory: bool,
    ) -> Result<Option<Reservation<'_>>> {
        let Some(beyond) = self.room_beyond(provider)? else { return Ok(None) };
        let memory = if with_memory { u64::from(sandbox.resources.memory_mb) << 20 } else { 0 };
        let (mut bytes, mut beyond) = (memory, beyond);
        if with_files {
            let bound = u64::from(sandbox.resources.disk_mb) << 20;
            // To measure many small files takes as long as to copy them.
            let likely = if bound > 0 { bound.min(AMPLE_BYTES) } else { AMPLE_BYTES };
            let ample = beyond.checked_sub(AMPLE_BYTES - likely);
            if let Some(promise) = ample.and_then(|free| self.reservations.reserve(memory.saturating_add(likely), free))
            {
                return Ok(Some(promise));
            }
            let usage = provider.disk_usage(&sandbox.id).await.unwrap_or_default();
            // What was promised before may have been written meanwhile.
            beyond = self.room_beyond(provider)?.unwrap_or(beyond);
            bytes = memory.saturating_add(if usage.is_cut { usage.bytes.max(bound) } else { usage.bytes });
        }
        self.reserve(provider, Write::State, bytes, beyond).map(Some)
    }

    /// Keeps room for the files that a box begins with, where it has a copy of them: of its snapshot, or of its
    /// image if that is here. `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Full`] if the reserve is reached, or would be.
    pub(in crate::control) async fn room_for_copy(
        &self,
        provider: &dyn Provider,
        spec: &Spec,
    ) -> Result<Option<Reservation<'_>>> {
        let Some(disk) = provider.disk() else { return Ok(None) };
        let bytes = match &spec.snapshot {
            Some(snapshot) if disk.copies_snapshot => {
                self.store.snapshot(snapshot).await?.map_or(0, |snapshot| snapshot.size_bytes)
            }
            None if disk.copies_image => {
                let images = provider.images().and_then(|images| images.store().cloned());
                images.and_then(|images| images.usage(&spec.image)).map_or(0, |usage| usage.bytes)
            }
            Some(_) | None => 0,
        };
        if bytes == 0 {
            return Ok(None);
        }
        let Some(beyond) = self.room_beyond(provider)? else { return Ok(None) };
        self.reserve(provider, Write::Copy, bytes, beyond).map(Some)
    }

    /// Reserves `bytes` for a write to the disk of `provider`, which has `beyond` bytes free beyond
    /// its reserve.
    ///
    /// # Errors
    /// [`Error::Full`] if other reservations leave less than `bytes`.
    fn reserve(&self, provider: &dyn Provider, write: Write, bytes: u64, beyond: u64) -> Result<Reservation<'_>> {
        self.reservations.reserve(bytes, beyond).ok_or_else(|| {
            Error::Full(Full::Headroom {
                provider: provider.name().to_owned(),
                write,
                needed_mb: bytes >> 20,
                free_mb: beyond >> 20,
                promised_mb: self.reservations.sum() >> 20,
            })
        })
    }

    /// Returns the bytes that the disk of this server's `provider` has free beyond its reserve; `None` if
    /// nothing is known of it.
    ///
    /// # Errors
    /// [`Error::Full`] if the reserve is reached.
    fn room_beyond(&self, provider: &dyn Provider) -> Result<Option<u64>> {
        let Some(disk) = provider.disk() else { return Ok(None) };
        // If the disk cannot be read, making the box fails in the provider.
        let Ok(Room { bytes, entries }) = Room::of(&disk.dir) else { return Ok(None) };
        let reserve = self.policy.reserve_disk_bytes;
        if bytes < reserve {
            let provider = provider.name().to_owned();
            return Err(Error::Full(Full::Space { provider, left_mb: bytes >> 20, reserve_mb: reserve >> 20 }));
        }
        if let Some(left) = entries.filter(|left| *left < self.policy.reserve_inodes) {
            let provider = provider.name().to_owned();
            return Err(Error::Full(Full::Inodes { provider, left, reserve: self.policy.reserve_inodes }));
        }
        Ok(Some(bytes - reserve))
    }
}

#[cfg(test)]
mod test {
    use domain::{SizeOptions, SpawnOptions};
    use providers::DiskUsage;

    use super::*;
    use crate::control::Policy;
    use crate::control::SpawnRequest;
    use crate::test::harness::{self, TestApp, TestProvider};

    async fn app(disk: &std::path::Path, policy: Policy) -> TestApp {
        let heavy = TestProvider::new("heavy");
        heavy.set_disk_dir(disk);
        TestApp::builder().provider(heavy).policy(policy).start().await
    }

    #[tokio::test]
    async fn a_bound_that_the_disk_cannot_hold_beyond_the_reserve_is_refused_with_the_figure() {
        let dir = tempfile::tempdir().unwrap();
        let free = Room::of(dir.path()).unwrap().bytes;
        let policy = Policy { reserve_disk_bytes: free / 2, ..harness::policy() };
        let app = app(dir.path(), policy).await;
        let sized = |disk_mb| {
            let size = SizeOptions { disk_mb: Some(disk_mb), ..SizeOptions::default() };
            SpawnRequest { options: SpawnOptions { size, ..SpawnOptions::default() }, ..SpawnRequest::default() }
        };
        let too_much = u32::try_from((free / 4 * 3) >> 20).unwrap();
        let refused = app.control.spawn(sized(too_much)).await.unwrap_err();
        assert!(matches!(&refused, Error::LimitReached(Limit::DiskBound { .. })), "{refused}");
        app.control.spawn(sized(too_much / 3)).await.unwrap();
        assert_eq!(app.control.store().counts().await.unwrap().by_state.get("failed"), None, "nothing was written");
    }

    #[tokio::test]
    async fn what_a_snapshot_or_a_pause_to_disk_would_write_has_to_fit_beyond_the_reserve() {
        let dir = tempfile::tempdir().unwrap();
        let heavy = TestProvider::new("heavy");
        heavy.set_disk_dir(dir.path());
        let free = Room::of(dir.path()).unwrap().bytes;
        // As tests beside this one take and free space, all but 16 GiB or a half of it.
        let beyond = (free / 2).min(16 << 30);
        let policy = Policy { reserve_disk_bytes: free - beyond, ..harness::policy() };
        let app = TestApp::builder().provider(heavy.clone()).policy(policy).start().await;
        let sandbox = app.control.spawn(SpawnRequest::default()).await.unwrap().sandbox;
        let keep = async |sandbox: &Sandbox, with_files, with_memory| match app
            .control
            .keep_room(heavy.as_ref(), sandbox, with_files, with_memory)
            .await
        {
            Ok(promise) => Some(promise.unwrap()),
            Err(Error::Full(Full::Headroom { write: Write::State, .. })) => None,
            Err(error) => panic!("{error:?}"),
        };
        let check =
            async |sandbox: &Sandbox, with_files, with_memory| keep(sandbox, with_files, with_memory).await.is_some();
        assert!(check(&sandbox, true, true).await);
        let mut large = sandbox.clone();
        large.resources.memory_mb = u32::MAX;
        assert!(check(&large, true, false).await);
        assert!(!check(&large, false, true).await);
        heavy.set_disk_usage(&sandbox.id, DiskUsage { bytes: free, ..DiskUsage::default() });
        assert!(!check(&sandbox, true, false).await);
        assert!(check(&sandbox, false, false).await);

        let most_of_it = DiskUsage { bytes: beyond / 8 * 5, ..DiskUsage::default() };
        heavy.set_disk_usage(&sandbox.id, most_of_it);
        let promise = keep(&sandbox, true, false).await;
        assert!(promise.is_some());
        assert!(!check(&sandbox, true, false).await, "the same bytes were promised twice");
        drop(promise);
        assert!(check(&sandbox, true, false).await);

        // Of files that cannot be counted in time, the bound on the disk counts.
        let cut = |bytes| DiskUsage { bytes, is_cut: true, ..DiskUsage::default() };
        heavy.set_disk_usage(&sandbox.id, cut(1));
        large.resources = sandbox.resources;
        large.resources.disk_mb = 1;
        assert!(check(&large, true, false).await);
        large.resources.disk_mb = u32::MAX;
        assert!(!check(&large, true, false).await);
    }

    #[tokio::test]
    async fn no_box_is_made_on_a_disk_whose_reserve_is_reached() {
        let dir = tempfile::tempdir().unwrap();
        let reserves = [(u64::MAX, 0, "limits.reserve_disk_mb"), (0, u64::MAX, "limits.reserve_inodes")];
        for (reserve_disk_bytes, reserve_inodes, key) in reserves {
            if Room::of(dir.path()).unwrap().entries.is_none() && reserve_inodes > 0 {
                continue;
            }
            let policy = Policy { reserve_disk_bytes, reserve_inodes, ..harness::policy() };
            let refused = app(dir.path(), policy).await.control.spawn(SpawnRequest::default()).await.unwrap_err();
            assert!(matches!(&refused, Error::Full(full) if full.to_string().contains(key)), "{refused}");
        }
    }
}
