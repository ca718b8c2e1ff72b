//! The life of the process: open, serve, drain, close.

mod machine;
mod runtimes;

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{Caps, Configured, Limits, Places, Resources, SizeRules, State, StopReason};
use futures_util::{StreamExt, stream};
use providers::Chain;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::{Admission, Opened, QueuePolicy};
use crate::auth::Access;
use crate::budget::Budget;
use crate::clock::{Clock, SteadyClock};
use crate::config::{self, Config, Overflow};
use crate::control::{AuditBounds, Control, ORPHAN_GRACE, Policy};
use crate::events::Events;
use crate::heartbeat::{self, WorkerAgent};
use crate::http::peer::TrustedProxies;
use crate::http::{self, Cors, Hosts, Listeners, Settings, Socket, Tls};
use crate::process::{Memory, Process};
use crate::rate_limit::RateLimiter;
use crate::remote_workers::RemoteWorkers;
use crate::store::{Kept, KeptRows, PoolBounds, Sandbox, Sqlite, Store};
use crate::{VERSION, reconcile};

/// Longest time for work that outlives its request, once the server is to stop.
const FINISH_MAX: Duration = Duration::from_secs(10);
/// Longest time for the removal of all boxes at the end of a server that was started with
/// `--destroy-on-exit`.
const DESTROY_MAX: Duration = Duration::from_secs(60);
/// The most boxes that are removed at once at that end.
const DESTROYS_AT_ONCE: usize = 16;

/// Options of the command line that are not in the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// True to remove every sandbox at the end.
    pub destroy_on_exit: bool,
    /// True to work for the control plane that the configuration names.
    pub as_worker: bool,
    /// Function that asks the program's allocator what it holds.
    pub memory: fn() -> Memory,
    /// Function that is called once, when the server is ready.
    pub ready: fn(),
}

