//! A provider whose boxes are sandboxes of the E2B cloud, or of another service that speaks its API.
//!
//! Nothing is stored here. The labels [`ID_LABEL`] and [`STORE_LABEL`] of a sandbox say which box it is, and boxes are
//! found by them; what this process remembers only saves requests. The service is trusted as little as a network is: the
//! time and the size of every answer are bounded, and the text of a failure reaches a caller only if it is about what
//! the caller asked for.
//!
//! A sandbox costs money until it ends. A start continues after its caller has gone, and a failed one looks for what it
//! has left; the inventory lists what an answer that was lost has left, and its caller stops what belongs to no one.
//!
//! The service keeps no output of processes. The provider keeps it, as long as this process runs.

mod connect;
mod control_plane;
mod envd;
mod exec;
mod far_box;
mod far_process;
mod fault;
mod files;
mod glob;
mod guest;
mod http;
mod labels;
mod operations;
mod pauses;
mod ports;
mod processes;
mod remote;
mod request;
mod scripts;
mod stats;
mod tunnel;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::Options;
use domain::{Resources, SandboxId, Timestamp};
pub use secrecy::SecretString;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use self::control_plane::{ControlPlane, Made};
use self::envd::DataPlane;
use self::far_box::Known;
use self::fault::{Fault, START, control_fault};
use self::guest::E2bGuest;
pub use self::labels::{ID_LABEL, SERVER_LABEL, STORE_LABEL};
use self::remote::Remote;
use self::request::Rules;
pub use self::request::Template;
use crate::service::boxes::Starting;
use crate::snapshots::check_snapshot;
use crate::{
    BoxStats, Chain, Error, Facts, Found, Guest, Health, ImageSource, Isolation, LimitKind, Pauses, Phase, Provider,
    Result, Spec, Started,
};

/// Name of the provider.
pub const NAME: &str = "e2b";
/// Image of a spawn that names none: a template that every account has.
pub const DEFAULT_IMAGE: &str = "base";
/// Domain of the cloud.
pub const DOMAIN: &str = "e2b.app";

/// Account at the service, and what its templates are.
#[derive(Debug, Clone)]
pub struct E2bConfig {
    /// API key of the account.
    pub api_key: SecretString,
    /// Domain of the service, maybe with a port: `api.<domain>` is its control plane, and each sandbox has a name below
    /// it.
    pub domain: String,
    /// Base URL of the control plane, in place of the domain's.
    pub base_url: Option<String>,
    /// Base URL of the data plane of all sandboxes, in place of the domain's.
    pub sandbox_url: Option<String>,
    /// PEM file with the certificate authorities to trust for it, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The longest wait for an answer.
    pub timeout: Duration,
    /// User of the boxes.
    pub user: String,
    /// Templates by the names of images. Another image is the name of a template.
    pub templates: BTreeMap<String, Template>,
    /// The longest lifetime that the account allows.
    pub lifetime_max: Duration,
    /// Time of a lifetime that may be left out to keep within the maximum.
    pub grace: Duration,
    /// Sizes of a spawn that names none, which the template decides.
    pub usual: Resources,
    /// Id of this server's store, which marks its boxes among those of other servers.
    pub label: String,
}

/// A provider that makes its boxes in an E2B account. Clones share what they remember.
#[derive(Clone)]
pub struct E2b {
    remote: Arc<Remote>,
    rules: Arc<Rules>,
    is_cloud: bool,
}

impl fmt::Debug for E2b {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("E2b").field("base", &self.remote.control.base).finish_non_exhaustive()
    }
}

