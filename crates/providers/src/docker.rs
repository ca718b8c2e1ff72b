//! Boxes that a Docker Engine makes, with any OCI runtime that it has.
//!
//! The agent is the container's first process. It lies in a volume that boxes mount read-only, so
//! nothing of the server's host is mounted and the Engine may be on another machine. The first
//! connection is the container's standard streams, attached before it starts. Later ones, after a
//! restart of the server or of the Engine, come through a process that the Engine starts in the
//! container and that joins its streams to the agent's socket. Where the server can reach that
//! socket directly, it uses neither. A box is found by the labels of its container, and its name
//! makes a second start find the first.

mod config;
mod container;
mod direct;
mod engine;
mod fault;
mod held;
mod image;
mod inventory;
mod labels;
mod pauses;
mod removal;
mod snapshots;
mod sockets;
mod state;
mod stream;
mod takes;
mod transport;
mod usage;
mod volume;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use bollard::Docker as Client;
use bollard::errors::Error as ClientError;
use bollard::query_parameters::CreateContainerOptionsBuilder;
use domain::SandboxId;
use futures_util::{StreamExt, TryStreamExt, stream as futures};
use images::PullPolicy;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::agent::AgentGuest;
use crate::kept_guests::{KeptGuest, KeptGuests};
use crate::snapshots::{check_snapshot, copy_is_full};
use crate::{
    Backend, BoxDisk, BoxStats, DiskUsage, Error, Facts, Found, Guest, Health, ImageSource, Isolation, KernelShare,
    LimitKind, Pauses, Phase, Provider, Result, Snapshots, Spec, Started,
};

pub use config::{DockerConfig, DockerTls};

use container::Shape;
use direct::FirstProcess;
use engine::{About, Engine};
use fault::{CHANGE_WAIT, within};
use image::Images;
use state::State;
use takes::Takes;
use transport::Endpoint;
use volume::AgentVolume;

/// Name of this provider.
pub const NAME: &str = "docker";
/// Image of a spawn that names none.
const IMAGE: &str = "debian:stable-slim";
/// Most containers whose counters the Engine is asked for at once.
const STATS_AT_ONCE: usize = 16;
/// Prefixes of runtimes whose containers have a kernel of their own.
const HAVE_OWN_KERNEL: [&str; 2] = ["kata", "runsc"];
/// Warning about kernel resources that no setting of an Engine bounds.
const SHARED_COUNTS: &str = "Containers of this runtime share terminals, inotify instances and watches, epoll watches \
    (which the server and the Engine also need if they run as root), descriptors in flight, large pipes, and, below \
    half of the limit for root on the Engine's machine, waiting signals, timers and message queues: one box can use \
    them all up. Start the Engine with userns-remap to protect the server, or use the runtime runsc or kata, or the \
    provider native.";

/// Provider of boxes made by a Docker Engine. Clones share one state.
#[derive(Debug, Clone)]
pub struct Docker {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: DockerConfig,
    shape: Shape,
    /// Client of the Engine, or the reason why there is none.
    client: std::result::Result<Client, String>,
    place: String,
    /// True if the Engine is reached over a unix socket, so that boxes take this machine's disk.
    is_local: bool,
    engine: Engine,
    images: Arc<Images>,
    volume: AgentVolume,
    takes: Takes,
    boxes: KeptGuests,
    /// True if the socket buffers of the last box made have no limit.
    has_unbounded_sockets: AtomicBool,
    tasks: TaskTracker,
}

