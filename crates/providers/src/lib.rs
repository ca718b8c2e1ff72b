//! The runtimes that can hold sandboxes.
//!
//! [`Provider`] is what a runtime must do: make, find and remove a box, and
//! hand out a [`Guest`], through which everything inside the box happens. Most
//! providers only give a byte stream to the agent in the box, and [`agent`]
//! makes a guest of that; [`mock`] and [`custom`] have guests of their own. Every implementation
//! passes the suite in [`conformance`].

pub mod agent;
mod chain;
pub mod conformance;
pub mod custom;
mod disk;
pub mod docker;
mod error;
mod guest;
pub mod images;
mod kernel;
mod local;
pub mod mock;
pub mod native;
pub mod proot;
mod provider;
mod removal;
mod signal;
mod slots;

pub use chain::Chain;
pub use disk::{BoxDisk, DiskUsage, Room};
pub use domain::{SandboxId, StoreId};
pub use error::{Error, Result};
pub use guest::{
    ByteStream, Command, Control, ExitStatus, FileContent, FileInfo, Guest, Interactive, OutputEvent, OutputStream,
    STREAM_BYTES_MAX, TerminalSize,
};
pub use kernel::KernelShare;
pub use provider::{
    Backend, Facts, Found, Health, ImageSource, Isolation, LimitKind, Phase, Provider, Spec, Started, capabilities,
};
pub use signal::Signal;
pub use slots::Slots;
