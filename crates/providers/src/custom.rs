//! A provider whose boxes are sandboxes of another Tidebox server.
//!
//! Nothing is stored here. The labels [`ID_LABEL`] and [`STORE_LABEL`] of a remote sandbox say
//! which box it is, and boxes are found by them; what this process remembers only saves requests.
//! The remote service is trusted as little as a network is: the time and the size of every answer
//! are bounded, and the text of a failure reaches a caller only if the API means it for callers.
//!
//! A start continues after its caller has gone, since the remote service may have received the
//! request already. [`Provider::stop`] waits for it and removes its result.

mod boxes;
mod exec;
mod fault;
mod files;
mod guest;
mod labels;
mod listen;
mod operations;
mod pauses;
mod ports;
mod processes;
mod remote;
mod search;
mod stats;
mod tree;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::{SpawnRequest, StringMap};
use async_trait::async_trait;
use client::{Client, Options};
use domain::{EgressEntry, EgressMode, InvalidMetadata, SandboxId};
use secrecy::ExposeSecret;
pub use secrecy::SecretString;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use self::boxes::Known;
use self::guest::CustomGuest;
pub use self::labels::{ID_LABEL, STORE_LABEL};
use self::remote::Remote;
use crate::service::boxes::Starting;
use crate::snapshots::check_snapshot;
use crate::{
    BoxStats, Chain, Error, Facts, Found, Guest, Health, ImageSource, Pauses, Phase, Provider, Result, Spec, Started,
};

/// Image name that lets the remote service choose its own default.
pub const REMOTE_DEFAULT_IMAGE: &str = "default";
/// The shortest silence of a stream that counts as a failure: the remote service sends something
/// every 15 seconds.
const SILENCE_MIN: Duration = Duration::from_secs(30);
/// Limit on processes and threads of a service that nobody configured.
const DEFAULT_PIDS: u32 = 256;

/// Address and credentials of the remote service.
#[derive(Debug, Clone)]
pub struct CustomConfig {
    /// Name of the provider in this server's API.
    pub name: String,
    /// Base URL of the service, such as `https://boxes.example.com`.
    pub base_url: String,
    /// API key of the service, if it requires one.
    pub api_key: Option<SecretString>,
    /// PEM file with the certificate authorities to trust for it, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The longest wait for the beginning of an answer.
    pub timeout: Duration,
    /// Provider of the service to use; `None` for its default.
    pub remote_provider: Option<String>,
    /// Id of this server's store, which marks its boxes among those of other servers.
    pub label: String,
}

/// A provider that makes its boxes on a remote service. Clones share what they remember.
#[derive(Clone)]
pub struct Custom {
    remote: Arc<Remote>,
    tasks: TaskTracker,
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom").field("name", &self.remote.name).finish_non_exhaustive()
    }
}

impl Custom {
    /// Makes a provider for the service of `config`, without sending anything.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a value cannot be used, such as a CA file without certificates.
    pub fn open(config: CustomConfig) -> Result<Custom> {
        let options = Options {
            api_key: config.api_key.as_ref().map(ExposeSecret::expose_secret),
            ca_file: config.ca_file.as_deref(),
            answer_max: config.timeout,
            silence_max: config.timeout.max(SILENCE_MIN),
            ..Options::default()
        };
        let client = Client::open(&config.base_url, options).map_err(|error| Error::Invalid(error.to_string()))?;
        if config.api_key.is_some() && config.base_url.starts_with("http://") && !client.is_local() {
            tracing::warn!(provider = config.name, "its API key is sent unencrypted; use an https:// URL");
        }
        let remote = Remote {
            name: config.name,
            client,
            timeout: config.timeout,
            provider: config.remote_provider,
            label: config.label,
            boxes: Arc::default(),
            facts: parking_lot::Mutex::default(),
            reclaims: parking_lot::Mutex::default(),
        };
        Ok(Custom { remote: Arc::new(remote), tasks: TaskTracker::new() })
    }

    /// Checks that the service answers at all, within `wait`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not.
    pub async fn ping(&self, wait: Duration) -> Result<()> {
        match tokio::time::timeout(wait, self.remote.client.live()).await {
            // A refusal is an answer too.
            Ok(Ok(_) | Err(client::Error::Api { .. })) => Ok(()),
            Ok(Err(error)) => Err(Error::Unavailable(error.to_string())),
            Err(_) => Err(Error::Unavailable(format!("no answer within {} s", wait.as_secs()))),
        }
    }