/// Reason why the service could not start, or had to stop. Texts are for the operator.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A directory or file cannot be used.
    #[error("cannot use `{path}`: {source}; set `data_dir` to a directory of yours")]
    DataDir {
        /// Directory or file that cannot be used.
        path: String,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// Another server uses the same data.
    #[error("another tidebox server uses the data directory `{0}`; stop it, or set another `data_dir`")]
    Locked(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; set `server.host` and `server.port`")]
    Listen {
        /// Address that was to be listened on.
        address: SocketAddr,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] http::TlsFault),
    /// The Unix socket cannot be listened on.
    #[error(transparent)]
    Socket(#[from] http::SocketFault),
    /// The store cannot be opened.
    #[error("cannot open the store: {0}")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The image store cannot be opened.
    #[error("cannot open the image store `{path}`: {source}; see that `data_dir` is a folder of this user's")]
    Images {
        /// Folder of the image store.
        path: String,
        /// Error of the image store.
        #[source]
        source: providers::Error,
    },
    /// A required provider cannot be set up.
    #[error("cannot set up the provider `{name}`: {source}")]
    Provider {
        /// Name of the provider.
        name: &'static str,
        /// Error of the provider.
        #[source]
        source: providers::Error,
    },
    /// A worker of the configuration cannot be used.
    #[error("cannot set up the worker `{id}`: {source}; see `workers.{id}`")]
    Worker {
        /// Id of the worker.
        id: String,
        /// Error of the worker's client.
        #[source]
        source: providers::Error,
    },
    /// A second signal came before the shutdown that the first one began had ended.
    #[error("ended at once by a second signal; the next start finishes what was under way")]
    Hurried,
    /// The server cannot work for a control plane.
    #[error("cannot be a worker: {0}")]
    AsWorker(#[from] heartbeat::Fault),
    /// The operating system refused a call that normally succeeds.
    #[error("cannot start: {0}")]
    System(#[source] std::io::Error),
    /// A part of the service ended by itself.
    #[error("a part of the service ended by itself: {0}; the log has the cause")]
    Died(&'static str),
}

/// Runs the service until SIGTERM or SIGINT.
///
/// # Errors
/// [`Failure`] if it cannot start, or a part of it ends by itself.
pub async fn run(config: Config, options: Options) -> Result<(), Failure> {
    let started = Instant::now();
    let _lock = prepare(&config.data_dir)?;
    let address = SocketAddr::new(config.server.host, config.server.port);
    let listeners = listen(&config, address).await?;
    let bound = listeners.tcp.local_addr().map_err(Failure::System)?;
    let scheme = if listeners.tls.is_some() { "https" } else { "http" };
    let store =
        Sqlite::open(&config.database.path, rand::random()).await.map_err(|error| Failure::Store(error.into()))?;
    let store = store.keeping(kept(&config));
    let clock: Arc<dyn Clock> = Arc::new(SteadyClock::start());
    let remote_workers =
        RemoteWorkers::open(&config.workers, store.id()).map_err(|(id, source)| Failure::Worker { id, source })?;
    let store: Arc<dyn Store> = Arc::new(store);
    let images = runtimes::images(&config).await?;
    let registry = runtimes::registry(&config, &images, &store, &clock).await?;
    let registry = registry.with_remote_workers(remote_workers).with_images(images.clone());
    let tasks = TaskTracker::new();
    let process = Process::start(clock.now(), options.memory);
    let events = Arc::new(Events::default());
    let worker_agent = options.as_worker.then(|| WorkerAgent::open(&config.worker)).transpose()?;
    let mut policy = policy(&config);
    if worker_agent.is_some() {
        // A control plane requests a while more than the lifetime that it grants.
        policy.limits.ttl_max += ORPHAN_GRACE;
    }
    let Opened { admission, task: admitting, abandoned, stop: stop_admitting } =
        Admission::open(Arc::clone(&store), Arc::clone(&clock), Arc::clone(&events), policy.queue);
    let control =
        Control::assemble(Arc::clone(&store), Arc::new(registry), clock, policy, tasks.clone(), events, admission);
    if !config.auth.enabled && config.server.cors_allowed_origins.iter().any(|origin| origin == "*") {
        tracing::warn!(
            "`server.cors_allowed_origins` is * and `auth.enabled` is false: any web page open in a browser that \
             reaches this server can use it; list the origins that may, or set it to []"
        );
    }
    control.reserve_event_ids().await.map_err(|error| Failure::Store(error.into()))?;
    control.beat_own().await.map_err(|error| Failure::Store(error.into()))?;
    let rate_limiter = RateLimiter::new(&config.rate_limit).map(Arc::new);
    let stop = CancellationToken::new();
    let memory = Budget::new(config.limits.request_memory_mb << 20);
    let settings = Settings {
        hosts: Hosts::for_bind(config.server.host, config.auth.enabled, names(&config)),
        access: Access::new(&config.auth),
        memory: Arc::clone(&memory),
        rate_limiter: rate_limiter.clone(),
        cors: Cors::new(&config.server.cors_allowed_origins),
        preview_domain: config.server.preview_domain,
        file_bytes_max: config.limits.max_file_bytes,
        image_bytes_max: config.images.max_image_mb << 20,
        defaults: config.defaults,
        rate_limit: config.rate_limit,
        process,
        started,
        stop: stop.clone(),
    };
    let router = http::router(Arc::clone(&control), settings);
    let mut serving = tokio::task::JoinSet::new();
    let proxies = TrustedProxies::new(config.server.trusted_proxies);
    serving.spawn(http::serve(listeners, router, memory, proxies, stop.clone()));
    let mut admission = tokio::task::JoinSet::new();
    admission.spawn(admitting);
    admission.spawn(Arc::clone(&control).remove_abandoned(abandoned));
    let mut reconciling = tokio::task::JoinSet::new();
    reconciling.spawn(reconcile::run(Arc::clone(&control), config.data_dir.clone(), stop.clone()));
    reconciling.spawn(reconcile::workers::run(Arc::clone(&control), stop.clone()));
    if let Some(worker_agent) = worker_agent {
        reconciling.spawn(worker_agent.run(Arc::clone(&control), stop.clone()));
    }
    if let Some(path) = &config.server.unix_socket {
        tracing::info!(path = %path.display(), "listens on a Unix socket as well");
    }
    reconciling.spawn(reconcile::number_events(Arc::clone(&control), stop.clone()));
    if let Some(limiter) = rate_limiter {
        let stop = stop.clone();
        reconciling.spawn(async move { stop.run_until_cancelled(limiter.keep_small()).await.unwrap_or_default() });
    }
    let told = told_to_stop();
    tracing::info!(version = VERSION, data_dir = %config.data_dir.display(), "tidebox is ready on {scheme}://{bound}");
    (options.ready)();

    let died = tokio::select! {
        () = told => None,
        _ = serving.join_next() => Some("the listener"),
        _ = reconciling.join_next() => Some("the reconciler"),
        _ = admission.join_next() => Some("the admission"),
    };
    tracing::info!("stopping; another signal ends the server at once");
    let once_more = told_to_stop();
    let ending = async {
        stop.cancel();
        control.events().close();
        // Spawns that wait for room are refused at once, and do not delay the rest.
        stop_admitting.cancel();
        while admission.join_next().await.is_some() {}
        while serving.join_next().await.is_some() {}
        while reconciling.join_next().await.is_some() {}
        if options.destroy_on_exit {
            destroy_all(&control).await;
        }
        tasks.close();
        if let Err(error) = control.flush_refusals().await {
            tracing::warn!(error = %Chain(&error), "some refused keys are not counted");
        }
        let finished = async {
            // The next start continues the pulls.
            images.close().await;
            tasks.wait().await;
            for entry in control.registry().entries() {
                entry.provider.idle().await;
            }
        };
        if tokio::time::timeout(FINISH_MAX, finished).await.is_err() {
            tracing::warn!("some work did not finish in time; the next start finishes it");
        }
        store.close().await;
    };
    tokio::select! {
        () = ending => {}
        () = once_more => return Err(Failure::Hurried),
    }
    died.map_or(Ok(()), |part| Err(Failure::Died(part)))
}

/// Opens the listeners that the configuration names; nothing is answered yet.
async fn listen(config: &Config, address: SocketAddr) -> Result<Listeners, Failure> {
    raise_descriptor_limit();
    let tls = match &config.server.tls {
        config::Tls { cert_file: Some(cert), key_file: Some(key) } => Some(Tls::load(cert, key)?),
        // One file without the other is a fault of the configuration.
        config::Tls { .. } => None,
    };
    let tcp = TcpListener::bind(address).await.map_err(|source| Failure::Listen { address, source })?;
    let unix = config.server.unix_socket.as_deref().map(Socket::bind).transpose()?;
    Ok(Listeners { tcp, tls, unix })
}

/// Raises the limit on open descriptors to the most that the system allows. The usual 1,024 is
/// kept low for programs that use `select`; boxes have a limit of their own.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    // If this is refused, the limit stays as it was, and the bound on connections follows it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Creates the data directory, for the server's user alone, and locks it.
fn prepare(data_dir: &Path) -> Result<File, Failure> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source| Failure::DataDir { path, source }
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir).map_err(failed(data_dir))?;
    let path = data_dir.join("lock");
    let lock =
        File::options().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(failed(&path))?;
    match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Failure::Locked(data_dir.display().to_string())),
        Err(errno) => Err(failed(&path)(errno.into())),
    }
}

