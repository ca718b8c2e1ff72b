//! The service itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ProviderHealth;

/// Why a request was not done. On every error of every route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What a program can tell apart, such as `not_found`.
    pub code: String,
    /// What a person should change.
    pub message: String,
}

/// That the service is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`, or `alive` on `/live`.
    pub status: String,
    /// The release.
    pub version: String,
    /// Since the start, such as `1h2m3s`.
    pub uptime: String,
}

/// How full the boxes are that users share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolStatus {
    /// Whether users share boxes.
    pub enabled: bool,
    /// Boxes; absent when not enabled, like all that follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vms: Option<u64>,
    /// The most boxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_vms: Option<u64>,
    /// Places that are taken in all boxes: a sandbox takes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_users: Option<u64>,
    /// The most places in a box.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_users_per_vm: Option<u64>,
}

/// A snapshot that boxes start from. A provider that keeps some says so among
/// its capabilities (`snapshots`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotSummary {
    /// The image that it was made of.
    pub image: String,
    /// The kernel that runs in it.
    pub kernel: String,
    /// What it takes on disk, in bytes.
    pub size: u64,
    /// When it was made.
    pub created_at: String,
}

/// That sandboxes can be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// `ready`, or `unavailable` with status 503.
    pub status: String,
    /// The release.
    pub version: String,
    /// Since the start, such as `1h2m3s`.
    pub uptime: String,
    /// How many providers are healthy.
    pub ready_providers: u64,
    /// How many are configured.
    pub total_providers: u64,
    /// Each of them.
    pub providers: Vec<ProviderHealth>,
}
