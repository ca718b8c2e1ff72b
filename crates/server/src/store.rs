//! What must not be lost.
//!
//! A method is one whole transaction, conditional on what it read, so that no
//! rule can be raced. Every engine passes the same suite, `suite`.

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
    Caps, Denial, Event, InvalidTransition, Metadata, OwnerId, Quota, Resources, Room, SandboxId, State, StopReason,
    StoreId, Timestamp, WorkerId,
};

pub use audit::{AuditEntry, AuditFilter, AuditStore, NewAuditEntry};
pub use pool::{PoolBounds, PoolCounts, PoolHost, PoolPlace, PoolStore};
pub use sqlite::Sqlite;

/// How long an [`IdempotencyKey`] names its sandbox.
pub const KEY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The result of a transaction.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a transaction did not happen.
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
        /// What the store says.
        found: i64,
        /// What this release can read.
        known: i64,
    },
}

impl Error {
    /// Says whether the disk with the database has no room for what was to be written.
    #[must_use]
    pub fn is_full(&self) -> bool {
        // SQLITE_FULL, and SQLITE_IOERR_SHMSIZE, whose file is made longer by the kernel alone.
        const CODES: [&str; 2] = ["13", "4874"];
        let Error::Engine(sqlx::Error::Database(error)) = self else { return false };
        error.code().is_some_and(|code| CODES.contains(&code.as_ref()))
    }
}

/// A sandbox, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Its name.
    pub id: SandboxId,
    /// Where it is in its life.
    pub state: State,
    /// The provider that runs it.
    pub provider: String,
    /// The image.
    pub image: String,
    /// The size.
    pub resources: Resources,
    /// Labels.
    pub metadata: Metadata,
    /// Whom it counts for.
    pub owner: Option<OwnerId>,
    /// The worker that holds it.
    pub worker: String,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// From this instant it is gone for every request.
    pub expires_at: Timestamp,
    /// When it was destroyed or failed.
    pub ended_at: Option<Timestamp>,
    /// Why it failed, in words for the caller.
    pub error: Option<String>,
}

/// Something that happened to a sandbox, with what is to be stored of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The box answers.
    Started,
    /// A new lifetime, asked for at `now`; refused when the old one was over by then.
    Extended {
        /// The new end.
        expires_at: Timestamp,
        /// When it was asked for.
        now: Timestamp,
    },
    /// It is to be removed; refused when the reason no longer holds.
    StopRequested {
        /// Why.
        reason: StopReason,
        /// When it was asked for.
        now: Timestamp,
    },
    /// Nothing of it is left.
    Stopped {
        /// When.
        at: Timestamp,
    },
    /// A fault ended it.
    Broke {
        /// In words for the caller.
        error: String,
        /// When.
        at: Timestamp,
    },
}

impl Change {
    /// The event that the rules know it by.
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

/// What became of a [`Change`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// There is no such sandbox.
    Missing,
    /// The rules forbid it in the state the sandbox is in; nothing was changed.
    Refused(InvalidTransition),
    /// It is stored.
    Done {
        /// The state before.
        before: State,
        /// The sandbox as it is now.
        sandbox: Box<Sandbox>,
    },
}

/// A named spawn request, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Its name.
    pub name: String,
    /// The values it gives.
    pub values: TemplateValues,
    /// When it was first saved.
    pub created_at: Timestamp,
    /// When it was last saved.
    pub updated_at: Timestamp,
}

/// The values of a template; those left out are the server's defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TemplateValues {
    /// The image.
    pub image: Option<String>,
    /// The provider.
    pub provider: Option<String>,
    /// Memory limit in mebibytes.
    pub memory_mb: Option<u32>,
    /// Virtual CPUs.
    pub vcpus: Option<u32>,
    /// Bound of an own file system in mebibytes.
    pub disk_mb: Option<u32>,
    /// Whether the image's entry point is started.
    pub entrypoint: Option<bool>,
    /// Lifetime.
    pub ttl: Option<std::time::Duration>,
    /// Labels.
    pub metadata: Metadata,
}

/// What became of a new row of a table that is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// It is stored.
    Done,
    /// Its name is taken.
    Taken,
    /// There are as many as there may be.
    Full,
}

