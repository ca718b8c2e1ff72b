//! Resources that a sandbox uses.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Resource usage of a sandbox at one moment. Null where the provider cannot measure, and for a limit that is not set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SandboxStats {
    /// The sandbox.
    pub sandbox_id: String,
    /// Provider that runs it.
    pub provider: String,
    /// Time of the response.
    #[schema(format = DateTime)]
    pub timestamp: String,
    /// Time since the spawn request, in milliseconds.
    pub uptime_ms: u64,
    /// Processor time.
    pub cpu: CpuStats,
    /// Memory.
    pub memory: MemoryStats,
    /// Processes and their threads.
    pub processes: ProcessStats,
    /// Disk.
    pub disk: DiskStats,
    /// Bytes through the proxy of the sandbox since the server that runs it started.
    pub egress: Option<TransferStats>,
}

/// Processor time of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CpuStats {
    /// Processor time used since the sandbox was created, in milliseconds.
    pub used_ms: Option<u64>,
    /// Average number of processors in use over `window_ms`: 1 for one full processor, 1.5 for one and a half.
    #[schema(minimum = 0)]
    pub share: Option<f64>,
    /// `share` relative to the limit.
    #[schema(minimum = 0)]
    pub share_of_limit: Option<f64>,
    /// Time that the shares cover, in milliseconds: since the previous measurement, even one for another caller, or
    /// since the spawn for the first one.
    pub window_ms: Option<u64>,
    /// Maximum number of processors.
    pub limit: Option<u32>,
}

/// Memory of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryStats {
    /// Memory in use, in bytes, without inactive pages of the page cache.
    pub used_bytes: Option<u64>,
    /// Peak memory, in bytes, including the page cache.
    pub peak_bytes: Option<u64>,
    /// Memory limit, in bytes.
    pub limit_bytes: Option<u64>,
}

/// Processes of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProcessStats {
    /// Number of processes and threads.
    pub count: Option<u64>,
    /// Maximum number of processes and threads.
    pub limit: Option<u64>,
}

/// Disk of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskStats {
    /// Space in use, in bytes, as of a few seconds ago. Null in a list.
    pub used_bytes: Option<u64>,
    /// Maximum space, in bytes.
    pub limit_bytes: Option<u64>,
}

/// Bytes between a sandbox and hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TransferStats {
    /// Bytes to hosts.
    pub sent_bytes: u64,
    /// Bytes from hosts.
    pub received_bytes: u64,
}
