//! Looking.

use super::{Control, Error, Resource, Result};
use crate::registry::{Checked, Entry};
use crate::store::{ListFilter, Page, Sandbox};

/// All about one provider.
#[derive(Debug)]
pub struct ProviderDetail<'a> {
    /// The provider.
    pub entry: &'a Entry,
    /// Its last check.
    pub checked: Checked,
    /// How many active sandboxes it runs.
    pub sandbox_count: u64,
}

impl Control {
    /// One sandbox.
    ///
    /// # Errors
    /// [`Error::NotFound`] also once it is destroyed or expired.
    pub async fn sandbox(&self, id: &str) -> Result<Sandbox> {
        self.visible(id).await
    }

    /// The sandboxes that fit, newest first.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn sandboxes(&self, filter: &ListFilter) -> Result<Page> {
        Ok(self.store.sandboxes(filter, self.now()).await?)
    }

    /// One provider.
    ///
    /// # Errors
    /// [`Error::NotFound`] if this server does not have it.
    pub async fn provider(&self, name: &str) -> Result<ProviderDetail<'_>> {
        let entry = self.registry.get(name).ok_or_else(|| Error::NotFound(Resource::Provider, name.to_owned()))?;
        let sandbox_count = self.store.counts().await?.by_provider.get(name).copied().unwrap_or(0);
        Ok(ProviderDetail { entry, checked: entry.checked(), sandbox_count })
    }

    /// Checks every provider now, in the order of the registry.
    pub async fn test_providers(&self) -> Vec<Checked> {
        self.registry.check_all(self.clock.as_ref()).await
    }
}