impl Docker {
    /// Sets the provider up, and asks the Engine for its description. An Engine that does not
    /// answer, or that the environment does not name, is no error; [`Provider::health`] reports
    /// it. Takes at most a second, and must be called within a runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a configuration that is not valid, naming the key.
    pub async fn open(config: DockerConfig) -> Result<Docker> {
        let shape = Shape::new(&config)?;
        let tasks = TaskTracker::new();
        let endpoint = match Endpoint::find(&config) {
            Err(error) if !config.socket.is_empty() => return Err(Error::Invalid(error)),
            found => found,
        };
        let place = endpoint.as_ref().map_or_else(|_| String::new(), Endpoint::to_string);
        let is_local = matches!(&endpoint, Ok(Endpoint::Unix(_)));
        let client = endpoint.and_then(|endpoint| endpoint.client(&tasks).map_err(|error| error.to_string()));
        let inner = Inner {
            volume: AgentVolume::new(&config.store_id),
            config,
            shape,
            client,
            place,
            is_local,
            engine: Engine::default(),
            images: Arc::default(),
            takes: Takes::default(),
            boxes: KeptGuests::default(),
            // A root server without the permission finds out with the first box.
            has_unbounded_sockets: AtomicBool::new(!is_local || !rustix::process::geteuid().is_root()),
            tasks,
        };
        inner.ask().await;
        Ok(Docker { inner: Arc::new(inner) })
    }

    /// Runs `work` to its end even if the caller goes away.
    async fn tracked<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
        action: &'static str,
    ) -> Result<T> {
        self.inner.tasks.spawn(work).await.unwrap_or_else(|error| Err(Error::failed(action, error)))
    }
}

impl Inner {
    fn client(&self) -> Result<&Client> {
        self.client.as_ref().map_err(|error| Error::Unavailable(error.clone()))
    }

    async fn ask(&self) -> Option<String> {
        match &self.client {
            Ok(client) => self.engine.ask(client, &self.config, &self.place).await,
            Err(error) => Some(error.clone()),
        }
    }

    /// Returns the image that the Engine has under this name now.
    async fn image(&self, name: &str) -> Result<Option<image::Image>> {
        image::inspect(self.client()?, &image::name_of(name)?.to_string()).await
    }

    /// Returns the runtime that boxes have.
    fn runtime(&self, about: Option<&About>) -> String {
        if !self.config.runtime.is_empty() {
            return self.config.runtime.clone();
        }
        let default = about.map(|about| about.default_runtime.clone()).filter(|name| !name.is_empty());
        default.unwrap_or("runc".to_owned())
    }

    fn name(&self, id: &SandboxId) -> String {
        container::name(&self.config.store_id, id)
    }

    /// Makes a box. The caller holds the lock on `entry`.
    async fn start(&self, id: &SandboxId, spec: &Spec, entry: &KeptGuest) -> Result<Started> {
        let client = self.client()?;
        let name = self.name(id);
        let began = Instant::now();
        let image = match &spec.snapshot {
            Some(snapshot) => self.image_of(client, snapshot).await,
            None => self.images.take(client, &self.config, &self.tasks, &spec.image, spec.asker).await,
        };
        let image = match image.and_then(|image| image.checked(spec)) {
            Ok(image) => image,
            // A running box does not need its image any more.
            Err(_) if self.is_usable(client, &name, id, entry).await => return Ok(Started { phases: Vec::new() }),
            Err(error) => {
                self.boxes.forget(id);
                return Err(error);
            }
        };
        let image_took = began.elapsed();
        let mut made = self.make(client, &name, id, spec, &image).await;
        if let Err(Failure::NameTaken) = made {
            // A container of this store: the box itself, or the remains of an interrupted start.
            if self.is_usable(client, &name, id, entry).await {
                return Ok(Started { phases: Vec::new() });
            }
            self.remove(client, &name).await?;
            made = self.make(client, &name, id, spec, &image).await;
        }
        if let Err(Failure::NoAgent(error)) = made {
            tracing::info!(%error, "installing the agent on the Engine again");
            // The volume was removed, and the Engine has made an empty one.
            self.volume.forget().await;
            made = self.make(client, &name, id, spec, &image).await;
        }
        let io = match made {
            Ok(io) => io,
            Err(failure) => {
                self.boxes.forget(id);
                return Err(failure.into());
            }
        };
        let box_took = began.elapsed() - image_took;
        match AgentGuest::connect(io).await {
            Ok(attached) => {
                let direct = match state::state(client, &name).await {
                    Ok(State::Running(process)) => {
                        self.bound_sockets(&process, spec.resources.memory_mb);
                        self.reach(&process).await
                    }
                    _ => None,
                };
                entry.keep(direct.unwrap_or(attached)).await;
                let agent_took = began.elapsed() - image_took - box_took;
                let phases = [("image", image_took), ("box", box_took), ("agent", agent_took)];
                Ok(Started { phases: phases.into_iter().map(|(name, took)| Phase { name, took }).collect() })
            }
            Err(error) => {
                self.clear(client, &name, id).await;
                let is_gone = matches!(error, Error::Gone);
                Err(if is_gone { Error::failed("start the agent", "the container exited immediately") } else { error })
            }
        }
    }

