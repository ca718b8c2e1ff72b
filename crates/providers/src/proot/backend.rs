//! Boxes traced by `proot`.
//!
//! ```text
//! <base>/boxes/<sandbox id>/events       counts kills by the memory limit
//!                           life         a FIFO that the agent holds open
//!                           agent        its program, where the box could write to a shared one
//!                           base         bytes of the files that it began with, where its disk is bounded
//!                           root/        its files, owned by the box
//!                           tmp/         what PRoot itself puts somewhere
//! <base>/snapshots/<snapshot id>/root/   the files of a box, owned by the server
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use domain::Resources;
use guest_protocol::{Boot, Bounds, Defaults, Network, Sweep, Trace, Traced};

use super::root::{DEVICES, Origin};
use super::{host, root, snapshot, tracer};
use crate::agent::AgentGuest;
use crate::local::abilities::SnapshotWriter;
use crate::local::agent_socket::{self, Running};
use crate::local::backend::{Backend, BoxProperties};
use crate::local::fault::{not_made, not_written};
use crate::local::folder::BoxFolder;
use crate::local::host_rootfs;
use crate::local::image::HOST;
use crate::local::parts::Parts;
use crate::local::plan::BoxPlan;
use crate::local::probe::Probe;
use crate::local::process::Process;
use crate::local::record::Record;
use crate::local::snapshot_folder::{self, SnapshotFolder};
use crate::{Facts, Result};

/// Folder of temporary files that PRoot does not let the server move.
const PROOT_TMP: &str = "/tmp";
/// Files of the host that a box on the host's network needs as they are.
const NETWORK_FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// Folders of the host with many files that its programs read and boxes do not change. With the
/// image `host` they are shown as they are, below the root's `/`.
const SHOWN: [&str; 2] = ["etc/alternatives", "etc/ssl/certs"];
/// Path of the agent's program in a box.
const PROGRAM: &str = "/.tidebox/agent";
const LIFE: &str = "/.tidebox/life";

/// Calls of a box's processes that `PRoot` traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traces {
    /// Calls that its filter lets it see.
    Filtered,
    /// Every call, since its filter does not work here.
    All,
}

/// Way to make boxes with `proot`.
#[derive(Debug)]
pub struct ProotBackend {
    pub(super) parts: Parts,
    /// Absolute path of the program `proot`.
    pub(super) proot: PathBuf,
    /// Agent on disk, for boxes that cannot write to it.
    pub(super) program: PathBuf,
    /// True where boxes can use the server's API.
    pub(super) api_is_open: bool,
}

impl Backend for ProotBackend {
    const NAME: &'static str = "proot";
    const COPIES_IMAGE: bool = true;
    const DEFAULT_IMAGE: &'static str = HOST;

    type Socket = UnixListener;
    type Capabilities = Traces;
    type Order = Trace;

    fn parts(&self) -> &Parts {
        &self.parts
    }

    async fn probe(&self) -> Probe<Traces> {
        host::probe(self, &self.proot, [Traces::Filtered, Traces::All]).await
    }

    async fn test(&self, guest: &AgentGuest) -> Result<()> {
        host::run_true(guest).await
    }

    fn facts(&self, probe: &Probe<Traces>) -> Facts {
        host::facts(probe, self.parts.ids.is_some(), self.api_is_open)
    }

    fn make_folder(&self, folder: &BoxFolder) -> io::Result<UnixListener> {
        folder.make()?;
        folder.listen()
    }

    async fn prepare(&self, plan: &BoxPlan<'_, Traces>, id: Option<u32>) -> Result<Trace> {
        let dir = plan.folder.path().to_owned();
        let origin = match (&plan.snapshot, plan.image) {
            (Some(snapshot), _) => Origin::Snapshot(snapshot::root(snapshot)),
            (None, Some(image)) => Origin::Image(image.held.clone()),
            (None, None) => Origin::Host(self.parts.host_rootfs.path.clone(), &SHOWN),
        };
        let files = tokio::task::spawn_blocking(move || root::make(&dir, &origin, id)).await.map_err(not_made)?;
        // Files that a removal deletes are missing in the copy, which notices nothing.
        if plan.snapshot.as_ref().is_some_and(|snapshot| !snapshot.path().exists()) {
            return Err(snapshot_folder::removed());
        }
        files.map_err(not_written)?;
        let base_bytes = snapshot::base_bytes(plan).await.map_err(not_written)?;
        Ok(self.order(plan, id, base_bytes))
    }

