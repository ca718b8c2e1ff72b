//! Workers, their heartbeats and their leases.

use std::time::Duration;

use domain::{Lease, LeaseRefused, State, Timestamp, WorkerId, is_stale};
use serde_json::json;

use crate::control::conflict::Conflict;
use crate::control::error::{Error, Result};
use crate::control::limit::{Counted, Limit};
use crate::control::resource::Resource;
use crate::control::service::Control;
use crate::events::EventType;
use store::Change;
use store::clock;
use store::workers::{Beat, Forgotten, Heartbeat, WORKERS_MAX, Worker};

/// Maximum duration that a worker may request for a lease.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of lapsed leases per query.
const BATCH: u32 = 256;

/// A worker with its current liveness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Stored data of the worker.
    pub worker: Worker,
    /// True if its last heartbeat is too old.
    pub stale: bool,
}

impl Control {
    fn seen(&self, worker: Worker) -> Seen {
        let stale = is_stale(worker.last_heartbeat, self.now(), self.policy.leases.stale_after);
        Seen { worker, stale }
    }

    /// Returns all workers ordered by id, this server included.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn workers(&self) -> Result<Vec<Seen>> {
        Ok(self.store.workers().await?.into_iter().map(|worker| self.seen(worker)).collect())
    }

    /// Returns one worker.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a worker that never sent a heartbeat, or was deleted since.
    pub async fn worker(&self, id: &str) -> Result<Seen> {
        let missing = || Error::NotFound(Resource::Worker, id.to_owned());
        let parsed = WorkerId::parse(id).map_err(|_| missing())?;
        Ok(self.seen(self.store.worker(&parsed).await?.ok_or_else(missing)?))
    }

    /// Stores a worker's heartbeat.
    ///
    /// # Errors
    /// [`Error::LimitReached`] for a new worker beyond `WORKERS_MAX`.
    pub async fn heartbeat(&self, id: &WorkerId, beat: Heartbeat) -> Result<Seen> {
        match self.store.beat(id, &beat, self.now()).await? {
            Beat::Full => Err(Limit::TooMany { objects: Counted::Workers, max: WORKERS_MAX }.into()),
            Beat::Heard { worker, is_news } => {
                if is_news {
                    self.registry.remote_workers().note(id, true);
                    tracing::info!(worker = %id, "worker registered");
                    self.publish(EventType::WorkerOnline, None, json!({"worker_id": id.as_str()}));
                }
                Ok(self.seen(*worker))
            }
        }
    }

    /// Stores this server's own heartbeat and renews its own leases.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn beat_own(&self) -> Result<()> {
        let beat = self.own_beat();
        self.heartbeat(&WorkerId::local(), beat).await?;
        let now = self.now();
        let until = clock::after(now, self.policy.leases.ttl);
        // Leases granted within the last third of a term need no renewal yet.
        self.store.renew_own_leases(clock::after(now, self.policy.leases.ttl * 2 / 3), until).await?;
        Ok(())
    }

    /// Returns this server's own heartbeat.
    pub(in crate::control) fn own_beat(&self) -> Heartbeat {
        let healthy = self.registry.entries().iter().filter(|entry| entry.is_healthy());
        let mut capabilities = vec!["api".to_owned()];
        if !self.policy.has_workers {
            capabilities.push("single_node".to_owned());
        }
        capabilities.extend(RUNS.map(str::to_owned));
        Heartbeat {
            hostname: hostname(),
            status: None,
            providers: healthy.map(|entry| entry.provider.name().to_owned()).collect(),
            capabilities,
            capacity: domain::Capacity {
                max_sandboxes: self.policy.caps.max_sandboxes,
                max_sandboxes_per_owner: self.policy.caps.max_sandboxes_per_owner,
            },
        }
    }

    /// Deletes a worker. If it still sends heartbeats, the next one adds it again.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none, [`Error::Conflict`] for this server itself and for
    /// a worker with active sandboxes.
    pub async fn delete_worker(&self, id: &str) -> Result<()> {
        let missing = || Error::NotFound(Resource::Worker, id.to_owned());
        let parsed = WorkerId::parse(id).map_err(|_| missing())?;
        if parsed.is_local() {
            return Err(Conflict::LocalWorker.into());
        }
        match self.store.forget_worker(&parsed).await? {
            Forgotten::Done => Ok(()),
            Forgotten::Missing => Err(missing()),
            Forgotten::Busy(active) => Err(Conflict::WorkerBusy { worker: id.to_owned(), active }.into()),
        }
    }

    /// Renews a worker's lease on a sandbox.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a sandbox that was never leased or whose lease was released,
    /// [`Error::Conflict`] for a lease that has expired or belongs to another worker.
    pub async fn renew_lease(&self, holder: &WorkerId, resource: &str, ttl: Duration) -> Result<Lease> {
        let refused = match self.store.renew_lease(resource, holder, self.now(), ttl).await? {
            Ok(lease) => return Ok(lease),
            Err(refused) => refused,
        };
        Err(match refused {
            LeaseRefused::Missing => Error::NotFound(Resource::Lease, resource.to_owned()),
            LeaseRefused::Held | LeaseRefused::Expired => {
                Conflict::Lease { sandbox: resource.to_owned(), refused }.into()
            }
        })
    }

    /// Reports workers that have become stale, each once.
    pub(crate) async fn notice_silence(&self) -> Result<()> {
        for id in self.store.newly_stale(earlier(self.now(), self.policy.leases.stale_after)).await? {
            tracing::warn!(worker = %id, "worker went silent; not placing sandboxes on it");
            self.publish(EventType::WorkerStale, None, json!({"worker_id": id.as_str()}));
        }
        Ok(())
    }

    /// Grants leases again to workers that were away for less than the grace period, and gives
    /// up the sandboxes of those that were away for longer. By then the worker has ended them
    /// itself.
    pub(crate) async fn settle_leases(&self) -> Result<()> {
        let (now, terms) = (self.now(), self.policy.leases);
        let given_up_by = earlier(now, terms.grace);
        self.store.regrant_leases(given_up_by, now, clock::after(now, terms.ttl)).await?;
        for sandbox in self.store.lapsed(given_up_by, BATCH).await? {
            let change = if sandbox.state == State::Destroying {
                Change::Stopped { at: now }
            } else {
                let error = format!(
                    "its worker `{}` was unreachable until the lease on it expired; spawn another",
                    sandbox.worker
                );
                Change::Broke { error, at: now }
            };
            tracing::warn!(id = %sandbox.id, worker = %sandbox.worker, "giving up a sandbox whose lease has expired");
            self.publish_action("lease_lapsed", Some(&sandbox.id), json!({"worker_id": sandbox.worker.as_str()}));
            self.apply(&sandbox.id, change).await?;
        }
        Ok(())
    }
}

/// Capabilities of a worker that runs sandboxes.
pub(in crate::control) const RUNS: [&str; 3] = ["spawn", "exec", "files"];

pub(in crate::control) fn earlier(at: Timestamp, by: Duration) -> Timestamp {
    clock::from_ms(at.as_millisecond().saturating_sub(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
}

/// Returns the name of this host.
#[must_use]
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
