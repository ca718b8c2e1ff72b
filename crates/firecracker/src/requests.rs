//! Requests that change a machine.
//!
//! Paths are those that the process sees: from its working folder, and in its own root if it runs
//! in a jail.

use std::borrow::Cow;
use std::time::Duration;

use http::Method;
use serde::Serialize;

/// Limit for requests that only change settings.
const SHORT_WAIT: Duration = Duration::from_secs(10);
/// Limit for requests that read the memory of a machine.
const LONG_WAIT: Duration = Duration::from_secs(300);
/// Limit for a request that writes the memory of a machine: 64 GiB at 40 MB a second. A machine whose request
/// is given up stays paused.
const WRITE_WAIT: Duration = Duration::from_secs(1800);

/// A request without an answer besides its success.
pub trait Change: Serialize + Sync {
    /// Method of the request.
    const METHOD: Method = Method::PUT;
    /// Limit for its answer.
    const WAIT: Duration = SHORT_WAIT;

    /// Returns the path of the request.
    fn path(&self) -> Cow<'static, str>;
}

/// Size of the machine.
#[derive(Debug, Clone, Serialize)]
pub struct MachineConfig {
    /// Number of processors, 1 to 32.
    pub vcpu_count: u8,
    /// Memory in mebibytes.
    pub mem_size_mib: u32,
}

impl Change for MachineConfig {
    fn path(&self) -> Cow<'static, str> {
        "/machine-config".into()
    }
}

/// Kernel of the guest.
#[derive(Debug, Clone, Serialize)]
pub struct BootSource {
    /// Path of an uncompressed ELF kernel.
    pub kernel_image_path: String,
    /// Path of the initial files, if the kernel needs any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initrd_path: Option<String>,
    /// Command line of the kernel.
    pub boot_args: String,
}

impl Change for BootSource {
    fn path(&self) -> Cow<'static, str> {
        "/boot-source".into()
    }
}

/// Block device, backed by a file. The first one is `/dev/vda` unless another is the root.
#[derive(Debug, Clone, Serialize)]
pub struct Drive {
    /// Name of the drive in the API: letters, digits and `_`.
    pub drive_id: String,
    /// Path of the file.
    pub path_on_host: String,
    /// True for the one with the root file system.
    pub is_root_device: bool,
    /// True if the guest cannot write to it.
    pub is_read_only: bool,
    /// Limits on its use; `None` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<RateLimiter>,
}

impl Change for Drive {
    fn path(&self) -> Cow<'static, str> {
        format!("/drives/{}", self.drive_id).into()
    }
}

/// Another file for a drive: of a restored machine, before it is resumed.
#[derive(Debug, Clone, Serialize)]
pub struct DriveFile {
    /// Name of the drive.
    pub drive_id: String,
    /// Path of the file.
    pub path_on_host: String,
}

impl Change for DriveFile {
    const METHOD: Method = Method::PATCH;

    fn path(&self) -> Cow<'static, str> {
        format!("/drives/{}", self.drive_id).into()
    }
}

/// Limits of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RateLimiter {
    /// Limit on bytes; `None` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<TokenBucket>,
    /// Limit on operations; `None` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<TokenBucket>,
}

/// Bucket of bytes or operations, full at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TokenBucket {
    /// Number that it holds.
    pub size: u64,
    /// Milliseconds in which an empty one is filled.
    pub refill_time: u64,
}

/// Socket device by which the host reaches the guest.
#[derive(Debug, Clone, Serialize)]
pub struct Vsock {
    /// Address of the guest, 3 or above. Machines may share it.
    pub guest_cid: u32,
    /// Path of the unix socket that the process makes, which must not exist yet.
    pub uds_path: String,
}

impl Change for Vsock {
    fn path(&self) -> Cow<'static, str> {
        "/vsock".into()
    }
}

/// Source of random numbers from the host.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Entropy {}

impl Change for Entropy {
    fn path(&self) -> Cow<'static, str> {
        "/entropy".into()
    }
}

/// Action on a machine.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(tag = "action_type")]
pub enum Action {
    /// Boots it. Its settings cannot change any more.
    InstanceStart,
    /// Presses the keys that ask the guest to end. A guest without a driver for a keyboard ignores
    /// them.
    SendCtrlAltDel,
}

impl Change for Action {
    // A start reads the kernel and its first files.
    const WAIT: Duration = LONG_WAIT;

    fn path(&self) -> Cow<'static, str> {
        "/actions".into()
    }
}

/// State that a running machine is brought to.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(tag = "state")]
pub enum State {
    /// Its processors stand still. Connections to it are accepted, and not answered.
    Paused,
    /// Its processors run.
    Resumed,
}

impl Change for State {
    const METHOD: Method = Method::PATCH;

    fn path(&self) -> Cow<'static, str> {
        "/vm".into()
    }
}

/// Snapshot of a paused machine, without its drives. Its open connections end when it is resumed.
#[derive(Debug, Clone, Serialize)]
pub struct CreateSnapshot {
    /// Path of the new file with the state of processors and devices.
    pub snapshot_path: String,
    /// Path of the new file with the memory.
    pub mem_file_path: String,
}

impl Change for CreateSnapshot {
    const WAIT: Duration = WRITE_WAIT;

    fn path(&self) -> Cow<'static, str> {
        "/snapshot/create".into()
    }
}

/// Restore of a machine, in a process without any settings. If it fails, the process ends.
#[derive(Debug, Clone, Serialize)]
pub struct LoadSnapshot {
    /// Path of the file with the state.
    pub snapshot_path: String,
    /// File with the memory, which must stay as it is while the machine exists.
    pub mem_backend: Memory,
    /// True if the machine runs at once; else its drives can be changed before.
    pub resume_vm: bool,
    /// Path of its vsock, in place of the one that the snapshot names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vsock_override: Option<VsockPath>,
}

impl Change for LoadSnapshot {
    const WAIT: Duration = LONG_WAIT;

    fn path(&self) -> Cow<'static, str> {
        "/snapshot/load".into()
    }
}

/// Memory of a snapshot.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "backend_type", content = "backend_path")]
pub enum Memory {
    /// Path of a file, which is mapped: what the guest writes is not written to it.
    File(String),
}

/// Path of a vsock.
#[derive(Debug, Clone, Serialize)]
pub struct VsockPath {
    /// Path of the unix socket that the process makes, which must not exist yet. Firecracker knows
    /// it from 1.16 on.
    pub uds_path: String,
}
