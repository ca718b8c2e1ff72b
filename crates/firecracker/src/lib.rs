//! Client of Firecracker, a virtual machine monitor with one process for each machine.
//!
//! A process answers HTTP on a unix socket: [`Api`] sends it the [`requests`]. What listens on a
//! port of the guest's vsock is reached over another unix socket: [`vsock::open`]. The caller starts
//! and ends the process, and opens both sockets, whose paths lie in the folder of the machine.
//!
//! [`guest_kernel`] makes the kernel and the first files of guests; [`probe()`] tells if guests run.
//!
//! The process belongs to the side of the guest, which may have taken it over: its answers are
//! bounded in size and time.
//!
//! Source: the API's description of Firecracker 1.16, `src/firecracker/swagger/firecracker.yaml`,
//! and `docs/vsock.md`, both in <https://github.com/firecracker-microvm/firecracker>.

mod api;
mod error;
pub mod guest_kernel;
mod probe;
pub mod requests;
mod version;
pub mod vsock;

pub use api::{Api, Instance};
pub use error::{Error, Result};
pub use probe::{NoGuest, probe};
pub use version::{LEAST_VERSION, NoVersion, is_supported, version};
