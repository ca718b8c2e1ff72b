//! Making and removal of a box, without state in memory.

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use domain::{Resources, SandboxId};
use guest_protocol::{Boot, Bounds, Defaults, Sweep, Trace, Traced};
use tokio_util::task::TaskTracker;

use super::copy::copy_tree;
use super::tracer;
use crate::agent::AgentGuest;
use crate::disk::refused;
use crate::images::ImageGuard;
use crate::local::agent_file::{AgentFile, agent_binary};
use crate::local::folder::{Folder, Folders, Record, own};
use crate::local::host_rootfs::HostRootfs;
use crate::local::ids::IdPool;
use crate::local::launcher;
use crate::local::process::Process;
use crate::local::removals::Removals;
use crate::removal::remove_tree;
use crate::{Error, Phase, Result};

/// Limit for a killed box to end.
const END_WAIT: Duration = Duration::from_secs(20);
/// Folder of temporary files that PRoot does not let the server move.
const PROOT_TMP: &str = "/tmp";
/// Devices of the host that boxes see, with the permissions that its users have.
const DEVICES: [&str; 8] = ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"];
/// Files of the host that a box on the host's network needs as they are.
const NETWORK_FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// Folders of the host with many files that its programs read and boxes do not change. With the
/// image `host` they are shown as they are, below the root's `/`.
const SHOWN: [&str; 2] = ["etc/alternatives", "etc/ssl/certs"];
/// Path of the agent's program in a box.
const PROGRAM: &str = "/.tidebox/agent";
const LIFE: &str = "/.tidebox/life";

/// Shared parts that boxes are made from.
#[derive(Debug)]
pub(super) struct BoxBuilder {
    pub(super) folders: Folders,
    /// Absolute path of the program `proot`.
    pub(super) proot: PathBuf,
    pub(super) agent: AgentFile,
    /// Agent on disk, for boxes that cannot write to it.
    program: PathBuf,
    pub(super) skeleton: HostRootfs,
    /// Source of the boxes' own ids; `None` if they run as the server's user.
    pub(super) ids: Option<IdPool>,
    pub(super) tasks: TaskTracker,
    pub(super) removals: Removals,
}

/// Plan of a box to make.
#[derive(Debug, Clone)]
pub(super) struct BoxPlan<'a> {
    pub(super) folder: Folder,
    pub(super) image: Option<ImageGuard>,
    pub(super) entrypoint: bool,
    pub(super) resources: &'a Resources,
    pub(super) lifetime: Duration,
    /// True if `PRoot` must trace every call, since its own filter does not work here.
    pub(super) slowly: bool,
}

/// Running box that has answered.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) process: Process,
    pub(super) guest: AgentGuest,
    pub(super) phases: Vec<Phase>,
}

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::failed("make a box", source)
}

fn disk(error: io::Error) -> Error {
    refused("make a box", error)
}

impl BoxBuilder {
    pub(super) fn new(folders: Folders, proot: PathBuf, ids: Option<IdPool>) -> Result<BoxBuilder> {
        let failed = |error: io::Error| Error::failed("open the data folder", error);
        let skeleton = HostRootfs::make(&folders.base).map_err(failed)?;
        skeleton.remove_others(&folders.base, &[]).map_err(failed)?;
        let program = program(&folders.base).map_err(failed)?;
        let agent = AgentFile::sealed()?;
        Ok(BoxBuilder {
            folders,
            proot,
            agent,
            program,
            skeleton,
            ids,
            tasks: TaskTracker::new(),
            removals: Removals::default(),
        })
    }

    /// Makes a box in a folder that must not exist yet. On error the caller must remove the
    /// folder.
    pub(super) async fn make(&self, what: &BoxPlan<'_>) -> Result<Made> {
        let begin = Instant::now();
        let id = self.ids.as_ref().map(IdPool::take).transpose()?;
        if let Err(error) = what.folder.make(&Record::new(id)) {
            // No record names the id, so no removal frees it.
            self.give_back(id);
            return Err(disk(error));
        }
        self.fill(what, id).await?;
        let files_took = begin.elapsed();
        let listener = what.folder.listen().map_err(disk)?;
        listener.set_nonblocking(true).map_err(failed)?;
        // Connected before the agent listens: the first request waits in the socket.
        let stream = what.folder.connect().await.map_err(failed)?;
        let order = self.order(what, id);
        let (launched, guest) = tokio::join!(
            async { (tracer::trace(&self.agent, listener, &order).await, begin.elapsed()) },
            AgentGuest::connect(stream)
        );
        let (launched, box_took) = launched;
        // If both failed, the launcher has the cause.
        launched.map_err(launcher::failed)?;
        let guest = guest?;
        let process = match what.folder.pid() {
            Some((pid, started)) => Process::find(pid, started).map_err(failed)?.ok_or(Error::Gone)?,
            None => return Err(failed("no process was recorded")),
        };
        let phases = vec![
            Phase { name: "image", took: files_took },
            Phase { name: "box", took: box_took.saturating_sub(files_took) },
            Phase { name: "agent", took: begin.elapsed().saturating_sub(box_took) },
        ];
        Ok(Made { process, guest, phases })
    }

