//! The life of the process: open the parts, compose, listen, serve until a signal, shut down.

mod data_dir;
mod failure;
mod listen;
mod machine;
mod runtimes;
pub(crate) mod settings;

use std::sync::Arc;
use std::time::Instant;

use crate::VERSION;
use crate::app::{App, Parts};
use crate::config::Config;
use crate::control::Archives;
use crate::heartbeat::WorkerAgent;
use crate::http::is_of_sandbox;
use crate::http::peer::TrustedProxies;
use crate::process::{Memory, Process};
use crate::remote_workers::RemoteWorkers;
use crate::secrets::SealingKey;
use crate::shutdown::{SecondSignal, Shutdown, StopSignal};
use store::clock::{Clock, SteadyClock};
use store::{Sqlite, Store};

pub use failure::Failure;

/// Value of `oom_score_adj` of a server that may choose it, as container engines have it.
const OOM_SCORE: i32 = -500;

/// Options of the command line that are not in the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// True to remove every sandbox at the end.
    pub destroy_on_exit: bool,
    /// True to work for the control plane that the configuration names.
    pub as_worker: bool,
    /// Function that asks the program's allocator what it holds.
    pub memory: fn() -> Memory,
    /// Function that counts the lines which the log has left out since the start, since they could not be written.
    pub log_lines_lost: fn() -> u64,
    /// Function that is called once, when the server is ready.
    pub ready: fn(),
}

/// Runs the service until SIGTERM or SIGINT.
///
/// # Errors
/// [`Failure`] if it cannot start, or a part of it ends by itself.
pub async fn run(config: Config, options: Options) -> Result<(), Failure> {
    let started = Instant::now();
    rank_below_boxes();
    let _lock = data_dir::lock(&config.data_dir)?;
    let sealing_key = data_dir::sealing_key(&config.data_dir, config.secrets.key_file.as_deref())?;
    let preview_key = data_dir::preview_key(&config.data_dir)?;
    let listeners = listen::open(&config).await?;
    let url = listen::url(&listeners)?;
    let parts = open_parts(&config, sealing_key, listen::port(&listeners)?, options.as_worker).await?;
    let process = Process::start(parts.clock.now(), options.memory, options.log_lines_lost);
    let worker_agent = options.as_worker.then(|| WorkerAgent::open(&config.worker)).transpose()?;
    warn_of_origins(&config);
    warn_of_other_users(&config, rustix::process::geteuid().is_root());
    let mut app = App::compose(parts);
    app.enroll().await.map_err(|error| Failure::Store(error.into()))?;
    let settings = settings::http(&config, preview_key, Arc::clone(app.control.owner_keys()), process, started);
    app.reconcile(&config.data_dir, settings.rate_limiter.clone(), worker_agent);
    app.serve(listeners, TrustedProxies::new(config.server.trusted_proxies.clone()), settings);
    let signal = StopSignal::listen();
    announce(&config, &url);
    (options.ready)();

    let failed = tokio::select! {
        () = signal.received() => None,
        group = app.failed() => Some(group),
    };
    let shutdown = Shutdown { destroy_all: options.destroy_on_exit };
    shutdown.run(app).await.map_err(|SecondSignal| Failure::Hurried)?;
    failed.map_or(Ok(()), |group| Err(Failure::Died(group)))
}

/// Has the kernel end boxes before the server when memory runs out. Without the privilege, and where whoever
/// started the server chose a score, the score stays; boxes always get a higher one.
fn rank_below_boxes() {
    const FILE: &str = "/proc/self/oom_score_adj";
    if std::fs::read_to_string(FILE).is_ok_and(|score| score.trim() == "0") {
        let _ = std::fs::write(FILE, OOM_SCORE.to_string());
    }
}

/// Opens the store, the image store, the providers and the connections to other workers.
async fn open_parts(config: &Config, sealing_key: SealingKey, port: u16, as_worker: bool) -> Result<Parts, Failure> {
    let store =
        Sqlite::open(&config.database.path, rand::random()).await.map_err(|error| Failure::Store(error.into()))?;
    let store = store.keeping(settings::kept(config));
    let clock: Arc<dyn Clock> = Arc::new(SteadyClock::start());
    let remote_workers =
        RemoteWorkers::open(&config.workers, store.id()).map_err(|(id, source)| Failure::Worker { id, source })?;
    let store: Arc<dyn Store> = Arc::new(store);
    let images = runtimes::images(config).await?;
    let registry = runtimes::registry(config, &images, &store, &clock).await?;
    let registry = registry.with_remote_workers(remote_workers).with_images(images);
    Ok(Parts {
        store,
        clock,
        registry,
        policy: settings::policy(config, as_worker),
        egress: settings::egress(config, port),
        sealing_key,
        archives: Archives::new(config.data_dir.join("uploads"), config.limits.reserve_disk_mb << 20),
    })
}

/// Logs origins that are listed in vain.
fn warn_of_origins(config: &Config) {
    let origins = &config.server.cors_allowed_origins;
    if !config.auth.enabled && origins.iter().any(|origin| origin == "*") {
        tracing::info!(
            "`auth.enabled` is false, so `*` in `server.cors_allowed_origins` admits no web page; list by name the \
             origins whose pages use the API"
        );
    }
    for origin in origins.iter().filter(|origin| is_of_sandbox(origin, &config.server.preview_domain)) {
        tracing::warn!(%origin, "`server.cors_allowed_origins` lists a page of a sandbox, which may not use the API");
    }
}

/// Warns where any user of the machine has the rights of root by way of the server.
fn warn_of_other_users(config: &Config, is_root: bool) {
    if is_root && !config.auth.enabled && config.server.host.is_loopback() {
        tracing::warn!(
            "the server runs as root and `auth.enabled` is false: every user and program on this machine can reach it \
             at {} and act as root through it; set auth.enabled and auth.api_key_file",
            config.server.host
        );
    }
}

/// Logs the addresses that the server answers on.
fn announce(config: &Config, url: &str) {
    if let Some(path) = &config.server.unix_socket {
        tracing::info!(path = %path.display(), "also listening on a Unix socket");
    }
    tracing::info!(version = VERSION, data_dir = %config.data_dir.display(), "tidebox is ready on {url}");
}
