//! Read access to sandboxes and providers.

use domain::OwnerId;
use futures_util::future::join_all;
use serde_json::json;

use super::error::{Error, Result};
use super::resource::Resource;
use super::service::Control;
use crate::events::EventType;
use crate::provider_registry::{Checked, Entry};
use store::{ListFilter, Page, Sandbox};

/// A provider with its health and its load.
#[derive(Debug)]
pub struct ProviderDetail<'a> {
    pub entry: &'a Entry,
    /// Result of its last check.
    pub checked: Checked,
    /// Number of active sandboxes that it runs.
    pub sandbox_count: u64,
}

impl Control {
    /// Returns one sandbox.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an unknown id, and once it is destroyed or expired.
    pub async fn sandbox(&self, id: &str) -> Result<Sandbox> {
        self.visible(id).await
    }

    /// Returns the sandboxes that match, newest first.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn sandboxes(&self, filter: &ListFilter) -> Result<Page> {
        Ok(self.store.sandboxes(filter, self.now()).await?)
    }

    /// Returns the sandboxes that match and belong to `user`; those of all users for `None`.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn sandboxes_known_to(&self, user: Option<OwnerId>, mut filter: ListFilter) -> Result<Page> {
        if let Some(user) = user {
            if filter.owner.as_ref().is_some_and(|owner| *owner != user) {
                return Ok(Page::default());
            }
            filter.owner = Some(user);
        }
        self.sandboxes(&filter).await
    }

    /// Returns one provider.
    ///
    /// # Errors
    /// [`Error::NotFound`] if this server does not have it.
    pub async fn provider(&self, name: &str) -> Result<ProviderDetail<'_>> {
        let entry = self.registry.get(name).ok_or_else(|| Error::NotFound(Resource::Provider, name.to_owned()))?;
        let sandbox_count = self.store.counts().await?.by_provider.get(name).copied().unwrap_or(0);
        Ok(ProviderDetail { entry, checked: entry.checked(), sandbox_count })
    }

    /// Checks all providers now. Returns the results in the order of the registry.
    pub async fn test_providers(&self) -> Vec<Checked> {
        join_all(self.registry.entries().iter().map(|entry| self.test_provider(entry))).await
    }

    /// Checks one provider now, and publishes a change of its health.
    pub(crate) async fn test_provider(&self, entry: &Entry) -> Checked {
        let (was_healthy, now) = entry.check(self.clock.as_ref()).await;
        let name = entry.provider.name();
        match (was_healthy, &now.health.error) {
            (true, Some(error)) => {
                tracing::warn!(provider = name, error, "provider unhealthy");
                self.publish(EventType::ProviderUnhealthy, None, json!({"provider": name, "error": error}));
            }
            (false, None) => {
                tracing::info!(provider = name, "provider healthy again");
                self.publish(EventType::ProviderHealthy, None, json!({"provider": name}));
            }
            (true, None) | (false, Some(_)) => {}
        }
        now
    }
}