    /// Creates the container, attaches to it and starts it. Removes it again if that fails.
    async fn make(
        &self,
        client: &Client,
        name: &str,
        id: &SandboxId,
        spec: &Spec,
        image: &image::Image,
    ) -> Result<impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static, Failure> {
        const ACTION: &str = "make a box";
        self.volume.fill(client, &image.id).await.map_err(|error| fault::failed("install the agent", error))?;
        let about = self.engine.about();
        let bounds_options =
            about.as_ref().is_some_and(|about| about.bounds_options) && !has_own_kernel(&self.runtime(about.as_ref()));
        let disk_mb = self.disk_mb(client, spec, image).await?;
        let made = container::Made { image, volume: self.volume.name(), bounds_options, disk_mb };
        let body = container::body(&self.config, &self.shape, id, spec, &made)?;
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let created = within(CHANGE_WAIT, client.create_container(Some(options), body)).await;
        created.map_err(|error| self.not_created(spec, error))?;
        let started = async {
            let io = within(CHANGE_WAIT, stream::attach(client, name)).await?;
            within(CHANGE_WAIT, client.start_container(name, None)).await?;
            Ok(io)
        };
        match started.await {
            Ok(io) => Ok(io),
            Err(error) => {
                self.clear(client, name, id).await;
                // Any refusal that names the agent's folder: the folder lacks the agent.
                if fault::refusal(&error).is_some_and(|(_, message)| message.contains(guest_protocol::AGENT_DIR)) {
                    return Err(Failure::NoAgent(fault::failed(ACTION, error)));
                }
                Err(fault::failed(ACTION, error).into())
            }
        }
    }

    /// Returns the bound on what a box writes: of a copy, without what its image takes of the bound already.
    async fn disk_mb(&self, client: &Client, spec: &Spec, image: &image::Image) -> Result<u32> {
        let bound = spec.resources.disk_mb;
        if bound == 0 || !spec.is_copy {
            return Ok(bound);
        }
        let kept = self.kept_images(client).await.map_err(|error| fault::failed("make a box", error))?;
        let taken_mb = u32::try_from(kept.above_named(&image.id) >> 20).unwrap_or(u32::MAX);
        bound.checked_sub(taken_mb).filter(|left| *left > 0).ok_or_else(|| copy_is_full(taken_mb, bound))
    }

    /// Converts the refusal to create a container into a failure.
    fn not_created(&self, spec: &Spec, error: ClientError) -> Failure {
        let failure = match fault::refusal(&error) {
            Some((409, _)) => return Failure::NameTaken,
            Some((404, _)) => Error::Invalid(format!(
                "the image `{}` was removed from the Docker Engine while a sandbox was being made from it; try again",
                spec.image
            )),
            Some((_, message)) if message.contains("storage-opt") || message.contains("storage opt") => no_disk_bound(),
            Some((_, message)) if message.contains("nknown runtime") || message.contains("etwork") => {
                Error::Unavailable(format!("the Docker Engine refuses the configured container: {message}"))
            }
            _ => fault::failed("make a box", error),
        };
        failure.into()
    }

    /// Removes the remains of a start that failed.
    async fn clear(&self, client: &Client, name: &str, id: &SandboxId) {
        if let Err(error) = self.remove(client, name).await {
            tracing::warn!(%id, %error, "cannot remove the remains of a box that could not be made");
        }
    }

    async fn is_usable(&self, client: &Client, name: &str, id: &SandboxId, entry: &KeptGuest) -> bool {
        let runs = match state::state(client, name).await {
            Ok(State::Running(_)) => true,
            Ok(State::Paused) => self.unpause(client, name).await.is_ok(),
            Ok(State::NotRunning | State::Absent) | Err(_) => false,
        };
        runs && self.dial(id, entry).await.is_ok()
    }

