//! Templates, as stored.

use domain::{Built, OwnerId, SpawnOptions, Timestamp};

/// A named spawn request, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Name, which no other template of the owner has.
    pub name: String,
    /// Owner; `None` for one of the operator, which every owner may use.
    pub owner: Option<OwnerId>,
    /// Options for requests that name it.
    pub options: SpawnOptions,
    /// Outcome of the build that made it; `None` for one that was stored.
    pub built: Option<Built>,
    /// Time of the first save.
    pub created_at: Timestamp,
    /// Time of the last save.
    pub updated_at: Timestamp,
}

/// Templates of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateFilter {
    /// Every template.
    All,
    /// Those of one owner.
    Of(OwnerId),
    /// Those that one owner may use: its own and the operator's.
    UsableBy(OwnerId),
}

/// Position in a list of templates: after the template of this name and owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateCursor {
    pub name: String,
    pub owner: Option<OwnerId>,
}

/// Bounds on the number of templates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateBounds {
    /// Maximum number of all templates.
    pub total: u64,
    /// Maximum number of templates of one owner. The operator's are bounded by the total alone.
    pub per_owner: u64,
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
    /// The owner has its maximum of rows.
    FullOfOwner,
}