    /// Sets the `generation` that every request which changes the box carries from now on, as
    /// `X-Lease-Generation`. A service that has seen a later one refuses them with
    /// [`Error::Conflict`]. Forgotten when the box is stopped.
    pub fn set_generation(&self, id: &SandboxId, generation: u64) {
        self.remote.boxes.set_generation(id, generation);
    }
}

/// Returns the policy on connections that the remote service is asked for.
fn egress(spec: &Spec) -> api::EgressPolicy {
    let Some(policy) = spec.egress.first() else {
        return api::EgressPolicy {
            mode: api::EgressMode::None,
            allow: Vec::new(),
            deny: Vec::new(),
            secrets: Vec::new(),
        };
    };
    let mode = match policy.mode {
        EgressMode::None => api::EgressMode::None,
        EgressMode::AllowList => api::EgressMode::AllowList,
        EgressMode::Open => api::EgressMode::Open,
    };
    let secrets = policy.secrets.iter().map(ToString::to_string).collect();
    api::EgressPolicy { mode, allow: texts(&policy.allow), deny: texts(&policy.deny), secrets }
}

fn texts(entries: &[EgressEntry]) -> Vec<String> {
    entries.iter().map(ToString::to_string).collect()
}

#[async_trait]
impl Provider for Custom {
    fn name(&self) -> &str {
        &self.remote.name
    }

    /// Returns the facts that the last health check learned. Before the first one that succeeded,
    /// the isolation counts as none.
    fn facts(&self) -> Facts {
        self.remote.facts()
    }

    async fn health(&self) -> Health {
        Health { error: self.remote.trouble().await }
    }

    fn default_image(&self) -> &str {
        REMOTE_DEFAULT_IMAGE
    }

    /// Returns `None`: the remote service gets the images.
    fn images(&self) -> Option<&dyn ImageSource> {
        None
    }

    /// Checks the labels, and that one policy on connections is enough. Images and sizes are known
    /// to the remote service alone, which checks them in the start.
    fn check(&self, spec: &Spec) -> Result<()> {
        check_snapshot(self, spec)?;
        if spec.egress.len() > 1 {
            return Err(Error::NotSupported(format!(
                "the provider `{}` accepts one egress policy, but the sandbox has its own and its template's; leave \
                 out `egress` or the template",
                self.remote.name
            )));
        }
        InvalidMetadata::check(&self.remote.labelled(None, spec))
            .map_err(|error| Error::Invalid(format!("{error}, and the provider `{}` adds two", self.remote.name)))
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started> {
        // Outside of the task, so that a stop finds it even if this call is dropped before the task
        // runs. A second start finds the box that the first made.
        let starting = self.remote.boxes.begin_alone(id).await;
        let (answer, answered) = oneshot::channel();
        let remote = Arc::clone(&self.remote);
        let id = id.clone();
        let spec = spec.clone();
        self.tasks.spawn(async move {
            let started = remote.start(&id, &spec, starting).await;
            let _ = answer.send(started);
        });
        // The task always answers, unless the runtime is dropped.
        answered.await.unwrap_or_else(|_| Err(Error::Unavailable("the server is shutting down".to_owned())))
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        self.remote.stop(id).await
    }

    async fn inventory(&self) -> Result<Vec<Found>> {
        self.remote.inventory().await
    }

    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        let known = self.remote.running(id).await?;
        Ok(Arc::new(CustomGuest { remote: Arc::clone(&self.remote), id: id.clone(), known }))
    }

    /// Returns the way to ask the remote service, which may refuse.
    fn pauses(&self) -> Option<&dyn Pauses> {
        Some(self)
    }

    async fn stats(&self, ids: &[SandboxId]) -> Result<Vec<BoxStats>> {
        self.remote.stats(ids).await
    }

    async fn idle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Makes the error of a start whose box was stopped meanwhile.
fn unwanted() -> Error {
    Error::failed("start a box", "it was stopped before the other service had made it")
}

fn started_since(began: Instant) -> Started {
    Started { phases: vec![Phase { name: "box", took: began.elapsed() }] }
}

impl Remote {
    /// Adds this provider's two labels to the caller's.
    fn labelled(&self, id: Option<&SandboxId>, spec: &Spec) -> domain::Metadata {
        let mut labels = spec.metadata.clone();
        labels.insert(ID_LABEL.to_owned(), id.map(ToString::to_string).unwrap_or_default());
        labels.insert(STORE_LABEL.to_owned(), self.label.clone());
        labels
    }

