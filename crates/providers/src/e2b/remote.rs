//! The account: the search for this server's boxes in it, and their end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, Timestamp};
use futures_util::{StreamExt, stream};
use reqwest::Client;
use secrecy::SecretString;
use tokio_util::task::TaskTracker;

use super::control_plane::{ControlPlane, Described};
use super::envd::{DataPlane, Envd};
use super::far_box::{FarBox, Known};
use super::fault::{Fault, control_fault};
use super::labels::{ID_LABEL, STORE_LABEL};
use crate::kept_processes::Now;
use crate::service::boxes::Boxes;
use crate::{Chain, Error, Found, Result};

/// Number of sandboxes per request.
const PAGE: u32 = 100;
/// The most pages of one list. A service that returns more repeats itself endlessly.
const PAGES_MAX: usize = 1000;
/// The longest wait of a health check.
const HEALTH_WAIT: Duration = Duration::from_secs(4);
/// Sandboxes that are looked at, or removed, at once.
const LOOKS_MAX: usize = 8;

/// The account at the service, and what is kept about it.
pub(super) struct Remote {
    pub(super) control: ControlPlane,
    /// HTTP client of the data plane.
    pub(super) http: Client,
    pub(super) plane: DataPlane,
    pub(super) user: String,
    pub(super) timeout: Duration,
    pub(super) label: String,
    /// Clock of this server.
    pub(super) now: Now,
    pub(super) boxes: Arc<Boxes<Known>>,
    /// Tasks that keep the output of processes, as long as they run.
    pub(super) keepers: TaskTracker,
    /// Tasks that end by themselves soon: starts, and removals of what was left.
    pub(super) tasks: TaskTracker,
}

