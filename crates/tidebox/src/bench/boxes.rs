//! The boxes of one measurement, all of which are removed at its end.

use api::{ForkRequest, Sandbox, SnapshotRequest, SpawnRequest, StringMap};
use client::{Client, Result, Spawned};
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

    pub async fn spawn_timed(&self) -> Result<Spawned> {
        self.client.spawn_timed(&self.request).await
    }

    /// Returns whether the provider of a box keeps snapshots.
    pub async fn have_snapshots(&self, provider: &str) -> Result<bool> {
        let providers = self.client.providers().await?;
        let found = providers.into_iter().find(|found| found.name == provider);
        Ok(found.is_some_and(|found| found.capabilities.iter().any(|capability| capability == "snapshots")))
    }

    /// Takes a snapshot of a box, and returns its id.
    pub async fn take_snapshot(&self, id: &str) -> Result<String> {
        let request = SnapshotRequest { name: Some(self.snapshot_name()), memory: None };
        self.client.take_snapshot(id, &request).await.map(|snapshot| snapshot.id)
    }

    /// Makes a box of a snapshot.
    pub async fn spawn_of(&self, snapshot: &str) -> Result<Sandbox> {
        let request = SpawnRequest {
            snapshot: Some(snapshot.to_owned()),
            ttl: self.request.ttl.clone(),
            metadata: self.request.metadata.clone(),
            ..SpawnRequest::default()
        };
        self.client.spawn(&request).await
    }

    /// Makes one copy of a box.
    pub async fn fork(&self, id: &str) -> Result<Vec<Sandbox>> {
        self.client.fork(id, &ForkRequest { ttl: self.request.ttl.clone(), ..ForkRequest::default() }).await
    }

    pub async fn delete_snapshot(&self, id: &str) -> Result<()> {
        self.client.delete_snapshot(id).await.map(drop)
    }

    pub async fn destroy(&self, id: &str) -> Result<()> {
        self.client.destroy(id).await.map(drop)
    }

    fn snapshot_name(&self) -> String {
        format!("bench-{}", std::process::id())
    }

    /// Removes all boxes with the label of this run and its snapshots, also those whose making was
    /// interrupted.
    pub async fn remove_all(&self) -> Result<()> {
        let left = self.client.list().await?;
        let ours = left.into_iter().filter(|sandbox| sandbox.metadata.0.get(LABEL) == Some(&self.run));
        let removals = futures_util::stream::iter(ours.map(|sandbox| async move { self.destroy(&sandbox.id).await }));
        let results: Vec<Result<()>> = removals.buffer_unordered(REMOVED_AT_ONCE).collect().await;
        results.into_iter().collect::<Result<()>>()?;
        let name = self.snapshot_name();
        for snapshot in self.client.snapshots().await? {
            if snapshot.name.as_ref() == Some(&name) {
                self.delete_snapshot(&snapshot.id).await?;
            }
        }
        Ok(())
    }
}