    async fn start(&self, id: &SandboxId, spec: &Spec, starting: Starting<Known>) -> Result<Started> {
        let began = Instant::now();
        match self.running(id).await {
            Ok(_) => return Ok(started_since(began)),
            Err(Error::Gone) => {}
            Err(error) => {
                self.boxes.forget(id);
                return Err(Error::NotAsked(Box::new(error)));
            }
        }
        let made = starting.unless_given_up(self.make(id, spec, &starting)).await.unwrap_or_else(|| Err(unwanted()));
        if let Err(Error::NotAsked(_)) = made {
            self.boxes.forget(id);
        } else if made.is_err() {
            // The box may have been made despite the error. If it cannot be removed now, the
            // inventory lists it later.
            if let Err(error) = self.remove_all(id).await {
                tracing::debug!(%id, error = %Chain(&error), "cannot check for leftovers of a failed start");
            }
        }
        drop(starting);
        made.map(|()| started_since(began))
    }

    /// Requests a new box. The idempotency key makes a repeat return the same sandbox. If that
    /// one has ended since, the request is sent again with another key.
    async fn make(&self, id: &SandboxId, spec: &Spec, starting: &Starting<Known>) -> Result<()> {
        const ACTION: &str = fault::START;
        let request = SpawnRequest {
            image: Some(spec.image.clone()).filter(|image| image != REMOTE_DEFAULT_IMAGE),
            provider: self.provider.clone(),
            memory_mb: Some(spec.resources.memory_mb),
            vcpus: Some(spec.resources.vcpus),
            disk_mb: Some(spec.resources.disk_mb).filter(|disk_mb| *disk_mb > 0),
            // Sent only if it is not what every service has unless configured, so that an older service
            // does not get a field that it does not know.
            pids: Some(spec.resources.pids).filter(|pids| *pids != DEFAULT_PIDS),
            // Sent only if true, so that an older service does not get a field that it does not
            // know.
            entrypoint: Some(true).filter(|_| spec.entrypoint),
            ttl: Some(domain::format_duration(spec.lifetime)),
            metadata: Some(StringMap(self.labelled(Some(id), spec))),
            // Always, since the service may have another default.
            egress: Some(egress(spec)),
            ..SpawnRequest::default()
        };
        let key = format!("{}/{id}", self.label);
        let mut again = false;
        loop {
            if starting.is_unwanted() {
                return Err(unwanted());
            }
            let key = if again { format!("{key}/{:016x}", rand::random::<u64>()) } else { key.clone() };
            let client = self.writing(id)?.with_header("idempotency-key", &key);
            let client = client.map_err(|error| self.fault(ACTION, error))?;
            let answer = tokio::time::timeout(self.timeout, client.spawn(&request)).await;
            let answer = answer.unwrap_or(Err(client::Error::Timeout { after: self.timeout }));
            // Only without a connection is it certain that nothing was sent.
            let is_unsent = !again && matches!(answer, Err(client::Error::Connect { .. }));
            let made = match answer.map_err(|error| self.fault(ACTION, error)) {
                Err(error) if is_unsent => return Err(Error::NotAsked(Box::new(error))),
                // Another body had this key: that of an earlier box with this id.
                Err(Error::Conflict(_)) if !again && self.boxes.generation(id).is_none() => None,
                made => Some(made?),
            };
            match made {
                Some(sandbox) if !self.is_ours(&sandbox, id) => {
                    return Err(Error::failed(ACTION, "the other service answered with a different sandbox"));
                }
                Some(sandbox) if remote::is_running(&sandbox) => {
                    self.boxes.remember(id, &sandbox.id);
                    return Ok(());
                }
                Some(sandbox) if again => {
                    let state = sandbox.state;
                    return Err(Error::failed(ACTION, format!("the other service's sandbox is {state}")));
                }
                None | Some(_) => again = true,
            }
        }
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        self.boxes.stop(id, self.timeout, || self.remove_all(id)).await
    }

    async fn inventory(&self) -> Result<Vec<Found>> {
        // Taken before the list, so that a box made meanwhile does not count as lost.
        let known = self.boxes.ids();
        let listed = self.listed("list the boxes", &[(STORE_LABEL, &self.label)]).await?;
        let mut found: Vec<Found> = Vec::new();
        for sandbox in listed {
            let Some(id) = sandbox.metadata.0.get(ID_LABEL).and_then(|id| SandboxId::parse(id).ok()) else { continue };
            let alive = matches!(sandbox.state.as_str(), "running" | "paused" | "creating");
            match found.iter_mut().find(|earlier| earlier.id == id) {
                Some(earlier) => earlier.alive |= alive,
                None => found.push(Found { id, alive }),
            }
        }
        for id in known {
            if !found.iter().any(|listed| listed.id == id) {
                found.push(Found { id, alive: false });
            }
        }
        Ok(found)
    }
}
