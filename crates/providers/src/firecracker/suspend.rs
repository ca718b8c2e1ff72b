//! Boxes that are kept in files, with their memory: snapshots, and paused boxes without a process.
//!
//! A snapshot is its own folder with the files of [`Saved`]. A box without a process has them in its own
//! folder, but for its drives, which stay where they are: what makes the machine go on is that folder, and
//! it is removed once the machine is loaded and before it goes on.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use domain::{Resources, SandboxId};
use guest_protocol::{MACHINE_ENTROPY_BYTES, Machine, Restored};
use host_disk::remove_tree;
use rand::TryRng as _;
use tokio_util::task::TaskTracker;

use super::console::Console;
use super::drives::{self, Drives};
use super::machine::{self, RESTORE_PHASE, Starting};
use super::saved::{Checks, Saved, SavedRecord};
use super::sealed::open_written;
use super::vmm::{ALONE_WAIT, STOP_WAIT, make_groups, start};
use super::work_dir::{CHANGES, IMAGE, MEMORY, MachineFile, NEW_MEMORY, NEW_STATE, STATE, WorkDir};
use crate::local::agent_file::AgentFile;
use crate::local::agent_socket::Running;
use crate::local::cgroup::{self, Cgroups};
use crate::local::fault::{not_made, not_written};
use crate::local::folder::BoxFolder;
use crate::local::process::Process;
use crate::local::snapshot_folder::SnapshotFolder;
use crate::local::snapshots::not_taken;
use crate::{Error, Result};

/// Longest time in which a process that was killed ends: it gives back the memory of its machine.
const END_WAIT: Duration = Duration::from_secs(20);

/// Means to write boxes to files, and to make them of files.
#[derive(Debug)]
pub(super) struct Keeper<'a> {
    pub(super) agent: &'a AgentFile,
    pub(super) cgroups: &'a Cgroups,
    pub(super) tasks: &'a TaskTracker,
    pub(super) checks: &'a Checks,
    /// Limit for a machine to go on.
    pub(super) boot_timeout: Duration,
}

