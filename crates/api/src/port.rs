//! Ports of a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Span;

/// A TCP port that a process of a sandbox listens on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListeningPort {
    /// Number of the port.
    #[schema(minimum = 1)]
    pub port: u16,
    /// Address that it is bound to, such as `127.0.0.1`; `0.0.0.0` and `::` are all addresses.
    pub address: String,
    /// Process id, inside the sandbox, of a process that holds the port; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Name of that process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
}

/// A request for the URL of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewRequest {
    /// Port of the sandbox.
    #[schema(minimum = 1, maximum = 65535)]
    pub port: u16,
    /// Lifetime of the URL, such as `8h`; 1h if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub ttl: Option<String>,
    /// True for a URL that opens the port to everyone who knows it, without a token or a cookie.
    #[serde(default)]
    pub public: bool,
}

/// URL of a port of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    /// URL that opens the port, also in a browser.
    pub url: String,
    /// Port of the sandbox.
    pub port: u16,
    /// True if the URL opens the port without a token or a cookie.
    pub public: bool,
    /// Token in the URL; also accepted in the header `X-Preview-Token`. Absent for a public URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Time at which the URL expires.
    #[schema(format = DateTime)]
    pub expires_at: String,
}

/// A text message from the server on a connection to a port. The data is in binary messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum PortMessage {
    /// The process sends no more. It still receives what the client sends.
    Eof,
    /// Last message: the connection broke.
    Error {
        /// Error code, as in every error of the API.
        code: String,
        /// Explanation of the error and of its remedy, in English.
        message: String,
    },
}

/// A text message from the server to a client that listens on a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ListenMessage {
    /// First message: the port is open.
    Listening {
        /// Number of the port.
        port: u16,
    },
    /// A process has connected to the port.
    Connection {
        /// Number of the connection, for the path that accepts it.
        connection: u64,
    },
    /// Last message: the port is closed.
    Error {
        /// Error code, as in every error of the API.
        code: String,
        /// Explanation of the error and of its remedy, in English.
        message: String,
    },
}

/// Value of the field `type` in a message from a client that listens on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ListenKind {
    /// A [`ListenRefuse`] message.
    Refuse,
}

/// Resets a waiting connection that the client cannot accept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenRefuse {
    /// Always `refuse`.
    #[serde(rename = "type")]
    pub kind: ListenKind,
    /// Number of the connection.
    pub connection: u64,
}
