//! Resources that a sandbox uses.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Resources that a sandbox uses at one moment. What its provider cannot measure is null, and so is
/// a limit that it does not have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SandboxStats {
    /// The sandbox.
    pub sandbox_id: String,
    /// Provider that runs it.
    pub provider: String,
    /// Time of the answer.
    #[schema(format = DateTime)]
    pub timestamp: String,
    /// Time since the spawn was asked for, in milliseconds.
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
    /// Time used since the sandbox was made, in milliseconds.
    pub used_ms: Option<u64>,
    /// Share of one processor that was used in the last `window_ms`: 1 for all of one, 1.5 for one
    /// and a half.
    #[schema(minimum = 0)]
    pub share: Option<f64>,
    /// The same as a share of the limit.
    #[schema(minimum = 0)]
    pub share_of_limit: Option<f64>,
    /// Time that the shares are over, in milliseconds: since the look before, also one of another caller, or for the
    /// first look since the spawn.
    pub window_ms: Option<u64>,
    /// Processors that it may use.
    pub limit: Option<u32>,
}

/// Memory of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryStats {
    /// Memory in use, in bytes, without contents of files that are only kept to save reading them again.
    pub used_bytes: Option<u64>,
    /// Most memory at any moment, in bytes, with such contents.
    pub peak_bytes: Option<u64>,
    /// Memory that it may use, in bytes.
    pub limit_bytes: Option<u64>,
}

/// Processes of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProcessStats {
    /// Number of processes, each thread counted.
    pub count: Option<u64>,
    /// Number that there may be.
    pub limit: Option<u64>,
}

/// Disk of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskStats {
    /// Space in use, in bytes, at most some seconds ago. Null in a list.
    pub used_bytes: Option<u64>,
    /// Space that it may use, in bytes.
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
