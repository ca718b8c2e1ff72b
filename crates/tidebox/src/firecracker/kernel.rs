//! The kernel of the guests, made of one of this host.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use ::firecracker::guest_kernel::{self, GuestKernel};
use serde::Serialize;

use crate::doctor::finding::{Finding, Level};

/// Folder of the provider in the data folder, and that of the kernels in it.
const FOLDER: &str = "firecracker/kernels";
const INSTALL: &str = "install one with its modules, such as Debian's linux-image-amd64 or Ubuntu's linux-image-generic; or name one with --kernel";

/// Kernel that was prepared, as programs read it.
#[derive(Debug, Serialize)]
pub struct Prepared {
    /// Absolute path of the file that it was made of.
    pub source: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub modules: Vec<String>,
}

/// Prepares the kernel of the guests in the server's data folder.
pub fn prepare(given: Option<&Path>, modules: Option<&Path>, data_dir: &Path) -> (Option<Prepared>, Finding) {
    match try_prepare(given, modules, data_dir) {
        Ok(prepared) => {
            let release = prepared.release.as_deref().unwrap_or("of unknown release");
            let source = prepared.source.display();
            let fact = format!("{release} with {} modules, made from {source}", prepared.modules.len());
            (Some(prepared), Finding::ok("kernel", fact))
        }
        Err(finding) => (None, finding),
    }
}

fn try_prepare(given: Option<&Path>, modules: Option<&Path>, data_dir: &Path) -> Result<Prepared, Finding> {
    let source = match given {
        Some(given) => std::path::absolute(given).map_err(|error| missing("has no path", error.to_string()))?,
        None => match guest_kernel::newest_installed() {
            Ok(Some(kernel)) => kernel,
            Ok(None) => return Err(missing("/boot has no kernel with installed modules", INSTALL)),
            Err(error) => return Err(missing(format!("/boot cannot be read: {error}"), INSTALL)),
        },
    };
    let folder = make_folder(data_dir)?;
    let made = guest_kernel::prepare(&source, modules, &providers::agent_program(), &folder).map_err(|error| {
        missing(format!("no guest kernel can be made from {}", source.display()), error.to_string())
    })?;
    let GuestKernel { kernel, initrd, release, modules, .. } = made;
    Ok(Prepared { source, release, kernel, initrd, modules })
}

/// Makes the folder as the server makes it: for its user alone.
fn make_folder(data_dir: &Path) -> Result<PathBuf, Finding> {
    let user = rustix::process::geteuid().as_raw();
    if let Some(owner) = std::fs::metadata(data_dir).ok().map(|found| found.uid()).filter(|owner| *owner != user) {
        // Files of another user would be in the server's way.
        return Err(missing(
            format!("the data folder {} belongs to user {owner}, not to this user", data_dir.display()),
            format!("run this as the server's user: `sudo -u '#{owner}' tidebox firecracker setup`"),
        ));
    }
    let folder = data_dir.join(FOLDER);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| {
        missing(
            format!("{} cannot be made: {error}", folder.display()),
            "run this as the server's user, or set data_dir to a folder that it can write",
        )
    })?;
    Ok(folder)
}

fn missing(fact: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding::lacking("kernel", Level::Missing, fact, remedy)
}
