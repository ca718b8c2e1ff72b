//! Requests to the remote service, and the search for this server's boxes in it.

use std::sync::Arc;
use std::time::Duration;

use api::{ProviderDetail, ProviderHealth, Sandbox};
use client::{Client, Filter, Page};
use domain::SandboxId;
use parking_lot::Mutex;

use super::boxes::Known;
use super::fault::fault;
use super::labels::{ID_LABEL, STORE_LABEL};
use crate::provider::MEMORY_RECLAIM;
use crate::service::boxes::Boxes;
use crate::service::words::words;
use crate::{Chain, Error, Facts, Isolation, LimitKind, Result};

/// Number of sandboxes per request.
const PAGE: u32 = 100;
/// The most pages of one list. A service that returns more repeats itself endlessly.
const PAGES_MAX: usize = 10_000;
/// The longest wait of a health check.
const HEALTH_WAIT: Duration = Duration::from_secs(4);
/// Limits that a provider's detail reports.
const LIMITS: [&str; 4] = ["memory_mb", "vcpus", "pids", "disk_mb"];

/// The remote service, and the state that is kept about it.
pub(super) struct Remote {
    pub(super) name: String,
    pub(super) client: Client,
    pub(super) timeout: Duration,
    pub(super) provider: Option<String>,
    pub(super) label: String,
    pub(super) boxes: Arc<Boxes<Known>>,
    pub(super) facts: Mutex<Option<Facts>>,
    /// True if the remote provider can hand back the memory of boxes; `None` until it is known.
    pub(super) reclaims: Mutex<Option<bool>>,
}

/// Returns whether a sandbox can be used: a paused one goes on for a request.
pub(super) fn is_running(sandbox: &Sandbox) -> bool {
    matches!(sandbox.state.as_str(), "running" | "paused")
}

impl Remote {
    /// Waits for an answer of the service, for at most the provider's time-out.
    pub(super) async fn within<T>(
        &self,
        action: &'static str,
        answer: impl Future<Output = client::Result<T>>,
    ) -> Result<T> {
        self.within_of(action, None, answer).await
    }

    /// Waits like [`Remote::within`], for a request that carries the `generation` of a box.
    pub(super) async fn within_of<T>(
        &self,
        action: &'static str,
        generation: Option<u64>,
        answer: impl Future<Output = client::Result<T>>,
    ) -> Result<T> {
        let after = self.timeout;
        let answer = tokio::time::timeout(after, answer).await;
        answer.unwrap_or(Err(client::Error::Timeout { after })).map_err(|error| fault(action, generation, error))
    }

    /// Converts the error of a request that is about no particular box.
    pub(super) fn fault(&self, action: &'static str, error: client::Error) -> Error {
        fault(action, None, error)
    }

    /// Returns the client for requests that change a box.
    pub(super) fn writing(&self, id: &SandboxId) -> Result<Client> {
        match self.boxes.generation(id) {
            None => Ok(self.client.clone()),
            Some(generation) => self
                .client
                .with_header("x-lease-generation", &generation.to_string())
                .map_err(|error| self.fault("name the generation of a lease", error)),
        }
    }

    /// Checks whether a sandbox is this server's box `id`.
    pub(super) fn is_ours(&self, sandbox: &Sandbox, id: &SandboxId) -> bool {
        label(sandbox, STORE_LABEL) == Some(self.label.as_str()) && label(sandbox, ID_LABEL) == Some(id.as_str())
    }

    /// Lists every sandbox with these labels, in any state.
    pub(super) async fn listed(&self, action: &'static str, labels: &[(&str, &str)]) -> Result<Vec<Sandbox>> {
        let list = async {
            let mut found = Vec::new();
            let mut cursor: Option<String> = None;
            for _ in 0..PAGES_MAX {
                let filter =
                    Filter { metadata: labels, limit: Some(PAGE), cursor: cursor.as_deref(), ..Filter::default() };
                let page = match self.client.list_page(&filter).await {
                    // An older service does not know the filters.
                    Err(error) if cursor.is_none() && error.is_code("bad_request") => {
                        Page { sandboxes: self.client.list().await?, next: None }
                    }
                    page => page?,
                };
                // An older service may ignore the filters and return every sandbox.
                let mut sandboxes = page.sandboxes;
                sandboxes.retain(|sandbox| labels.iter().all(|(name, value)| label(sandbox, name) == Some(*value)));
                found.append(&mut sandboxes);
                cursor = page.next;
                if cursor.is_none() {
                    return Ok(found);
                }
            }
            Err(client::Error::Protocol {
                url: self.client.base_url().to_owned(),
                reason: format!("a list has more than {PAGES_MAX} pages"),
            })
        };
        match self.within(action, list).await {
            // A list cannot be missing.
            Err(Error::Gone) => Err(Error::failed(action, "the other service has no route for the list")),
            listed => listed,
        }
    }

