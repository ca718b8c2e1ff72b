//! Counters of the audit history.

use std::sync::atomic::AtomicU64;

use crate::audit::Refusals;

/// Counters of the audit history.
#[derive(Debug, Default)]
pub(super) struct AuditTrail {
    /// Number of rows written since the start.
    pub(super) written: AtomicU64,
    /// Clients refused in the current minute.
    pub(super) refusals: Refusals,
}
