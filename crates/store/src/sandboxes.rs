//! Sandboxes, their changes and their list, as stored.

use std::collections::BTreeMap;

use std::time::Duration;

use domain::{
    Event, InvalidTransition, Metadata, OwnerId, Resources, SandboxId, State, StopReason, Terms, Timestamp, WorkerId,
};

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
    pub worker: WorkerId,
    /// Time of the spawn request.
    pub created_at: Timestamp,
    /// From this instant it is gone for every request.
    pub expires_at: Timestamp,
    /// Time at which it was destroyed or failed.
    pub ended_at: Option<Timestamp>,
    /// Reason of the failure, worded for the caller.
    pub error: Option<String>,
    /// Time without use after which it is paused; `None` for never.
    pub auto_pause: Option<Duration>,
    /// Rules that it lives by besides its options; `None` for the usual ones.
    pub terms: Option<Box<Terms>>,
}

impl Sandbox {
    /// Returns whether its lifetime is over and it has not ended otherwise. It is invisible from that instant,
    /// however far its removal is; one that is to be paused then is not.
    #[must_use]
    pub fn has_expired(&self, now: Timestamp) -> bool {
        let is_pausing = self.terms.as_ref().is_some_and(|terms| terms.pauses(self.state));
        match self.state {
            State::Creating | State::Running | State::Paused | State::Destroying => {
                self.expires_at <= now && !is_pausing
            }
            // A failed sandbox ended before its expiry, and callers may still read its error.
            State::Failed | State::Destroyed => false,
        }
    }
}

/// A state change of a sandbox, with the values to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The box started and answers.
    Started,
    /// A new lifetime; refused if the old one had expired by `now`.
    Extended {
        expires_at: Timestamp,
        /// True to keep the old one if it ends later.
        at_least: bool,
        /// Time of the request.
        now: Timestamp,
    },
    /// Its processes are to stop where they are.
    Paused {
        /// New end of its lifetime; `None` for the old one.
        until: Option<Timestamp>,
        /// Time by which the old lifetime must have ended, else it is refused; `None` if it may last.
        if_over_at: Option<Timestamp>,
    },
    /// Its processes are to go on.
    Resumed {
        /// New end of its lifetime; `None` for the old one.
        until: Option<Timestamp>,
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
            Change::Paused { .. } => Event::Paused,
            Change::Resumed { .. } => Event::Resumed,
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

/// Filter of a list; absent fields do not restrict it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListFilter {
    pub owner: Option<OwnerId>,
    pub state: Option<State>,
    /// States of which a sandbox must have one; none for any.
    pub states: Vec<State>,
    /// Name that a sandbox was made of.
    pub made_of: Option<String>,
    /// Earliest time of its spawn request.
    pub created_from: Option<Timestamp>,
    /// True to list the oldest first.
    pub oldest_first: bool,
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