    /// Connects to the agent without the Engine; `None` if that is not possible.
    async fn reach(&self, process: &FirstProcess) -> Option<AgentGuest> {
        if self.is_local { direct::reach(process).await } else { None }
    }

    /// Returns the kept connection to the agent, or opens a new one.
    async fn dial(&self, id: &SandboxId, entry: &KeptGuest) -> Result<Arc<AgentGuest>> {
        entry.get(|| Ok(()), self.connect(id)).await
    }

    /// Connects to the agent of a box that runs.
    async fn connect(&self, id: &SandboxId) -> Result<AgentGuest> {
        let client = self.client()?;
        let name = self.name(id);
        let process = match state::state(client, &name).await? {
            State::Running(process) => process,
            State::Paused => return Err(Error::Unavailable("the box is paused".to_owned())),
            State::NotRunning | State::Absent => return Err(Error::Gone),
        };
        if let Some(guest) = self.reach(&process).await {
            return Ok(guest);
        }
        let io =
            within(CHANGE_WAIT, stream::relay(client, &name)).await.map_err(|error| match fault::status(&error) {
                // The container has ended in the meantime.
                Some(404 | 409) => Error::Gone,
                _ => fault::failed("reach the agent", error),
            })?;
        match AgentGuest::connect(io).await {
            Err(Error::Gone) if matches!(state::state(client, &name).await?, State::Running(_)) => {
                Err(Error::Unavailable("the agent of the box cannot be reached".to_owned()))
            }
            connected => connected,
        }
    }
}

/// Returns whether containers of a runtime have a kernel of their own.
fn has_own_kernel(runtime: &str) -> bool {
    HAVE_OWN_KERNEL.iter().any(|name| runtime.starts_with(name))
}

/// Failure to make a container.
enum Failure {
    /// A container of this name exists.
    NameTaken,
    /// The container has no agent.
    NoAgent(Error),
    Other(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Other(error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::NameTaken => Error::failed("make a box", "its name was taken again"),
            Failure::NoAgent(error) | Failure::Other(error) => error,
        }
    }
}

fn no_disk_bound() -> Error {
    Error::NotSupported(
        "the provider docker cannot enforce disk_mb on this Engine: its storage driver cannot limit a container. Leave \
         disk_mb out, or use an Engine with overlay2 on xfs (mounted with pquota), btrfs or zfs"
            .to_owned(),
    )
}

fn limit_kind(is_held: bool) -> LimitKind {
    if is_held { LimitKind::Hard } else { LimitKind::None }
}

#[async_trait]
impl Provider for Docker {
    fn name(&self) -> &str {
        NAME
    }

    fn facts(&self) -> Facts {
        let config = &self.inner.config;
        let about = self.inner.engine.about();
        let runtime = self.inner.runtime(about.as_ref());
        let [memory, vcpus, pids] = about.as_ref().map_or([true; 3], |about| about.limits);
        let bounds_disk = about.as_ref().is_some_and(|about| about.bounds_disk);
        let mut missing = self.inner.missing(about);
        if !has_own_kernel(&runtime) {
            missing.push(SHARED_COUNTS.to_owned());
        }
        Facts {
            // These runtimes have a virtual machine for each container.
            isolation: if runtime.starts_with("kata") { Isolation::Vm } else { Isolation::Container },
            runtime,
            network_mode: config.network_mode.clone(),
            limits: vec![
                ("memory_mb", limit_kind(memory)),
                ("vcpus", limit_kind(vcpus)),
                ("pids", limit_kind(pids)),
                ("disk_mb", limit_kind(bounds_disk)),
            ],
            missing,
        }
    }

    async fn health(&self) -> Health {
        Health { error: self.inner.ask().await }
    }

    fn backend(&self) -> Option<Backend> {
        let about = self.inner.engine.about().unwrap_or_default();
        Some(Backend { version: about.version, runtimes: about.runtimes, runtime_count: about.boxes })
    }

    fn default_image(&self) -> &str {
        IMAGE
    }

