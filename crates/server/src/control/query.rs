//! Read access to sandboxes and providers.

use domain::{OwnerId, State};
use futures_util::future::join_all;
use futures_util::{Stream, TryStreamExt, stream};
use serde_json::json;

use super::error::{Error, Result};
use super::resource::Resource;
use super::service::Control;
use crate::events::EventType;
use crate::provider_registry::{Checked, Entry};
use store::{ListFilter, Page, Sandbox};

/// Number of rows that are read at once where all of a state are.
const PAGE_ROWS: u32 = 256;

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

    /// Reads the sandboxes in a state, oldest first. Holds no more than one page of them at a time.
    pub(crate) fn in_state(&self, state: State) -> impl Stream<Item = Result<Sandbox>> {
        let pages = stream::try_unfold(Some(None), move |position| async move {
            let Some(after) = position else { return Ok::<_, Error>(None) };
            let page = self.store.in_state(state, after, PAGE_ROWS).await?;
            Ok(Some((stream::iter(page.sandboxes.into_iter().map(Ok)), page.next.map(Some))))
        });
        pages.try_flatten()
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