impl E2b {
    /// Makes a provider for the account of `config`, without sending anything. `now` is the server's clock.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a value cannot be used, such as a CA file without certificates.
    pub fn open(config: E2bConfig, now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Result<E2b> {
        let options =
            || Options { ca_file: config.ca_file.as_deref(), answer_max: config.timeout, ..Options::default() };
        let open = |url: &str| client::open_http(url, options()).map_err(|error| Error::Invalid(error.to_string()));
        let base = config.base_url.clone().unwrap_or_else(|| format!("https://api.{}", config.domain));
        let (http, base) = open(&base)?;
        if base.scheme() == "http" && !client::is_loopback(&base) {
            tracing::warn!(provider = NAME, "its API key is sent unencrypted; use an https:// URL");
        }
        let (data, plane) = match &config.sandbox_url {
            Some(url) => {
                let (data, url) = open(url)?;
                (data, DataPlane::Url(url.as_str().trim_end_matches('/').to_owned()))
            }
            None => (open(&format!("https://{}", config.domain))?.0, DataPlane::Domain(config.domain.clone())),
        };
        let control = ControlPlane {
            http,
            base: base.as_str().trim_end_matches('/').to_owned(),
            api_key: check_key(config.api_key)?,
            timeout: config.timeout,
        };
        let rules = Rules {
            templates: config.templates,
            usual: config.usual,
            lifetime_max: config.lifetime_max,
            grace: config.grace,
            label: config.label.clone(),
            server: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        };
        let remote = Remote {
            control,
            http: data,
            plane,
            user: config.user,
            timeout: config.timeout,
            label: config.label,
            now: Arc::new(now),
            boxes: Arc::default(),
            keepers: TaskTracker::new(),
            tasks: TaskTracker::new(),
        };
        let is_cloud = base.host_str().is_some_and(|host| host == DOMAIN || host.ends_with(&format!(".{DOMAIN}")));
        Ok(E2b { remote: Arc::new(remote), rules: Arc::new(rules), is_cloud })
    }
}

/// Checks that a header can carry the key.
fn check_key(key: SecretString) -> Result<SecretString> {
    use secrecy::ExposeSecret as _;
    let text = key.expose_secret().trim();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::Invalid("the API key is empty, or has characters that no key has".to_owned()));
    }
    Ok(SecretString::from(text))
}

#[async_trait]
impl Provider for E2b {
    fn name(&self) -> &str {
        NAME
    }

    /// Returns what is known of the service without asking it: the cloud's sandboxes are virtual machines; those of
    /// another service may be anything.
    fn facts(&self) -> Facts {
        Facts {
            isolation: if self.is_cloud { Isolation::Vm } else { Isolation::None },
            runtime: "remote:e2b".to_owned(),
            network_mode: "remote".to_owned(),
            limits: ["memory_mb", "vcpus", "pids", "disk_mb"].map(|limit| (limit, LimitKind::None)).to_vec(),
            missing: Vec::new(),
        }
    }

    async fn health(&self) -> Health {
        Health { error: self.remote.trouble().await }
    }

    fn default_image(&self) -> &str {
        DEFAULT_IMAGE
    }

    /// Returns `None`: the service has the templates.
    fn images(&self) -> Option<&dyn ImageSource> {
        None
    }

    /// Checks what the service cannot enforce. Templates are known to the service alone, which checks them in the start.
    fn check(&self, spec: &Spec) -> Result<()> {
        check_snapshot(self, spec)?;
        self.rules.check(spec)
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started> {
        // Outside of the task, so that a stop finds it even if this call is dropped before the task
        // runs. A second start finds the box that the first made.
        let starting = self.remote.boxes.begin_alone(id).await;
        let (answer, answered) = oneshot::channel();
        let (provider, id, spec) = (self.clone(), id.clone(), spec.clone());
        self.remote.tasks.spawn(async move {
            let started = provider.start_alone(&id, &spec, starting).await;
            let _ = answer.send(started);
        });
        // The task always answers, unless the runtime is dropped.
        answered.await.unwrap_or_else(|_| Err(Error::Unavailable("the server is shutting down".to_owned())))
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        let remote = &self.remote;
        remote.boxes.stop(id, remote.timeout, || remote.remove_all(id)).await
    }

    async fn inventory(&self) -> Result<Vec<Found>> {
        self.remote.inventory().await
    }

    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        let known = self.remote.running(id).await?;
        Ok(Arc::new(E2bGuest { remote: Arc::clone(&self.remote), rules: Arc::clone(&self.rules), known }))
    }

    fn pauses(&self) -> Option<&dyn Pauses> {
        Some(self)
    }

    async fn stats(&self, ids: &[SandboxId]) -> Result<Vec<BoxStats>> {
        self.remote.stats(ids).await
    }

