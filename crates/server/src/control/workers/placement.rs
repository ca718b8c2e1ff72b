//! Selection of the runtime of a sandbox: a provider of this server, or another worker.

use std::sync::Arc;

use domain::WorkerId;
use providers::custom::REMOTE_DEFAULT_IMAGE;
use providers::{Provider, Spec};

use crate::control::error::{Error, Result, provider_error};
use crate::control::resource::Resource;
use crate::control::service::Control;
use crate::control::unavailable::{Diagnosis, Unavailable, Unhealthy};
use crate::provider_registry::AUTO_ORDER;
use store::workers::PlacementFilter;
use store::{NewSandbox, Sandbox};

/// Runtimes that could run a sandbox.
pub(in crate::control) struct Offer {
    pub(in crate::control) name: String,
    /// The provider of this server, if it has one and it is healthy.
    pub(in crate::control) here: Option<Arc<dyn Provider>>,
    /// True if another worker offers the provider too.
    pub(in crate::control) elsewhere: bool,
}

impl Offer {
    /// Returns the image for requests that name none.
    pub(in crate::control) fn default_image(&self) -> String {
        let image = match &self.here {
            Some(provider) => provider.default_image(),
            None => providers::default_image(&self.name).unwrap_or(REMOTE_DEFAULT_IMAGE),
        };
        image.to_owned()
    }

    /// Returns whether the box may be made on this server.
    ///
    /// # Errors
    /// The provider's refusal, if no other worker offers the provider. Other workers check for
    /// themselves, for example whether they have the image.
    pub(in crate::control) fn check(&self, spec: &Spec) -> Result<bool> {
        let Some(provider) = &self.here else { return Ok(false) };
        match provider.check(spec) {
            Ok(()) => Ok(true),
            Err(_) if self.elsewhere => Ok(false),
            Err(error) => Err(provider_error(provider.name(), error)),
        }
    }
}

impl Control {
    /// Returns the runtime of a sandbox. For another worker, every write carries the current
    /// generation of the lease.
    pub(in crate::control) async fn runtime_of(&self, sandbox: &Sandbox) -> Result<Arc<dyn Provider>> {
        if sandbox.worker.is_local() {
            let entry = self.registry.get(&sandbox.provider).ok_or_else(|| Unavailable::NotEnabled {
                provider: sandbox.provider.clone(),
                resource: Resource::Sandbox,
                id: sandbox.id.to_string(),
            })?;
            return Ok(Arc::clone(&entry.provider));
        }
        let client = self.registry.remote_workers().client(&sandbox.worker, Some(&sandbox.provider));
        let client = client.map_err(|error| provider_error(sandbox.worker.as_str(), error))?.ok_or_else(|| {
            let worker = sandbox.worker.clone();
            Unavailable::WorkerUnknown { worker, sandbox: sandbox.id.clone() }
        })?;
        if let Some(lease) = self.store.lease(sandbox.id.as_str()).await? {
            client.set_generation(&sandbox.id, lease.generation);
        }
        Ok(client)
    }

    /// Returns the image of a sandbox whose request names neither an image nor a provider.
    ///
    /// # Errors
    /// As for such a request.
    pub async fn default_image(&self) -> Result<String> {
        match &self.policy.image {
            Some(image) => Ok(image.clone()),
            None => Ok(self.offer(None).await?.default_image()),
        }
    }

    /// Returns the runtimes that could serve a request for a provider.
    pub(in crate::control) async fn offer(&self, name: Option<&str>) -> Result<Offer> {
        let entry = match name {
            Some(name) => self.registry.get(name),
            None => self.registry.default_entry(),
        };
        let trouble = entry.and_then(|entry| entry.checked().health.error);
        let others = self.eligible_workers();
        if others.is_empty() {
            let entry = entry.ok_or_else(|| self.no_provider(name, &[]))?;
            let name = entry.provider.name().to_owned();
            if let Some(cause) = trouble {
                return Err(unhealthy(name, cause));
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
            (Some(_), Some(cause)) => Err(unhealthy(name.to_owned(), cause)),
            (None, _) => Err(self.no_provider(Some(name), &offered)),
        }
    }

    fn no_provider(&self, name: Option<&str>, elsewhere: &[String]) -> Error {
        let Some(name) = name else {
            return Unavailable::NoHealthyProvider(Diagnosis::OnOtherRoutes).into();
        };
        let here = self.registry.entries().iter().map(|entry| entry.provider.name());
        let mut known: Vec<&str> = here.chain(elsewhere.iter().map(String::as_str)).collect();
        known.sort_unstable();
        known.dedup();
        let known: Vec<String> = known.into_iter().map(|name| format!("`{name}`")).collect();
        Error::NoProvider { name: name.to_owned(), known: known.join(", ") }
    }

    /// Returns the eligible workers; `here` is whether this server is among them.
    pub(in crate::control) fn placement(&self, here: bool) -> PlacementFilter {
        PlacementFilter {
            stale_after: self.policy.leases.stale_after,
            lease_ttl: self.policy.leases.ttl,
            here,
            reachable: if self.separates_users() { Arc::default() } else { self.registry.remote_workers().answering() },
        }
    }

    /// Returns whether a worker could take the sandbox now.
    pub(in crate::control) async fn has_place(&self, new: &NewSandbox) -> Result<bool> {
        let NewSandbox { sandbox, placement, .. } = new;
        let placed = self.store.place(&sandbox.provider, sandbox.owner.as_ref(), self.now(), placement).await?;
        Ok(placed.0.is_some())
    }

    /// Returns the other workers that a sandbox could be placed on; none in pool mode, whose
    /// shared boxes are all on this server.
    pub(in crate::control) fn eligible_workers(&self) -> Arc<[WorkerId]> {
        if self.separates_users() { Arc::default() } else { Arc::clone(self.registry.remote_workers().ids()) }
    }

    /// Returns the ids of the other configured workers.
    pub fn other_workers(&self) -> &[WorkerId] {
        self.registry.remote_workers().ids()
    }

    /// Returns whether the lease of a sandbox's worker is valid. An expired lease is left to the
    /// rules of leases.
    pub(in crate::control) async fn is_held(&self, sandbox: &Sandbox) -> Result<bool> {
        if sandbox.worker.is_local() {
            return Ok(true);
        }
        Ok(self.store.lease(sandbox.id.as_str()).await?.is_some_and(|lease| lease.is_valid(self.now())))
    }
}

fn unhealthy(provider: String, cause: String) -> Error {
    Unavailable::ProviderUnhealthy { provider, unhealthy: Unhealthy::Fault { cause } }.into()
}