impl Remote {
    /// Returns the labels of a box.
    fn labels<'a>(&'a self, id: &'a SandboxId) -> [(&'static str, &'a str); 2] {
        [(ID_LABEL, id.as_str()), (STORE_LABEL, &self.label)]
    }

    /// Lists every sandbox with these labels, running or paused.
    pub(super) async fn listed(&self, action: &'static str, labels: &[(&str, &str)]) -> Result<Vec<Described>> {
        let mut found = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let page = self.control.list(labels, PAGE, token.as_deref()).await;
            let (mut sandboxes, next) = match page.map_err(|fault| control_fault(action, fault)) {
                // A list cannot be missing.
                Err(Error::Gone) => return Err(Error::failed(action, "the service has no route for the list")),
                page => page?,
            };
            // A service that ignores the filter returns every sandbox of the account.
            sandboxes.retain(|sandbox| labels.iter().all(|(name, value)| sandbox.label(name) == Some(*value)));
            found.append(&mut sandboxes);
            if next.is_none() {
                return Ok(found);
            }
            token = next;
        }
        Err(Error::failed(action, format!("a list has more than {PAGES_MAX} pages")))
    }

    /// Lists the sandboxes of this store.
    pub(super) async fn all(&self, action: &'static str) -> Result<Vec<Described>> {
        self.listed(action, &[(STORE_LABEL, &self.label)]).await
    }

    /// Finds the sandbox that is this box, running or paused.
    ///
    /// # Errors
    /// [`Error::Gone`] if there is none.
    pub(super) async fn running(&self, id: &SandboxId) -> Result<Known> {
        const ACTION: &str = "look up a box";
        if let Some(known) = self.boxes.known(id) {
            match known.envd.is_healthy().await {
                Ok(true) => return Ok(known),
                Ok(false) => {}
                Err(fault) if fault.may_be_the_end() => {}
                Err(fault) => return Err(control_fault(ACTION, fault)),
            }
            if self.still_runs(&known).await? {
                return Ok(known);
            }
            // Another instance of this provider may have made a new one.
        }
        let found = self.listed(ACTION, &self.labels(id)).await?;
        let found = eldest(&found).ok_or(Error::Gone)?;
        let described = self.described(&found.sandbox_id).await?;
        self.check_ours(&described, id)?;
        let Described { sandbox_id, domain, envd_access_token, .. } = described;
        Ok(self.remember(id, &sandbox_id, domain.as_deref(), envd_access_token))
    }

    /// Checks that a sandbox is this server's box `id`.
    pub(super) fn check_ours(&self, sandbox: &Described, id: &SandboxId) -> Result<()> {
        if self.labels(id).iter().all(|(name, value)| sandbox.label(name) == Some(*value)) {
            return Ok(());
        }
        Err(Error::failed("look up a box", "the service answered with a different sandbox"))
    }

    /// Remembers the sandbox of a box.
    pub(super) fn remember(&self, id: &SandboxId, sandbox: &str, domain: Option<&str>, token: Option<String>) -> Known {
        let make = || {
            let token = token.map(SecretString::from);
            let (http, user) = (self.http.clone(), self.user.clone());
            let envd = Envd::new(http, &self.plane, sandbox, domain, token, user, self.timeout);
            Arc::new(FarBox::new(sandbox.to_owned(), envd, Arc::clone(&self.now), self.keepers.clone()))
        };
        self.boxes.remember_unless(id, |known| known.sandbox == sandbox, make)
    }

    /// Describes a sandbox.
    ///
    /// # Errors
    /// [`Error::Gone`] if the service does not have it.
    pub(super) async fn described(&self, sandbox: &str) -> Result<Described> {
        self.control.sandbox(sandbox).await.map_err(|fault| control_fault("look up a box", fault))
    }

    /// Describes the sandbox of a box; `None` if it is gone.
    pub(super) async fn look(&self, known: &FarBox) -> Result<Option<Described>> {
        match self.described(&known.sandbox).await {
            Err(Error::Gone) => Ok(None),
            described => described.map(|described| Some(described).filter(Described::is_running)),
        }
    }

    /// Returns whether a sandbox is there, running or paused.
    pub(super) async fn still_runs(&self, known: &FarBox) -> Result<bool> {
        self.look(known).await.map(|described| described.is_some())
    }

    /// Removes every sandbox that is this box.
    pub(super) async fn remove_all(&self, id: &SandboxId) -> Result<()> {
        // A remembered sandbox needs no search.
        if let Some(known) = self.boxes.known(id) {
            known.dead.cancel();
            if self.kill(&known.sandbox).await? {
                return Ok(());
            }
        }
        for sandbox in self.listed("stop a box", &self.labels(id)).await? {
            self.kill(&sandbox.sandbox_id).await?;
        }
        Ok(())
    }

    /// Ends a sandbox. Returns false if it is gone already.
    async fn kill(&self, sandbox: &str) -> Result<bool> {
        match self.control.kill(sandbox).await.map_err(|fault| control_fault("stop a box", fault)) {
            Err(Error::Gone) => Ok(false),
            killed => killed.map(|()| true),
        }
    }

    /// Looks at a box that a list lacks: a new sandbox may come to it late.
    async fn looked_at(&self, id: SandboxId) -> Found {
        let alive = match self.boxes.known(&id) {
            Some(known) => self.still_runs(&known).await,
            None => Ok(false),
        };
        // Where that cannot be found out, another inventory does.
        Found { id, alive: alive.unwrap_or(true) }
    }

    /// Lists the boxes; see [`crate::Provider::inventory`].
    pub(super) async fn inventory(&self) -> Result<Vec<Found>> {
        // Taken before the list, so that a box made meanwhile does not count as lost.
        let known = self.boxes.ids();
        let listed = self.all("list the boxes").await?;
        let mut by_box: BTreeMap<SandboxId, Vec<&Described>> = BTreeMap::new();
        for sandbox in &listed {
            if let Some(id) = sandbox.label(ID_LABEL).and_then(|id| SandboxId::parse(id).ok()) {
                by_box.entry(id).or_default().push(sandbox);
            }
        }
        let unlisted: Vec<SandboxId> = known.into_iter().filter(|id| !by_box.contains_key(id)).collect();
        let looks = stream::iter(unlisted).map(|id| self.looked_at(id));
        let mut found: Vec<Found> = looks.buffered(LOOKS_MAX).collect().await;
        found.extend(by_box.keys().map(|id| Found { id: id.clone(), alive: true }));
        for (id, same) in &by_box {
            self.remove_doubles(id, same).await;
        }
        Ok(found)
    }

    /// Removes all but one of the sandboxes that are the same box: an answer that was lost may leave two, and each costs
    /// money.
    async fn remove_doubles(&self, id: &SandboxId, same: &[&Described]) {
        if same.len() < 2 || self.boxes.starting(id).is_some() {
            return;
        }
        let known = self.boxes.known(id).map(|known| known.sandbox.clone());
        let kept = known.or_else(|| eldest(same.iter().copied()).map(|eldest| eldest.sandbox_id.clone()));
        for sandbox in same.iter().filter(|sandbox| kept.as_deref() != Some(&sandbox.sandbox_id)) {
            tracing::warn!(%id, sandbox = sandbox.sandbox_id, "removing a second sandbox of a box from the account");
            if let Err(error) = self.kill(&sandbox.sandbox_id).await {
                tracing::warn!(%id, error = %Chain(&error), "cannot remove a second sandbox of a box; retrying later");
            }
        }
    }

    /// Returns the reason why the service cannot be used now, if any.
    pub(super) async fn trouble(&self) -> Option<String> {
        match tokio::time::timeout(HEALTH_WAIT, self.control.probe(&[(STORE_LABEL, &self.label)])).await {
            Ok(Ok(())) => None,
            Ok(Err(fault)) => Some(health_trouble(fault)),
            Err(_) => Some(format!("the service behind it did not answer within {} s", HEALTH_WAIT.as_secs())),
        }
    }
}

/// Returns what an operator is told about a service that does not work.
fn health_trouble(fault: Fault) -> String {
    let error = control_fault("report its health", fault);
    if let Error::Unavailable(text) | Error::Exhausted(text) = error {
        return text;
    }
    tracing::warn!(error = %Chain(&error), "the service behind the provider e2b does not report its health");
    "the service behind it does not answer like E2B's API; see the log for the cause".to_owned()
}

/// Returns the sandbox that was made first.
fn eldest<'a>(sandboxes: impl IntoIterator<Item = &'a Described>) -> Option<&'a Described> {
    let started = |sandbox: &Described| sandbox.started_at.as_deref().and_then(|at| at.parse::<Timestamp>().ok());
    sandboxes.into_iter().filter(|sandbox| sandbox.is_running()).min_by_key(|sandbox| started(sandbox))
}
