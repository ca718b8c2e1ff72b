//! Rules of Tidebox as pure functions.
//!
//! Every function here depends only on its arguments: no IO, no async, no clock (`now` is an
//! argument) and no randomness (entropy is an argument), so none can fail for an external reason.
//! The server applies these rules; the store and the tests call the same functions.

#![warn(missing_docs)]

mod admission;
mod asker;
mod bucket;
mod ceilings;
mod chain;
mod duration;
mod identity;
mod lease;
mod limits;
mod metadata;
mod queue;
mod quota;
mod resources;
mod sandbox;
mod share;
mod spawn_options;
mod text;
mod worker;

pub use admission::{Active, Caps, Denial, Room};
pub use asker::Asker;
pub use bucket::{Bucket, Empty, Rate};
pub use ceilings::{AboveCeiling, Ceilings, Configured, Machine, Site, SizeRules};
pub use chain::Chain;
pub use duration::{DurationError, format_duration, parse_duration};
pub use identity::{InvalidOwner, InvalidSandboxId, OwnerId, SandboxId, StoreId};
pub use jiff::Timestamp;
pub use lease::{Lease, LeaseRefused};
pub use limits::{AboveMaximum, Limits};
pub use metadata::{InvalidMetadata, Metadata};
pub use queue::{NoPlace, Places, Queue, Ticket};
pub use quota::{FractionalSeconds, Quota};
pub use resources::{InvalidResource, Resources, SizeOptions};
pub use sandbox::{Event, InvalidTransition, State, StopReason};
pub use share::Share;
pub use spawn_options::{InvalidOptions, SpawnOptions};
pub use text::InvalidName;
pub use worker::{Candidate, Capacity, InvalidWorkerId, WorkerId, WorkerStatus, choose, is_stale};
