//! Owner quotas, as stored.

use domain::{OwnerId, Quota, Timestamp};

/// An owner's quota, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerQuota {
    pub owner: OwnerId,
    pub quota: Quota,
    /// Time of the first save.
    pub created_at: Timestamp,
    /// Time of the last save.
    pub updated_at: Timestamp,
}

/// Numbers of stored quotas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaSummary {
    /// Quotas of all kinds.
    pub total: u64,
    /// Quotas with their own cap on sandboxes.
    pub with_max_sandboxes: u64,
    /// Quotas with their own maximum lifetime.
    pub with_max_ttl: u64,
    /// Quotas with their own maximum command deadline.
    pub with_max_exec_timeout: u64,
}
