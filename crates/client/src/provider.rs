//! Providers, and the server's own state.

use std::collections::BTreeMap;

use api::{Health, ProviderDetail, ProviderHealth, Readiness};
use reqwest::{Method, StatusCode};

use crate::connection::{Patience, Size};
use crate::path::segment;
use crate::{Client, Result};

impl Client {
    /// Every provider with its last check.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn providers(&self) -> Result<Vec<ProviderHealth>> {
        self.get_list("/providers").await
    }

    /// All about one provider.
    ///
    /// # Errors
    /// `not_found` if there is none of that name; or that the server cannot be spoken to.
    pub async fn provider(&self, name: &str) -> Result<ProviderDetail> {
        self.get(&format!("/providers/{}", segment("the provider name", name)?)).await
    }

    /// Checks every provider now: whether each is healthy.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn test_providers(&self) -> Result<BTreeMap<String, bool>> {
        self.call(self.request(Method::POST, "/providers/test", Patience::Short), Size::Small).await
    }

    /// That the service is there and its store works.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn health(&self) -> Result<Health> {
        self.get("/health").await
    }

    /// That the process answers.
    ///
    /// # Errors
    /// That the server cannot be spoken to.
    pub async fn live(&self) -> Result<Health> {
        self.get("/live").await
    }

    /// Whether sandboxes can be made; `status` is not `ready` if they cannot.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn ready(&self) -> Result<Readiness> {
        let response = self.send_any(self.request(Method::GET, "/ready", Patience::Short)).await?;
        match response.status() {
            StatusCode::OK | StatusCode::SERVICE_UNAVAILABLE => self.json(response, Size::Small).await,
            _ => Err(self.refusal(response).await),
        }
    }
}