    async fn idle(&self) {
        self.remote.tasks.close();
        self.remote.tasks.wait().await;
    }
}

/// Makes the error of a start whose box was stopped meanwhile.
fn unwanted() -> Error {
    Error::failed(START, "it was stopped before the service had made it")
}

impl E2b {
    async fn start_alone(&self, id: &SandboxId, spec: &Spec, starting: Starting<Known>) -> Result<Started> {
        let began = Instant::now();
        let started = || Started { phases: vec![Phase { name: "box", took: began.elapsed() }] };
        match self.remote.running(id).await {
            Ok(known) => return self.prepare(known).await.map(|()| started()),
            Err(Error::Gone) => {}
            Err(error) => {
                self.remote.boxes.forget(id);
                return Err(Error::NotAsked(Box::new(error)));
            }
        }
        let made = starting.unless_given_up(self.make(id, spec, &starting)).await.unwrap_or_else(|| Err(unwanted()));
        if let Err(Error::NotAsked(_)) = made {
            self.remote.boxes.forget(id);
        } else if made.is_err() {
            // The sandbox may have been made despite the error. If it cannot be removed now, the
            // inventory lists it later.
            if let Err(error) = self.remote.remove_all(id).await {
                tracing::debug!(%id, error = %Chain(&error), "cannot check for leftovers of a failed start");
            }
            self.remote.boxes.forget(id);
        }
        drop(starting);
        made.map(|()| started())
    }

    /// Requests a new sandbox. The idempotency key makes a repeat return the same one. If that one has ended since, the
    /// request is sent again with another key.
    async fn make(&self, id: &SandboxId, spec: &Spec, starting: &Starting<Known>) -> Result<()> {
        let new = self.rules.request(id, spec)?;
        let key = format!("{}-{id}", self.remote.label).to_ascii_lowercase();
        for again in [false, true] {
            if starting.is_unwanted() {
                return Err(unwanted());
            }
            let key = if again { format!("{key}-{:016x}", rand::random::<u64>()) } else { key.clone() };
            let made = match self.remote.control.create(&key, &new).await {
                // Another request had this key: that for an earlier box with this id.
                Err(fault) if !again && fault.is_status(409) => continue,
                // Only without a connection is it certain that nothing was sent.
                Err(fault @ Fault::Connect(_)) if !again => {
                    return Err(Error::NotAsked(Box::new(control_fault(START, fault))));
                }
                made => made.map_err(|fault| self.refusal(fault, spec))?,
            };
            if let Some(known) = self.made(id, made, spec).await? {
                return self.prepare(known).await;
            }
        }
        Err(Error::failed(START, "the service's sandbox has ended"))
    }

    /// Converts the refusal of a sandbox. A template that is not there is named.
    fn refusal(&self, fault: Fault, spec: &Spec) -> Error {
        let is_missing = fault.is_status(404);
        let error = control_fault(START, fault);
        if is_missing && let Error::Invalid(text) = &error {
            let image = &spec.image;
            return Error::Invalid(format!(
                "the service behind the provider `e2b` has no template for `{image}`: {text}"
            ));
        }
        error
    }

    /// Remembers a sandbox that was made; `None` if it has ended already, as one of an earlier request with this key has.
    async fn made(&self, id: &SandboxId, made: Made, spec: &Spec) -> Result<Option<Known>> {
        let Made { sandbox_id, envd_access_token, domain } = made;
        let described = match self.remote.described(&sandbox_id).await {
            Err(Error::Gone) => return Ok(None),
            described => described?,
        };
        if !described.is_running() {
            return Ok(None);
        }
        self.remote.check_ours(&described, id)?;
        let token = envd_access_token.or_else(|| described.envd_access_token.clone());
        let known = self.remote.remember(id, &sandbox_id, domain.as_deref(), token);
        self.rules.check_made(&described, spec)?;
        known.ends_after(spec.lifetime.min(self.rules.lifetime_max));
        Ok(Some(known))
    }

    /// Makes the working directory of commands, which a template need not have.
    async fn prepare(&self, known: Known) -> Result<()> {
        let guest = E2bGuest { remote: Arc::clone(&self.remote), rules: Arc::clone(&self.rules), known };
        scripts::make_workspace(&guest).await
    }
}
