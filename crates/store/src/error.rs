//! Errors of the store.

/// The result of a transaction.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reasons for which a transaction failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine failed or cannot be reached.
    #[error("the store failed")]
    Engine(#[from] sqlx::Error),
    /// The file holds something that this release never writes.
    #[error("the store contains a bad value: {0}")]
    Corrupt(String),
    /// The store was written by a later release.
    #[error(
        "the store has schema version {found}, but this release supports at most {known}: use the release that wrote \
         it, or a later one"
    )]
    TooNew {
        /// Schema version of the file.
        found: i64,
        /// Highest schema version that this release can read.
        known: i64,
    },
}

impl Error {
    /// Returns whether the error means that the disk with the database is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        // SQLITE_FULL, and SQLITE_IOERR_SHMSIZE: the kernel alone extends the shared-memory
        // file.
        const CODES: [&str; 2] = ["13", "4874"];
        let Error::Engine(sqlx::Error::Database(error)) = self else { return false };
        error.code().is_some_and(|code| CODES.contains(&code.as_ref()))
    }
}
