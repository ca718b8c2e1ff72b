//! What a runtime must do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{Asker, Metadata, Resources, SandboxId};

use crate::{BoxDisk, DiskUsage, Guest, KernelShare, Result, Slots};

/// What to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// The image's name, such as `host`.
    pub image: String,
    /// The size.
    pub resources: Resources,
    /// Whether to start the image's entry point beside the agent. Its output is the
    /// console.
    pub entrypoint: bool,
    /// Labels; only `mock` reads them.
    pub metadata: Metadata,
    /// How long the box may live without hearing from a server.
    pub lifetime: Duration,
    /// The caller that it is made for, who shares the places for pulls of images with
    /// others; `None` for the server itself.
    pub asker: Option<Asker>,
}

/// How a box is kept apart from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// A machine of its own.
    Vm,
    /// The host's kernel, with namespaces.
    Container,
    /// None worth the name.
    None,
}

/// Who holds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// The kernel: no process can get past it.
    Hard,
    /// The box watches itself.
    Soft,
    /// Nobody.
    None,
}

/// A part of the time that a start took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// `image`, `box` or `agent`.
    pub name: &'static str,
    /// How long it took.
    pub took: Duration,
}

/// A box that has been made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// What took how long, in order.
    pub phases: Vec<Phase>,
}

/// A box that a provider holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Whose it is.
    pub id: SandboxId,
    /// Whether it can still be used. One that is not only wants removing.
    pub alive: bool,
}

/// Whether a provider can work on this host now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// Why not, and what to do about it; `None` when it can.
    pub error: Option<String>,
}

/// What an operator wants to know of a provider, for its detail and `doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// How its boxes are kept apart from the host.
    pub isolation: Isolation,
    /// `runtime`, as the API calls it: `namespaces`, `memory`, …
    pub runtime: String,
    /// `network_mode`, as the API calls it: `loopback`, `none`, …
    pub network_mode: String,
    /// Who holds which limit: `memory_mb`, `vcpus`, `pids`, `disk_mb`.
    pub limits: Vec<(&'static str, LimitKind)>,
    /// What this host lacks, a sentence each, with what to do about it.
    pub missing: Vec<String>,
}

/// A service that makes the boxes of a provider, as it was when
/// [`Provider::health`] was asked last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backend {
    /// Its version; empty while it has never answered.
    pub version: String,
    /// The runtimes that it has to make boxes with, sorted: `runc`, `runsc`, …
    pub runtimes: Vec<String>,
    /// `runtime_count`, as the API calls it: how many boxes of ours it holds.
    pub runtime_count: u32,
}

/// Where images come from, as it concerns whoever waits for a box made of one.
/// None of this asks a registry.
#[async_trait]
pub trait ImageSource: fmt::Debug + Send + Sync {
    /// What can be said against this image before a box is made of it.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for what is no name, or for an image that is not here
    /// and that nobody may be asked for.
    async fn check_image(&self, image: &str) -> Result<()>;

    /// Whether a box of this image waits for a registry.
    async fn is_awaited(&self, image: &str) -> bool;

    /// What the name means here, `sha256:…`. `None` while the image is not here.
    async fn digest(&self, image: &str) -> Option<String>;
}

/// A runtime that can hold sandboxes.
///
/// Every implementation passes [`crate::conformance`]: each bullet here and in
/// [`Guest`] is a case there.
#[async_trait]
pub trait Provider: fmt::Debug + Send + Sync {
    /// Its name in the API and in the configuration.
    fn name(&self) -> &str;

    /// What an operator wants to know.
    fn facts(&self) -> Facts;

    /// Whether it can work now. Answers within a second; within four where
    /// another machine has to be asked and does not answer.
    async fn health(&self) -> Health;

    /// The image that an omitted name means.
    fn default_image(&self) -> &str;

    /// Where the images of its boxes come from; `None` where they come from nowhere,
    /// or where another service gets them. The image `host` is in none. There is no
    /// default, so that a provider around another one cannot forget it.
    ///
    /// - An image that a box was made of is here, and nobody has to wait for it.
    /// - One that it does not have is not here.
    fn images(&self) -> Option<&dyn ImageSource>;

    /// Whether `spec` asks only for what this provider enforces.
    ///
    /// - An image that it cannot have is [`crate::Error::Invalid`], naming it; where a
    ///   registry has to be asked for that, the start says it.
    /// - An option it cannot enforce is [`crate::Error::NotSupported`], naming the option.
    fn check(&self, spec: &Spec) -> Result<()>;

    /// Makes a box, ready for [`Provider::guest`].
    ///
    /// - Idempotent by `id`: a repeat finds the box that runs.
    /// - On error nothing is left behind.
    /// - Dropping the future leaves nothing that [`Provider::stop`] does not remove.
    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started>;

    /// Removes a box and everything it held.
    ///
    /// [`crate::Error::Unavailable`] means that the service behind it did not answer in
    /// time, or is away: some of the box may be there still, and whoever wants it gone
    /// asks again, with growing pauses. So does the server with everything that is
    /// `destroying`. After another error asking again may help too; no promise rests on it.
    ///
    /// - An absent one is a success, twice is a success, two at once are a success.
    /// - Commands in the box end, and their streams end with [`crate::Error::Gone`].
    async fn stop(&self, id: &SandboxId) -> Result<()>;

    /// Every box of ours that this provider holds, known to the store or not.
    ///
    /// - Never one of another store.
    /// - One whose first process has ended is there, not alive, until it is stopped.
    async fn inventory(&self) -> Result<Vec<Found>>;

    /// The inside of a box.
    ///
    /// - A box that is not there is [`crate::Error::Gone`].
    /// - Works on boxes that an earlier process started, if they outlive it.
    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>>;

    /// The service behind it; `None` where the provider itself makes the boxes.
    fn backend(&self) -> Option<Backend> {
        None
    }

    /// How several users share a box; `None` where they cannot.
    fn slots(&self) -> Option<&dyn Slots> {
        None
    }

    /// Returns the disk of this host that boxes lie on. `None` where they take none of
    /// it, or where that cannot be seen.
    fn disk(&self) -> Option<BoxDisk> {
        None
    }

    /// Measures what a box takes of this host's disk, for ending the one that fills it.
    /// `None` where boxes take none of it.
    ///
    /// - What a box writes is counted, be it in files or in entries.
    /// - A file that was removed and is still open is counted.
    async fn disk_usage(&self, id: &SandboxId) -> Option<DiskUsage> {
        let _ = id;
        None
    }

    /// Measures what a box takes of the kernel of this host that counts to no limit of
    /// the box, for ending the one that takes most. `None` where that cannot be seen.
    ///
    /// - Open files of a box are counted.
    async fn kernel_usage(&self, id: &SandboxId, share: KernelShare) -> Option<u64> {
        let _ = (id, share);
        None
    }

    /// Waits until nothing of what was stopped is left to clean up.
    async fn idle(&self) {}
}

/// The `capabilities` of the API, derived from what is implemented.
#[must_use]
pub fn capabilities(provider: &dyn Provider) -> Vec<&'static str> {
    let mut capabilities = vec!["spawn", "exec", "exec_stream", "files", "console", "health"];
    if provider.backend().is_some() {
        capabilities.push("runtime_inventory");
    }
    match provider.facts().isolation {
        Isolation::Vm => capabilities.push("microvm"),
        Isolation::Container => capabilities.push("container"),
        Isolation::None => {}
    }
    capabilities
}
