//! Workers and leases.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A server that runs sandboxes: this one (`local`), or another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// Its name.
    pub id: String,
    /// The name of its host.
    pub hostname: String,
    /// `online`, `draining` (takes no more sandboxes) or `unhealthy`.
    pub status: String,
    /// The providers that it offers.
    pub providers: Vec<String>,
    /// What it can do, such as `spawn`.
    pub capabilities: Vec<String>,
    /// What it takes.
    pub capacity: Capacity,
    /// When it was heard last (RFC 3339, UTC).
    pub last_heartbeat: String,
    /// When it was heard first (RFC 3339, UTC).
    pub created_at: String,
    /// When anything of it but the last heartbeat changed (RFC 3339, UTC).
    pub updated_at: String,
    /// Whether it has been silent for so long that it may be gone.
    pub stale: bool,
}

/// The most active sandboxes that a worker takes; 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Capacity {
    /// Over all owners.
    #[serde(default)]
    pub max_sandboxes: u64,
    /// For one owner.
    #[serde(default)]
    pub max_sandboxes_per_owner: u64,
}

/// What a worker says of itself. Fields that this release does not know are
/// ignored, so that the two sides may differ in age.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Heartbeat {
    /// The name of its host; left out, its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// `online` (left out), `draining` or `unhealthy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^(online|draining|unhealthy)$")]
    pub status: Option<String>,
    /// The providers that it offers.
    #[serde(default)]
    pub providers: Vec<String>,
    /// What it can do.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// What it takes.
    #[serde(default)]
    pub capacity: Capacity,
}

/// A heartbeat as the operator writes one: read strictly.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminHeartbeat {
    /// The name of its host; left out, its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// `online` (left out), `draining` or `unhealthy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^(online|draining|unhealthy)$")]
    pub status: Option<String>,
    /// The providers that it offers.
    #[serde(default)]
    pub providers: Vec<String>,
    /// What it can do.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// What it takes.
    #[serde(default)]
    pub capacity: AdminCapacity,
}

/// A capacity as the operator writes one: read strictly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminCapacity {
    /// Over all owners.
    #[serde(default)]
    pub max_sandboxes: u64,
    /// For one owner.
    #[serde(default)]
    pub max_sandboxes_per_owner: u64,
}

impl From<AdminHeartbeat> for Heartbeat {
    fn from(strict: AdminHeartbeat) -> Self {
        let AdminHeartbeat { hostname, status, providers, capabilities, capacity } = strict;
        let AdminCapacity { max_sandboxes, max_sandboxes_per_owner } = capacity;
        let capacity = Capacity { max_sandboxes, max_sandboxes_per_owner };
        Self { hostname, status, providers, capabilities, capacity }
    }
}

/// How long a lease shall last. Fields that this release does not know are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RenewRequest {
    /// From now, such as `2m`; at most `1h`.
    pub ttl: String,
}

/// The right of a worker to run a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// The sandbox.
    pub resource_id: String,
    /// The worker.
    pub holder_id: String,
    /// Rises with every grant and renewal.
    pub generation: u64,
    /// When it is over unless renewed (RFC 3339, UTC).
    pub expires_at: String,
}

/// A lease that was renewed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Renewed {
    /// As it is now.
    pub lease: Lease,
}
