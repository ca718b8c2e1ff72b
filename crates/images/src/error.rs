//! Errors of the image store.

use std::sync::Arc;

/// Result of a method of the image store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors, by the cases that a caller can tell apart. The texts are written here, for the API's
/// client. A message of a registry or of the kernel is only ever a source, for the log.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name, an image, an archive or a login that no retry fixes.
    #[error("{0}")]
    Invalid(String),
    /// The image exceeds a size limit; the text names what sets it.
    #[error("{0}")]
    TooLarge(String),
    /// The image is not in the store.
    #[error("{0}")]
    NotFound(String),
    /// A box or a pull holds the image.
    #[error("{0}")]
    Conflict(String),
    /// The disk has no room for the image, or only what is reserved for other use.
    #[error("{0}")]
    Full(String),
    /// The image is unavailable at the moment, for instance because a registry does not answer.
    #[error("the image is not available: {0}")]
    Unavailable(String),
    /// The store failed.
    #[error("the image store failed to {action}")]
    Failed {
        /// Action that failed, as an infinitive.
        action: &'static str,
        /// Cause as it was reported.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    pub(super) fn failed(action: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Error::Failed { action, source: source.into() }
    }

    /// Rewrites the text of an error that the request's content caused, and returns any other
    /// error as it is.
    pub(super) fn reworded(self, words: impl FnOnce(String) -> String) -> Self {
        if let Error::Invalid(text) = self {
            Error::Invalid(words(text))
        } else if let Error::TooLarge(text) = self {
            Error::TooLarge(words(text))
        } else {
            self
        }
    }

    /// Returns a copy of an error that several waiters share.
    pub(super) fn again(self: &Arc<Self>) -> Self {
        match &**self {
            Error::Invalid(text) => Error::Invalid(text.clone()),
            Error::TooLarge(text) => Error::TooLarge(text.clone()),
            Error::NotFound(text) => Error::NotFound(text.clone()),
            Error::Conflict(text) => Error::Conflict(text.clone()),
            Error::Full(text) => Error::Full(text.clone()),
            Error::Unavailable(text) => Error::Unavailable(text.clone()),
            Error::Failed { action, .. } => Error::failed(action, Arc::clone(self)),
        }
    }
}

/// Returns the error for a malformed image.
pub(super) fn refuse(text: impl Into<String>) -> Error {
    Error::Invalid(text.into())
}

/// Returns the error of work that was stopped.
pub(super) fn stopped() -> Error {
    Error::Unavailable("it was cancelled".to_owned())
}