impl Keeper<'_> {
    /// Writes a box to the folder of a new snapshot, and returns the bytes that it takes there.
    pub(super) async fn keep(&self, folder: &BoxFolder, new: &SnapshotFolder) -> Result<u64> {
        let room = WorkDir::find(folder);
        let size = room.read_machine().map_err(not_taken)?;
        let record = SavedRecord::new(&size.version, None, (size.memory_mb, size.vcpus, size.drive_mb));
        let from = room.clone();
        let to = new.path().to_owned();
        let copy = async move {
            let copied = tokio::task::spawn_blocking(move || {
                from.take_written(&to)?;
                fs::hard_link(from.file(IMAGE), to.join(IMAGE))?;
                copy_drive(&open_written(&from.file(CHANGES))?, &to.join(CHANGES))
            });
            copied.await.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(not_taken)
        };
        let process = process_of(folder)?;
        let was_paused = room.is_marked_paused();
        // A server that is killed meanwhile leaves one that a later server has go on.
        room.mark_paused().map_err(not_taken)?;
        process.go_on().map_err(not_taken)?;
        let ready = if was_paused { self.settle(folder, &room).await } else { Ok(()) };
        let (kept, goes_on) = match ready {
            Ok(()) => machine::keep(&room, self.tasks, false, copy).await,
            Err(error) => (Err(error), false),
        };
        if was_paused {
            stop_again(&process, &room).await.map_err(not_taken)?;
        } else if goes_on {
            // Else the mark has a resume look at it.
            room.unmark_paused();
        }
        if kept.is_err() {
            room.remove([NEW_STATE, NEW_MEMORY]).map_err(not_taken)?;
        }
        kept?;
        let to = new.path().to_owned();
        let finished = tokio::task::spawn_blocking(move || Saved::finish(&to, record)).await;
        let saved = finished.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(not_taken)?;
        self.checks.remember(&saved).and_then(|()| saved.size_bytes()).map_err(not_taken)
    }

    /// Has a paused machine, whose process goes on, be as one that runs, whatever a server that was killed has
    /// left of it.
    async fn settle(&self, folder: &BoxFolder, room: &WorkDir) -> Result<()> {
        machine::go_on(room, self.tasks, &of_disk(folder)?).await
    }

    /// Puts the files of a snapshot into the room of a box that is made of it.
    pub(super) async fn put(&self, snapshot: &SnapshotFolder, room: &WorkDir) -> Result<()> {
        let saved = read(snapshot)?;
        self.checks.check(&saved).await.map_err(|error| Error::failed("make a box from a snapshot", error))?;
        let path = room.path();
        saved.link([STATE, MEMORY, IMAGE], &path).map_err(|error| gone(snapshot, error))?;
        let copied =
            tokio::task::spawn_blocking(move || copy_drive(&File::open(saved.file(CHANGES))?, &path.join(CHANGES)));
        copied.await.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| gone(snapshot, error))
    }

    /// Writes a paused box to its folder, unless it was written before, and ends its process.
    pub(super) async fn suspend(&self, folder: &BoxFolder, process: Option<&Process>) -> Result<()> {
        let room = WorkDir::find(folder);
        let size = room.read_machine().map_err(not_written)?;
        if is_suspended(folder) {
            return self.leave_to_disk(&room, process, &size).await;
        }
        let process = process.ok_or(Error::Gone)?;
        let record = SavedRecord::new(&size.version, None, (size.memory_mb, size.vcpus, size.drive_mb));
        let from = room.clone();
        let to = room.suspended();
        let copy = async move {
            let finished = tokio::task::spawn_blocking(move || {
                // Of an attempt that was cut off.
                remove_tree(&to)?;
                DirBuilder::new().mode(0o700).create(&to)?;
                // The machine goes on then, and what is there would be of the past.
                finish_suspended(&from, &to, record).or_else(|error| Saved::discard(&to).and(Err(error)))
            });
            finished.await.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(not_written)
        };
        process.go_on().map_err(not_written)?;
        let kept = match self.settle(folder, &room).await {
            Ok(()) => machine::keep(&room, self.tasks, true, copy).await.0,
            Err(error) => Err(error),
        };
        if kept.is_err() {
            stop_again(process, &room).await.map_err(not_written)?;
            room.remove([NEW_STATE, NEW_MEMORY]).map_err(not_written)?;
        }
        // One that cannot be looked at is checked when it is loaded.
        let _ = self.checks.remember(&kept?);
        self.leave_to_disk(&room, Some(process), &size).await
    }

    /// Ends the process of a machine that was written to its folder, and removes the names of the files that
    /// it was made of: they may have no others.
    async fn leave_to_disk(&self, room: &WorkDir, process: Option<&Process>, machine: &MachineFile) -> Result<()> {
        self.end(process, machine).await?;
        room.remove([STATE, MEMORY]).map_err(not_written)
    }

    /// Has a box go on that was written to its folder.
    pub(super) async fn wake(&self, folder: &BoxFolder, process: Option<&Process>) -> Result<Running> {
        let room = WorkDir::find(folder);
        let mut machine = room.read_machine().map_err(not_made)?;
        let saved = Saved::read(&room.suspended()).ok_or(Error::Gone)?;
        // A server that was killed may have left the groups alone.
        self.end(process, &machine).await?;
        self.regroup(folder, &room, &mut machine).map_err(not_made)?;
        self.checks.check(&saved).await.map_err(|error| Error::failed("load a box from disk", error))?;
        room.clear().and_then(|()| room.remove([STATE, MEMORY])).map_err(not_made)?;
        saved.link([STATE, MEMORY], &room.path()).map_err(not_made)?;
        make_groups(self.cgroups, &machine)?;
        let console = Console::open(&room).map_err(not_made)?;
        let process = start(self.agent, folder, &machine.vmm, &console).await?;
        let starting = Starting { room: &room, process: &process, tasks: self.tasks };
        let renewed = of_disk(folder)?;
        let woken = machine::wake(starting, self.boot_timeout, &renewed, || {
            // Once it goes on, what is in the folder is of the past.
            room.mark_unrenewed().and_then(|()| saved.remove())
        });
        let guest = match woken.await {
            Ok(guest) => guest,
            Err(error) => {
                let error = console.ended(&error);
                // Once it was to go on, the process has all that there is of it.
                if is_suspended(folder) {
                    self.end(Some(&process), &machine).await?;
                }
                return Err(error);
            }
        };
        room.unmark_unrenewed();
        room.unmark_paused();
        Ok(Running { process, guest, shares_devices: false, launched: Instant::now(), phase: RESTORE_PHASE })
    }

    /// Gives a machine that has no process the control groups which it would have now: those of the server may
    /// be others since, as after a restart of the host.
    fn regroup(&self, folder: &BoxFolder, room: &WorkDir, machine: &mut MachineFile) -> io::Result<()> {
        let id = SandboxId::parse(&folder.name()).map_err(io::Error::other)?;
        let groups = self.cgroups.of(&id);
        if machine.vmm.cgroups == groups {
            return Ok(());
        }
        if let Some(mut record) = folder.read() {
            record.cgroups.clone_from(&groups);
            folder.rewrite(&record)?;
        }
        machine.vmm.cgroups = groups;
        room.rewrite_machine(machine)
    }

    /// Ends the process of a machine that is kept in files, if it still runs, and removes its control groups.
    async fn end(&self, process: Option<&Process>, machine: &MachineFile) -> Result<()> {
        if let Some(process) = process {
            process.kill().map_err(not_made)?;
            if !process.ended_within(ALONE_WAIT).await {
                cgroup::kill_members(&machine.vmm.cgroups);
                if !process.ended_within(END_WAIT).await {
                    return Err(Error::Unavailable("the process of a machine did not exit; try again".to_owned()));
                }
            }
        }
        cgroup::remove(&machine.vmm.cgroups).await.map_err(not_made)
    }
}

