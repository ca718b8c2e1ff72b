//! Another service that speaks the API of this one: another Tidebox.
//!
//! Nothing is kept of our own. Which sandbox over there is which box of ours is
//! written on it, as the labels [`ID_LABEL`] and [`STORE_LABEL`], and is found
//! again by them; what this process remembers only saves asking. The other
//! service is trusted as little as a network is: each of its answers is bounded
//! in time and size, and what it says of a failure reaches a caller only as far
//! as it is meant for one.
//!
//! A start goes on when its caller has gone, since the other service may have
//! heard it already; [`Provider::stop`] waits for it and removes what came of it.

mod boxes;
mod exec;
mod fault;
mod files;
mod guest;
mod remote;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::{SpawnRequest, StringMap};
use async_trait::async_trait;
use client::{Client, Options};
use domain::{InvalidMetadata, SandboxId};
use secrecy::ExposeSecret;
pub use secrecy::SecretString;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use self::boxes::{Boxes, Starting};
use self::guest::CustomGuest;
use self::remote::Remote;
use crate::{Chain, Error, Facts, Found, Guest, Health, ImageSource, Phase, Provider, Result, Spec, Started};

/// The label that says which box of ours a sandbox is.
pub const ID_LABEL: &str = "tidebox.id";
/// The label that says whose box it is: [`CustomConfig::label`].
pub const STORE_LABEL: &str = "tidebox.store";
/// The image that stands for whatever the other service uses when none is named.
pub const REMOTE_DEFAULT_IMAGE: &str = "default";
/// The shortest silence of a stream that means anything: the other service says
/// something every 15 seconds.
const SILENCE_MIN: Duration = Duration::from_secs(30);
/// How soon one look follows another while a start is stopped; doubles up to
/// [`STOP_PAUSE_MAX`].
const STOP_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two looks.
const STOP_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Where the other service is, and how to speak to it.
#[derive(Debug, Clone)]
pub struct CustomConfig {
    /// The provider's name in our API.
    pub name: String,
    /// The service's base URL, such as `https://boxes.example.com`.
    pub base_url: String,
    /// The key that its API asks for.
    pub api_key: Option<SecretString>,
    /// A PEM file of the authorities that may vouch for it, instead of those
    /// that the system trusts.
    pub ca_file: Option<PathBuf>,
    /// How long one of its answers may take to begin.
    pub timeout: Duration,
    /// The provider that is asked of it; `None` for its default.
    pub remote_provider: Option<String>,
    /// Tells our boxes over there from those of others: the id of our store.
    pub label: String,
}

/// The provider. Clones share what they remember.
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
    /// A provider that speaks to the service of `config`. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a value cannot be used, such as a CA file without
    /// certificates.
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
            tracing::warn!(
                provider = config.name,
                "its API key crosses the network where anybody can read it; use an https:// URL"
            );
        }
        let remote = Remote {
            name: config.name,
            client,
            timeout: config.timeout,
            provider: config.remote_provider,
            label: config.label,
            boxes: Boxes::default(),
            facts: std::sync::Mutex::default(),
        };
        Ok(Custom { remote: Arc::new(remote), tasks: TaskTracker::new() })
    }

    /// From now on every request that changes something about a box carries
    /// `generation` as `X-Lease-Generation`. A service that has seen a later one
    /// refuses them, which is [`Error::Conflict`]. Forgotten when the box is
    /// stopped.
    pub fn set_generation(&self, id: &SandboxId, generation: u64) {
        self.remote.boxes.set_generation(id, generation);
    }
}

#[async_trait]
impl Provider for Custom {
    fn name(&self) -> &str {
        &self.remote.name
    }

    /// As the last check of the health learned them; the isolation of a service
    /// that has not been reached yet counts as none.
    fn facts(&self) -> Facts {
        self.remote.facts()
    }

    async fn health(&self) -> Health {
        Health { error: self.remote.trouble().await }
    }

    fn default_image(&self) -> &str {
        REMOTE_DEFAULT_IMAGE
    }

    /// The other service gets them, and tells of it.
    fn images(&self) -> Option<&dyn ImageSource> {
        None
    }

