//! Who runs a sandbox: this server's own provider, or another worker.

use std::sync::Arc;

use domain::WorkerId;
use providers::custom::REMOTE_DEFAULT_IMAGE;
use providers::{Provider, Spec};

use super::create::{Plan, provider_error};
use super::{Control, Error, LOCAL_WORKER, Result};
use crate::registry::AUTO_ORDER;
use crate::store::Sandbox;
use crate::store::workers::Placing;

/// Who could make a sandbox.
pub(super) struct Offer {
    /// The provider's name.
    pub(super) name: String,
    /// This server's own, if it is here and can work.
    pub(super) here: Option<Arc<dyn Provider>>,
    /// Whether another worker has it too.
    pub(super) elsewhere: bool,
}

impl Offer {
    /// The image that an omitted name means.
    pub(super) fn default_image(&self) -> String {
        match (&self.here, self.name.as_str()) {
            (Some(provider), _) => provider.default_image().to_owned(),
            (None, "native" | "proot") => "host".to_owned(),
            (None, _) => REMOTE_DEFAULT_IMAGE.to_owned(),
        }
    }

    /// Whether it may be made here.
    ///
    /// # Errors
    /// Why not, if nobody else has the provider; what only others have, such as
    /// an image, is for them to say.
    pub(super) fn check(&self, spec: &Spec) -> Result<bool> {
        let Some(provider) = &self.here else { return Ok(false) };
        match provider.check(spec) {
            Ok(()) => Ok(true),
            Err(_) if self.elsewhere => Ok(false),
            Err(error) => Err(provider_error(provider.name(), error)),
        }
    }
}

impl Control {
    /// The provider that runs a sandbox, wherever it is. To another worker, every
    /// write carries the generation of the lease as it is now.
    pub(super) async fn runtime_of(&self, sandbox: &Sandbox) -> Result<Arc<dyn Provider>> {
        if sandbox.worker == LOCAL_WORKER {
            let entry = self.registry.get(&sandbox.provider).ok_or_else(|| {
                Error::Unavailable(format!(
                    "the provider `{}` of sandbox `{}` is not enabled on this server; enable it again",
                    sandbox.provider, sandbox.id
                ))
            })?;
            return Ok(Arc::clone(&entry.provider));
        }
        let client = self.registry.fleet().client(&sandbox.worker, Some(&sandbox.provider));
        let client = client.map_err(|error| provider_error(&sandbox.worker, error))?.ok_or_else(|| {
            Error::Unavailable(format!(
                "the worker `{}` of sandbox `{}` is not configured; set `workers.{}.url`",
                sandbox.worker, sandbox.id, sandbox.worker
            ))
        })?;
        if let Some(lease) = self.store.lease(sandbox.id.as_str()).await? {
            client.set_generation(&sandbox.id, lease.generation);
        }
        Ok(client)
    }

    /// Who could make what a request asks for.
    pub(super) async fn offer(&self, name: Option<&str>) -> Result<Offer> {
        let entry = match name {
            Some(name) => self.registry.get(name),
            None => self.registry.default_entry(),
        };
        let trouble = entry.and_then(|entry| entry.checked().health.error);
        let others = self.takers();
        if others.is_empty() {
            let entry = entry.ok_or_else(|| self.no_provider(name, &[]))?;
            let name = entry.provider.name().to_owned();
            if let Some(error) = trouble {
                return Err(Error::Unavailable(format!("the provider `{name}` is not healthy: {error}")));
            }
            return Ok(Offer { name, here: Some(Arc::clone(&entry.provider)), elsewhere: false });
        }
        let mut offered: Vec<String> = Vec::new();
        for worker in self.store.workers().await? {
            if others.contains(&worker.id) {
                offered.extend(worker.providers);
            }
        }
        let auto = || AUTO_ORDER.into_iter().find(|auto| offered.iter().any(|offered| offered == auto));
        let name = match (entry, name) {
            (Some(entry), _) => entry.provider.name(),
            (None, Some(name)) => name,
            (None, None) => auto().ok_or_else(|| self.no_provider(None, &offered))?,
        };
        let elsewhere = offered.iter().any(|offered| offered == name);
        match (entry, trouble) {
            (Some(entry), None) => {
                Ok(Offer { name: name.to_owned(), here: Some(Arc::clone(&entry.provider)), elsewhere })
            }
            _ if elsewhere => Ok(Offer { name: name.to_owned(), here: None, elsewhere }),
            (Some(_), Some(error)) => Err(Error::Unavailable(format!("the provider `{name}` is not healthy: {error}"))),
            (None, _) => Err(self.no_provider(Some(name), &offered)),
        }
    }

    fn no_provider(&self, name: Option<&str>, elsewhere: &[String]) -> Error {
        let Some(name) = name else {
            let text = "no provider is healthy; GET /api/v1/providers and `tidebox doctor` say why";
            return Error::Unavailable(text.to_owned());
        };
        let here = self.registry.entries().iter().map(|entry| entry.provider.name());
        let mut known: Vec<&str> = here.chain(elsewhere.iter().map(String::as_str)).collect();
        known.sort_unstable();
        known.dedup();
        let known: Vec<String> = known.into_iter().map(|name| format!("`{name}`")).collect();
        Error::NoProvider { name: name.to_owned(), known: known.join(", ") }
    }

    /// Where a sandbox may go; `here` says whether this server comes into question.
    pub(super) fn placing(&self, here: bool) -> Placing {
        Placing {
            stale_after: self.policy.leases.stale_after,
            lease_ttl: self.policy.leases.ttl,
            here,
            reachable: self.takers(),
        }
    }

    /// Whether a worker could take it now.
    pub(super) async fn has_place(&self, plan: &Plan) -> Result<bool> {
        let (provider, owner, placing) = plan.wish();
        Ok(self.store.place(provider, owner, self.now(), placing).await?.0.is_some())
    }

    /// The other workers that a sandbox could go to. The boxes that users share
    /// are this server's own.
    pub(super) fn takers(&self) -> Arc<[WorkerId]> {
        if self.separates_users() { Arc::default() } else { Arc::clone(self.registry.fleet().ids()) }
    }

    /// The other workers.
    pub fn other_workers(&self) -> &[WorkerId] {
        self.registry.fleet().ids()
    }

    /// Whether whoever holds a sandbox may still do so. A worker that was away
    /// for too long is for the rules of leases to settle.
    pub(super) async fn is_held(&self, sandbox: &Sandbox) -> Result<bool> {
        if sandbox.worker == LOCAL_WORKER {
            return Ok(true);
        }
        Ok(self.store.lease(sandbox.id.as_str()).await?.is_some_and(|lease| lease.is_valid(self.now())))
    }
}
