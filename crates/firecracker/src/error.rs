//! Failures of a request.

use std::time::Duration;

/// Result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failure of a request to a process of Firecracker.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process refused the request, in its own words.
    #[error("Firecracker: {0}")]
    Refused(String),
    /// The process has closed the connection, or has ended.
    #[error("Firecracker exited or closed the connection: {0}")]
    Gone(String),
    /// The process, or a paused guest, has not answered within the limit.
    #[error("no response within {} ms", .0.as_millis())]
    Silent(Duration),
    /// The answer is none that Firecracker gives.
    #[error("unexpected response from Firecracker: {0}")]
    Malformed(String),
    /// Nothing listens on this port of the guest's vsock.
    #[error("nothing listens on port {0} of the guest's vsock")]
    NotListening(u32),
}
