//! Files for guests, made of a kernel and removed again.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::error::{Error, Result};
use super::initrd;
use super::installed::MODULES;
use super::kernel_file::KernelFile;
use super::modules::{self, Module};

/// Changes with what is made of the same inputs, so that files of an earlier form are not used.
const FORM: &[u8] = b"tidebox guest kernel 1\n";
const KERNEL: &str = "vmlinux";
const INITRD: &str = "initrd";
/// Prefix of files that are being written.
const UNFINISHED: &str = ".new-";
/// Digits of a SHA-256.
const DIGEST_LEN: usize = 64;

/// Kernel and initrd of guests, as files of mode 0444.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestKernel {
    /// Uncompressed ELF kernel.
    pub kernel: PathBuf,
    /// Uncompressed cpio archive of the first files.
    pub initrd: PathBuf,
    /// Kernel's release, such as `6.1.0-56-amd64`, if the file tells it.
    pub release: Option<String>,
    /// Names of the modules in the initrd, in the order in which they are loaded.
    pub modules: Vec<String>,
    /// SHA-256 over the inputs, in hexadecimal digits: the name of the folder of the two files.
    pub digest: String,
}

/// Makes a kernel and an initrd for guests below `folder`, unless they are there already. It blocks
/// for a second or more.
///
/// `kernel` is a bzImage, or an uncompressed ELF kernel. `modules` is the folder of its modules,
/// `/lib/modules/<release>`; without it that folder is taken for a bzImage if there is one, and else
/// the kernel has to have all that a guest needs built in. `agent` becomes `/init`.
///
/// The initrd has these files, with the times and owners zero, so that the same inputs make the same
/// bytes: `/init` (mode 0755), `/modules/order` with a line for each module's file name in the order
/// in which they are loaded, `/modules/<file name>` for each, never compressed, the empty folders
/// `/proc`, `/sys`, `/dev` and `/newroot`, and the devices `/dev/console` and `/dev/null`.
/// A module may refuse to load on a processor that lacks what it is for (`ENODEV`), such as one of
/// two for the same checksum.
///
/// Other processes may do the same at the same time. What an earlier call has made of other inputs
/// stays until [`prune`].
///
/// # Errors
/// If a file cannot be read or written, is of another kind, is damaged, or a module is missing. The
/// texts say what to do.
pub fn prepare(kernel: &Path, modules: Option<&Path>, agent: &[u8], folder: &Path) -> Result<GuestKernel> {
    prepare_with(kernel, modules, agent, folder, Path::new(MODULES))
}

fn prepare_with(
    kernel: &Path,
    modules: Option<&Path>,
    agent: &[u8],
    folder: &Path,
    installed: &Path,
) -> Result<GuestKernel> {
    let file = KernelFile::read(kernel)?;
    let release = file.release().map(str::to_owned);
    let beside = release.as_ref().filter(|_| file.is_bz_image()).map(|release| installed.join(release));
    let modules = match modules.map(Path::to_owned).or(beside.filter(|beside| beside.is_dir())) {
        Some(folder) => modules::read(&folder, release.as_deref())?,
        None => Vec::new(),
    };
    let initrd = initrd::build(agent, &modules)?;
    let digest = digest(&file, &initrd);
    let guest = GuestKernel {
        kernel: folder.join(&digest).join(KERNEL),
        initrd: folder.join(&digest).join(INITRD),
        release,
        modules: modules.into_iter().map(|Module { name, .. }| name).collect(),
        digest,
    };

    make_dir(folder)?;
    // Keeps `prune` away, which holds it for as long as it takes to remove some files.
    let _lock = Lock::shared(folder).map_err(Error::writing(folder))?;
    place(folder, &guest.kernel, file.unpacked_len(), |new| file.unpack(new, folder))?;
    place(folder, &guest.initrd, initrd.len() as u64, |new| {
        io::Write::write_all(new, &initrd).map_err(Error::writing(folder))
    })?;
    Ok(guest)
}

/// Removes what [`prepare()`] has made below `folder`, but for the files with this digest, and what an
/// interrupted call has left. Does nothing while another process prepares a kernel there.
///
/// # Errors
/// If something cannot be removed.
pub fn prune(folder: &Path, keep: &str) -> io::Result<()> {
    let _lock = match Lock::alone(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(None) => return Ok(()),
        taken => taken?,
    };
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_folder = entry.file_type()?.is_dir();
        if name.starts_with(UNFINISHED) && !is_folder {
            fs::remove_file(entry.path())?;
        } else if is_folder && is_digest(name) && name != keep {
            for file in [KERNEL, INITRD] {
                match fs::remove_file(entry.path().join(file)) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed?,
                }
            }
            fs::remove_dir(entry.path())?;
        }
    }
    Ok(())
}

/// Lock on a folder, given up when it is dropped.
///
/// Closing the file would not do: a child that another thread is starting has the descriptor too,
/// until it runs its own program.
#[derive(Debug)]
struct Lock(File);

impl Lock {
    /// Waits for the lock that several may have at once.
    fn shared(folder: &Path) -> io::Result<Lock> {
        let file = File::open(folder)?;
        file.lock_shared()?;
        Ok(Lock(file))
    }

    /// Takes the lock that only one may have; `None` while others have one.
    fn alone(folder: &Path) -> io::Result<Option<Lock>> {
        let file = File::open(folder)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Without an error to report: the close that follows gives it up as well.
        let _ = self.0.unlock();
    }
}

fn is_digest(name: &str) -> bool {
    name.len() == DIGEST_LEN && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the SHA-256 over all inputs: agent and modules are in the initrd.
fn digest(kernel: &KernelFile, initrd: &[u8]) -> String {
    let mut digest = Sha256::new_with_prefix(FORM);
    digest.update(kernel.sha256());
    digest.update(initrd);
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn make_dir(path: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(Error::writing(path))
}

/// Writes a file of `len` bytes under a temporary name in `folder`, and gives it its name when it is
/// on the disk, unless it is there already.
fn place(folder: &Path, target: &Path, len: u64, write: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    if fs::symlink_metadata(target).is_ok_and(|found| found.is_file() && found.len() == len) {
        return Ok(());
    }
    let mut new = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder).map_err(Error::writing(target))?;
    write(new.as_file_mut())?;
    new.as_file().set_permissions(Permissions::from_mode(0o444)).map_err(Error::writing(target))?;
    new.as_file().sync_all().map_err(Error::writing(target))?;
    target.parent().map_or(Ok(()), make_dir)?;
    new.persist(target).map_err(|error| Error::write(target, error.error))?;
    Ok(())
}

#[cfg(test)]
mod test;
