//! Boxes: the parameters that one is made from, and what a provider says of it.

#![warn(missing_docs)]

use std::time::Duration;

use domain::{Asker, EgressPolicy, Metadata, Resources, SandboxId, SnapshotId};

/// Parameters for making a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Name of the image, such as `host`.
    pub image: String,
    /// Memory, processors, processes and disk of the box.
    pub resources: Resources,
    /// True to start the image's entry point beside the agent. Its output goes to the console.
    pub entrypoint: bool,
    /// Labels of the sandbox. Only [`mock`](crate::mock) acts on them.
    pub metadata: Metadata,
    /// Time until the box ends by itself, unless
    /// [`Guest::set_deadline`](crate::Guest::set_deadline) changes it before.
    pub lifetime: Duration,
    /// Policies on connections out of the box, each of which has to let one through; none for no
    /// connections. Only [`custom`](crate::custom) acts on them: for the others, the caller answers
    /// [`Guest::egress`](crate::Guest::egress).
    pub egress: Vec<EgressPolicy>,
    /// Certificate of an authority, as PEM, that programs of the box trust from the start; see
    /// [`Guest::trust`](crate::Guest::trust).
    pub trust: Option<String>,
    /// Snapshot that the box is made of, on the runtime that took it, with `image` as the image of its
    /// box; see [`Snapshots`](crate::Snapshots). `None` for a box as its image is.
    pub snapshot: Option<SnapshotId>,
    /// True for a copy of a box, whose snapshot is removed afterwards: what the snapshot has counts to the
    /// disk limit of the box, as no one else is charged for it. A provider whose limit counts the files of
    /// snapshots anyway does nothing more.
    pub is_copy: bool,
    /// Caller that the box is made for; it shares the places for image pulls with other callers.
    /// `None` for the server itself.
    pub asker: Option<Asker>,
}

/// A phase of a start, with its duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// Name of the phase: `image`, `box` or `agent`; `restore` in place of `box` where the box was made from
    /// the files of another.
    pub name: &'static str,
    /// Duration of the phase.
    pub took: Duration,
}

/// Result of a successful [`Provider::start`](crate::Provider::start).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Phases of the start with their durations, in order.
    pub phases: Vec<Phase>,
}

/// A box or slot that a provider holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Id of the sandbox that the box or slot belongs to.
    pub id: SandboxId,
    /// True while it can be used. One that cannot be used only needs to be removed.
    pub alive: bool,
}
