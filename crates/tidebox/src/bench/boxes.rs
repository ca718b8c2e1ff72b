//! The boxes of one measurement, all of which are removed at its end.

use api::{Sandbox, SpawnRequest, StringMap};
use client::{Client, Result};
use futures_util::StreamExt as _;

/// Label of the boxes, by which those are found too whose spawn was interrupted.
const LABEL: &str = "tidebox.bench";
/// Lifetime of the boxes, after which they end if their removal fails.
const TTL: &str = "10m";
/// Concurrent removals: enough to be quick without loading the server.
const REMOVED_AT_ONCE: usize = 16;

/// The boxes of one measurement.
#[derive(Debug)]
pub struct Boxes<'a> {
    client: &'a Client,
    run: String,
    request: SpawnRequest,
}

impl<'a> Boxes<'a> {
    /// Prepares boxes of an image on a provider, the server's defaults if absent.
    pub fn new(client: &'a Client, image: Option<String>, provider: Option<String>) -> Boxes<'a> {
        // Unique among the processes that can run at the same time on this host.
        let run = format!("{}-{}", rustix::system::uname().nodename().to_string_lossy(), std::process::id());
        let mut metadata = StringMap::default();
        metadata.0.insert(LABEL.to_owned(), run.clone());
        let request = SpawnRequest {
            image,
            provider,
            ttl: Some(TTL.to_owned()),
            metadata: Some(metadata),
            ..SpawnRequest::default()
        };
        Boxes { client, run, request }
    }

    pub async fn spawn(&self) -> Result<Sandbox> {
        self.client.spawn(&self.request).await
    }

    pub async fn destroy(&self, id: &str) -> Result<()> {
        self.client.destroy(id).await.map(drop)
    }

    /// Removes all boxes with the label of this run, also those whose spawn was interrupted.
    pub async fn remove_all(&self) -> Result<()> {
        let left = self.client.list().await?;
        let ours = left.into_iter().filter(|sandbox| sandbox.metadata.0.get(LABEL) == Some(&self.run));
        let removals = futures_util::stream::iter(ours.map(|sandbox| async move { self.destroy(&sandbox.id).await }));
        let results: Vec<Result<()>> = removals.buffer_unordered(REMOVED_AT_ONCE).collect().await;
        results.into_iter().collect()
    }
}
