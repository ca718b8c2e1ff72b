//! Rules of Tidebox as pure functions.
//!
//! Every function here depends only on its arguments: no IO, no async, no clock (`now` is an
//! argument) and no randomness (entropy is an argument), so none can fail for an external reason.
//! The server applies these rules; the store and the tests call the same functions.
//!
//! ```
//! use domain::{Active, Caps, Denial, Event, State};
//!
//! assert_eq!(State::Creating.after(Event::Started), Ok(State::Running));
//! assert!(State::Destroyed.after(Event::Started).is_err());
//!
//! let caps = Caps { max_sandboxes: 10, max_sandboxes_per_owner: 2 };
//! assert_eq!(caps.admit(Active { total: 9, owner: Some(1) }), Ok(()));
//! assert_eq!(
//!     caps.admit(Active { total: 9, owner: Some(2) }),
//!     Err(Denial::MaxSandboxesPerOwner)
//! );
//! ```
//!
//! A *sandbox* is a disposable environment for hostile code; its *owner* is the name that it is
//! charged to, and a *box* is the thing that a provider makes for it. The rules, in the order in
//! which a sandbox meets them:
//!
//! - Request: [`SpawnOptions`] with [`Metadata`] and a size ([`SizeOptions`]), which [`Ceilings`]
//!   and [`Limits`] bound; a [`Quota`] replaces these for one owner. [`Rate`] and [`Bucket`] bound
//!   the requests of one caller.
//! - Admission: [`Caps`] and [`Room`] admit a sandbox or give a [`Denial`]; a [`Queue`] holds the
//!   spawns that wait for room.
//! - Placement: [`choose`] takes one of the workers, each a [`Candidate`]. The worker holds a
//!   [`Lease`] on the sandbox.
//! - Life: a [`State`] and the [`Event`]s that change it; a [`StopReason`] ends it.
//!
//! A key of an owner opens the parts of the API that its [`KeyScopes`] name.
//!
//! Identifiers are [`SandboxId`], [`SnapshotId`], [`OwnerId`], [`OwnerKeyId`], [`BuildId`], [`WorkerId`] and
//! [`StoreId`].

#![warn(missing_docs)]

mod admission;
mod asker;
mod bucket;
mod build;
mod ceilings;
mod chain;
mod duration;
mod egress;
mod identity;
mod key_scope;
mod lease;
mod limits;
mod metadata;
mod prepare;
mod queue;
mod quota;
mod resources;
mod sandbox;
mod share;
mod spawn_options;
mod terms;
mod text;
mod worker;

pub use admission::{Active, Caps, Denial, Room};
pub use asker::Asker;
pub use bucket::{Bucket, Empty, Rate};
pub use build::{BuildId, Built, ProcessDefaults};
pub use ceilings::{AboveCeiling, Ceilings, Configured, Machine, Site, SizeRules};
pub use chain::Chain;
pub use duration::{DurationError, format_duration, parse_duration};
pub use egress::{
    Dialled, EgressDenial, EgressEntry, EgressLists, EgressMode, EgressPolicy, EgressRules, EntryError, Host,
    HostError, InvalidBinding, InvalidEgress, Network, SandboxEgress, SecretBinding, SecretForm, SecretName, SecretUse,
    SecretUseError, SpecialAddress, Target, TargetError, Targets, decide_address, decide_host, embedded, special,
};
pub use identity::{
    InvalidOwner, InvalidSandboxId, InvalidSnapshotId, OwnerId, OwnerKeyId, SandboxId, SnapshotId, StoreId, base32,
};
pub use jiff::Timestamp;
pub use key_scope::{KeyScope, KeyScopes};
pub use lease::{Lease, LeaseRefused};
pub use limits::{AboveMaximum, Limits};
pub use metadata::{InvalidMetadata, Metadata};
pub use prepare::{InvalidPrepare, PrepareCommand};
pub use queue::{NoPlace, Places, Queue, Ticket};
pub use quota::{FractionalSeconds, Quota};
pub use resources::{InvalidResource, Resources, SizeOptions};
pub use sandbox::{Event, InvalidTransition, State, StopReason};
pub use share::Share;
pub use spawn_options::{InvalidOptions, SpawnOptions};
pub use terms::{InvalidTerms, PortAccess, Terms};
pub use text::InvalidName;
pub use worker::{Candidate, Capacity, InvalidWorkerId, WorkerId, WorkerStatus, choose, is_stale};
