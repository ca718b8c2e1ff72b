//! The contract of a runtime, and the types that it exchanges with the server.

#![warn(missing_docs)]

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use domain::SandboxId;
use images::Images;

use crate::{
    BoxDisk, BoxStats, DiskUsage, Found, Guest, ImageSnapshots, KernelShare, Pauses, Result, Slots, Snapshots, Spec,
    Started,
};

/// Separation of a box from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// A virtual machine with a kernel of its own.
    Vm,
    /// The host's kernel, with namespaces.
    Container,
    /// No separation to rely on.
    None,
}

/// Enforcer of a limit on a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// The kernel: no process can exceed the limit.
    Hard,
    /// The box itself, which watches its use.
    Soft,
    /// No enforcer: the limit is not applied.
    None,
}

/// A provider's ability to make boxes on this host now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// Reason why the provider cannot work, and the remedy; `None` while it can.
    pub error: Option<String>,
}

/// Capability of handing back the memory of paused boxes.
pub(crate) const MEMORY_RECLAIM: &str = "memory_reclaim";

/// Capability of writing paused boxes to disk.
const SUSPEND: &str = "suspend";
/// Capability of snapshots that have the memory of their boxes.
const SNAPSHOT_MEMORY: &str = "snapshot_memory";

/// Network of boxes whose connections the kernel leads to the agent.
pub(crate) const TRANSPARENT: &str = "transparent";

/// Properties of a provider that its API detail and `doctor` show to an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Separation of its boxes from the host.
    pub isolation: Isolation,
    /// Technique that boxes are made with, `runtime` in the API: `namespaces`, `memory`, …
    pub runtime: String,
    /// Network that a box sees, `network_mode` in the API: `loopback`, `transparent`, `none`, …
    pub network_mode: String,
    /// Limits by name (`memory_mb`, `vcpus`, `pids`, `disk_mb`), with their enforcers.
    pub limits: Vec<(&'static str, LimitKind)>,
    /// Features that this host lacks, a sentence each, with the remedy.
    pub missing: Vec<String>,
}

impl Facts {
    /// Returns whether a box has a network besides its loopback, so that its processes can connect
    /// past the proxy of [`Guest::egress`].
    #[must_use]
    pub fn has_own_network(&self) -> bool {
        !matches!(self.network_mode.as_str(), "none" | "loopback" | TRANSPARENT)
    }
}

/// A service that makes the boxes of a provider, as of the last call of [`Provider::health`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backend {
    /// Version of the service; empty until it first answers.
    pub version: String,
    /// Runtimes with which it can make boxes, sorted: `runc`, `runsc`, …
    pub runtimes: Vec<String>,
    /// Number of this server's boxes that it holds, `runtime_count` in the API.
    pub runtime_count: u32,
}

/// A source of images, as seen by a caller that waits for a box. No method asks a registry.
#[async_trait]
pub trait ImageSource: fmt::Debug + Send + Sync {
    /// Checks an image before a box is made of it.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] if the text is no image name, or if the image is not on this
    /// host and no registry may be asked for it.
    async fn check_image(&self, image: &str) -> Result<()>;

    /// Returns whether a box of this image would have to wait for a registry.
    async fn is_awaited(&self, image: &str) -> bool;

    /// Returns the digest that the name stands for on this host, `sha256:…`, or `None` while the
    /// image is not here.
    async fn digest(&self, image: &str) -> Option<String>;

    /// Returns the store of this server, if that is the source.
    fn store(&self) -> Option<&Images> {
        None
    }
}

#[async_trait]
impl ImageSource for Images {
    async fn check_image(&self, image: &str) -> Result<()> {
        Ok(self.check(image).await?)
    }

    async fn is_awaited(&self, image: &str) -> bool {
        Images::is_awaited(self, image)
    }

    async fn digest(&self, image: &str) -> Option<String> {
        self.find(image).ok().flatten()
    }

    fn store(&self) -> Option<&Images> {
        Some(self)
    }
}

/// A runtime that can hold sandboxes.
///
/// It makes boxes and removes them. A box has the id of its sandbox; one that users share has an id
/// of its own. Many calls may run at once, and a caller that gives up drops the future.
///
/// Every implementation passes the suite in the crate `conformance`: each bullet here and in
/// [`Guest`] is tested by a case there, or by the provider's own tests where it takes a second
/// server or an option that not every provider has.
#[async_trait]
pub trait Provider: fmt::Debug + Send + Sync {
    /// Returns the provider's name in the API and in the configuration.
    fn name(&self) -> &str;

    /// Returns the provider's properties that an operator sees.
    fn facts(&self) -> Facts;

    /// Checks whether the provider can work now. Answers within one second, or within four if
    /// another machine has to be asked and does not answer.
    async fn health(&self) -> Health;

    /// Returns the name of the image for a spawn that names none.
    fn default_image(&self) -> &str;

    /// Returns the source of the images of its boxes, or `None` if they have none or if another
    /// service gets them. The image `host` is in no source. There is no default implementation,
    /// so that a provider around another one cannot forget it.
    ///
    /// - An image that a box was made of is on this host, and no start has to wait for it.
    /// - An image that the provider does not have is not on this host.
    fn images(&self) -> Option<&dyn ImageSource>;

