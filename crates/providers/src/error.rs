//! Errors of providers.

#![warn(missing_docs)]

/// Result of a method of a provider or guest.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors, by the cases that a caller can tell apart. The texts of `Invalid`, `TooLarge`,
/// `NotFound`, `NotSupported`, `Conflict`, `Full` and `Exhausted` are written here, for the API's
/// client. A backend's message is only ever a source, for the log.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be carried out in this box: a bad path, a wrong kind of file, a
    /// permission that the box itself refuses.
    #[error("{0}")]
    Invalid(String),
    /// The content exceeds a size limit; the text names what sets it.
    #[error("{0}")]
    TooLarge(String),
    /// The box has no such file.
    #[error("{0}")]
    NotFound(String),
    /// A concurrent change conflicts with the request, such as one by a later holder of the box's
    /// lease. The box may still exist.
    #[error("{0}")]
    Conflict(String),
    /// The provider does not hold the box, or no longer does.
    #[error("the box is gone")]
    Gone,
    /// The provider can never do this, independently of the request's values.
    #[error("{0}")]
    NotSupported(String),
    /// The file system of the box is full.
    #[error("no space left in the box")]
    NoSpace,
    /// The host's disk is full, or the part of it that is reserved for this use.
    #[error("{0}")]
    Full(String),
    /// The box has reached its limit on some resource.
    #[error("{0}")]
    Exhausted(String),
    /// The provider cannot work on this host at the moment.
    #[error("the provider is not available: {0}")]
    Unavailable(String),
    /// The image is unavailable at the moment, for instance because a registry does not answer.
    #[error("the image is not available: {0}")]
    NoImage(String),
    /// The service that makes the boxes certainly did not receive the request, so another one may
    /// be asked. The inner error is the cause.
    #[error(transparent)]
    NotAsked(Box<Error>),
    /// The service that makes the boxes gave no answer, a broken one, or nonsense. It may have done what was
    /// asked.
    #[error("the service behind the provider did not answer the request to {action} as expected")]
    NoAnswer {
        /// Action that was asked for, as an infinitive.
        action: &'static str,
        /// Cause, such as a connection that broke.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The provider or its backend failed.
    #[error("the provider failed to {action}")]
    Failed {
        /// Action that failed, as an infinitive.
        action: &'static str,
        /// Cause as the backend reported it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Makes an [`Error::Failed`]. `action` is an infinitive, such as `start a box`.
    pub fn failed(action: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Error::Failed { action, source: source.into() }
    }
}

impl From<images::Error> for Error {
    fn from(error: images::Error) -> Self {
        match error {
            images::Error::Invalid(text) => Error::Invalid(text),
            images::Error::TooLarge(text) => Error::TooLarge(text),
            images::Error::NotFound(text) => Error::NotFound(text),
            images::Error::Conflict(text) => Error::Conflict(text),
            images::Error::Full(text) => Error::Full(text),
            // The provider itself works.
            images::Error::Unavailable(text) => Error::NoImage(text),
            images::Error::Failed { action, source } => Error::Failed { action, source },
        }
    }
}