    fn properties(&self, _: Option<Traces>) -> BoxProperties {
        BoxProperties { holds_slots: false, has_ids: true, is_bounded_on_disk: true, copies_snapshot: true }
    }

    fn snapshot_writer(&self, can: Option<Traces>) -> Option<&dyn SnapshotWriter> {
        can.is_some().then_some(self)
    }

    async fn launch(&self, folder: &BoxFolder, listener: UnixListener, order: Trace) -> Result<Running> {
        agent_socket::run(folder, tracer::trace(&self.parts.agent, listener, &order)).await
    }

    async fn kill(&self, folder: &BoxFolder, record: &Record, _process: Option<&Process>) -> io::Result<()> {
        let id = record.id_base;
        let roots = folder.pids();
        // Without either, nothing was ever started.
        if roots.is_empty() && id.is_none() {
            return Ok(());
        }
        tracer::sweep(&self.parts.agent, &Sweep { id, roots }).await
    }

    async fn release(&self, folder: &BoxFolder, _record: &Record) -> io::Result<()> {
        self.remove_temporaries(&folder.pids());
        Ok(())
    }
}

#[async_trait]
impl SnapshotWriter for ProotBackend {
    async fn write(&self, folder: &BoxFolder, record: &Record, new: &SnapshotFolder) -> Result<u64> {
        snapshot::keep(&self.parts.agent, folder, record, new).await
    }
}

impl ProotBackend {
    fn order(&self, plan: &BoxPlan<'_, Traces>, id: Option<u32>, base_bytes: Option<u64>) -> Trace {
        let folder = plan.folder.path();
        let program = if id.is_some() { self.program.clone() } else { folder.join("agent") };
        let mut argv = vec![self.proot.display().to_string(), "-0".to_owned()];
        push_option(&mut argv, "-r", folder.join("root").display().to_string());
        push_option(&mut argv, "-b", "/proc".to_owned());
        let devices = DEVICES.iter().map(|name| format!("/dev/{name}"));
        let shown = self.parts.host_rootfs.shown.iter().cloned().chain(SHOWN.iter().map(|dir| format!("/{dir}")));
        let shown = shown.filter(|_| plan.image.is_none());
        let host = devices.chain(shown).chain(NETWORK_FILES.map(str::to_owned));
        host.filter(|path| Path::new(path).exists()).for_each(|path| push_option(&mut argv, "-b", path));
        push_option(&mut argv, "-b", format!("{}:{PROGRAM}", program.display()));
        push_option(&mut argv, "-b", format!("{}:{LIFE}", folder.join("life").display()));
        push_option(&mut argv, "-w", "/".to_owned());
        argv.push(PROGRAM.to_owned());
        let run = plan.image.map(|image| image.held.run().clone()).unwrap_or_default();
        let starts = plan.image.is_some_and(|image| image.entrypoint);
        let boot = Boot {
            deadline_ms: u64::try_from(plan.spec.lifetime.as_millis()).unwrap_or(u64::MAX),
            memory_mb: plan.spec.resources.memory_mb,
            single_user: true,
            network: Network::Shared,
            // The box has only one user.
            defaults: if plan.image.is_some() {
                Defaults { user: None, ..run.defaults }
            } else {
                host_rootfs::defaults()
            },
            entrypoint: (starts && !run.entrypoint.is_empty()).then_some(run.entrypoint),
            furnish: plan.image.is_some(),
            trust: plan.spec.trust.clone(),
            traced: Some(Traced { life: LIFE.to_owned(), ..Traced::default() }),
            ..Boot::default()
        };
        let mut env = BTreeMap::new();
        env.insert("PROOT_TMP_DIR".to_owned(), folder.join("tmp").display().to_string());
        if plan.can == Traces::All {
            env.insert("PROOT_NO_SECCOMP".to_owned(), "1".to_owned());
        }
        let Resources { memory_mb, vcpus, disk_mb, pids, .. } = plan.spec.resources;
        let bounds = Bounds { memory_mb, vcpus, pids, disk_mb, base_bytes };
        Trace { dir: folder.display().to_string(), argv, boot, env, id, bounds }
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
                    self.parts.removals.discard(entry.path(), |_| {});
                }
            }
        }
    }
}

/// Appends an option and its value to the arguments of PRoot.
fn push_option(argv: &mut Vec<String>, name: &str, value: String) {
    argv.extend([name.to_owned(), value]);
}
