//! Boxes made directly with kernel features: namespaces, overlays, control groups, a system call
//! filter, and user and group ids that own nothing on the host. Nothing has to be installed.

mod backend;
mod capabilities;
mod cpu_share;
mod disk;
mod host;
mod host_mounts;
mod layer_copies;
mod prepared_dirs;
mod size_view;
mod snapshot;

use std::path::{PathBuf, absolute};

use domain::StoreId;
use images::Images;
use tokio::task::JoinSet;

use crate::Result;
use crate::local::Local;
use crate::local::backend::Backend;
use crate::local::cgroup::Cgroups;
use crate::local::fault::not_opened;
use crate::local::folder::Folders;
use crate::local::ids::IdPool;
use crate::local::launcher::Launchers;
use crate::local::parts::Parts;

use backend::NativeBackend;
use host_mounts::HostMounts;
use prepared_dirs::PreparedDirs;
use size_view::SizeViews;

/// Name of this provider.
pub const NAME: &str = NativeBackend::NAME;

/// Provider of boxes made with kernel features. Clones share one state.
pub type Native = Local<NativeBackend>;

/// Configuration of the provider.
#[derive(Debug, Clone)]
pub struct NativeConfig {
    /// Parent of the folder `native`, which holds everything that the provider keeps on disk.
    pub data_dir: PathBuf,
    /// Store that the boxes belong to.
    pub store_id: StoreId,
    /// Control group below which boxes get theirs, from the root of the hierarchy; `None` for the
    /// server's own.
    pub cgroup_parent: Option<String>,
    /// First id and count of the host's ids that boxes may have, 65,536 each; `None` for a
    /// range far above those of people and services. Two servers on one host should have
    /// different ranges.
    pub subids: Option<(u32, u32)>,
    /// Source of images; `None` leaves `host` only.
    pub images: Option<Images>,
    /// True to lead connections out of boxes to the agent's proxy by the kernel, so that programs
    /// need to know of none. The provider is unhealthy where that cannot be.
    pub transparent_egress: bool,
    /// True to write files of boxes to the disk when a program asks for that.
    pub fsync: bool,
}

impl Native {
    /// Sets the provider up: makes its folders, finds the boxes that an earlier server left, and
    /// makes a box to probe the host. A failed probe is no error; [`crate::Provider::health`]
    /// reports it. Takes some milliseconds, and must be called within a runtime.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for ids that cannot hold a box, [`crate::Error::Failed`] if
    /// the data folder cannot be written.
    pub async fn open(config: NativeConfig) -> Result<Native> {
        let ids = IdPool::new(config.subids, &config.store_id)?;
        let base = absolute(config.data_dir.join("native")).map_err(not_opened)?;
        let folders = Folders::make(base, 0o700).map_err(not_opened)?;
        let parts = Parts::new(folders, Some(ids), config.images)?;
        let stock = PreparedDirs::open(&parts).map_err(not_opened)?;
        let cgroups = Cgroups::open(config.cgroup_parent.as_deref(), &config.store_id);
        let mut background = JoinSet::new();
        background.spawn(cpu_share::watch(cgroups.clone()));
        let launchers = Launchers::new(parts.agent.clone(), parts.tasks.clone());
        let views = SizeViews::read(cgroups.views());
        let mounts = HostMounts::default();
        Local::resume(NativeBackend {
            parts,
            cgroups,
            stock,
            launchers,
            views,
            mounts,
            transparent: config.transparent_egress,
            fsync: config.fsync,
            _background: background,
        })
        .await
    }
}
