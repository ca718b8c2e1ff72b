//! Durable state: sandboxes, leases, quotas, templates, pool places and the audit history.
//!
//! Each method is one transaction, conditional on the rows it read, so that no rule can be
//! raced. Every engine passes the same test suite, `suite`.

mod audit;
mod pool;
mod sqlite;
#[cfg(test)]
mod suite;
pub mod workers;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use domain::{
    Caps, Denial, Event, InvalidTransition, Metadata, OwnerId, Quota, Resources, Room, SandboxId, SpawnOptions, State,
    StopReason, StoreId, Timestamp, WorkerId,
};

pub use audit::{AuditEntry, AuditFilter, AuditStore, NewAuditEntry};
pub use pool::{PoolBounds, PoolCounts, PoolHost, PoolPlace, PoolStore};
pub use sqlite::Sqlite;

/// Time for which an [`IdempotencyKey`] refers to its sandbox.
pub const KEY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The result of a transaction.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reasons for which a transaction failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine failed or cannot be reached.
    #[error("the store failed")]
    Engine(#[from] sqlx::Error),
    /// The file holds something that this release never writes.
    #[error("the store holds a bad value: {0}")]
    Corrupt(String),
    /// The store was written by a later release.
    #[error(
        "the store has schema version {found}, this release knows up to {known}: use the release that wrote it, or a later one"
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

/// A sandbox, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    pub id: SandboxId,
    pub state: State,
    /// The provider that runs it.
    pub provider: String,
    pub image: String,
    pub resources: Resources,
    pub metadata: Metadata,
    /// Owner charged for the sandbox.
    pub owner: Option<OwnerId>,
    /// The worker that holds it.
    pub worker: String,
    /// Time of the spawn request.
    pub created_at: Timestamp,
    /// From this instant it is gone for every request.
    pub expires_at: Timestamp,
    /// Time at which it was destroyed or failed.
    pub ended_at: Option<Timestamp>,
    /// Reason of the failure, worded for the caller.
    pub error: Option<String>,
}

/// A state change of a sandbox, with the values to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The box started and answers.
    Started,
    /// A new lifetime; refused if the old one had expired by `now`.
    Extended {
        expires_at: Timestamp,
        /// Time of the request.
        now: Timestamp,
    },
    /// A request to remove the sandbox; refused if `reason` no longer holds.
    StopRequested {
        reason: StopReason,
        /// Time of the request.
        now: Timestamp,
    },
    /// The removal of the box finished.
    Stopped { at: Timestamp },
    /// A fault ended the sandbox.
    Broke {
        /// Text for the caller.
        error: String,
        at: Timestamp,
    },
}

impl Change {
    /// Returns the event of the domain's state machine.
    #[must_use]
    pub fn event(&self) -> Event {
        match self {
            Change::Started => Event::Started,
            Change::Extended { .. } => Event::Extended,
            Change::StopRequested { .. } => Event::StopRequested,
            Change::Stopped { .. } => Event::Stopped,
            Change::Broke { .. } => Event::Broke,
        }
    }
}

/// Outcome of a [`Change`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// There is no such sandbox.
    Missing,
    /// The state machine forbids it in the sandbox's state; nothing was changed.
    Refused(InvalidTransition),
    /// The change was stored.
    Done {
        /// State before the change.
        before: State,
        /// Sandbox after the change.
        sandbox: Box<Sandbox>,
    },
}

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

/// Bounds on the rows of sandboxes that have ended. Beyond them the oldest rows of the owner
/// with the most rows are removed. Sandboxes of one owner therefore do not displace rows of
/// another, unless one client uses very many owner names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Bounds on rows in state `failed`.
    pub failed: KeptRows,
    /// Bounds on rows in state `destroyed`.
    pub destroyed: KeptRows,
}

/// Bounds on rows of one state; each at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptRows {
    /// Maximum for all owners together, rows without an owner included.
    pub total: u64,
    /// Maximum for one owner.
    pub per_owner: u64,
}

