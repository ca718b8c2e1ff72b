//! Owner quotas and the admission decision.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Duration;

/// What one owner may do where it differs from what everybody may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerQuota {
    /// Whose.
    pub owner_id: String,
    /// The most active sandboxes; 0 inherits the global value.
    pub max_sandboxes: u64,
    /// The longest lifetime, such as `1h30m0s`; `0s` inherits the global value.
    pub max_ttl: String,
    /// The longest deadline of a command; `0s` inherits the global value.
    pub max_exec_timeout: String,
    /// The most memory of one sandbox in MiB; 0 inherits the global value.
    #[serde(default)]
    pub max_memory_mb: u32,
    /// The most virtual CPUs of one sandbox; 0 inherits the global value.
    #[serde(default)]
    pub max_vcpus: u32,
    /// The largest file system of one sandbox in MiB; 0 inherits the global value.
    #[serde(default)]
    pub max_disk_mb: u32,
    /// When it was first saved (RFC 3339, UTC).
    pub created_at: String,
    /// When it was last saved (RFC 3339, UTC).
    pub updated_at: String,
}

/// A quota to save. It replaces the whole: what is left out inherits the global value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaRequest {
    /// The most active sandboxes; 0 inherits the global value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1_000_000_000)]
    pub max_sandboxes: Option<u64>,
    /// The longest lifetime in whole seconds, such as `90m`; `0s` inherits the global value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Duration>)]
    pub max_ttl: Option<String>,
    /// The longest deadline of a command in whole seconds; `0s` inherits the global value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Duration>)]
    pub max_exec_timeout: Option<String>,
    /// The most memory of one sandbox in MiB, from 16; 0 inherits the global value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 16_777_216)]
    pub max_memory_mb: Option<u32>,
    /// The most virtual CPUs of one sandbox; 0 inherits the global value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1024)]
    pub max_vcpus: Option<u32>,
    /// The largest file system of one sandbox in MiB, and the bound of one that names
    /// none; 0 inherits the global value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 16_777_216)]
    pub max_disk_mb: Option<u32>,
}

/// What an owner has, and the limits that hold for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerUsage {
    /// Whose.
    pub owner_id: String,
    /// How many active sandboxes.
    pub active_sandboxes: u64,
    /// The most active sandboxes; 0 is no limit.
    pub max_sandboxes: u64,
    /// The longest lifetime.
    pub max_ttl: String,
    /// The longest deadline of a command.
    pub max_exec_timeout: String,
    /// The most memory of one sandbox in MiB.
    #[serde(default)]
    pub max_memory_mb: u32,
    /// The most virtual CPUs of one sandbox.
    #[serde(default)]
    pub max_vcpus: u32,
    /// The largest file system of one sandbox in MiB.
    #[serde(default)]
    pub max_disk_mb: u32,
    /// Whether the owner has a quota of its own.
    pub quota_configured: bool,
}

/// How many quotas say what; without owners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaSummary {
    /// All.
    pub total: u64,
    /// Those with an own cap on sandboxes.
    pub with_max_sandboxes: u64,
    /// Those with an own longest lifetime.
    pub with_max_ttl: u64,
    /// Those with an own longest deadline.
    pub with_max_exec_timeout: u64,
}

/// What would become of a spawn right now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AdmissionDecision {
    /// Whether it would be admitted at once.
    pub allowed: bool,
    /// Whether a spawn that finds no room would wait for it.
    pub queueable: bool,
    /// What stands in the way: `max_ttl`, `max_sandboxes`, `max_sandboxes_per_owner`
    /// or `no_eligible_worker`; absent when allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Active sandboxes.
    pub active_sandboxes: u64,
    /// The most active sandboxes; 0 is no limit.
    pub max_sandboxes: u64,
    /// Active sandboxes of the owner; 0 without an owner.
    pub active_owner_sandboxes: u64,
    /// The most active sandboxes of the owner; 0 is no limit.
    pub max_owner_sandboxes: u64,
    /// The longest lifetime that may be asked for.
    pub max_ttl: String,
}