    /// Checks that `spec` asks only for what this provider enforces.
    ///
    /// - An image that it cannot have is [`crate::Error::Invalid`], naming the image. If only a
    ///   registry can answer that, [`Provider::start`] returns the error.
    /// - An option that it cannot enforce is [`crate::Error::NotSupported`], naming the option.
    fn check(&self, spec: &Spec) -> Result<()>;

    /// Makes a box from `spec`, ready for [`Provider::guest`].
    ///
    /// - Idempotent by `id`: a repeat finds the running box.
    /// - On error nothing is left behind.
    /// - Dropping the future leaves nothing that [`Provider::stop`] does not remove.
    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started>;

    /// Removes a box and everything that it held.
    ///
    /// [`crate::Error::Unavailable`] means that the service behind the provider did not answer in
    /// time or cannot be reached. Parts of the box may remain, and the caller has to retry with
    /// growing pauses, as the server does for every sandbox in the state `destroying`. A retry
    /// may also help after another error, but nothing is promised.
    ///
    /// - Stopping a box that does not exist succeeds; so do a repeat and two calls at once.
    /// - Commands in the box end, and their streams end with [`crate::Error::Gone`].
    async fn stop(&self, id: &SandboxId) -> Result<()>;

    /// Lists every box of this store that the provider holds, whether or not the store has a row
    /// for it.
    ///
    /// - A box of another store is never listed.
    /// - A box whose first process has ended is listed as not alive until it is stopped.
    async fn inventory(&self) -> Result<Vec<Found>>;

    /// Returns the inside of a box, for commands and files.
    ///
    /// - A box that does not exist is [`crate::Error::Gone`].
    /// - Works on boxes that an earlier process started, if they outlive it.
    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>>;

    /// Returns whether a box runs, by a look that asks neither the box nor a service; `None` where that
    /// cannot tell.
    ///
    /// - A box whose first process has ended or was killed does not run, also before its end was noticed.
    fn runs(&self, id: &SandboxId) -> Option<bool> {
        let _ = id;
        None
    }

    /// Returns the release of the kernel of the boxes; `None` if it is that of this host, or not known.
    fn kernel(&self) -> Option<String> {
        None
    }

    /// Returns the snapshots of images that the provider takes by itself; `None` if it takes none.
    fn image_snapshots(&self) -> Option<ImageSnapshots> {
        None
    }

    /// Returns the service behind the provider, or `None` if the provider makes the boxes itself.
    fn backend(&self) -> Option<Backend> {
        None
    }

    /// Returns the means to share a box among several users, or `None` if boxes cannot be shared.
    fn slots(&self) -> Option<&dyn Slots> {
        None
    }

    /// Returns the means to pause boxes, or `None` if they cannot be paused.
    fn pauses(&self) -> Option<&dyn Pauses> {
        None
    }

    /// Returns the means to keep the state of boxes, or `None` if it cannot be kept.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }

    /// Returns the disk of this host that holds the boxes, or `None` if they use none of it or if
    /// that cannot be seen.
    fn disk(&self) -> Option<BoxDisk> {
        None
    }

    /// Measures the space that a box uses on this host's disk, so that the box which fills the
    /// disk can be ended. Returns `None` if boxes use none of it.
    ///
    /// - All that a box writes is counted, both bytes of files and directory entries.
    /// - A file that was removed and is still open is counted.
    async fn disk_usage(&self, id: &SandboxId) -> Option<DiskUsage> {
        let _ = id;
        None
    }

    /// Measures a box's use of `share`, a resource of the host's kernel that no limit of the box
    /// covers, so that the box which uses most can be ended. Returns the amount in the unit of
    /// `share`, or `None` if it cannot be seen.
    ///
    /// - Open files of a box are counted.
    async fn kernel_usage(&self, id: &SandboxId, share: KernelShare) -> Option<u64> {
        let _ = (id, share);
        None
    }

    /// Measures the resources that boxes use, in the order of `ids`, with one look for all where that
    /// is cheaper. What a provider cannot measure is absent, and so is all of a box that does not exist.
    ///
    /// - Work of a box is counted, also of its processes that have ended; that of others is not.
    /// - Memory and processes are counted while they are held.
    async fn stats(&self, ids: &[SandboxId]) -> Result<Vec<BoxStats>> {
        Ok(vec![BoxStats::default(); ids.len()])
    }

    /// Waits until the cleanup after stopped boxes is complete.
    async fn idle(&self) {}
}

/// Returns the `capabilities` of the API, such as `exec`, derived from what the provider
/// implements.
#[must_use]
pub fn capabilities(provider: &dyn Provider) -> Vec<&'static str> {
    let mut capabilities = vec!["spawn", "exec", "exec_stream", "files", "console", "health"];
    if provider.backend().is_some() {
        capabilities.push("runtime_inventory");
    }
    if let Some(pauses) = provider.pauses() {
        capabilities.push("pause");
        if pauses.can_reclaim() {
            capabilities.push(MEMORY_RECLAIM);
        }
        if pauses.can_suspend() {
            capabilities.push(SUSPEND);
        }
    }
    if let Some(snapshots) = provider.snapshots() {
        capabilities.push("snapshots");
        if snapshots.has_memory() {
            capabilities.push(SNAPSHOT_MEMORY);
        }
    }
    match provider.facts().isolation {
        Isolation::Vm => capabilities.push("microvm"),
        Isolation::Container => capabilities.push("container"),
        Isolation::None => {}
    }
    capabilities
}
