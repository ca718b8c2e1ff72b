//! Providers of this server, and their health at the last check.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::Timestamp;
use futures_util::future::join_all;
use images::Images;
use parking_lot::Mutex;
use providers::{Health, Provider, docker, native, proot};
use tokio::sync::Notify;

use crate::remote_workers::RemoteWorkers;
use store::clock::Clock;

/// Longest time of a check; one that takes longer counts as failed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Condition under which a provider is offered to callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// Always; shown as unhealthy while it is.
    Always,
    /// Only if it was healthy at the start.
    IfHealthy,
}

/// Result of the last check of one provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub health: Health,
    /// Time that the check took.
    pub latency: Duration,
    pub at: Timestamp,
}

/// One provider, with its last check.
pub struct Entry {
    pub provider: Arc<dyn Provider>,
    /// True if it is used when a request names none.
    pub is_default: bool,
    /// Signal that a request found one of its boxes gone: its boxes are to be looked at now.
    pub lost_one: Notify,
    /// Signal that it behaved otherwise than its last check says: it is to be checked now.
    pub in_doubt: Notify,
    checked: Mutex<Checked>,
}

impl Entry {
    /// Returns the last check.
    pub fn checked(&self) -> Checked {
        self.checked.lock().clone()
    }

    /// Returns whether the last check found it able to work.
    pub fn is_healthy(&self) -> bool {
        self.checked().health.error.is_none()
    }

    /// Checks it now. Also returns whether it was able to work before, so that each change is
    /// seen by one caller only.
    pub async fn check(&self, clock: &dyn Clock) -> (bool, Checked) {
        let checked = check(self.provider.as_ref(), clock).await;
        let mut stored = self.checked.lock();
        let before = std::mem::replace(&mut *stored, checked.clone());
        (before.health.error.is_none(), checked)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("provider", &self.provider.name()).finish_non_exhaustive()
    }
}

async fn check(provider: &dyn Provider, clock: &dyn Clock) -> Checked {
    let started = Instant::now();
    let health = tokio::time::timeout(CHECK_TIMEOUT, provider.health()).await.unwrap_or_else(|_| Health {
        error: Some(format!("no response to a health check within {} s", CHECK_TIMEOUT.as_secs())),
    });
    Checked { health, latency: started.elapsed(), at: clock.now() }
}

/// Order in which `providers.default: auto` picks the first healthy provider, of this server or,
/// where it has none, of the other workers.
pub const AUTO_ORDER: [&str; 3] = [native::NAME, docker::NAME, proot::NAME];

/// Every provider of this server, by name.
#[derive(Debug)]
pub struct Registry {
    entries: Vec<Entry>,
    remote_workers: RemoteWorkers,
    images: Option<Images>,
}

impl Registry {
    /// Checks each provider once, leaves out those that are offered only if healthy and are not,
    /// and picks the default: the one named, else the first healthy one that `auto` may pick,
    /// else none.
    pub async fn assemble(providers: Vec<(Arc<dyn Provider>, Offer)>, named: Option<&str>, clock: &dyn Clock) -> Self {
        let checks = join_all(providers.iter().map(|(provider, _)| check(provider.as_ref(), clock))).await;
        let mut entries = Vec::new();
        for ((provider, offer), checked) in providers.into_iter().zip(checks) {
            let name = provider.name();
            if let (Offer::IfHealthy, Some(error)) = (offer, &checked.health.error)
                && named != Some(name)
            {
                tracing::warn!(provider = name, error, "a provider does not work on this host and is not offered");
                continue;
            }
            entries.push(Entry {
                provider,
                is_default: false,
                lost_one: Notify::new(),
                in_doubt: Notify::new(),
                checked: Mutex::new(checked),
            });
        }
        let default = match named {
            Some(name) => entries.iter().position(|entry| entry.provider.name() == name),
            None => AUTO_ORDER
                .iter()
                .find_map(|name| entries.iter().position(|e| e.provider.name() == *name && e.is_healthy())),
        };
        if let Some(entry) = default.and_then(|at| entries.get_mut(at)) {
            entry.is_default = true;
        }
        Self { entries, remote_workers: RemoteWorkers::default(), images: None }
    }

    /// Adds other workers beside this server.
    #[must_use]
    pub fn with_remote_workers(self, remote_workers: RemoteWorkers) -> Self {
        Self { remote_workers, ..self }
    }

    /// Adds the images that boxes are made of.
    #[must_use]
    pub fn with_images(self, images: Images) -> Self {
        Self { images: Some(images), ..self }
    }

    /// Returns the images that boxes are made of; `None` if none were added.
    pub fn images(&self) -> Option<&Images> {
        self.images.as_ref()
    }

    /// Returns the other workers.
    pub fn remote_workers(&self) -> &RemoteWorkers {
        &self.remote_workers
    }

    /// Returns all providers of this server.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the provider of this name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.provider.name() == name)
    }

    /// Returns the provider for requests that name none.
    pub fn default_entry(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.is_default)
    }
}
