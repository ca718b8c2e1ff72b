//! Connections out of sandboxes: their policies, and the boxes whose requests are served.

use std::collections::HashSet;

use domain::{EgressPolicy, InvalidEgress, OwnerId, SandboxEgress, SandboxId, State, WorkerId};
use futures_util::{StreamExt, stream};
use providers::{Chain, Provider};
use serde_json::json;

use super::error::{Error, Result};
use super::guest::access::runtime_error;
use super::resource::Resource;
use super::secrets::failed;
use super::service::Control;
use super::workers::box_host::BoxHost;
use crate::egress::{Counts, EgressDecision};
use crate::events::EventType;
use store::Sandbox;

/// Most boxes that are asked at once.
const ASKED_MAX: usize = 16;

/// Policies of a sandbox, and the account of its connections.
#[derive(Debug, Clone)]
pub struct EgressState {
    pub policies: SandboxEgress,
    /// True if its processes have no other way out.
    pub is_enforced: bool,
    pub counts: Counts,
    /// Newest decisions, the newest first.
    pub decisions: Vec<EgressDecision>,
}

impl Control {
    /// Returns the policies of a sandbox, and the account of its connections.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if another server makes the connections.
    pub async fn egress_of(&self, id: &str) -> Result<EgressState> {
        let sandbox = self.visible(id).await?;
        let is_enforced = !self.egress_provider(&sandbox)?.facts().has_own_network();
        let missing = || Error::NotFound(Resource::Sandbox, id.to_owned());
        let policies = self.store.egress(&sandbox.id).await?.ok_or_else(missing)?;
        Ok(self.egress_state(&sandbox.id, policies, is_enforced))
    }

    /// Replaces the policy of a running sandbox. It holds at once, for open connections too; those
    /// of its template, its owner and the site hold as before.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a policy that breaks a rule, [`Error::NotSupported`] if another server
    /// makes the connections.
    pub async fn set_egress(&self, id: &str, own: EgressPolicy) -> Result<EgressState> {
        self.check_egress(&own)?;
        let sandbox = self.usable(id).await?;
        self.check_secrets(Some(&own), sandbox.owner.as_ref()).await?;
        let is_enforced = !self.egress_provider(&sandbox)?.facts().has_own_network();
        let missing = || Error::NotFound(Resource::Sandbox, id.to_owned());
        let policies = self.store.set_egress(&sandbox.id, own).await?.ok_or_else(missing)?;
        self.publish(EventType::EgressChanged, Some(&sandbox.id), json!({"mode": policies.own.mode.as_str()}));
        self.serve_egress(&sandbox.id, sandbox.owner.as_ref()).await?;
        Ok(self.egress_state(&sandbox.id, policies, is_enforced))
    }

    fn egress_state(&self, id: &SandboxId, policies: SandboxEgress, is_enforced: bool) -> EgressState {
        let (counts, decisions) = self.egress.account_of(id);
        EgressState { policies, is_enforced, counts, decisions }
    }

    /// Checks a policy that a request or a template names.
    pub(super) fn check_egress(&self, policy: &EgressPolicy) -> Result<()> {
        self.egress.check(policy).map_err(|error| match error {
            InvalidEgress::UnknownList(name) => Error::NotFound(Resource::EgressList, format!("@{name}")),
            InvalidEgress::Long(_)
            | InvalidEgress::Large
            | InvalidEgress::UselessAllow(_)
            | InvalidEgress::ManySecrets(_)
            | InvalidEgress::UselessSecrets => Error::Invalid(error.to_string()),
        })
    }

    /// Returns the provider of a sandbox whose connections are made here.
    fn egress_provider(&self, sandbox: &Sandbox) -> Result<&dyn Provider> {
        let is_here = self.host_of(sandbox) == BoxHost::ThisServer;
        let entry = self.registry.get(&sandbox.provider).filter(|_| is_here);
        entry.map(|entry| entry.provider.as_ref()).ok_or_else(|| {
            Error::NotSupported(format!(
                "the worker or service that runs sandbox `{}` makes its outgoing connections, under the policy of its \
                 spawn; they cannot be seen or changed here",
                sandbox.id
            ))
        })
    }