    /// What images there are, and which sizes, only the other service knows; it
    /// is asked by the start.
    fn check(&self, spec: &Spec) -> Result<()> {
        InvalidMetadata::check(&self.remote.labelled(None, spec))
            .map_err(|error| Error::Invalid(format!("{error}, and the provider `{}` adds two", self.remote.name)))
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started> {
        let (answer, answered) = oneshot::channel();
        let (remote, id, spec) = (Arc::clone(&self.remote), id.clone(), spec.clone());
        self.tasks.spawn(async move {
            let started = remote.start(&id, &spec).await;
            let _ = answer.send(started);
        });
        // The task always answers, unless the runtime goes.
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

    async fn idle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// The end of a start whose box was stopped meanwhile.
fn unwanted() -> Error {
    Error::failed("start a box", "it was stopped before the other service had made it")
}

impl Remote {
    /// Our labels on top of the caller's.
    fn labelled(&self, id: Option<&SandboxId>, spec: &Spec) -> domain::Metadata {
        let mut labels = spec.metadata.clone();
        labels.insert(ID_LABEL.to_owned(), id.map(ToString::to_string).unwrap_or_default());
        labels.insert(STORE_LABEL.to_owned(), self.label.clone());
        labels
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started> {
        let began = Instant::now();
        // One start of a box at a time; whoever comes second finds what the first made.
        let starting = loop {
            match self.boxes.begin(id) {
                Ok(starting) => break starting,
                Err(other) => other.cancelled().await,
            }
        };
        let phases = || vec![Phase { name: "box", took: began.elapsed() }];
        match self.running(id).await {
            Ok(_) => return Ok(Started { phases: phases() }),
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
            // What may have been made all the same. What cannot be removed now,
            // the inventory shows later.
            if let Err(error) = self.remove_all(id).await {
                tracing::debug!(%id, error = %Chain(&error), "cannot look what a failed start left");
            }
        }
        drop(starting);
        made.map(|()| Started { phases: phases() })
    }

    /// Asks for a new box. The key of the request makes a repeat of it find the
    /// same sandbox; one that has ended since is asked for under another key.
    async fn make(&self, id: &SandboxId, spec: &Spec, starting: &Starting<'_>) -> Result<()> {
        const ACTION: &str = fault::START;
        let request = SpawnRequest {
            image: Some(spec.image.clone()).filter(|image| image != REMOTE_DEFAULT_IMAGE),
            provider: self.provider.clone(),
            memory_mb: Some(spec.resources.memory_mb),
            vcpus: Some(spec.resources.vcpus),
            disk_mb: Some(spec.resources.disk_mb).filter(|disk_mb| *disk_mb > 0),
            // Only what is wanted, so that an older service is not asked for what it does not know.
            entrypoint: Some(true).filter(|_| spec.entrypoint),
            ttl: Some(domain::format_duration(spec.lifetime)),
            metadata: Some(StringMap(self.labelled(Some(id), spec))),
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
            // Without a connection nothing was sent; of all else that may fail, that
            // is not certain.
            let is_unsent = !again && matches!(answer, Err(client::Error::Connect { .. }));
            let made = match answer.map_err(|error| self.fault(ACTION, error)) {
                Err(error) if is_unsent => return Err(Error::NotAsked(Box::new(error))),
                // Another body had this key: that of an earlier box of this id.
                Err(Error::Conflict(_)) if !again && self.boxes.generation(id).is_none() => None,
                made => Some(made?),
            };
            match made {
                Some(sandbox) if !self.is_ours(&sandbox, id) => {
                    return Err(Error::failed(
                        ACTION,
                        "the other service answered with a sandbox that is not this one",
                    ));
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
        let deadline = Instant::now() + self.timeout;
        let mut pause = STOP_PAUSE;
        loop {
            // In this order: what a start that has ended left, the look finds.
            let starting = self.boxes.starting(id);
            if let Some(starting) = &starting {
                starting.unwant();
            }
            self.remove_all(id).await?;
            let Some(starting) = starting else { break };
            if Instant::now() >= deadline {
                starting.give_up();
            }
            let _ = tokio::time::timeout(pause, starting.ended()).await;
            pause = (pause * 2).min(STOP_PAUSE_MAX);
        }
        self.boxes.forget(id);
        Ok(())
    }

    async fn inventory(&self) -> Result<Vec<Found>> {
        // Before the look, so that what is made meanwhile is not taken for lost.
        let known = self.boxes.ids();
        let listed = self.listed("list the boxes", &[(STORE_LABEL, &self.label)]).await?;
        let mut found: Vec<Found> = Vec::new();
        for sandbox in listed {
            let Some(id) = sandbox.metadata.0.get(ID_LABEL).and_then(|id| SandboxId::parse(id).ok()) else { continue };
            let alive = matches!(sandbox.state.as_str(), "running" | "creating");
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
