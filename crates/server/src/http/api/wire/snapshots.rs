//! Snapshots and forks.

use domain::{OwnerId, SandboxId};
use providers::ImageSnapshot;

use super::scalars::{span, time};
use crate::control::ForkRequest;
use crate::control::NewSnapshotRequest;
use crate::control::Snapshot;
use crate::control::SnapshotFilter;
use crate::control::WarmSnapshot;
use crate::http::error::{ApiError, malformed};

/// Converts the body of a request for a snapshot.
pub fn snapshot_request(body: api::SnapshotRequest) -> NewSnapshotRequest {
    NewSnapshotRequest { name: body.name, memory: body.memory }
}

/// Converts the body of a fork.
pub fn fork_request(body: api::ForkRequest) -> Result<ForkRequest, ApiError> {
    let api::ForkRequest { count, ttl, metadata } = body;
    Ok(ForkRequest {
        count: count.unwrap_or(1) as usize,
        ttl: ttl.map(|text| span("ttl", &text)).transpose()?,
        metadata: metadata.unwrap_or_default().0,
        asker: None,
    })
}

/// Builds the filter of the list of snapshots.
pub fn snapshot_filter(owner: Option<&str>, sandbox: Option<&str>) -> Result<SnapshotFilter, ApiError> {
    let owner = owner.map(|text| OwnerId::parse(text).map_err(|error| malformed(format!("`owner_id`: {error}"))));
    let sandbox =
        sandbox.map(|text| SandboxId::parse(text).map_err(|error| malformed(format!("`sandbox_id`: {error}"))));
    Ok(SnapshotFilter { owner: owner.transpose()?, sandbox: sandbox.transpose()?, without_templates: false })
}

/// Converts a snapshot to the API.
pub fn snapshot(snapshot: &Snapshot, kernel: Option<String>) -> api::SnapshotSummary {
    api::SnapshotSummary {
        id: snapshot.id.to_string(),
        kind: if snapshot.is_of_template { "template" } else { "sandbox" }.to_owned(),
        name: snapshot.name.clone(),
        owner_id: snapshot.owner.as_ref().map(ToString::to_string),
        sandbox_id: Some(snapshot.sandbox.to_string()),
        provider: snapshot.provider.clone(),
        image: snapshot.image.clone(),
        kernel: kernel.unwrap_or_else(kernel_of_host),
        size_bytes: snapshot.size_bytes,
        memory: snapshot.has_memory,
        created_at: time(snapshot.created_at),
    }
}

/// Converts a snapshot of an image that the provider of this name has taken.
pub fn image_snapshot(provider: &str, snapshot: ImageSnapshot) -> api::SnapshotSummary {
    let ImageSnapshot { name, image, kernel, size_bytes, created } = snapshot;
    api::SnapshotSummary {
        id: name,
        kind: "image".to_owned(),
        name: None,
        owner_id: None,
        sandbox_id: None,
        provider: provider.to_owned(),
        image,
        kernel: kernel.unwrap_or_else(kernel_of_host),
        size_bytes,
        memory: true,
        created_at: time(created),
    }
}

/// Converts a snapshot of the warm pool.
pub fn warm_snapshot(snapshot: &WarmSnapshot) -> api::SnapshotSummary {
    api::SnapshotSummary {
        id: snapshot.id.to_string(),
        kind: "warm_pool".to_owned(),
        name: Some(snapshot.name.clone()),
        owner_id: None,
        sandbox_id: None,
        provider: snapshot.provider.name().to_owned(),
        image: snapshot.image().to_owned(),
        kernel: snapshot.provider.kernel().unwrap_or_else(kernel_of_host),
        size_bytes: snapshot.taken.size_bytes,
        memory: snapshot.taken.has_memory,
        created_at: time(snapshot.created_at),
    }
}

fn kernel_of_host() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}
