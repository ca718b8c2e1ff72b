//! Start of the process of a machine.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use domain::Resources;
use guest_protocol::Vmm;
use tokio::process::Command;

use crate::Result;
use crate::local::agent_file::AgentFile;
use crate::local::cgroup::Cgroups;
use crate::local::fault::not_made;
use crate::local::folder::BoxFolder;
use crate::local::launcher::{LAUNCH_WAIT, LaunchError, Launched, control, failed, talk};
use crate::local::process::Process;

use super::console::Console;
use super::work_dir::{API, LOG, MachineFile};

/// Memory of the process besides that of its guest, in mebibytes: Firecracker itself, the buffers of its
/// devices, and what the kernel keeps for both.
const OWN_MEMORY_MB: u32 = 64;
/// Threads of the process besides those of the guest's processors.
const OWN_THREADS: u32 = 16;
/// Limit for a process to stop, which waits for no disk.
pub(super) const STOP_WAIT: Duration = Duration::from_secs(5);
/// Limit for a killed process to end before everything in its control groups is killed.
pub(super) const ALONE_WAIT: Duration = Duration::from_secs(1);

/// Command line of a process of Firecracker for the box `id`, in the jailer if there is one.
pub(super) fn argv(firecracker: &str, jail: Option<&Jail<'_>>, id: &str) -> Vec<String> {
    let mut argv = match jail {
        Some(Jail { jailer, user, base }) => {
            let user = user.to_string();
            [
                *jailer,
                "--id",
                id,
                "--exec-file",
                firecracker,
                "--uid",
                &user,
                "--gid",
                &user,
                "--chroot-base-dir",
                base,
                // What follows is for Firecracker, which gets the id from the jailer.
                "--",
            ]
            .map(str::to_owned)
            .to_vec()
        }
        None => vec![firecracker.to_owned(), "--id".to_owned(), id.to_owned()],
    };
    argv.extend(["--api-sock", API, "--log-path", LOG, "--level", "Warning"].map(str::to_owned));
    argv
}

/// Jail of a process.
#[derive(Debug)]
pub(super) struct Jail<'a> {
    /// Path of the jailer.
    pub(super) jailer: &'a str,
    /// User of the host that the process becomes.
    pub(super) user: u32,
    /// Folder below which the jailer makes the root of the process.
    pub(super) base: &'a str,
}

/// Makes the control groups of a process, with room for the machine and itself.
pub(super) fn make_groups(cgroups: &Cgroups, machine: &MachineFile) -> Result<()> {
    let own = Resources {
        memory_mb: machine.memory_mb.saturating_add(OWN_MEMORY_MB),
        pids: machine.vcpus.saturating_add(OWN_THREADS),
        vcpus: machine.vcpus,
        disk_mb: machine.drive_mb,
    };
    cgroups.make(&machine.vmm.cgroups, &own).map_err(not_made)
}

/// Starts the process, which is recorded in the folder of its box then.
pub(super) async fn start(agent: &AgentFile, folder: &BoxFolder, vmm: &Vmm, console: &Console) -> Result<Process> {
    let started = launch(agent, vmm).await.map_err(failed)?;
    let Some((pid, begun)) = folder.pid() else { return Err(not_made("no process was recorded")) };
    let process = Process::find(pid, begun).map_err(not_made)?;
    let Some(process) = process else { return Err(console.ended(&"the process has ended")) };
    started.executed().await.map_err(failed)?;
    Ok(process)
}

async fn launch(agent: &AgentFile, vmm: &Vmm) -> std::result::Result<Launched, LaunchError> {
    let (mut control, theirs) = control()?;
    let mut command = Command::new(agent.path());
    command.arg(OsStr::new("vmm")).env_clear().kill_on_drop(true);
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    let mut starter = command.spawn()?;
    // The command holds a copy of the other end.
    drop(command);
    let talked = tokio::time::timeout(LAUNCH_WAIT, talk(&mut control, vmm)).await;
    let reports = talked.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))?;
    let _ = starter.wait().await;
    Launched::done(&reports)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_jailer_gets_the_user_and_firecracker_the_rest() {
        let plain = argv("/opt/firecracker", None, "sb-a");
        assert_eq!(plain.join(" "), "/opt/firecracker --id sb-a --api-sock api.sock --log-path log --level Warning");
        let jail = Jail { jailer: "/opt/jailer", user: 7, base: "/data/jail" };
        let jailed = argv("/opt/firecracker", Some(&jail), "sb-a").join(" ");
        assert_eq!(
            jailed,
            "/opt/jailer --id sb-a --exec-file /opt/firecracker --uid 7 --gid 7 --chroot-base-dir /data/jail -- \
             --api-sock api.sock --log-path log --level Warning"
        );
    }
}
