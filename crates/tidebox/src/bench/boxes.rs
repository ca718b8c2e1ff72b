//! The boxes of one measurement, all of which go again.

use api::{Sandbox, SpawnRequest, StringMap};
use client::{Client, Result};
use futures_util::StreamExt as _;

/// Marks our boxes, so that also those are found whose spawn was interrupted.
const LABEL: &str = "tidebox.bench";
/// Should even the removal fail, they end by themselves.
const TTL: &str = "10m";
/// How many are removed at once: enough to be quick, few enough to be polite.
const REMOVED_AT_ONCE: usize = 16;

/// Makes and removes the boxes of one measurement.
#[derive(Debug)]
pub struct Boxes<'a> {
    client: &'a Client,
    run: String,
    request: SpawnRequest,
}

impl<'a> Boxes<'a> {
    /// Boxes of an image on a provider, the server's defaults if absent.
    pub fn new(client: &'a Client, image: Option<String>, provider: Option<String>) -> Boxes<'a> {
        // Unique among the processes that can run at the same time here.
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

    /// Makes one.
    pub async fn spawn(&self) -> Result<Sandbox> {
        self.client.spawn(&self.request).await
    }

    /// Removes one.
    pub async fn destroy(&self, id: &str) -> Result<()> {
        self.client.destroy(id).await.map(drop)
    }

    /// Removes all that carry our label, known or not.
    pub async fn remove_all(&self) -> Result<()> {
        let left = self.client.list().await?;
        let ours = left.into_iter().filter(|sandbox| sandbox.metadata.0.get(LABEL) == Some(&self.run));
        let removals = futures_util::stream::iter(ours.map(|sandbox| async move { self.destroy(&sandbox.id).await }));
        let results: Vec<Result<()>> = removals.buffer_unordered(REMOVED_AT_ONCE).collect().await;
        results.into_iter().collect()
    }
}
