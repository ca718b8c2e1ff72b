//! Templates, as stored.

use domain::{SpawnOptions, Timestamp};

/// A named spawn request, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub name: String,
    /// Options for requests that name it.
    pub options: SpawnOptions,
    /// Time of the first save.
    pub created_at: Timestamp,
    /// Time of the last save.
    pub updated_at: Timestamp,
}

/// Outcome of an insert into a bounded table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// The row was stored.
    Done,
    /// Its name is taken.
    Taken,
    /// The table holds its maximum of rows.
    Full,
}
