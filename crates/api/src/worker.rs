//! Workers, their heartbeats and their leases.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A server that runs sandboxes: this one (`local`), or another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// Id of the worker.
    pub id: String,
    /// Host name of the worker.
    pub hostname: String,
    /// State: `online`, `draining` (accepts no more sandboxes) or `unhealthy`.
    pub status: String,
    /// Names of the providers that it offers.
    pub providers: Vec<String>,
    /// Operations that it offers, such as `spawn`.
    pub capabilities: Vec<String>,
    /// Maximum load that it accepts.
    pub capacity: Capacity,
    /// Time of its last heartbeat (RFC 3339, UTC).
    pub last_heartbeat: String,
    /// Time of its first heartbeat (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Time of the last change of its row, other than a heartbeat (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// True once its last heartbeat is too old: it may be down.
    pub stale: bool,
}

/// Maximum number of active sandboxes that a worker accepts; 0 means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Capacity {
    /// Maximum over all owners.
    #[serde(default)]
    pub max_sandboxes: u64,
    /// Maximum for one owner.
    #[serde(default)]
    pub max_sandboxes_per_owner: u64,
}

/// A worker's report of its state. Unknown fields are ignored, so that both sides may run different releases.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Heartbeat {
    /// Host name of the worker; its id if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// State: `online` (the default), `draining` or `unhealthy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^(online|draining|unhealthy)$")]
    pub status: Option<String>,
    /// Names of the providers that it offers.
    #[serde(default)]
    pub providers: Vec<String>,
    /// Operations that it offers, such as `spawn`.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Maximum load that it accepts.
    #[serde(default)]
    pub capacity: Capacity,
}

/// A heartbeat sent by the operator: unknown fields are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminHeartbeat {
    /// Host name of the worker; its id if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// State: `online` (the default), `draining` or `unhealthy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^(online|draining|unhealthy)$")]
    pub status: Option<String>,
    /// Names of the providers that it offers.
    #[serde(default)]
    pub providers: Vec<String>,
    /// Operations that it offers, such as `spawn`.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Maximum load that it accepts.
    #[serde(default)]
    pub capacity: AdminCapacity,
}

/// A capacity sent by the operator: unknown fields are refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminCapacity {
    /// Maximum over all owners.
    #[serde(default)]
    pub max_sandboxes: u64,
    /// Maximum for one owner.
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

/// A new duration for a lease. Unknown fields are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RenewRequest {
    /// Duration from now, such as `2m`; at most `1h`.
    pub ttl: String,
}

/// The right of a worker to run a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// Id of the sandbox.
    pub resource_id: String,
    /// Id of the worker.
    pub holder_id: String,
    /// Generation; increases with every grant and renewal.
    pub generation: u64,
    /// Time at which it expires unless renewed (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub expires_at: String,
}

/// Response to the renewal of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Renewed {
    /// The lease after the renewal.
    pub lease: Lease,
}
