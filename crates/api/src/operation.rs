//! Counts of what the service was asked to do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Outcomes and latencies of one operation on one provider since the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationFigures {
    /// Operation: `spawn`, `exec`, `exec_stream`, `destroy`, `extend`, `file_*` or `logs`.
    pub operation: String,
    /// Provider that performed the operation.
    pub provider: String,
    /// Calls that succeeded. A command that exits with a nonzero code counts as a success.
    pub success_total: u64,
    /// Calls that did not succeed.
    pub failure_total: u64,
    /// Calls in total, failed ones included.
    pub latency_count: u64,
    /// Sum of the latencies, in milliseconds.
    pub latency_total_ms: u64,
    /// Lowest latency, in milliseconds.
    pub latency_min_ms: u64,
    /// Highest latency, in milliseconds.
    pub latency_max_ms: u64,
    /// Mean latency, in milliseconds.
    pub latency_avg_ms: u64,
}
