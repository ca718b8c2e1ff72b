//! Errors of operations, worded for the caller.

use std::sync::Arc;

use domain::AboveMaximum;
use providers::Chain;

use super::conflict::Conflict;
use super::full::Full;
use super::invalid::{FailedCommand, InvalidImage};
use super::limit::Limit;
use super::resource::Resource;
use super::unavailable::Unavailable;
use crate::secrets::SecretsError;

/// Result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of an operation. Texts are for the caller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is malformed, has values out of bounds, or values that exclude each other. Text
    /// alone, because no program can act on the difference: its author has to change the request.
    #[error("{0}")]
    Invalid(String),
    /// The name for a new object breaks the rule for names.
    #[error("{} must be 1 to {chars_max} letters, digits, `.`, `_` or `-`", name_in_text(*.resource))]
    InvalidName {
        resource: Resource,
        /// Maximum number of characters.
        chars_max: usize,
    },
    /// No box can be made from the image.
    #[error("{0}")]
    InvalidImage(InvalidImage),
    /// A command of `prepare` failed or was ended.
    #[error("{0}")]
    PrepareFailed(FailedCommand),
    /// The provider does not support the request.
    #[error("{0}")]
    NotSupported(String),
    /// The object that the request names does not exist.
    #[error("{0} `{1}` does not exist")]
    NotFound(Resource, String),
    /// The object is the operator's: the caller may use it, and not change it.
    #[error("the {0} `{1}` is the operator's, and a key of an owner cannot change it; save your own under that name")]
    OfOperator(Resource, String),
    /// The provider that the request names does not exist.
    #[error("there is no provider `{name}`; this server has {known}")]
    NoProvider {
        /// Name in the request.
        name: String,
        /// Known providers, each in backquotes.
        known: String,
    },
    /// The sandbox has no such file, or nothing listens on the port.
    #[error("{0}")]
    NoFile(String),
    /// The object exists already, or its state forbids the operation.
    #[error("{0}")]
    Conflict(Conflict),
    /// The body of the request is too large.
    #[error("{0}")]
    TooLarge(String),
    /// A cap or a maximum is reached.
    #[error("{0}")]
    LimitReached(Limit),
    /// The request cannot be served now; a retry may succeed.
    #[error("{0}")]
    Unavailable(Unavailable),
    /// A file system in a box is full.
    #[error("no space left in the sandbox; delete files, or spawn with a larger disk")]
    NoSpace,
    /// A file system of the host is full.
    #[error("{0}")]
    Full(Full),
    /// The awaited event did not occur before the deadline.
    #[error("{0}")]
    Timeout(String),
    #[error("the provider `{provider}` failed to {action}; the server's log has the cause")]
    Provider {
        provider: String,
        /// Operation that failed, as a verb phrase.
        action: &'static str,
        #[source]
        source: Arc<providers::Error>,
    },
    /// The image store failed.
    #[error("the image store failed to {action}; the server's log has the cause")]
    Images {
        /// Operation that failed, as a verb phrase.
        action: &'static str,
        #[source]
        source: Arc<images::Error>,
    },
    /// A secret cannot be opened, or a certificate not be made.
    #[error("the secrets are not available; the server's log has the cause")]
    Secrets(#[source] SecretsError),
    #[error("the store is not available; the server's log has the cause")]
    Store(#[source] store::Error),
}

/// Returns the words for the name of a new object. That of a secret is in the path, not in a field.
fn name_in_text(resource: Resource) -> &'static str {
    if resource == Resource::Secret { "the name of a secret" } else { "`name`" }
}

impl From<Conflict> for Error {
    fn from(conflict: Conflict) -> Self {
        Self::Conflict(conflict)
    }
}

impl From<Full> for Error {
    fn from(full: Full) -> Self {
        Self::Full(full)
    }
}

impl From<Limit> for Error {
    fn from(limit: Limit) -> Self {
        Self::LimitReached(limit)
    }
}

impl From<Unavailable> for Error {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable)
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        if !error.is_full() {
            return Self::Store(error);
        }
        tracing::warn!(error = %Chain(&error), "the database cannot be written");
        Full::Database.into()
    }
}

/// Converts a provider's failure to start a box into the caller's error.
pub(super) fn provider_error(provider: &str, error: providers::Error) -> Error {
    use providers::Error as P;
    match error {
        P::Invalid(text) | P::TooLarge(text) => Error::Invalid(text),
        P::NotFound(text) => Error::NoFile(text),
        P::NotSupported(text) => Error::NotSupported(text),
        P::NoSpace => Error::NoSpace,
        P::Full(cause) => Full::Provider { cause }.into(),
        P::Exhausted(text) => Limit::Refused(text).into(),
        P::Unavailable(cause) => Unavailable::Provider { provider: provider.to_owned(), cause }.into(),
        P::NoImage(cause) => Unavailable::Image { cause }.into(),
        P::Conflict(text) => Conflict::Refused(text).into(),
        P::NotAsked(error) => provider_error(provider, *error),
        P::Gone => Conflict::Ended.into(),
        P::Failed { action, .. } | P::NoAnswer { action, .. } => {
            Error::Provider { provider: provider.to_owned(), action, source: Arc::new(error) }
        }
    }
}

/// Returns the error of a lifetime or deadline above its maximum.
pub(super) fn above(field: &'static str, above: AboveMaximum) -> Error {
    Limit::AboveMaximum { field, max: above.max }.into()
}