    /// Puts the files of the image, and those that every box has, into the root.
    async fn fill(&self, what: &BoxPlan<'_>, id: Option<u32>) -> Result<()> {
        let folder = what.folder.clone();
        let image = what.image.clone();
        let skeleton = self.skeleton.path.clone();
        let own_program = id.is_none();
        let work = move || {
            match &image {
                Some(held) => copy_tree(held.root(), &folder.root(), &[], id)?,
                None => copy_tree(&skeleton, &folder.root(), &SHOWN, id)?,
            }
            furnish(&folder.root(), id)?;
            if own_program { write_program(&folder.path().join("agent")) } else { Ok(()) }
        };
        tokio::task::spawn_blocking(work).await.map_err(failed)?.map_err(disk)
    }

    fn order(&self, what: &BoxPlan<'_>, id: Option<u32>) -> Trace {
        let folder = what.folder.path();
        let program = if id.is_some() { self.program.clone() } else { folder.join("agent") };
        let mut argv = vec![self.proot.display().to_string(), "-0".to_owned()];
        let mut option = |name: &str, value: String| argv.extend([name.to_owned(), value]);
        option("-r", what.folder.root().display().to_string());
        option("-b", "/proc".to_owned());
        let devices = DEVICES.iter().map(|name| format!("/dev/{name}"));
        let shown = self.skeleton.shown.iter().cloned().chain(SHOWN.iter().map(|dir| format!("/{dir}")));
        let shown = shown.filter(|_| what.image.is_none());
        let host = devices.chain(shown).chain(NETWORK_FILES.map(str::to_owned));
        host.filter(|path| Path::new(path).exists()).for_each(|path| option("-b", path));
        option("-b", format!("{}:{PROGRAM}", program.display()));
        option("-b", format!("{}:{LIFE}", folder.join("life").display()));
        option("-w", "/".to_owned());
        argv.push(PROGRAM.to_owned());
        let run = what.image.as_ref().map(|held| held.run().clone()).unwrap_or_default();
        let boot = Boot {
            deadline_ms: u64::try_from(what.lifetime.as_millis()).unwrap_or(u64::MAX),
            memory_mb: what.resources.memory_mb,
            single_user: true,
            // The box has only one user.
            defaults: Defaults { user: None, ..run.defaults },
            entrypoint: (what.entrypoint && !run.entrypoint.is_empty()).then_some(run.entrypoint),
            furnish: what.image.is_some(),
            traced: Some(Traced { life: LIFE.to_owned(), ..Traced::default() }),
            ..Boot::default()
        };
        let mut env = std::collections::BTreeMap::new();
        env.insert("PROOT_TMP_DIR".to_owned(), what.folder.tmp().display().to_string());
        if what.slowly {
            env.insert("PROOT_NO_SECCOMP".to_owned(), "1".to_owned());
        }
        let Resources { memory_mb, vcpus, disk_mb, pids, .. } = *what.resources;
        let bounds = Bounds { memory_mb, vcpus, pids, disk_mb };
        Trace { dir: folder.display().to_string(), argv, boot, env, id, bounds }
    }

    /// Opens a connection to the agent of a box.
    pub(super) async fn dial(&self, folder: &Folder) -> Result<AgentGuest> {
        let stream = folder.connect().await.map_err(|error| {
            let absent = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
            if absent.contains(&error.kind()) { Error::Gone } else { Error::failed("reach the agent", error) }
        })?;
        AgentGuest::connect(stream).await
    }

