//! The other workers that this server knows how to reach. Where that is comes
//! from the configuration alone; what a worker says of itself never changes it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::{StoreId, WorkerId};
use providers::custom::{Custom, CustomConfig, SecretString};

use crate::config;

/// How long an answer of a worker may take to begin. A worker that hangs holds
/// up those who wait for it no longer than this.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Every other worker, by id.
#[derive(Default)]
pub struct Fleet {
    ids: Arc<[WorkerId]>,
    label: String,
    workers: HashMap<WorkerId, config::Worker>,
    /// One client for each provider of each worker that was ever used.
    clients: Mutex<HashMap<(WorkerId, String), Arc<Custom>>>,
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("ids", &self.ids).finish_non_exhaustive()
    }
}

impl Fleet {
    /// The workers of the configuration. Nothing is sent yet.
    ///
    /// # Errors
    /// The id of a worker whose client cannot be set up, and why.
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
        Ok(Self { ids: ids.into(), label: store.as_str().to_owned(), workers, clients: Mutex::default() })
    }

    /// Every other worker.
    #[must_use]
    pub fn ids(&self) -> &Arc<[WorkerId]> {
        &self.ids
    }

    /// The client of one provider of a worker, or of the worker as a whole;
    /// `None` for a worker that is not configured.
    ///
    /// # Errors
    /// If the client cannot be set up.
    pub fn client(&self, worker: &str, provider: Option<&str>) -> providers::Result<Option<Arc<Custom>>> {
        let Ok(id) = WorkerId::parse(worker) else { return Ok(None) };
        let Some(configured) = self.workers.get(&id) else { return Ok(None) };
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (id, provider.unwrap_or_default().to_owned());
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