/// A caller's own name for a request, which makes a retry return the first sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The name, unique per owner.
    pub key: String,
    /// Hash of the request. A key used again must come with the same request.
    pub request: String,
}

/// A sandbox to be admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSandbox {
    /// The row, in state `creating`.
    pub sandbox: Sandbox,
    /// The global caps; the owner's quota is read with them.
    pub caps: Caps,
    /// The caller's key for the request.
    pub key: Option<IdempotencyKey>,
    /// Workers that it may be placed on.
    pub placement: workers::PlacementFilter,
    /// Place that it needs in a shared box, in pool mode.
    pub pool: Option<PoolPlace>,
}

/// Outcome of an admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    /// It is stored, and leased to this worker.
    Yes(WorkerId),
    /// No worker may take it.
    NoWorker,
    /// A cap is reached.
    Denied(Denial, Room),
    /// A sandbox with this [`IdempotencyKey`] exists.
    KeyTaken,
}

/// Filter of a list; absent fields do not restrict it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListFilter {
    pub owner: Option<OwnerId>,
    pub state: Option<State>,
    pub provider: Option<String>,
    /// Labels that a sandbox must all have.
    pub metadata: Metadata,
    /// Maximum number of rows.
    pub limit: Option<u32>,
    /// Position after which the list starts.
    pub after: Option<Cursor>,
}

/// A position in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Creation time of the sandbox at this position, in milliseconds since 1970.
    pub created_at_ms: i64,
    /// Row number, which orders sandboxes of the same millisecond.
    pub row: i64,
}

/// One page of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Sandboxes, newest first.
    pub sandboxes: Vec<Sandbox>,
    /// Position of the next page; `None` on the last page.
    pub next: Option<Cursor>,
}

/// Numbers of stored sandboxes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Active sandboxes.
    pub active: u64,
    /// Sandboxes by state.
    pub by_state: BTreeMap<String, u64>,
    /// Active sandboxes by provider.
    pub by_provider: BTreeMap<String, u64>,
    /// Active sandboxes by worker.
    pub by_worker: BTreeMap<String, u64>,
}

/// An owner's quota, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerQuota {
    pub owner: OwnerId,
    pub quota: Quota,
    /// Time of the first save.
    pub created_at: Timestamp,
    /// Time of the last save.
    pub updated_at: Timestamp,
}

/// Numbers of stored quotas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaSummary {
    /// Quotas of all kinds.
    pub total: u64,
    /// Quotas with their own cap on sandboxes.
    pub with_max_sandboxes: u64,
    /// Quotas with their own maximum lifetime.
    pub with_max_ttl: u64,
    /// Quotas with their own maximum command deadline.
    pub with_max_exec_timeout: u64,
}

/// Transactions of the store.
#[async_trait]
pub trait Store: AuditStore + PoolStore + workers::Workers + fmt::Debug + Send + Sync {
    /// Returns the id of this store, which stays the same for as long as the store exists.
    fn id(&self) -> &StoreId;

    /// Stores a sandbox in state `creating`, unless a cap is reached, and leases it to the
    /// worker that the placement rules choose.
    ///
    /// - Concurrent calls never exceed a cap together.
    /// - A sandbox without an owner is under no owner's cap.
    /// - The cost does not depend on the number of active sandboxes.
    /// - With [`NewSandbox::pool`], it takes a place in the fullest open box of the same
    ///   provider, image and size, else in a new one. Concurrent calls never exceed a bound
    ///   together.
    /// - A key is free if it is older than [`KEY_LIFETIME`], or if its sandbox failed or was
    ///   removed before any caller received it.
    async fn admit(&self, new: &NewSandbox) -> Result<Admitted>;

    /// Returns the active sandboxes, and the caps that apply to `owner`.
    async fn room(&self, owner: Option<&OwnerId>, caps: Caps) -> Result<Room>;

    /// Returns the request and the sandbox of the owner's `key` at `now`.
    async fn keyed(&self, owner: Option<&OwnerId>, key: &str, now: Timestamp) -> Result<Option<(String, SandboxId)>>;

