//! Resources that boxes use.

#![warn(missing_docs)]

use std::time::Duration;

/// Resources that a box uses at one moment. What cannot be measured is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BoxStats {
    /// Processor time since the box was made.
    pub cpu: Option<Duration>,
    /// Memory, without contents of files that the kernel keeps only to save reading them again.
    pub memory_bytes: Option<u64>,
    /// Most memory at any moment since the box was made, with such contents.
    pub memory_peak_bytes: Option<u64>,
    /// Number of threads of all processes, which the limit on processes counts.
    pub processes: Option<u64>,
    /// Space on the disk, where another server has measured it. For boxes of this host
    /// [`Provider::disk_usage`](crate::Provider::disk_usage) measures it.
    pub disk_bytes: Option<u64>,
    /// Bytes through the proxy of the box, where another server makes its connections.
    pub egress: Option<EgressBytes>,
}

/// Bytes of the connections out of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EgressBytes {
    /// Bytes to hosts.
    pub sent: u64,
    /// Bytes from hosts.
    pub received: u64,
}
