//! Why a call did not work.

use std::error::Error as _;
use std::time::Duration;

/// What every call returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call did not work, in words for the person who made it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value given by the caller cannot be sent; nothing was sent.
    #[error("{name} {reason}")]
    Argument {
        /// Which value, such as `the sandbox id`.
        name: &'static str,
        /// What is wrong with it and what would be right.
        reason: String,
    },
    /// No connection could be made.
    #[error(
        "no connection to {url}: {reason}; is the server running? start it with `tidebox serve`, or name another with --url or TIDEBOX_URL"
    )]
    Connect {
        /// The server's address as it was given.
        url: String,
        /// What the system said.
        reason: String,
    },
    /// No answer came in time. Whether the request was done is not known.
    #[error("the server did not answer within {} seconds", after.as_secs())]
    Timeout {
        /// How long was waited.
        after: Duration,
    },
    /// The server said no.
    #[error("{message}")]
    Api {
        /// The HTTP status.
        status: u16,
        /// What a program can tell apart, such as `not_found`.
        code: String,
        /// What a person should change.
        message: String,
        /// Names the request in the server's log.
        request_id: Option<String>,
    },
    /// The answer is not one of this API.
    #[error("{url} does not answer like a Tidebox server: {reason}")]
    Protocol {
        /// The server's address as it was given.
        url: String,
        /// What was unexpected.
        reason: String,
    },
    /// The connection ended before the answer did.
    #[error("the connection was cut before {what}: {reason}")]
    Cut {
        /// What had not come yet.
        what: &'static str,
        /// What the connection said.
        reason: String,
    },
    /// A request is larger than the server takes.
    #[error("the request has {bytes} bytes, more than the {bytes_max} that the API takes in one request")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The most that is taken.
        bytes_max: usize,
    },
    /// What was to be sent could not be read.
    #[error("what was to be sent could not be read: {0}")]
    Io(#[source] std::io::Error),
}

impl Error {
    /// What a program can tell apart: the server's own code, or one of
    /// `invalid_argument`, `connection_failed`, `timeout`, `protocol_error`,
    /// `connection_cut`, `payload_too_large`, `io_error`.
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

    /// Whether the server answered with this code.
    #[must_use]
    pub fn is_code(&self, wanted: &str) -> bool {
        matches!(self, Error::Api { code, .. } if code == wanted)
    }
}

/// The innermost reason, which is the one worth reading: `Connection refused
/// (os error 111)` rather than `error sending request`.
pub(crate) fn innermost(error: &reqwest::Error) -> String {
    let mut source: &dyn std::error::Error = error;
    while let Some(next) = source.source() {
        source = next;
    }
    source.to_string()
}

/// The error of the local reader behind a request body, if that is what failed.
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

/// Marks an error of the reader that is uploaded, to tell it from errors of the
/// connection.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct LocalRead(pub(crate) std::io::Error);
