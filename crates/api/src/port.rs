//! Ports of a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A TCP port that a process of a sandbox listens on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListeningPort {
    /// Number of the port.
    #[schema(minimum = 1)]
    pub port: u16,
    /// Address that it is bound to, such as `127.0.0.1`; `0.0.0.0` and `::` are all addresses.
    pub address: String,
    /// Process id in the sandbox of a process that holds it; absent if it cannot be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Name of that process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
}

/// A text message of the server on a connection to a port. The bytes are in binary messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum PortMessage {
    /// The process sends no more. What the client sends still reaches it.
    Eof,
    /// The connection broke. The last message.
    Error {
        /// Error code, as in every error of the API.
        code: String,
        /// Correction that the caller can make, in English.
        message: String,
    },
}