fn names(config: &Config) -> Vec<String> {
    let mut names = config.server.allowed_hosts.clone();
    names.push(config.server.preview_domain.clone());
    names
}

fn kept(config: &Config) -> Kept {
    let keep = &config.retention;
    Kept {
        failed: KeptRows { total: keep.max_failed, per_owner: keep.max_failed_per_owner },
        destroyed: KeptRows { total: keep.max_destroyed, per_owner: keep.max_destroyed_per_owner },
    }
}

fn policy(config: &Config) -> Policy {
    let defaults = &config.defaults;
    Policy {
        limits: Limits {
            ttl_default: defaults.ttl,
            ttl_max: defaults.max_ttl,
            exec_timeout_default: defaults.default_exec_timeout,
            exec_timeout_max: defaults.max_exec_timeout,
        },
        caps: Caps { max_sandboxes: defaults.max_sandboxes, max_sandboxes_per_owner: defaults.max_sandboxes_per_owner },
        resources: Resources { memory_mb: defaults.memory_mb, vcpus: defaults.vcpus, disk_mb: 0, pids: defaults.pids },
        sizes: SizeRules::new(
            Configured { memory_mb: defaults.max_memory_mb, vcpus: defaults.max_vcpus, disk_mb: defaults.max_disk_mb },
            machine::measure(&config.data_dir),
        ),
        far_provider: config.providers.custom.enabled.then(|| config.providers.custom.name.clone()),
        queue: QueuePolicy {
            enabled: defaults.spawn_overflow == Overflow::Queue,
            pool: config.pool.overflow == Overflow::Queue,
            timeout: defaults.spawn_queue_timeout,
            places: Places { all: defaults.max_spawn_queue, of_one: defaults.max_spawn_queue_per_owner },
        },
        pool: config
            .pool
            .enabled
            .then_some(PoolBounds { hosts_max: config.pool.max_vms, places: config.pool.max_users_per_vm }),
        image: defaults.image.clone(),
        output_bytes_max: config.limits.max_output_bytes,
        retention: config.retention.destroyed,
        audit: AuditBounds {
            retention: config.auth.admin_audit_retention,
            entries_max: config.auth.admin_audit_max_entries,
        },
        templates_max: config.limits.max_templates,
        quotas_max: config.limits.max_quotas,
        reserve_disk_bytes: config.limits.reserve_disk_mb << 20,
        reserve_inodes: config.limits.reserve_inodes,
        leases: config.leases,
        has_workers: !config.workers.is_empty(),
    }
}

/// Waits for SIGTERM or SIGINT. Listens from the call on, so that a signal right after "ready"
/// finds its handler.
fn told_to_stop() -> impl Future<Output = ()> {
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    async move {
        let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
            // Without handlers, the signals end the process at once, as they would anyway.
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

/// Destroys all sandboxes, [`DESTROYS_AT_ONCE`] at once and for no longer than
/// [`DESTROY_MAX`].
async fn destroy_all(control: &Arc<Control>) {
    let all = async {
        for state in [State::Creating, State::Running, State::Failed] {
            let Ok(sandboxes) = control.store().in_state(state, u32::MAX).await else { return };
            let destroy = async |sandbox: Sandbox| {
                if let Err(error) = control.destroy_because(&sandbox.id, StopReason::Requested).await {
                    tracing::warn!(error = %Chain(&error), "a sandbox is left for the next start");
                }
            };
            stream::iter(sandboxes).for_each_concurrent(DESTROYS_AT_ONCE, destroy).await;
        }
    };
    if tokio::time::timeout(DESTROY_MAX, all).await.is_err() {
        tracing::warn!("not all sandboxes could be destroyed within {} s; the others stay", DESTROY_MAX.as_secs());
    }
}
