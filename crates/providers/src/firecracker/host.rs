//! Capabilities of this host, probed by booting a machine.

use std::fs::File;
use std::path::{Path, PathBuf};

use domain::Resources;
use firecracker::guest_kernel::{self, GuestKernel};
use firecracker::{LEAST_VERSION, is_supported, probe};

use crate::local::agent_file::agent_program;
use crate::local::cgroup::Cgroups;
use crate::local::cgroup::controller::Controller;
use crate::local::probe::{self as usual, Probe};
use crate::local::programs::find;
use crate::{Chain, Error, Facts, Isolation, LimitKind};

/// Device by which machines use the processor's virtualization.
const KVM: &str = "/dev/kvm";
/// Memory of the machine of a probe: enough for any usual kernel to boot.
pub(super) const PROBE_MEMORY_MB: u32 = 128;

const UNJAILED: &str = "Machines run without the jailer: a guest that exploits a fault in Firecracker gets the rights \
    of the server's user. Run the server as root, and set providers.firecracker.jailer.enabled to true or leave it \
    out.";

/// Machines that boot here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machines;

/// Programs and files that machines are made with.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) firecracker: PathBuf,
    /// `None` for machines without a jail.
    pub(super) jailer: Option<PathBuf>,
    pub(super) kernel: Option<PathBuf>,
    pub(super) modules: Option<PathBuf>,
    /// Folder of the kernels that are prepared for guests.
    pub(super) prepared: PathBuf,
}

/// Programs and files that were found to work, by absolute paths without links.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) firecracker: PathBuf,
    pub(super) jailer: Option<PathBuf>,
    pub(super) kernel: GuestKernel,
    pub(super) version: String,
}

impl Programs {
    /// Finds the programs, tests what they need, and prepares the guest kernel.
    ///
    /// # Errors
    /// A sentence for the operator that says what is missing and what to do.
    pub(super) async fn find(&self) -> Result<Found, String> {
        let Some(kernel) = &self.kernel else {
            return Err("No guest kernel is configured: set providers.firecracker.kernel, for example to this host's \
                /boot/vmlinuz-…; `tidebox firecracker setup` finds one."
                .to_owned());
        };
        let firecracker = located(&self.firecracker, "providers.firecracker.binary")?;
        let version = version_of(&firecracker, "Firecracker").await?;
        if !is_supported(&version) {
            let (major, minor) = LEAST_VERSION;
            return Err(format!(
                "Firecracker has version {version}, but {major}.{minor} is the minimum: install a later release."
            ));
        }
        let jailer = self.jailer.as_deref().map(|jailer| located(jailer, "providers.firecracker.jailer.binary"));
        let jailer = jailer.transpose()?;
        if let Some(jailer) = &jailer {
            let jailer_version = version_of(jailer, "Jailer").await?;
            if jailer_version != version {
                return Err(format!(
                    "The jailer has version {jailer_version}, but Firecracker has {version}: install both from one \
                     release."
                ));
            }
        }
        open_kvm()?;
        // A guest of some bytes shows within milliseconds what one with Linux shows at the end of its wait.
        probe(&firecracker).await.map_err(|error| format!("Machines cannot run here: {}.", Chain(&error)))?;
        let kernel = kernel.clone();
        let modules = self.modules.clone();
        let prepared = self.prepared.clone();
        let preparing = tokio::task::spawn_blocking(move || {
            let made = guest_kernel::prepare(&kernel, modules.as_deref(), &agent_program(), &prepared)?;
            // Boxes have names of their own for the files of theirs.
            if let Err(error) = guest_kernel::prune(&prepared, &made.digest) {
                tracing::debug!(%error, "cannot remove earlier guest kernels");
            }
            Ok::<_, guest_kernel::Error>(made)
        });
        let kernel = preparing.await.map_err(|error| error.to_string())?;
        let kernel = kernel.map_err(|error| format!("The guest kernel cannot be prepared: {}.", Chain(&error)))?;
        Ok(Found { firecracker, jailer, kernel, version })
    }
}

/// Returns the absolute path of a program, without links: the jailer names a folder by it.
fn located(name: &Path, key: &str) -> Result<PathBuf, String> {
    let found = find(name).and_then(|path| path.canonicalize().ok());
    found.ok_or_else(|| {
        format!("The program {} was not found: install Firecracker, or set {key} to its path.", name.display())
    })
}

/// Asks a program for its version.
async fn version_of(program: &Path, name: &str) -> Result<String, String> {
    let stated = firecracker::version(program, name).await;
    stated.map_err(|error| format!("{} cannot be used: {}.", program.display(), Chain(&error)))
}

fn open_kvm() -> Result<(), String> {
    let Err(error) = File::options().read(true).write(true).open(KVM) else { return Ok(()) };
    if error.kind() == std::io::ErrorKind::NotFound {
        return Err(format!(
            "{KVM} does not exist: machines need a processor with virtualization that this host may use. On hardware, \
             enable it in the firmware; in a virtual machine, allow nested virtualization on its host; in a container, \
             pass the device through."
        ));
    }
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        return Err(format!(
            "The server may not open {KVM}: add its user to the group of that file (`usermod -aG kvm USER`)."
        ));
    }
    Err(format!("{KVM} cannot be opened ({error})."))
}

/// Returns the size of the machine of a probe.
pub(super) fn probe_size() -> Resources {
    Resources { memory_mb: PROBE_MEMORY_MB, ..usual::SIZE }
}

/// Returns advice for an operator about a machine that does not boot.
pub(super) fn explain(error: &Error) -> String {
    format!("No machine can be booted: {}.", Chain(error))
}

pub(super) fn facts(probe: &Probe<Machines>, cgroups: &Cgroups, jailed: bool) -> Facts {
    let mut missing = probe.missing.clone();
    if !jailed {
        missing.push(UNJAILED.to_owned());
    }
    missing.extend(probe.error.clone());
    // The hardware of a machine: no process in it can have more.
    let limits = ["memory_mb", "vcpus", "pids", "disk_mb"].map(|name| (name, LimitKind::Hard)).to_vec();
    if !cgroups.has(Controller::Memory) {
        missing.push(
            "No control group counts the memory of Firecracker itself, which uses some MiB for each machine in \
             addition to the guest's."
                .to_owned(),
        );
    }
    let version = probe.version.as_deref().unwrap_or_default();
    Facts {
        isolation: Isolation::Vm,
        runtime: format!("firecracker {version}").trim_end().to_owned(),
        network_mode: "loopback".to_owned(),
        limits,
        missing,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[tokio::test]
    async fn what_is_missing_is_named_with_its_key() {
        let temp = tempfile::tempdir().unwrap();
        let programs = |firecracker: &str, kernel: Option<&str>| Programs {
            firecracker: PathBuf::from(firecracker),
            jailer: None,
            kernel: kernel.map(PathBuf::from),
            modules: None,
            prepared: temp.path().join("kernels"),
        };
        let none = programs("firecracker", None).find().await.unwrap_err();
        assert!(none.contains("providers.firecracker.kernel"), "{none}");
        let absent = programs("/nowhere/firecracker", Some("/nowhere/vmlinux")).find().await.unwrap_err();
        assert!(absent.contains("providers.firecracker.binary"), "{absent}");
        let other = programs("/bin/true", Some("/nowhere/vmlinux")).find().await.unwrap_err();
        assert!(other.contains("another program"), "{other}");
    }
}
