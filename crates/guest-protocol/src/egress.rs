//! Connections out of a box.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Longest host of an [`EgressRow`], in bytes: SOCKS5 has no longer ones, and no name is longer.
pub const EGRESS_HOST_BYTES_MAX: usize = 255;
/// Longest line of an [`EgressRow`], in bytes: a host of which each byte is written as an escape of
/// JSON, and the rest.
pub const EGRESS_ROW_BYTES_MAX: usize = 6 * EGRESS_HOST_BYTES_MAX + 128;
/// Longest message of an [`EgressRefuse`] that a program is shown, in bytes: it is part of a line of
/// HTTP.
pub const EGRESS_MESSAGE_BYTES_MAX: usize = 512;
/// Maximum number of connections out of a box at once, those included that wait for an answer.
pub const EGRESS_CONNECTIONS_MAX: usize = 1024;
/// Longest wait of a program for the server's answer, which may take a name server and a host their
/// time.
pub const EGRESS_WAIT: Duration = Duration::from_secs(60);

/// A connection that a program of the box asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressRow {
    /// Number of the connection, which the agent never uses for another one.
    pub id: u64,
    /// Host as the program wrote it, but without the brackets of an IPv6 address; of at most
    /// [`EGRESS_HOST_BYTES_MAX`] bytes and never empty.
    pub host: String,
    /// Port to connect to; never 0.
    pub port: u16,
}

/// A connection that is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressAccept {
    /// Number of the connection, of an [`EgressRow`].
    pub id: u64,
}

/// A connection that is not made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressRefuse {
    /// Number of the connection, of an [`EgressRow`].
    pub id: u64,
    /// Kind of the reason, which determines the status that the program gets.
    pub reason: EgressReason,
    /// Reason as a sentence for the program's user.
    pub message: String,
}

/// The reasons of an [`EgressRefuse`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressReason {
    /// The policy does not allow the connection.
    Denied,
    /// The text of the host is no host.
    Malformed,
    /// A limit on connections is reached.
    Busy,
    /// The name does not resolve, or the host refuses.
    Unreachable,
    /// The host does not answer in time.
    Timeout,
}

impl EgressReason {
    /// Returns the name of the reason, as JSON and the header of an answer have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EgressReason::Denied => "denied",
            EgressReason::Malformed => "malformed",
            EgressReason::Busy => "busy",
            EgressReason::Unreachable => "unreachable",
            EgressReason::Timeout => "timeout",
        }
    }

    /// Returns the HTTP status that the program gets.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            EgressReason::Denied => 403,
            EgressReason::Malformed => 400,
            EgressReason::Busy => 429,
            EgressReason::Unreachable => 502,
            EgressReason::Timeout => 504,
        }
    }
}