    /// Lists the sandboxes that are this box.
    async fn found(&self, id: &SandboxId) -> Result<Vec<Sandbox>> {
        self.listed("look up a box", &[(ID_LABEL, id.as_str()), (STORE_LABEL, &self.label)]).await
    }

    /// Finds the running sandbox that is this box.
    ///
    /// # Errors
    /// [`Error::Gone`] if there is none.
    pub(super) async fn running(&self, id: &SandboxId) -> Result<Known> {
        const ACTION: &str = "look up a box";
        if let Some(known) = self.boxes.known(id) {
            match self.within(ACTION, self.client.sandbox(&known.remote)).await {
                Ok(sandbox) if !self.is_ours(&sandbox, id) || sandbox.id != known.remote => {
                    return Err(Error::failed(ACTION, "the other service answered with a different sandbox"));
                }
                Ok(sandbox) if is_running(&sandbox) => return Ok(known),
                // Another instance of this provider may have made a new one.
                Ok(_) | Err(Error::Gone) => {}
                Err(error) => return Err(error),
            }
        }
        let found = self.found(id).await?;
        let running = found.iter().find(|sandbox| is_running(sandbox)).ok_or(Error::Gone)?;
        Ok(self.boxes.remember(id, &running.id))
    }

    /// Returns whether a remote sandbox still runs.
    pub(super) async fn still_runs(&self, known: &Known) -> Result<bool> {
        match self.within("look up a box", self.client.sandbox(&known.remote)).await {
            Ok(sandbox) => Ok(is_running(&sandbox)),
            Err(Error::Gone) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes every sandbox that is this box.
    pub(super) async fn remove_all(&self, id: &SandboxId) -> Result<()> {
        let client = self.writing(id)?;
        let generation = self.boxes.generation(id);
        // A remembered sandbox needs no search.
        if let Some(known) = self.boxes.known(id)
            && self.remove(&client, generation, &known.remote).await?
        {
            return Ok(());
        }
        for sandbox in self.found(id).await? {
            self.remove(&client, generation, &sandbox.id).await?;
        }
        Ok(())
    }

    /// Removes a sandbox. Returns false if it is gone already.
    async fn remove(&self, client: &Client, generation: Option<u64>, remote: &str) -> Result<bool> {
        match self.within_of("stop a box", generation, client.destroy(remote)).await {
            Ok(_) => Ok(true),
            Err(Error::Gone) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the reason why the service cannot be used now, if any. Also learns the facts.
    pub(super) async fn trouble(&self) -> Option<String> {
        match tokio::time::timeout(HEALTH_WAIT, self.look()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(format!("the service behind it did not answer within {} s", HEALTH_WAIT.as_secs())),
        }
    }

    async fn look(&self) -> Result<(), String> {
        match self.client.providers().await {
            Ok(providers) => {
                let provider = self.chosen(&providers)?;
                if !provider.healthy {
                    let why = provider.error.as_deref().map(words).unwrap_or_default();
                    return Err(format!("the provider `{}` of the service behind it: {why}", words(&provider.name)));
                }
                self.learn(provider).await;
                Ok(())
            }
            // The list of providers may be for administrators only. Another route shows whether
            // the key is accepted.
            Err(error) if error.is_code("unauthorized") || error.is_code("forbidden") => {
                let filter = Filter { metadata: &[(STORE_LABEL, &self.label)], limit: Some(1), ..Filter::default() };
                self.client.list_page(&filter).await.map_err(|error| self.health_trouble(error))?;
                self.client.ready().await.map(|_| ()).map_err(|error| self.health_trouble(error))
            }
            Err(error) => Err(self.health_trouble(error)),
        }
    }

    /// Returns what an operator is told about a service that does not report its health.
    fn health_trouble(&self, error: client::Error) -> String {
        let error = fault("report its health", None, error);
        if let Error::Unavailable(text) = error {
            return text;
        }
        tracing::warn!(
            provider = self.name,
            error = %Chain(&error),
            "the service behind a provider does not report its health"
        );
        "the service behind it does not answer like a Tidebox server; see the log for the cause".to_owned()
    }

    /// Returns the remote provider that makes this provider's boxes.
    fn chosen<'a>(&self, providers: &'a [ProviderHealth]) -> Result<&'a ProviderHealth, String> {
        match &self.provider {
            Some(name) => providers
                .iter()
                .find(|provider| provider.name == *name)
                .ok_or_else(|| format!("the service behind it has no provider `{name}`")),
            None => providers.iter().find(|provider| provider.default).ok_or_else(|| {
                "the service behind it has no healthy default provider; name one of its providers".to_owned()
            }),
        }
    }

    async fn learn(&self, provider: &ProviderHealth) {
        let Ok(detail) = self.client.provider(&provider.name).await else { return };
        *self.reclaims.lock() = Some(detail.health.capabilities.iter().any(|word| word == MEMORY_RECLAIM));
        *self.facts.lock() = Some(facts_of(detail));
    }

    /// Returns whether the remote provider can hand back the memory of boxes; `None` until it is known.
    pub(super) fn reclaims(&self) -> Option<bool> {
        *self.reclaims.lock()
    }

    /// Returns the facts of the remote provider.
    pub(super) fn facts(&self) -> Facts {
        let known = self.facts.lock().clone();
        known.unwrap_or_else(|| Facts {
            isolation: Isolation::None,
            runtime: "remote".to_owned(),
            network_mode: "remote".to_owned(),
            limits: LIMITS.map(|limit| (limit, LimitKind::None)).to_vec(),
            missing: Vec::new(),
        })
    }
}

/// Returns the value of a label of a sandbox.
fn label<'a>(sandbox: &'a Sandbox, name: &str) -> Option<&'a str> {
    sandbox.metadata.0.get(name).map(String::as_str)
}

