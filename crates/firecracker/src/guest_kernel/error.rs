//! Failures to make a guest's kernel.

use std::io;
use std::path::{Path, PathBuf};

/// Result of making a guest's kernel.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failure to make a guest's kernel. The texts say what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or a folder cannot be read.
    #[error("{} cannot be read: {source}{}", path.display(), advice(source))]
    Read {
        /// Its path.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("{} cannot be written: {source}", path.display())]
    Write {
        /// Its path.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A file is not of the kind that is wanted.
    #[error("{} is {what}: {remedy}", path.display())]
    Foreign {
        /// Its path.
        path: PathBuf,
        /// Kind of file that it is.
        what: String,
        /// File to give instead.
        remedy: &'static str,
    },
    /// A file is of the right kind, and damaged.
    #[error("{} is damaged: {reason}; copy it again or reinstall its package", path.display())]
    Damaged {
        /// Its path.
        path: PathBuf,
        /// Violation of its format.
        reason: String,
    },
    /// A guest needs a module that is neither built in nor there.
    #[error(
        "a guest needs the module {module}, which is neither built into the kernel nor in {}: install the package with \
         all modules of this kernel (on Ubuntu linux-modules-extra-<release>), run `depmod`, or use a kernel with \
         {option}, such as Debian's linux-image-amd64 or linux-image-cloud-amd64",
        folder.display()
    )]
    ModuleMissing {
        /// Module's name.
        module: String,
        /// Option of the kernel's configuration that makes it.
        option: &'static str,
        /// Folder of the kernel's modules.
        folder: PathBuf,
    },
    /// A module was built for another kernel.
    #[error("{} is for the kernel {found}, not for {release}: use the folder /lib/modules/{release}", path.display())]
    OtherRelease {
        /// Module's path.
        path: PathBuf,
        /// Release that the module is for.
        found: String,
        /// Release of the kernel.
        release: String,
    },
    /// The initrd would be larger than any that is of use.
    #[error("the agent and the kernel's modules have {0} bytes, which is too large for an initrd")]
    InitrdTooLarge(u64),
}

impl Error {
    pub(super) fn read(path: &Path, source: io::Error) -> Error {
        Error::Read { path: path.to_owned(), source }
    }

    pub(super) fn write(path: &Path, source: io::Error) -> Error {
        Error::Write { path: path.to_owned(), source }
    }

    /// Returns [`Error::read`] for `path`, to map errors with.
    pub(super) fn reading(path: &Path) -> impl Fn(io::Error) -> Error {
        |source| Error::read(path, source)
    }

    /// Returns [`Error::write`] for `path`, to map errors with.
    pub(super) fn writing(path: &Path) -> impl Fn(io::Error) -> Error {
        |source| Error::write(path, source)
    }

    pub(super) fn damaged(path: &Path, reason: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_owned(), reason: reason.into() }
    }
}

/// Returns what follows the text of a file that cannot be read.
fn advice(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied {
        "; make it readable for this user, or use a readable copy"
    } else {
        ""
    }
}