/// Bounds on the rows of sandboxes that have ended. Beyond them the oldest are
/// forgotten, of the owner that has the most: what one owner ends costs no other
/// one its rows, unless it goes by very many names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// On those in state `failed`.
    pub failed: KeptRows,
    /// On those in state `destroyed`.
    pub destroyed: KeptRows,
}

/// Bounds on rows of one state; each at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptRows {
    /// The most of all owners together, and of none.
    pub total: u64,
    /// The most of one owner.
    pub per_owner: u64,
}

/// A caller's own name for a request, so that repeating it makes nothing twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The name; counts for each owner apart.
    pub key: String,
    /// What was asked for, hashed: the same name must ask for the same.
    pub request: String,
}

/// A sandbox that wants to be admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSandbox {
    /// The row, in state `creating`.
    pub sandbox: Sandbox,
    /// The global caps; the owner's quota is read with them.
    pub caps: Caps,
    /// The caller's name for the request.
    pub key: Option<IdempotencyKey>,
    /// Where it may go.
    pub placing: workers::Placing,
    /// The place that it needs in a shared box, in pool mode.
    pub pool: Option<PoolPlace>,
}

/// Whether a sandbox was admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    /// It is stored, and leased to this worker.
    Yes(WorkerId),
    /// No worker may take it.
    NoWorker,
    /// A cap is reached.
    Denied(Denial, Room),
    /// There is a sandbox with this [`IdempotencyKey`].
    KeyTaken,
}

/// What to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// Only of this owner.
    pub owner: Option<OwnerId>,
    /// Only in this state.
    pub state: Option<State>,
    /// Only of this provider.
    pub provider: Option<String>,
    /// Only with these labels.
    pub metadata: Metadata,
    /// At most so many.
    pub limit: Option<u32>,
    /// Only what comes after this place.
    pub after: Option<Place>,
}

/// A place in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// When the sandbox there was made, in milliseconds since 1970.
    pub created_at_ms: i64,
    /// Orders those of the same millisecond.
    pub row: i64,
}

/// A part of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The sandboxes, newest first.
    pub sandboxes: Vec<Sandbox>,
    /// Where the next part begins; `None` at the end.
    pub next: Option<Place>,
}

/// How many sandboxes there are, of those that are not purged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Active ones.
    pub active: u64,
    /// All by state.
    pub by_state: BTreeMap<String, u64>,
    /// Active ones by provider.
    pub by_provider: BTreeMap<String, u64>,
    /// Active ones by worker.
    pub by_worker: BTreeMap<String, u64>,
}

/// An owner's quota, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerQuota {
    /// Whose.
    pub owner: OwnerId,
    /// What it says.
    pub quota: Quota,
    /// When it was first saved.
    pub created_at: Timestamp,
    /// When it was last saved.
    pub updated_at: Timestamp,
}

/// How many quotas say what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaSummary {
    /// All.
    pub total: u64,
    /// Those with an own cap.
    pub with_max_sandboxes: u64,
    /// Those with an own longest lifetime.
    pub with_max_ttl: u64,
    /// Those with an own longest deadline.
    pub with_max_exec_timeout: u64,
}

/// The transactions.
#[async_trait]
pub trait Store: AuditStore + PoolStore + workers::Workers + fmt::Debug + Send + Sync {
    /// Names this store, for as long as it exists.
    fn id(&self) -> &StoreId;

    /// Stores a sandbox in state `creating`, unless a cap is reached, and leases
    /// it to the worker that the rules choose.
    ///
    /// - Two at once never get past a cap together.
    /// - One without an owner is under no owner's cap.
    /// - Costs the same whatever number is active.
    /// - With [`NewSandbox::pool`], it takes a place in the fullest open box of the
    ///   same provider, image and size, else in a new one; many at once never get
    ///   past a bound together.
    /// - A key older than [`KEY_LIFETIME`], or whose sandbox failed or was
    ///   removed before anybody had it, is free.
    async fn admit(&self, new: &NewSandbox) -> Result<Admitted>;

    /// What is active, and the caps over `owner`.
    async fn room(&self, owner: Option<&OwnerId>, caps: Caps) -> Result<Room>;