/// Stops the process of a machine that was paused. One that does not stop counts as running, so that it is
/// paused anew.
async fn stop_again(process: &Process, room: &WorkDir) -> io::Result<()> {
    if !process.stop(STOP_WAIT).await? {
        room.unmark_paused();
    }
    Ok(())
}

/// Returns the process of a machine that runs or is paused.
pub(super) fn process_of(folder: &BoxFolder) -> Result<Process> {
    let found = folder.pid().map(|(pid, started)| Process::find(pid, started)).transpose();
    found.map_err(|error| Error::failed("find the process of a machine", error))?.flatten().ok_or(Error::Gone)
}

/// Returns whether a box was written to its folder.
pub(super) fn is_suspended(folder: &BoxFolder) -> bool {
    Saved::read(&WorkDir::find(folder).suspended()).is_some()
}

/// Checks that a box which is to be made of a snapshot has the size of the snapshot's machine.
pub(super) fn check_size(snapshot: &SnapshotFolder, resources: &Resources) -> Result<()> {
    // One that is missing is an error of the start.
    let Ok(Saved { record, .. }) = read(snapshot) else { return Ok(()) };
    let asked = (resources.memory_mb, resources.vcpus.max(1), Drives::size_mb(resources.disk_mb));
    if asked == (record.memory_mb, record.vcpus, record.drive_mb) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "a machine from the snapshot has memory_mb {}, vcpus {} and a drive of {} MiB, which cannot change; leave out \
         the sizes",
        record.memory_mb, record.vcpus, record.drive_mb
    )))
}

/// Returns what makes a box that goes on from a snapshot differ from the one of the snapshot.
pub(super) fn renewed(machine: &Machine) -> Restored {
    Restored {
        hostname: machine.hostname.clone(),
        now_ns: machine.now_ns,
        entropy: machine.entropy.clone(),
        deadline_ms: Some(machine.boot.deadline_ms),
    }
}

/// Returns what a box that goes on from disk must learn: the time, and randomness of its own.
pub(super) fn of_disk(folder: &BoxFolder) -> Result<Restored> {
    Ok(Restored { hostname: folder.name(), now_ns: 0, entropy: entropy()?, deadline_ms: None })
}

/// Returns random bytes for the kernel of one machine, in hexadecimal digits.
pub(super) fn entropy() -> Result<String> {
    let mut entropy = [0; MACHINE_ENTROPY_BYTES];
    rand::rngs::SysRng.try_fill_bytes(&mut entropy).map_err(not_made)?;
    Ok(entropy.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Completes the files of a suspended box, whose machine stands still, in the folder `to`.
fn finish_suspended(room: &WorkDir, to: &Path, record: SavedRecord) -> io::Result<Saved> {
    room.sync()?;
    room.take_written(to)?;
    // The process writes to the drive only while its machine runs.
    open_written(&room.file(CHANGES))?.sync_data()?;
    Saved::finish(to, record)
}

fn read(snapshot: &SnapshotFolder) -> Result<Saved> {
    Saved::read(snapshot.path()).ok_or_else(|| missing(snapshot))
}

fn missing(snapshot: &SnapshotFolder) -> Error {
    let name = snapshot.path().file_name().unwrap_or_default().to_string_lossy();
    Error::NotFound(format!("there is no snapshot {name}"))
}

/// Converts an error of the files of a snapshot, which may be removed at any time.
fn gone(snapshot: &SnapshotFolder, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound { missing(snapshot) } else { not_written(error) }
}

/// Copies a drive, with its holes, and with shared blocks where the file system can.
fn copy_drive(from: &File, to: &Path) -> io::Result<()> {
    let to = File::options().write(true).create_new(true).mode(0o600).open(to)?;
    drives::copy(OwnedFd::from(from.try_clone()?), &OwnedFd::from(to))
}