    /// Returns the images of the Engine, whose ids serve as digests.
    fn images(&self) -> Option<&dyn ImageSource> {
        Some(self)
    }

    /// Checks only the name and `disk_mb`: [`Provider::start`] finds out whether the Engine or a
    /// registry has the image.
    fn check(&self, spec: &Spec) -> Result<()> {
        check_snapshot(self, spec)?;
        image::name_of(&spec.image)?;
        let bounds_disk = self.inner.engine.about().is_none_or(|about| about.bounds_disk);
        if spec.resources.disk_mb > 0 && !bounds_disk { Err(no_disk_bound()) } else { Ok(()) }
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started> {
        self.check(spec)?;
        let inner = Arc::clone(&self.inner);
        let id = id.clone();
        let spec = spec.clone();
        // Taken here and not in the task: if the caller goes away before it has the lock, the
        // start must not run after a cleanup that came in between.
        let (entry, change) = inner.boxes.change(&id).await;
        let work = async move {
            let _change = change;
            inner.start(&id, &spec, &entry).await
        };
        self.tracked(work, "make a box").await
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let id = id.clone();
        let work = async move {
            let (_entry, _change) = inner.boxes.change(&id).await;
            inner.remove(inner.client()?, &inner.name(&id)).await?;
            inner.boxes.forget(&id);
            Ok(())
        };
        self.tracked(work, "remove a box").await
    }

    async fn inventory(&self) -> Result<Vec<Found>> {
        self.inner.inventory().await
    }

    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        let entry = self.inner.boxes.entry(id);
        let guest = self.inner.dial(id, &entry).await;
        if matches!(guest, Err(Error::Gone)) {
            self.inner.boxes.forget_unchanged(id, &entry);
        }
        Ok(guest?)
    }

    fn pauses(&self) -> Option<&dyn Pauses> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.inner.keeps_files().then_some(self)
    }

    /// Returns the Engine's folder, if it is on this machine and the server can see it.
    fn disk(&self) -> Option<BoxDisk> {
        let dir = self.inner.engine.about().filter(|_| self.inner.is_local)?.root_dir;
        dir.is_dir().then_some(BoxDisk { dir, holds_bounded: true, copies_image: false, copies_snapshot: false })
    }

    async fn disk_usage(&self, id: &SandboxId) -> Option<DiskUsage> {
        let client = self.inner.client().ok().filter(|_| self.inner.is_local)?;
        let entry = self.inner.boxes.entry(id);
        let name = self.inner.name(id);
        let mut found = usage::measure(client, &name, self.inner.dial(id, &entry)).await?;
        found.bytes = found.bytes.saturating_add(self.inner.held_by(client, &name).await.unwrap_or(0));
        Some(found)
    }

    async fn kernel_usage(&self, id: &SandboxId, share: KernelShare) -> Option<u64> {
        let client = self.inner.client().ok().filter(|_| self.inner.is_local)?;
        usage::of_kernel(client, &self.inner.name(id), share).await
    }

    async fn stats(&self, ids: &[SandboxId]) -> Result<Vec<BoxStats>> {
        let client = self.inner.client()?;
        let names: Vec<String> = ids.iter().map(|id| self.inner.name(id)).collect();
        let looks = futures::iter(names).map(|name| async move { usage::of_resources(client, &name).await });
        looks.buffered(STATS_AT_ONCE).try_collect().await
    }
}

#[async_trait]
impl ImageSource for Docker {
    async fn check_image(&self, image: &str) -> Result<()> {
        image::name_of(image).map(drop)
    }

    /// Returns whether a start has to wait for a pull. With the policy `missing`, an Engine that does
    /// not answer counts as false: the start reports it.
    async fn is_awaited(&self, image: &str) -> bool {
        match self.inner.config.pull {
            PullPolicy::Never => false,
            PullPolicy::Always => image::name_of(image).is_ok(),
            PullPolicy::Missing => matches!(self.inner.image(image).await, Ok(None)),
        }
    }

    async fn digest(&self, image: &str) -> Option<String> {
        self.inner.image(image).await.ok().flatten().map(|image| image.id)
    }
}