    /// The request and the sandbox that go by the owner's `key` at `now`.
    async fn keyed(&self, owner: Option<&OwnerId>, key: &str, now: Timestamp) -> Result<Option<(String, SandboxId)>>;

    /// How many sandboxes there are of what.
    async fn counts(&self) -> Result<Counts>;

    /// One sandbox, destroyed ones too while their row is kept.
    async fn sandbox(&self, id: &SandboxId) -> Result<Option<Sandbox>>;

    /// Those that a request may see at `now`, newest first.
    async fn sandboxes(&self, filter: &ListFilter, now: Timestamp) -> Result<Page>;

    /// Those that are `creating` or `running` and whose lifetime is over by
    /// `now`, the longest over first, at most `limit`.
    async fn due(&self, now: Timestamp, limit: u32) -> Result<Vec<SandboxId>>;

    /// Those in `state`, the oldest first, at most `limit`.
    async fn in_state(&self, state: State, limit: u32) -> Result<Vec<Sandbox>>;

    /// Returns those that run on `worker`, of this `provider` or of any, without reading
    /// more of them than that.
    async fn running(&self, worker: &str, provider: Option<&str>) -> Result<Vec<SandboxId>>;

    /// Whether what was written can be read, and more could be written.
    async fn check(&self) -> Result<()>;

    /// Applies what happened, if the rules allow it in the state that is stored.
    ///
    /// What has ended by it counts against [`Kept`], and takes the place of an
    /// older one; that costs the same whatever number is kept.
    async fn apply(&self, id: &SandboxId, change: Change) -> Result<Applied>;

    /// Moves every time that is compared with now by `by_ms`: the ends of sandboxes
    /// that have one to come, the ends of leases, and the last heartbeats. How
    /// many sandboxes.
    async fn shift_times(&self, by_ms: i64) -> Result<u64>;

    /// Forgets what ended before `before`, what is beyond [`Kept`], and old
    /// [`IdempotencyKey`]s; how many sandboxes. Others can write in between.
    async fn purge_ended(&self, before: Timestamp, now: Timestamp) -> Result<u64>;

    /// Stores a new template, unless there are `rows_max`.
    async fn insert_template(&self, template: &Template, rows_max: u64) -> Result<Inserted>;

    /// Replaces a template's values; what is stored then, or `None` if there is no such template.
    async fn update_template(&self, name: &str, values: &TemplateValues, at: Timestamp) -> Result<Option<Template>>;

    /// One template.
    async fn template(&self, name: &str) -> Result<Option<Template>>;

    /// Templates by name, those after `after`, at most `limit`.
    async fn templates(&self, after: Option<&str>, limit: u32) -> Result<Vec<Template>>;

    /// Removes a template; `false` if there is none.
    async fn delete_template(&self, name: &str) -> Result<bool>;

    /// Sets aside so many numbers that event ids are made of; no two calls, in
    /// this process or a later one, get the same, and later ones get higher ones.
    /// Not even a power cut undoes it.
    async fn reserve_event_ids(&self, count: u64) -> Result<Range<u64>>;

    /// Saves an owner's quota whole; what is stored then. `None` if it would be a
    /// new one and there are `rows_max`.
    async fn save_quota(
        &self,
        owner: &OwnerId,
        quota: &Quota,
        at: Timestamp,
        rows_max: u64,
    ) -> Result<Option<OwnerQuota>>;

    /// An owner's quota.
    async fn quota(&self, owner: &OwnerId) -> Result<Option<OwnerQuota>>;

    /// Quotas by owner, those after `after`, at most `limit`.
    async fn quotas(&self, after: Option<&OwnerId>, limit: u32) -> Result<Vec<OwnerQuota>>;

    /// How many quotas say what.
    async fn quota_summary(&self) -> Result<QuotaSummary>;

    /// Removes an owner's quota; `false` if there is none.
    async fn delete_quota(&self, owner: &OwnerId) -> Result<bool>;

    /// Gives some of what is free inside the files back to the disk, so little that
    /// others who write hardly wait; whether there is more.
    async fn give_back(&self) -> Result<bool>;

    /// Writes out what is pending and lets go of the files.
    async fn close(&self);
}
