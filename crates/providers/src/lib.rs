//! Runtimes that can hold sandboxes.
//!
//! A provider makes *boxes*: processes, files and limits on a machine. A sandbox is the row that
//! the server keeps of a box, or of one user's part of a shared box. Code in a box is hostile, so
//! nothing that comes out of one is trusted.
//!
//! The contract has two traits, and facets that not every runtime has:
//!
//! - [`Provider`] makes, finds and removes boxes. A box is made from a [`Spec`]; [`Health`] and
//!   [`Facts`] describe the runtime.
//! - [`Guest`] is the inside of a box: it runs a [`Command`], reads and writes files.
//! - [`Slots`] puts several users into one box.
//! - [`Pauses`] freezes the processes of a box, and resumes them.
//! - [`Snapshots`] keeps the files of a box, and what of its memory it can, to start other boxes from.
//!
//! A method that can fail returns an [`Error`], whose cases a caller can tell apart.
//!
//! The providers are [`native`], [`docker`], [`firecracker`], [`proot`], [`custom`], [`e2b`] and [`mock`]. Most of them
//! only open a byte stream to the agent in the box, which [`agent`] turns into a guest; `mock`, `custom` and `e2b`
//! implement their own. Every implementation passes the suite in the crate `conformance`.

pub mod agent;
mod command;
pub mod custom;
mod default_image;
mod disk;
pub mod docker;
pub mod e2b;
mod error;
pub mod firecracker;
mod guest;
mod image_snapshots;
mod kept_guests;
mod kept_processes;
mod kernel;
mod local;
pub mod mock;
pub mod native;
mod pauses;
mod process;
pub mod proot;
mod provider;
mod service;
mod signal;
mod slots;
mod snapshot_facet;
mod snapshots;
mod spec;
mod stats;

pub use command::{ByteStream, Command, Control, Interactive, OutputEvent, OutputStream};
pub use default_image::default_image;
pub use disk::BoxDisk;
pub use domain::{Chain, SandboxId, SnapshotId, StoreId};
pub use error::{Error, Result};
pub use guest::{
    AMENDED_BYTES_MAX, Account, Amend, AmendFailure, Amended, Attributes, CHOSEN_BYTES_MAX, CHOSEN_PATHS_MAX,
    EGRESS_HOST_BYTES_MAX, EgressAnswer, EgressReason, EgressRequest, EgressRequests, FileChange, FileChangeKind,
    FileChanges, FileContent, FileInfo, FileScope, Guest, ListeningPort, NewXattrs, PATTERN_BYTES_MAX, Pack,
    PortChange, PortChanges, PortConnection, PortConnections, REPLACE_FILES_MAX, Replace, ReplaceResult, ReplacedFile,
    SCOPE_GLOB_BYTES_MAX, SCOPE_GLOBS_MAX, SEARCH_CONTEXT_MAX, SEARCH_MATCHES_MAX, SEARCH_TEXT_BYTES_MAX,
    STREAM_BYTES_MAX, Search, SearchBound, SearchEnd, SearchMatch, SearchResult, TextPattern, Unpacked, WatchRow,
    XATTR_PATHS_MAX, XATTRS_BYTES_MAX, Xattrs,
};
pub use host_disk::DiskUsage;
pub use image_snapshots::{ImageSnapshot, ImageSnapshots};
pub use kernel::KernelShare;
pub use local::agent_file::agent_program;
pub use pauses::{Pauses, Reclaimed, ReclaimedBy};
pub use process::{
    Attach, AttachFrom, Background, BackgroundStdin, ExitStatus, PROCESS_NOTE_BYTES_MAX, ProcessAction, ProcessEvent,
    ProcessEvents, ProcessInfo, ProcessInput, TerminalSize, process_name_fault,
};
pub use provider::{Backend, Facts, Health, ImageSource, Isolation, LimitKind, Provider, capabilities};
pub use signal::Signal;
pub use slots::Slots;
pub use snapshot_facet::{Snapshots, Taken};
pub use spec::{Found, Phase, Spec, Started};
pub use stats::{BoxStats, EgressBytes};
