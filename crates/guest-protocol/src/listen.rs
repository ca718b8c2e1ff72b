//! Ports of a box that a caller listens on.

use serde::{Deserialize, Serialize};

/// Maximum number of ports of a box that are listened on for callers.
pub const LISTENERS_MAX: usize = 16;
/// Maximum number of connections to them at once, those included that wait to be accepted. Further ones
/// wait until others end.
pub const LISTEN_CONNECTIONS_MAX: usize = 128;
/// Longest line of a [`ListenRow`], in bytes.
pub const LISTEN_ROW_BYTES_MAX: usize = 64;

/// A port of the box to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// Number of the port, from 1.
    pub port: u16,
}

/// A connection of a program of the box that waits to be accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenRow {
    /// Number of the connection, which the agent never uses for another one.
    pub id: u64,
}

/// A connection that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenAccept {
    /// Number of the connection, of a [`ListenRow`].
    pub id: u64,
}

/// A connection that is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenRefuse {
    /// Number of the connection, of a [`ListenRow`].
    pub id: u64,
}
