//! Terms of sandboxes: pauses at the end of a lifetime, and resumes with a new one.

use std::sync::Arc;
use std::time::Duration;

use domain::{OwnerId, PortAccess, ProcessDefaults, SandboxId, State, StopReason, WorkerId};
use providers::Chain;

use super::error::{Error, Result, above};
use super::pause::resume::Reopened;
use super::pause::{Keep, Pause};
use super::service::Control;
use super::unavailable::Unavailable;

/// Mark of a sandbox that is being paused at the end of its lifetime, until it is dropped.
struct Ending {
    control: Arc<Control>,
    id: SandboxId,
}

impl Ending {
    /// Returns the mark; `None` if another task has it.
    fn begin(control: &Arc<Control>, id: &SandboxId) -> Option<Self> {
        let is_first = control.ending.lock().insert(id.clone());
        is_first.then(|| Self { control: Arc::clone(control), id: id.clone() })
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.control.ending.lock().remove(&self.id);
    }
}

impl Control {
    /// Returns `wanted`, lowered to the longest lifetime that the owner's sandboxes may have.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn lifetime_within(&self, owner: Option<&OwnerId>, wanted: Duration) -> Result<Duration> {
        Ok(self.limits_of(owner).await?.ttl_max.min(wanted))
    }

    /// Keeps a sandbox running for at least `ttl` from now. A paused sandbox is resumed for that time; a longer lifetime of
    /// a running one is not shortened.
    ///
    /// # Errors
    /// [`Error::LimitReached`] above the maximum lifetime, else as [`Control::resume`].
    pub async fn reopen(self: &Arc<Self>, id: &str, ttl: Duration) -> Result<Reopened> {
        let found = self.living(id).await?;
        let limits = self.limits_of(found.owner.as_ref()).await?;
        limits.ttl(Some(ttl)).map_err(|error| above("ttl", error))?;
        if found.state == State::Paused {
            let resumed = self.resume_for(id, Some(ttl)).await?;
            if resumed.was_paused {
                return Ok(resumed);
            }
        }
        Ok(Reopened { sandbox: self.lengthen(id, ttl).await?, was_paused: false })
    }

    /// Pauses a sandbox, even if requests use it, and extends its lifetime to the maximum. Returns false if it is
    /// already paused.
    ///
    /// # Errors
    /// As [`Control::pause`].
    pub async fn put_away(self: &Arc<Self>, id: &str) -> Result<bool> {
        self.put_away_if(id, false).await
    }

    /// Pauses a sandbox as [`Control::put_away`] does, with `only_if_over` only if its lifetime is over.
    async fn put_away_if(self: &Arc<Self>, id: &str, only_if_over: bool) -> Result<bool> {
        let found = self.living(id).await?;
        if found.state == State::Paused {
            return Ok(false);
        }
        let lifetime = self.limits_of(found.owner.as_ref()).await?.ttl_max;
        let keep = Some(Keep { lifetime, only_if_over });
        self.pause(id, Pause { force: true, keep, ..Pause::default() }).await.map(|_| true)
    }

    /// Ends the lifetime of a sandbox now: pauses it if its terms say so, else destroys it.
    ///
    /// # Errors
    /// As [`Control::put_away`] and [`Control::destroy`].
    pub async fn end_lifetime(self: &Arc<Self>, id: &str) -> Result<()> {
        let found = self.sandbox(id).await?;
        if found.terms.as_ref().is_some_and(|terms| terms.pauses_at_end) {
            return self.put_away(id).await.map(drop);
        }
        self.destroy(id).await
    }

    /// Begins to pause a sandbox whose lifetime is over, if its terms say so. Returns whether they do. A sandbox that
    /// cannot be paused is destroyed, unless its lifetime was extended meanwhile.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) async fn pause_at_end(self: &Arc<Self>, id: &SandboxId) -> Result<bool> {
        let found = self.store.sandbox(id).await?;
        let pauses = found.is_some_and(|row| row.terms.is_some_and(|terms| terms.pauses(row.state)));
        if !pauses {
            return Ok(false);
        }
        let Some(ending) = Ending::begin(self, id) else { return Ok(true) };
        self.tasks.spawn(async move {
            let Ending { control, id } = &ending;
            control.pause_or_destroy(id).await;
        });
        Ok(true)
    }

    async fn pause_or_destroy(self: &Arc<Self>, id: &SandboxId) {
        let error = match self.put_away_if(id.as_str(), true).await {
            // A server that stops has not tried.
            Ok(_) | Err(Error::NotFound(..) | Error::Unavailable(Unavailable::ShuttingDown)) => return,
            Err(error) => error,
        };
        match self.destroy_because(id, StopReason::Expired).await {
            Ok(true) => tracing::warn!(%id, error = %Chain(&error), "cannot pause a sandbox at its end; destroyed it"),
            Ok(false) => tracing::debug!(%id, error = %Chain(&error), "not pausing a sandbox at its end"),
            Err(error) => tracing::warn!(%id, error = %Chain(&error), "cannot remove a sandbox; retrying later"),
        }
    }

    /// Returns whom the terms of a sandbox open its ports to, also of one that has ended while its row is kept;
    /// `None` for one without terms.
    pub async fn port_access(&self, id: &str) -> Option<PortAccess> {
        let id = SandboxId::parse(id).ok()?;
        let row = self.store.sandbox(&id).await.ok().flatten()?;
        row.terms.map(|terms| terms.ports)
    }

    /// Returns the defaults that the template of a sandbox has for its processes, without their environment.
    pub async fn process_defaults(&self, id: &str) -> ProcessDefaults {
        let Ok(id) = SandboxId::parse(id) else { return ProcessDefaults::default() };
        let row = self.store.sandbox(&id).await.ok().flatten();
        row.and_then(|row| row.terms).map(|terms| terms.defaults).unwrap_or_default()
    }

    /// Returns the ids of the sandboxes that run on this server.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn running_ids(&self) -> Result<Vec<SandboxId>> {
        Ok(self.store.ids_in(&[State::Running], &WorkerId::local(), None).await?)
    }

    /// Waits until a sandbox does not run any more: it is paused, has ended, or never was.
    pub async fn stands_still(&self, id: &str) {
        let Ok(id) = SandboxId::parse(id) else { return };
        let mut wait = self.waiters.begin(&id);
        let mut row = self.store.sandbox(&id).await.ok().flatten().map(Arc::new);
        while row.is_some_and(|row| row.state == State::Running) {
            match wait.next(|| async { Ok(self.store.sandbox(&id).await?) }).await {
                Ok(next) => row = next,
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod test;
