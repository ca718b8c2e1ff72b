//! Protocol between the `firecracker` provider and the agent binary in two places.
//!
//! On the host, started with `vmm` as its only argument, it starts the process of a virtual machine:
//! descriptor 0 is a socket with one line of JSON ([`Vmm`]), which it answers with lines of
//! [`crate::LaunchReport`]. End of file on 0 means that the program was executed.
//!
//! In the machine it is the first process, started by the kernel with `machine` as its only argument.
//! It listens on [`MACHINE_BOOT_PORT`] of the machine's vsock for one line of JSON ([`Machine`]), makes
//! the box, answers with a line of [`MachineReport`], and is the agent of the box from then on, on
//! [`MACHINE_AGENT_PORT`]. Nothing before that line differs between machines of one image and size.
//!
//! The machine has two drives: `/dev/vda` with the files of the image, which it only reads, and
//! `/dev/vdb` for what the box changes, both with an ext4 file system.

use serde::{Deserialize, Serialize};

use super::boot::Boot;
use super::launch::CgroupDir;

/// Port of the vsock for the one line of [`Machine`]. Only the machine's root could listen on it.
pub const MACHINE_BOOT_PORT: u32 = 1;
/// Port of the vsock for connections to the agent.
pub const MACHINE_AGENT_PORT: u32 = 2;
/// Longest line of either side on [`MACHINE_BOOT_PORT`], in bytes. The environment of an image is the
/// largest part.
pub const MACHINE_LINE_BYTES_MAX: usize = 1024 * 1024;
/// Number of random bytes in [`Machine::entropy`].
pub const MACHINE_ENTROPY_BYTES: usize = 64;

/// Parameters of the box in a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Parameters of the agent, without descriptors.
    pub boot: Boot,
    /// Host name in the box.
    pub hostname: String,
    /// Time of the host's wall clock, in nanoseconds since 1970.
    pub now_ns: u64,
    /// [`MACHINE_ENTROPY_BYTES`] random bytes of the host in hexadecimal digits, which go into the
    /// random numbers of the machine's kernel.
    pub entropy: String,
    /// Maximum number of processes and threads of the box.
    pub pids: u32,
    /// Size limit of `/dev/shm` in mebibytes.
    pub shm_mb: u32,
    /// Size of `/dev/vdb` in bytes. A restored machine may still know an earlier one.
    pub disk_bytes: u64,
}

/// Changes to a box in a machine that goes on from files: it has the memory of the one that was written to
/// them, and must differ from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// Host name in the box.
    pub hostname: String,
    /// Time of the host's wall clock, in nanoseconds since 1970.
    pub now_ns: u64,
    /// [`MACHINE_ENTROPY_BYTES`] random bytes of the host in hexadecimal digits, which go into the
    /// random numbers of the machine's kernel. Its processes keep those that they have.
    pub entropy: String,
    /// Time from now until the box ends by itself, in milliseconds; `None` to leave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}

/// Answer to [`Machine`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineReport {
    /// The box is made, and its agent listens.
    Ready,
    /// A step failed; the machine ends.
    Failed {
        /// Step that failed, for the log.
        step: String,
        /// Error number of the machine's kernel.
        errno: i32,
    },
}

/// Parameters of the process of a virtual machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vmm {
    /// Directory of the box on the host. The file `pid` is written into it (`<pid> <start time in clock
    /// ticks>`) before the program is executed.
    pub dir: String,
    /// Directory that the program works in.
    pub workdir: String,
    /// Absolute path of the program, and its arguments.
    pub argv: Vec<String>,
    /// FIFO that gets the output of the program. It is opened for reading too, so that writing to it
    /// never waits: what does not fit is lost.
    pub console: String,
    /// Control groups of the host that the process joins.
    pub cgroups: Vec<CgroupDir>,
    /// True if the process gets a pid namespace of its own, which takes privileges.
    pub own_pids: bool,
}
