//! Other workers that this server can reach. Their addresses come from the configuration alone;
//! what a worker reports never changes them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use domain::{StoreId, WorkerId};
use parking_lot::Mutex;
use providers::custom::{Custom, CustomConfig, SecretString};
use tokio::sync::watch;

use crate::config;

/// Longest time until an answer of a worker begins. A worker that hangs delays its callers no
/// longer than this.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Every other worker, by id.
#[derive(Default)]
pub struct RemoteWorkers {
    ids: Arc<[WorkerId]>,
    label: String,
    workers: HashMap<WorkerId, config::Worker>,
    /// One client for each provider of each worker that was ever used.
    clients: Mutex<HashMap<(WorkerId, String), Arc<Custom>>>,
    /// Workers that did not answer when they were last probed.
    silent: watch::Sender<BTreeSet<WorkerId>>,
}

impl fmt::Debug for RemoteWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteWorkers").field("ids", &self.ids).finish_non_exhaustive()
    }
}

impl RemoteWorkers {
    /// Sets up the workers of the configuration. Nothing is sent yet.
    ///
    /// # Errors
    /// The id of a worker whose client cannot be set up, and the reason.
    pub fn open(
        configured: &BTreeMap<String, config::Worker>,
        store: &StoreId,
    ) -> Result<Self, (String, providers::Error)> {
        let mut workers = HashMap::new();
        for (id, worker) in configured {
            let parsed =
                WorkerId::parse(id).map_err(|error| (id.clone(), providers::Error::Invalid(error.to_string())))?;
            client(&parsed, worker, None, store.as_str()).map_err(|error| (id.clone(), error))?;
            workers.insert(parsed, worker.clone());
        }
        let mut ids: Vec<WorkerId> = workers.keys().cloned().collect();
        ids.sort();
        Ok(Self { ids: ids.into(), label: store.as_str().to_owned(), workers, ..Self::default() })
    }

    /// Returns the ids of all other workers, sorted.
    #[must_use]
    pub fn ids(&self) -> &Arc<[WorkerId]> {
        &self.ids
    }

    /// Returns the ids of the other workers that answered when they were last probed, sorted.
    #[must_use]
    pub fn answering(&self) -> Arc<[WorkerId]> {
        let silent = self.silent.borrow();
        if silent.is_empty() {
            return Arc::clone(&self.ids);
        }
        self.ids.iter().filter(|id| !silent.contains(id)).cloned().collect()
    }

    /// Notes whether a worker answers.
    pub fn note(&self, id: &WorkerId, answers: bool) {
        self.silent.send_if_modified(|silent| if answers { silent.remove(id) } else { silent.insert(id.clone()) });
    }

    /// Waits until a worker does not answer any more.
    pub async fn falls_silent(&self, id: &WorkerId) {
        let mut silent = self.silent.subscribe();
        // The sender lives as long as `self`.
        let _ = silent.wait_for(|silent| silent.contains(id)).await;
    }

    /// Returns the client of one provider of a worker, or of the worker as a whole; `None` for a
    /// worker that is not configured.
    ///
    /// # Errors
    /// If the client cannot be set up.
    pub fn client(&self, worker: &WorkerId, provider: Option<&str>) -> providers::Result<Option<Arc<Custom>>> {
        let Some(configured) = self.workers.get(worker) else { return Ok(None) };
        let mut clients = self.clients.lock();
        let key = (worker.clone(), provider.unwrap_or_default().to_owned());
        if let Some(client) = clients.get(&key) {
            return Ok(Some(Arc::clone(client)));
        }
        let client = Arc::new(client(&key.0, configured, provider, &self.label)?);
        clients.insert(key, Arc::clone(&client));
        Ok(Some(client))
    }
}

fn client(id: &WorkerId, worker: &config::Worker, provider: Option<&str>, label: &str) -> providers::Result<Custom> {
    Custom::open(CustomConfig {
        name: provider.map_or_else(|| id.to_string(), |provider| format!("{id}/{provider}")),
        base_url: worker.url.clone(),
        api_key: worker.api_key.as_ref().map(|key| SecretString::from(key.expose().to_owned())),
        ca_file: worker.ca_file.clone(),
        timeout: ANSWER_MAX,
        remote_provider: provider.map(str::to_owned),
        label: label.to_owned(),
    })
}
