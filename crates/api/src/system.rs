//! Health of the service, and its errors.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ProviderHealth;

/// Error response: the body of every error on every route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Code for programs, such as `not_found`.
    pub code: String,
    /// Explanation of the error and of its remedy, in English.
    pub message: String,
}

/// Liveness of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`, or `alive` on `/live`.
    pub status: String,
    /// Version of the release.
    pub version: String,
    /// Time since the start, such as `1h2m3s`.
    pub uptime: String,
}

/// Usage of the boxes that users share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolStatus {
    /// True if users share boxes.
    pub enabled: bool,
    /// Number of boxes. Absent if `enabled` is false, like all fields below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vms: Option<u64>,
    /// Maximum number of boxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_vms: Option<u64>,
    /// Occupied places in all boxes; a sandbox occupies one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_users: Option<u64>,
    /// Maximum number of places in a box.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_users_per_vm: Option<u64>,
}

/// Readiness of the service to make sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// `ready`; a service that is not ready answers 503 with an error instead.
    pub status: String,
    /// Version of the release.
    pub version: String,
    /// Time since the start, such as `1h2m3s`.
    pub uptime: String,
    /// Number of healthy providers.
    pub ready_providers: u64,
    /// Number of configured providers.
    pub total_providers: u64,
    /// Last check of each provider.
    pub providers: Vec<ProviderHealth>,
}