    /// Returns the numbers of sandboxes.
    async fn counts(&self) -> Result<Counts>;

    /// Returns one sandbox, also a destroyed one while its row is kept.
    async fn sandbox(&self, id: &SandboxId) -> Result<Option<Sandbox>>;

    /// Returns a page of the sandboxes that a request may see at `now`, newest first.
    async fn sandboxes(&self, filter: &ListFilter, now: Timestamp) -> Result<Page>;

    /// Returns sandboxes in state `creating` or `running` whose lifetime ended by `now`, the
    /// earliest end first, at most `limit`.
    async fn due(&self, now: Timestamp, limit: u32) -> Result<Vec<SandboxId>>;

    /// Returns sandboxes in `state`, the oldest first, at most `limit`.
    async fn in_state(&self, state: State, limit: u32) -> Result<Vec<Sandbox>>;

    /// Returns the running sandboxes on `worker`, of one `provider` or of all, and reads no
    /// other rows.
    async fn running(&self, worker: &str, provider: Option<&str>) -> Result<Vec<SandboxId>>;

    /// Checks that the store can be read and written.
    async fn check(&self) -> Result<()>;

    /// Applies a change, if the state machine allows it in the stored state.
    ///
    /// A sandbox that ends counts against [`Kept`], and replaces an older row. The cost does not
    /// depend on the number of rows.
    async fn apply(&self, id: &SandboxId, change: Change) -> Result<Applied>;

    /// Shifts all times that are compared with the clock by `by_ms`: future ends of sandboxes,
    /// ends of leases, and last heartbeats. Returns the number of sandboxes shifted.
    async fn shift_times(&self, by_ms: i64) -> Result<u64>;

    /// Deletes sandboxes that ended before `before` or are beyond [`Kept`], and old
    /// [`IdempotencyKey`]s. Returns the number of sandboxes deleted. Other writers can run in
    /// between.
    async fn purge_ended(&self, before: Timestamp, now: Timestamp) -> Result<u64>;

    /// Stores a new template, unless there are `rows_max`.
    async fn insert_template(&self, template: &Template, rows_max: u64) -> Result<Inserted>;

    /// Replaces a template's options. Returns the stored row, or `None` if there is no such
    /// template.
    async fn update_template(&self, name: &str, options: &SpawnOptions, at: Timestamp) -> Result<Option<Template>>;

    async fn template(&self, name: &str) -> Result<Option<Template>>;

    /// Returns templates by name, those after `after`, at most `limit`.
    async fn templates(&self, after: Option<&str>, limit: u32) -> Result<Vec<Template>>;

    /// Removes a template; `false` if there is none.
    async fn delete_template(&self, name: &str) -> Result<bool>;

    /// Reserves `count` numbers for event ids. No two calls, in this process or a later one,
    /// return the same number, and later calls return higher ones. The reservation survives a
    /// power failure.
    async fn reserve_event_ids(&self, count: u64) -> Result<Range<u64>>;

    /// Stores an owner's quota, replacing all of its values. Returns the stored row, or `None`
    /// if it would be a new one and there are `rows_max`.
    async fn save_quota(
        &self,
        owner: &OwnerId,
        quota: &Quota,
        at: Timestamp,
        rows_max: u64,
    ) -> Result<Option<OwnerQuota>>;

    async fn quota(&self, owner: &OwnerId) -> Result<Option<OwnerQuota>>;

    /// Returns quotas by owner, those after `after`, at most `limit`.
    async fn quotas(&self, after: Option<&OwnerId>, limit: u32) -> Result<Vec<OwnerQuota>>;

    /// Returns the numbers of quotas.
    async fn quota_summary(&self) -> Result<QuotaSummary>;

    /// Removes an owner's quota; `false` if there is none.
    async fn delete_quota(&self, owner: &OwnerId) -> Result<bool>;

    /// Returns a few free pages of the files to the disk; few, so that other writers hardly
    /// wait. Returns whether there are more.
    async fn give_back(&self) -> Result<bool>;

    /// Writes pending changes and closes the files.
    async fn close(&self);
}
