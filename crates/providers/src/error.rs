//! Why a provider did not do what was asked.

/// The result of a provider's work.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller can tell apart. Texts in `Invalid`, `TooLarge`, `NotFound`, `NotSupported`,
/// `Conflict`, `Full` and `Exhausted` are ours and meant for the caller; what a backend said is
/// only ever a source, for the log.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request makes no sense to this box: a bad path, a wrong kind of file,
    /// a permission that the box itself refuses.
    #[error("{0}")]
    Invalid(String),
    /// What was sent is larger than may be; the text says what sets the bound.
    #[error("{0}")]
    TooLarge(String),
    /// There is no such file in the box.
    #[error("{0}")]
    NotFound(String),
    /// Somebody else's change stands in the way, such as a later holder of the
    /// box's lease. The box may well be there.
    #[error("{0}")]
    Conflict(String),
    /// The provider holds no such box (any more).
    #[error("the box is gone")]
    Gone,
    /// The provider cannot do this whatever the request says.
    #[error("{0}")]
    NotSupported(String),
    /// The box's file system is full.
    #[error("no space left in the box")]
    NoSpace,
    /// The host's own disk, or the place that was set aside on it, is full.
    #[error("{0}")]
    Full(String),
    /// The box has used up what it may have of something.
    #[error("{0}")]
    Exhausted(String),
    /// The provider cannot work on this host at the moment.
    #[error("the provider is not available: {0}")]
    Unavailable(String),
    /// The image cannot be had at the moment, such as from a registry that does not answer.
    #[error("the image is not available: {0}")]
    NoImage(String),
    /// Whoever should have made a box was certainly not asked for it, so that
    /// another may be asked; why it was not.
    #[error(transparent)]
    NotAsked(Box<Error>),
    /// The provider failed.
    #[error("the provider failed to {action}")]
    Failed {
        /// What it was about to do, as an infinitive.
        action: &'static str,
        /// What the backend said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// The same error; one for which what was sent is to blame, in other words.
    pub(crate) fn reworded(self, words: impl FnOnce(String) -> String) -> Self {
        if let Error::Invalid(text) = self {
            Error::Invalid(words(text))
        } else if let Error::TooLarge(text) = self {
            Error::TooLarge(words(text))
        } else {
            self
        }
    }

    /// The same error, of the image that a box needs and not of the provider.
    pub(crate) fn of_image(self) -> Self {
        if let Error::Unavailable(text) = self { Error::NoImage(text) } else { self }
    }

    /// A failure of the backend while it was about to `action`.
    pub fn failed(action: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Error::Failed { action, source: source.into() }
    }
}
