//! Boxes in virtual machines of their own, made with Firecracker.
//!
//! Each box is one process of Firecracker with a guest kernel, the files of its image on a drive that
//! all boxes of the image read, and a drive of its own for what it changes. It has no network card: the
//! agent in it is reached over the machine's vsock, and everything that goes in or out of the box goes
//! through the agent, as on every provider.
//!
//! With a server that is root, the process runs in Firecracker's jailer: as a user of the host that the
//! box has for itself, in a root and a pid namespace of its own.

mod agent_stream;
mod backend;
mod console;
mod drive_rate;
mod drives;
mod host;
mod image_files;
mod machine;
mod saved;
mod sealed;
mod suspend;
mod templates;
mod vmm;
mod work_dir;

use std::path::{PathBuf, absolute};
use std::sync::Arc;
use std::time::Duration;

use domain::StoreId;
use images::Images;
use parking_lot::RwLock;

use crate::local::Local;
use crate::local::backend::Backend;
use crate::local::cgroup::Cgroups;
use crate::local::fault::not_opened;
use crate::local::folder::Folders;
use crate::local::ids::{IDS_PER_BOX, IdPool};
use crate::local::parts::Parts;
use crate::{Error, Result};

use backend::FirecrackerBackend;
pub use drive_rate::DriveRate;
use drives::Drives;
use host::Programs;
use image_files::ImageFiles;
use saved::Checks;
use templates::Templates;

/// Name of this provider.
pub const NAME: &str = FirecrackerBackend::NAME;
/// Image of a spawn that names none.
pub(crate) const DEFAULT_IMAGE: &str = FirecrackerBackend::DEFAULT_IMAGE;
/// Start of the default range of ids, above those of `native` and `proot`.
const IDS_FIRST: u32 = 0x8000_0000;
const BOXES_MAX: u32 = 8192;

/// Provider of boxes in virtual machines. Clones share one state.
pub type Firecracker = Local<FirecrackerBackend>;

/// Configuration of the provider.
#[derive(Debug, Clone)]
pub struct FirecrackerConfig {
    /// Program `firecracker`: a path, or a name to look for in `PATH`.
    pub binary: PathBuf,
    /// Kernel of the guests: an uncompressed ELF file, or one that a distribution installed.
    pub kernel: Option<PathBuf>,
    /// Folder of the kernel's modules; `None` for the one of its release.
    pub modules: Option<PathBuf>,
    /// True to run the machines in the jailer, which takes a server that is root; `None` where it is.
    pub jailed: Option<bool>,
    /// Program `jailer`: a path, or a name to look for in `PATH`.
    pub jailer: PathBuf,
    /// Limit for a guest to boot.
    pub boot_timeout: Duration,
    /// Limit on what each drive of a box reads and writes in a second.
    pub drive_rate: DriveRate,
    /// Most mebibytes that snapshots of images may take on disk; 0 for none, so that every machine boots.
    pub image_snapshots_mb: u64,
    /// Parent of the folder `firecracker`, which holds everything that the provider keeps on disk.
    pub data_dir: PathBuf,
    /// Store that the boxes belong to.
    pub store_id: StoreId,
    /// Control group below which the machines get theirs; `None` for the server's own.
    pub cgroup_parent: Option<String>,
    /// First id and count of the host's ids that boxes may have if the server is root, 65,536 for
    /// each although it uses one; `None` for a range far above those of people, services and the
    /// other providers.
    pub subids: Option<(u32, u32)>,
    /// Source of images; `None` for a provider that only probes its host.
    pub images: Option<Images>,
}

impl Firecracker {
    /// Sets the provider up: makes its folders, finds the boxes that an earlier server left, prepares
    /// the guest kernel, and boots a machine to probe the host. A failed probe is no error;
    /// [`crate::Provider::health`] reports it. Takes a second or more, and must be called within a
    /// runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`] for ids that cannot hold a box, and for a jailer without root;
    /// [`Error::Failed`] if the data folder cannot be written.
    pub async fn open(config: FirecrackerConfig) -> Result<Firecracker> {
        let is_root = rustix::process::geteuid().is_root();
        let jailed = config.jailed.unwrap_or(is_root);
        if jailed && !is_root {
            return Err(Error::Invalid(
                "providers.firecracker.jailer.enabled is true, but the jailer needs a server that runs as root: run \
                 it as root, or write false"
                    .to_owned(),
            ));
        }
        let default_ids = (IDS_FIRST, BOXES_MAX * IDS_PER_BOX);
        let ids = jailed.then(|| IdPool::new(config.subids.or(Some(default_ids)), &config.store_id)).transpose()?;
        let base = absolute(config.data_dir.join(NAME)).map_err(not_opened)?;
        let folders = Folders::make(base.clone(), 0o700).map_err(not_opened)?;
        let image_files = ImageFiles::open(base.join("images")).map_err(not_opened)?;
        let drives = Drives::open(base.join("drives"), config.drive_rate).map_err(not_opened)?;
        let templates = Templates::open(base.join("templates"), config.image_snapshots_mb.saturating_mul(1 << 20));
        let templates = Arc::new(templates.map_err(not_opened)?);
        let parts = Parts::new(folders, ids, config.images)?;
        let cgroups = Cgroups::open(config.cgroup_parent.as_deref(), &config.store_id);
        let programs = Programs {
            firecracker: config.binary,
            jailer: jailed.then_some(config.jailer),
            kernel: config.kernel,
            modules: config.modules,
            prepared: base.join("kernels"),
        };
        Local::resume(FirecrackerBackend {
            parts,
            cgroups,
            programs,
            found: RwLock::default(),
            image_files,
            drives,
            templates,
            checks: Checks::default(),
            jailed,
            boot_timeout: config.boot_timeout,
        })
        .await
    }
}
