//! Quotas of owners, and admission decisions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Duration;

/// Limits of one owner that differ from the global ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerQuota {
    /// Owner that the quota applies to.
    pub owner_id: String,
    /// Maximum number of active sandboxes; 0 inherits the global value.
    pub max_sandboxes: u64,
    /// The longest lifetime, such as `1h30m0s`; `0s` inherits the global value.
    pub max_ttl: String,
    /// The longest deadline of a command; `0s` inherits the global value.
    pub max_exec_timeout: String,
    /// Maximum memory of one sandbox in MiB; 0 inherits the global value.
    #[serde(default)]
    pub max_memory_mb: u32,
    /// Maximum number of virtual CPUs of one sandbox; 0 inherits the global value.
    #[serde(default)]
    pub max_vcpus: u32,
    /// Maximum size of one sandbox's file system in MiB; 0 inherits the global value.
    #[serde(default)]
    pub max_disk_mb: u32,
    /// Time at which it was first saved (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Time at which it was last saved (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub updated_at: String,
}

/// A quota to save. It replaces the whole quota: an absent field inherits the global value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaRequest {
    /// Maximum number of active sandboxes; 0 inherits the global value.
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
    /// Maximum memory of one sandbox in MiB, at least 16; 0 inherits the global value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 16_777_216)]
    pub max_memory_mb: Option<u32>,
    /// Maximum number of virtual CPUs of one sandbox; 0 inherits the global value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1024)]
    pub max_vcpus: Option<u32>,
    /// Maximum size of one sandbox's file system in MiB, and its size if the request names none; 0 inherits the global
    /// value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 16_777_216)]
    pub max_disk_mb: Option<u32>,
}

/// Active sandboxes of an owner, and the limits that apply to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerUsage {
    /// Owner that the values apply to.
    pub owner_id: String,
    /// Number of active sandboxes.
    pub active_sandboxes: u64,
    /// Maximum number of active sandboxes; 0 means no limit.
    pub max_sandboxes: u64,
    /// Longest lifetime, such as `1h30m0s`.
    pub max_ttl: String,
    /// Longest deadline of a command, such as `5m0s`.
    pub max_exec_timeout: String,
    /// Maximum memory of one sandbox in MiB.
    #[serde(default)]
    pub max_memory_mb: u32,
    /// Maximum number of virtual CPUs of one sandbox.
    #[serde(default)]
    pub max_vcpus: u32,
    /// Maximum size of one sandbox's file system in MiB.
    #[serde(default)]
    pub max_disk_mb: u32,
    /// True if a quota is set for the owner.
    pub quota_configured: bool,
}

/// Number of quotas that set each limit; names no owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaSummary {
    /// Number of owners with a quota.
    pub total: u64,
    /// Quotas that set the maximum number of sandboxes.
    pub with_max_sandboxes: u64,
    /// Quotas that set the longest lifetime.
    pub with_max_ttl: u64,
    /// Quotas that set the longest deadline.
    pub with_max_exec_timeout: u64,
}

/// Outcome that a spawn would have right now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AdmissionDecision {
    /// True if the spawn would be admitted immediately.
    pub allowed: bool,
    /// True if a spawn would wait when there is no room.
    pub queueable: bool,
    /// Limit that refuses the spawn: `max_ttl`, `max_sandboxes`, `max_sandboxes_per_owner` or
    /// `no_eligible_worker`; absent when allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Number of active sandboxes.
    pub active_sandboxes: u64,
    /// Maximum number of active sandboxes; 0 means no limit.
    pub max_sandboxes: u64,
    /// Number of active sandboxes of the owner; 0 without an owner.
    pub active_owner_sandboxes: u64,
    /// Maximum number of active sandboxes of the owner; 0 means no limit.
    pub max_owner_sandboxes: u64,
    /// Longest lifetime that a request may ask for.
    pub max_ttl: String,
}
