//! Errors of a call.

use std::error::Error as _;
use std::time::Duration;

/// Result of every call, with an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a call, with a message for the person who made it. [`Error::code`] is for programs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value given by the caller cannot be sent; nothing was sent.
    #[error("{name} {reason}")]
    Argument {
        /// Name of the value, such as `the sandbox id`.
        name: &'static str,
        /// Fault of the value, and a valid form.
        reason: String,
    },
    /// No connection could be made.
    #[error(
        "cannot connect to {url}: {reason}; is the server running? Start it with `tidebox serve`, or set --url or \
         TIDEBOX_URL"
    )]
    Connect {
        /// Address of the server as it was given.
        url: String,
        /// Cause, such as `Connection refused (os error 111)`.
        reason: String,
    },
    /// No answer came in time, or a stream fell silent. The server may have carried out the request
    /// or not.
    #[error("the server did not answer within {} seconds", after.as_secs())]
    Timeout {
        /// Time that was waited.
        after: Duration,
    },
    /// The server refused the request.
    #[error("{message}")]
    Api {
        /// HTTP status of the answer.
        status: u16,
        /// Error code for programs, such as `not_found`.
        code: String,
        /// Correction that the caller can make.
        message: String,
        /// Id of the request, as in the server's log.
        request_id: Option<String>,
    },
    /// The answer does not follow this API, or is larger than the call allows.
    #[error("{url} does not answer like a Tidebox server: {reason}")]
    Protocol {
        /// Address of the server as it was given.
        url: String,
        /// Part of the answer that was unexpected.
        reason: String,
    },
    /// The connection ended before the answer did.
    #[error("the connection was cut before {what}: {reason}")]
    Cut {
        /// Part of the answer that is missing.
        what: &'static str,
        /// Error of the connection.
        reason: String,
    },
    /// The request is larger than the server accepts; nothing was sent.
    #[error("the request has {bytes} bytes; the API accepts at most {bytes_max} in one request")]
    TooLarge {
        /// Size of the request, in bytes.
        bytes: usize,
        /// Largest accepted size, in bytes.
        bytes_max: usize,
    },
    /// The source of an upload could not be read.
    #[error("cannot read the data to send: {0}")]
    Io(#[source] std::io::Error),
}

impl Error {
    /// Returns a code for programs: the server's own code, or one of `invalid_argument`,
    /// `connection_failed`, `timeout`, `protocol_error`, `connection_cut`, `payload_too_large`,
    /// `io_error`.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Error::Argument { .. } => "invalid_argument",
            Error::Connect { .. } => "connection_failed",
            Error::Timeout { .. } => "timeout",
            Error::Api { code, .. } => code,
            Error::Protocol { .. } => "protocol_error",
            Error::Cut { .. } => "connection_cut",
            Error::TooLarge { .. } => "payload_too_large",
            Error::Io(_) => "io_error",
        }
    }

    /// Returns whether the server answered with this code; false for every error but
    /// [`Error::Api`].
    #[must_use]
    pub fn is_code(&self, wanted: &str) -> bool {
        matches!(self, Error::Api { code, .. } if code == wanted)
    }
}

/// Returns the innermost cause as text, such as `Connection refused (os error 111)`: the outermost
/// one is only `error sending request`.
#[must_use]
pub fn innermost(error: &reqwest::Error) -> String {
    let mut source: &dyn std::error::Error = error;
    while let Some(next) = source.source() {
        source = next;
    }
    source.to_string()
}

/// Returns the error of the local reader behind a request body, if that is what failed.
pub(crate) fn local_read_error(error: &reqwest::Error) -> Option<std::io::Error> {
    let mut source = error.source();
    while let Some(current) = source {
        if let Some(failure) = current.downcast_ref::<LocalRead>() {
            return Some(std::io::Error::new(failure.0.kind(), failure.0.to_string()));
        }
        source = current.source();
    }
    None
}

/// Wrapper that distinguishes an error of the uploaded reader from errors of the connection.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct LocalRead(pub(crate) std::io::Error);
