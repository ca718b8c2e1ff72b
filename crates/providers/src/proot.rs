//! Boxes made with the program `proot`, for hosts that allow nothing else: no root,
//! no user namespaces, no container engine.
//!
//! `PRoot` traces every process of a box and rewrites the paths of its system calls. Cooperating
//! programs then see another root and another user. It does not isolate programs that evade it:
//! see [`crate::Provider::facts`].
//!
//! With a server that is root, each box has an id of its own on the host, and the host's file
//! permissions isolate it. Elsewhere boxes run as the server's user.

mod backend;
mod host;
mod root;
mod snapshot;
mod tracer;

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use domain::StoreId;
use images::Images;

use crate::local::Local;
use crate::local::backend::Backend;
use crate::local::fault::not_opened;
use crate::local::folder::Folders;
use crate::local::ids::{IDS_PER_BOX, IdPool};
use crate::local::parts::Parts;
use crate::local::programs::find;
use crate::{Error, Result};

use backend::ProotBackend;

/// Name of this provider.
pub const NAME: &str = ProotBackend::NAME;
/// Start of the default range of ids, above those that `native` gives to its boxes.
const IDS_FIRST: u32 = 0x6000_0000;
const BOXES_MAX: u32 = 8192;

/// Provider of boxes made with `proot`. Clones share one state.
pub type Proot = Local<ProotBackend>;

/// Configuration of the provider.
#[derive(Debug, Clone)]
pub struct ProotConfig {
    /// Program `proot`: a path, or a name to look for in `PATH`.
    pub binary: PathBuf,
    /// Data folder of the server. The boxes lie in its folder `proot`. If the server is root,
    /// they lie in a folder beside it with `-proot` at the end of its name, since the boxes'
    /// users may not enter the data folder.
    pub data_dir: PathBuf,
    /// Store that the boxes belong to.
    pub store_id: StoreId,
    /// Source of images other than `host`; `None` leaves `host` only.
    pub images: Option<Images>,
    /// First id and count of the host's ids that boxes may have if the server is root, 65,536 for
    /// each although it uses one; `None` for a range far above those of people, services and the
    /// provider `native`.
    pub subids: Option<(u32, u32)>,
    /// True where the server's API asks for no key: boxes, on the host's network, can then use
    /// it. [`crate::Provider::facts`] reports that.
    pub api_is_open: bool,
}

impl Proot {
    /// Sets the provider up: makes its folders, finds the boxes that an earlier server left, and
    /// makes a box to probe the host. A failed probe is no error; [`crate::Provider::health`]
    /// reports it. Takes some tens of milliseconds, and must be called within a runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`] for ids that cannot hold a box and for a data folder that
    /// boxes cannot reach, [`Error::Failed`] if it cannot be written.
    pub async fn open(config: ProotConfig) -> Result<Proot> {
        let is_root = rustix::process::geteuid().is_root();
        let default_ids = (IDS_FIRST, BOXES_MAX * IDS_PER_BOX);
        let ids = is_root.then(|| IdPool::new(config.subids.or(Some(default_ids)), &config.store_id)).transpose()?;
        let (base, mode) =
            if is_root { (beside(&config.data_dir), 0o711) } else { (config.data_dir.join("proot"), 0o700) };
        let folders = make_folders(&base, mode).map_err(not_opened)?;
        check_base(&folders.base, is_root)?;
        let program = root::program(&folders.base).map_err(not_opened)?;
        let proot = find(&config.binary).unwrap_or(config.binary);
        let parts = Parts::new(folders, ids, config.images)?;
        Local::resume(ProotBackend { parts, proot, program, api_is_open: config.api_is_open }).await
    }
}

/// Makes the provider's folders, with modes independent of the server's umask.
fn make_folders(base: &Path, mode: u32) -> io::Result<Folders> {
    DirBuilder::new().recursive(true).mode(mode).create(base)?;
    // Without links, since PRoot replaces them by their targets.
    let folders = Folders::make(base.canonicalize()?, mode)?;
    for (dir, mode) in [(&folders.base, mode), (&folders.boxes, mode), (&folders.trash, 0o700)] {
        fs::set_permissions(dir, Permissions::from_mode(mode))?;
    }
    Ok(folders)
}

/// Returns the folder beside `dir` that other users may pass through.
fn beside(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().map_or_else(|| OsString::from("tidebox"), ToOwned::to_owned);
    name.push("-proot");
    dir.with_file_name(name)
}

/// Checks whether boxes can live in this folder.
fn check_base(base: &Path, is_root: bool) -> Result<()> {
    let shown = base.display();
    if base.to_str().is_none_or(|text| text.contains(':')) {
        return Err(Error::Invalid(format!(
            "PRoot does not work in {shown}: choose a data_dir whose path is UTF-8 and has no colon"
        )));
    }
    match base.ancestors().find(|dir| is_closed(dir)).filter(|_| is_root) {
        Some(closed) => Err(Error::Invalid(format!(
            "the users of PRoot's boxes cannot reach {shown}, because other users cannot enter {}: open it (chmod o+x) \
             or choose another data_dir",
            closed.display()
        ))),
        None => Ok(()),
    }
}

/// Returns whether only the owner and the group of `dir` may pass through it.
fn is_closed(dir: &Path) -> bool {
    dir.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o001 == 0)
}