    /// Ends a box and removes all of it. Its files are moved to the trash and deleted in the
    /// background. May be repeated at any time.
    pub(super) async fn remove(&self, folder: &Folder, process: Option<&Process>) -> Result<()> {
        const ACTION: &str = "remove a box";
        let failed = |error: io::Error| Error::failed(ACTION, error);
        let id = folder.read().and_then(|record| record.id);
        let roots = folder.pids();
        // Without either, nothing was ever started.
        if !roots.is_empty() || id.is_some() {
            tracer::sweep(&self.agent, &Sweep { id, roots: roots.clone() }).await.map_err(failed)?;
        }
        // After a start that failed late, no entry holds the process.
        let found = match (process, folder.pid()) {
            (None, Some((pid, started))) => Process::find(pid, started).map_err(failed)?,
            _ => None,
        };
        if let Some(process) = process.or(found.as_ref())
            && !process.ended_within(END_WAIT).await
        {
            return Err(Error::failed(ACTION, "its first process does not end"));
        }
        self.remove_temporaries(&roots);
        let name = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let trash = self.folders.trash.join(Removals::name(&name));
        match fs::rename(folder.path(), &trash) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        }
        let ids = self.ids.clone();
        self.removals.discard(trash, move |removed| {
            // Files that stay belong to this id, so another box must not get it.
            if let (true, Some(ids), Some(id)) = (removed, ids, id) {
                ids.give_back(id);
            }
        });
        Ok(())
    }

    /// Deletes what the PRoot of a box has left beside its folder. Before version 5.2 it always
    /// puts its loader there, and a killed one cannot remove it.
    fn remove_temporaries(&self, pids: &[(u32, u64)]) {
        for &(pid, started) in pids {
            // The number may belong to another process by now, with files of that name.
            let is_known = matches!(Process::find(pid, started), Ok(Some(_)));
            if !is_known && Path::new(&format!("/proc/{pid}")).exists() {
                continue;
            }
            let prefixes = [format!("proot-{pid}-"), format!("prooted-{pid}-")];
            let entries = fs::read_dir(PROOT_TMP).into_iter().flatten().flatten();
            for entry in entries {
                let name = entry.file_name();
                let is_its_own = prefixes.iter().any(|prefix| name.to_string_lossy().starts_with(prefix));
                // The loader is deleted at once, since no later start looks for it; a folder may
                // be large.
                if is_its_own && fs::remove_file(entry.path()).is_err() {
                    self.removals.discard(entry.path(), |_| {});
                }
            }
        }
    }

    /// Deletes what an earlier server left in the trash.
    pub(super) fn empty_trash(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folders.trash)? {
            self.removals.discard(entry?.path(), |_| {});
        }
        Ok(())
    }

    fn give_back(&self, id: Option<u32>) {
        if let (Some(ids), Some(id)) = (&self.ids, id) {
            ids.give_back(id);
        }
    }

    /// Returns the plan of an ordinary box of the image `host`.
    pub(super) fn a_box<'a>(&self, id: &SandboxId, resources: &'a Resources, lifetime: Duration) -> BoxPlan<'a> {
        BoxPlan { folder: self.folders.of(id), image: None, entrypoint: false, resources, lifetime, slowly: false }
    }
}

/// Makes the entries that every root has, with any image. `copy_tree` has left these names free.
fn furnish(root: &Path, id: Option<u32>) -> io::Result<()> {
    let dirs =
        [("dev", 0o755), ("dev/pts", 0o755), ("dev/shm", 0o1777), ("proc", 0o555), ("sys", 0o555), (".tidebox", 0o755)];
    for (dir, mode) in dirs {
        let path = root.join(dir);
        DirBuilder::new().mode(0o700).create(&path)?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        own(&path, id)?;
    }
    // Mount points for the files that are shown there.
    let devices = DEVICES.iter().filter(|name| **name != "pts").map(|name| format!("dev/{name}"));
    for file in devices.chain([".tidebox/agent".to_owned(), ".tidebox/life".to_owned()]) {
        let path = root.join(file);
        fs::File::create_new(&path)?;
        own(&path, id)?;
    }
    for (name, number) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
        let path = root.join("dev").join(name);
        symlink(format!("/proc/self/fd{number}"), &path)?;
        own(&path, id)?;
    }
    Ok(())
}

/// Returns the agent's program in `base`, which only the server can write, and writes it if it is
/// missing.
fn program(base: &Path) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    agent_binary().hash(&mut hasher);
    let path = base.join(format!("agent-{:016x}", hasher.finish()));
    for entry in fs::read_dir(base)? {
        let other = entry?.path();
        let name = other.file_name().unwrap_or_default().to_string_lossy();
        // Running boxes have read theirs, and do not need it any more.
        if name.starts_with("agent-") && other != path {
            remove_tree(&other)?;
        }
    }
    if !path.exists() {
        let unfinished = base.join(format!("agent-new-{}", std::process::id()));
        write_program(&unfinished)?;
        fs::rename(&unfinished, &path)?;
    }
    Ok(path)
}

fn write_program(path: &Path) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o700).open(path)?;
    file.write_all(agent_binary())?;
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o555))
}
