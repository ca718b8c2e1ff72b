//! Errors of requests to an agent.

use serde::{Deserialize, Serialize};

/// Error of a request to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Kind of the error, for programs.
    pub kind: FailureKind,
    /// Fault of the request or the box, as a message for the caller.
    pub message: String,
}

/// The kinds of [`Failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The request is invalid, or the box's own permissions forbid it.
    Invalid,
    /// The file does not exist.
    NotFound,
    /// The box's file system is full.
    NoSpace,
    /// The box has no process, descriptor or memory left for the request.
    Exhausted,
    /// Something else in the box has what the request asks for.
    Conflict,
    /// This box cannot do it for any request.
    NotSupported,
    /// The agent itself failed.
    Internal,
}

impl FailureKind {
    /// Returns the HTTP status of the kind.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            FailureKind::Invalid => 400,
            FailureKind::NotFound => 404,
            FailureKind::NoSpace => 507,
            FailureKind::Exhausted => 503,
            FailureKind::Conflict => 409,
            FailureKind::NotSupported => 501,
            FailureKind::Internal => 500,
        }
    }
}
