//! Disk space for another box.

use host_disk::Room;
use providers::{Provider, Spec};

use super::error::{Error, Result};
use super::runtime::Offer;
use super::service::Control;

impl Control {
    /// Returns whether this server has disk space for a box.
    ///
    /// # Errors
    /// The reason, if it has none and no other worker has the provider.
    pub(super) fn has_room(&self, offer: &Offer, spec: &Spec) -> Result<bool> {
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
        let Some(disk) = provider.disk() else { return Ok(()) };
        // If the disk cannot be read, making the box fails in the provider.
        let Ok(Room { bytes, entries }) = Room::of(&disk.dir) else { return Ok(()) };
        let (name, reserve) = (provider.name(), self.policy.reserve_disk_bytes);
        if bytes < reserve {
            return Err(Error::Full(format!(
                "the disk with the boxes of `{name}` has {} MiB left, and `limits.reserve_disk_mb` keeps {} MiB free; \
                 destroy sandboxes or make room on it",
                bytes >> 20,
                reserve >> 20
            )));
        }
        if let Some(left) = entries.filter(|left| *left < self.policy.reserve_inodes) {
            return Err(Error::Full(format!(
                "the disk with the boxes of `{name}` has {left} inodes left, and `limits.reserve_inodes` keeps {} free; \
                 destroy sandboxes or remove files from it",
                self.policy.reserve_inodes
            )));
        }
        let beyond = (bytes - reserve) >> 20;
        if disk.holds_bounded && u64::from(disk_mb) > beyond {
            return Err(Error::LimitReached(format!(
                "`disk_mb` is {disk_mb}, and the disk with the boxes of `{name}` has {beyond} MiB beyond what \
                 `limits.reserve_disk_mb` keeps free; ask for at most {beyond}"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use domain::{SizeOptions, SpawnOptions};

    use super::*;
    use crate::control::{Policy, SpawnRequest};
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
        assert!(matches!(&refused, Error::LimitReached(text) if text.contains("ask for at most")), "{refused}");
        app.control.spawn(sized(too_much / 3)).await.unwrap();
        assert_eq!(app.control.store().counts().await.unwrap().by_state.get("failed"), None, "nothing was written");
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
            assert!(matches!(&refused, Error::Full(text) if text.contains(key)), "{refused}");
        }
    }
}
