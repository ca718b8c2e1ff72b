//! Providers, and the health of the server.

use std::collections::BTreeMap;

use api::{Health, ProviderDetail, ProviderHealth, Readiness};
use reqwest::Method;

use crate::connection::{Patience, Size};
use crate::path::segment;
use crate::{Client, Result};

/// Providers, and the health of the server.
impl Client {
    /// Returns every provider (a way to make sandboxes, such as `native` or `docker`) with its last
    /// check.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn providers(&self) -> Result<Vec<ProviderHealth>> {
        self.get_list("/providers").await
    }

    /// Returns one provider with its configuration and last check.
    ///
    /// # Errors
    /// `not_found` if there is none of that name; another [`crate::Error`] if no answer comes.
    pub async fn provider(&self, name: &str) -> Result<ProviderDetail> {
        self.get(&format!("/providers/{}", segment("the provider name", name)?)).await
    }

    /// Checks every provider now and returns, by name, whether it is healthy.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn test_providers(&self) -> Result<BTreeMap<String, bool>> {
        self.call(self.request(Method::POST, "/providers/test", Patience::Short), Size::Small).await
    }

    /// Checks that the service responds: its `status` is `ok`.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn health(&self) -> Result<Health> {
        self.get("/health").await
    }

    /// Checks that the server process responds: its `status` is `alive`.
    ///
    /// # Errors
    /// An [`crate::Error`] if no answer comes.
    pub async fn live(&self) -> Result<Health> {
        self.get("/live").await
    }

    /// Checks that the server can make sandboxes: its `status` is `ready`.
    ///
    /// # Errors
    /// `unavailable` while no provider is healthy, with the reason of each in the message; another
    /// [`crate::Error`] if no answer comes.
    pub async fn ready(&self) -> Result<Readiness> {
        self.get("/ready").await
    }
}
