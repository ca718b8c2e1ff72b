//! Runtimes that can hold sandboxes.
//!
//! [`Provider`] is the contract of a runtime: make, find and remove a box, and hand out a
//! [`Guest`] for all work inside it. Most providers only open a byte stream to the agent in the
//! box, which [`agent`] turns into a guest; [`mock`] and [`custom`] implement their own. Every
//! implementation passes the suite in the crate `conformance`.

pub mod agent;
pub mod custom;
mod default_image;
mod disk;
pub mod docker;
mod error;
mod guest;
mod kernel;
mod local;
pub mod mock;
pub mod native;
pub mod proot;
mod provider;
mod signal;
mod slots;
mod spec;

pub use default_image::default_image;
pub use disk::BoxDisk;
pub use domain::{Chain, SandboxId, StoreId};
pub use error::{Error, Result};
pub use guest::{
    ByteStream, Command, Control, ExitStatus, FileContent, FileInfo, Guest, Interactive, OutputEvent, OutputStream,
    STREAM_BYTES_MAX, TerminalSize,
};
pub use host_disk::DiskUsage;
pub use kernel::KernelShare;
pub use local::agent_file::agent_program;
pub use provider::{Backend, Facts, Health, ImageSource, Isolation, LimitKind, Provider, capabilities};
pub use signal::Signal;
pub use slots::Slots;
pub use spec::{Found, Phase, Spec, Started};