fn limit_kind(word: Option<&str>) -> LimitKind {
    match word {
        Some("hard") => LimitKind::Hard,
        Some("soft") => LimitKind::Soft,
        _ => LimitKind::None,
    }
}

fn facts_of(detail: ProviderDetail) -> Facts {
    let config = detail.config;
    let limits = LIMITS.map(|limit| (limit, limit_kind(config.limits.0.get(limit).map(String::as_str))));
    Facts {
        isolation: match config.isolation.as_str() {
            "vm" => Isolation::Vm,
            "container" => Isolation::Container,
            _ => Isolation::None,
        },
        runtime: format!("remote:{}", words(&config.runtime)),
        network_mode: words(&config.network_mode),
        limits: limits.to_vec(),
        missing: detail.health.missing.iter().take(20).map(|lack| words(lack)).collect(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_facts_are_those_of_the_provider_over_there() {
        let detail: ProviderDetail = serde_json::from_value(serde_json::json!({
            "name": "native", "healthy": true, "default": true, "sandbox_count": 0,
            "health": {"name": "native", "healthy": true, "default": true, "latency_ms": 1,
                "last_checked": "2026-01-01T00:00:00Z", "capabilities": [], "missing": ["no cgroups"]},
            "config": {"runtime": "namespaces", "network_mode": "loopback", "isolation": "container",
                "limits": {"memory_mb": "hard", "pids": "soft", "vcpus": "none", "surprise": "hard"}},
        }))
        .unwrap();
        let facts = facts_of(detail);
        assert_eq!((facts.isolation, facts.runtime.as_str()), (Isolation::Container, "remote:namespaces"));
        let expected = [LimitKind::Hard, LimitKind::None, LimitKind::Soft, LimitKind::None];
        assert_eq!(facts.limits, LIMITS.into_iter().zip(expected).collect::<Vec<_>>());
        assert_eq!(facts.missing, ["no cgroups"]);
    }
}