    /// Returns the certificate of the authority that a box has to trust, if secrets are sent for it here.
    pub(super) async fn authority_certificate(
        &self,
        sandbox: &Sandbox,
        policies: &SandboxEgress,
    ) -> Result<Option<String>> {
        if policies.secrets().next().is_none() || self.egress_provider(sandbox).is_err() {
            return Ok(None);
        }
        let authority = self.secrets.authority(&sandbox.id, self.now()).await.map_err(failed)?;
        Ok(authority.map(|authority| authority.certificate().to_owned()))
    }

    /// Has a box trust its authority, if secrets are sent for it here.
    async fn trust_authority(
        &self,
        sandbox: &Sandbox,
        policies: &SandboxEgress,
        provider: &dyn Provider,
    ) -> Result<()> {
        let Some(certificate) = self.authority_certificate(sandbox, policies).await? else { return Ok(()) };
        let trusted = async { provider.guest(&sandbox.id).await?.trust(&certificate).await };
        trusted.await.map_err(|error| runtime_error(sandbox, error))
    }

    /// Begins to serve the requests of a box that is about to be running.
    pub(super) async fn begin_egress(
        &self,
        sandbox: &Sandbox,
        policies: &SandboxEgress,
        provider: &dyn Provider,
    ) -> Result<()> {
        if policies.is_none() || self.egress_provider(sandbox).is_err() {
            if self.egress.is_served(&sandbox.id) {
                // The box was prepared with connections.
                self.egress.update(&sandbox.id, sandbox.owner.as_ref(), policies);
            }
            return Ok(());
        }
        self.trust_authority(sandbox, policies, provider).await?;
        let requests = async { provider.guest(&sandbox.id).await?.egress().await };
        let requests = requests.await.map_err(|error| runtime_error(sandbox, error))?;
        let exchanged = self.store.egress_bytes(&sandbox.id).await?;
        self.egress.serve(&sandbox.id, sandbox.owner.as_ref(), policies, exchanged, requests);
        Ok(())
    }

    /// Puts the stored policies of a running sandbox into force, and serves its box.
    pub(super) async fn serve_egress(&self, id: &SandboxId, owner: Option<&OwnerId>) -> Result<()> {
        let policies = self.store.egress(id).await?.unwrap_or_default();
        let is_served = self.egress.is_served(id);
        if is_served {
            self.egress.update(id, owner, &policies);
            if policies.secrets().next().is_none() {
                return Ok(());
            }
        }
        let Some(sandbox) = self.store.sandbox(id).await?.filter(|sandbox| sandbox.state == State::Running) else {
            return Ok(());
        };
        let provider = self.runtime_of(&sandbox).await?;
        if is_served {
            // The secrets may be the first ones of the box.
            return self.trust_authority(&sandbox, &policies, provider.as_ref()).await;
        }
        self.begin_egress(&sandbox, &policies, provider.as_ref()).await
    }

    /// Stores the bytes that boxes have exchanged with hosts, where they are bounded.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn store_egress_bytes(&self) -> Result<()> {
        let exchanged = self.egress.unstored();
        if !exchanged.is_empty() {
            self.store.set_egress_bytes(&exchanged).await?;
            self.egress.have_stored(&exchanged);
        }
        Ok(())
    }

    /// Serves every running box that has policies and is not served: after a restart, or once its
    /// connection broke.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn serve_all_egress(&self) -> Result<()> {
        let running = self.store.with_egress(&WorkerId::local()).await?;
        let ready = self.warm.pool.members();
        let mut live: HashSet<_> = running.iter().map(|(id, _)| id.clone()).chain(ready).collect();
        for id in self.egress.unserved(&live) {
            // One that is on disk goes on with what it has used up.
            if self.store.sandbox(&id).await?.is_some_and(|row| row.state == State::Paused) {
                live.insert(id);
            }
        }
        self.store_egress_bytes().await?;
        self.egress.keep_only(&live);
        let left = running.into_iter().filter(|(id, _)| !self.egress.is_served(id) && !self.is_in_hand(id));
        let serve = |(id, owner): (SandboxId, Option<OwnerId>)| async move {
            if let Err(error) = self.serve_egress(&id, owner.as_ref()).await {
                tracing::debug!(%id, error = %Chain(&error), "cannot serve the connections of a box; retrying later");
            }
        };
        stream::iter(left).for_each_concurrent(ASKED_MAX, serve).await;
        Ok(())
    }
}
