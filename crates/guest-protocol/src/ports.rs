//! Ports of a box.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Maximum number of listening sockets that are returned.
pub const PORTS_MAX: usize = 10_000;
/// Maximum number of changes of ports that are reported at once.
pub const PORT_CHANGES_BURST: u32 = 32;
/// Time for which an agent that has reported [`PORT_CHANGES_BURST`] changes waits before each further one.
pub const PORT_CHANGE_EVERY: Duration = Duration::from_millis(500);
/// Longest line of a [`PortChange`], in bytes: a name of 15 bytes, each written as an escape of JSON,
/// and the rest.
pub const PORT_CHANGE_BYTES_MAX: usize = 512;

/// A port of the box to connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connect {
    /// Number of the port, from 1.
    pub port: u16,
}

/// A TCP socket of the box that listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListeningPort {
    /// Number of the port.
    pub port: u16,
    /// Address that it is bound to; `0.0.0.0` and `::` for all.
    pub address: IpAddr,
    /// Process id in the box of a process that holds it, if the agent can see one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Name of that process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
}

/// A request for the changes of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchPorts {
    /// Milliseconds between two looks at the ports. An agent whose looks are costly takes longer.
    pub interval_ms: u64,
}

/// A port that has begun or ceased to listen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortChange {
    /// True if it listens now.
    pub is_open: bool,
    /// The port; of one that has ceased, as it was reported before.
    pub port: ListeningPort,
}
