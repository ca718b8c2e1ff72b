//! Size of a box as its programs see it.

use serde::{Deserialize, Serialize};

/// Size of a box as its programs see it, in place of the host's size.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SizeView {
    /// Memory that `/proc/meminfo` shows, in mebibytes.
    pub memory_mb: u32,
    /// Processors of the host that processes of the box start on, by number.
    pub processors: Vec<u32>,
    /// Highest number that a processor of the host may have.
    pub highest_processor: u32,
    /// Lines of `/proc/cpuinfo` about one processor that hold for all.
    pub cpuinfo: String,
    /// Time when the kernel started, in seconds since the epoch: times of processes in `/proc` count
    /// from it.
    pub kernel_started: u64,
    /// Control groups that the box sees at `/sys/fs/cgroup`.
    pub groups: Vec<GroupView>,
}

/// Hierarchy of control groups in which a box sees its own group.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GroupView {
    /// Its controllers, as a mount of version 1 names them (`cpu,cpuacct`); empty for version 2.
    pub controllers: String,
    /// Directory of the box's group on the host, or of any group where that is covered.
    pub dir: String,
    /// True if the box has no group of its own in the hierarchy. Its mount is listed, because runtimes
    /// such as Java's read no limit where one of `cpu`, `cpuacct`, `cpuset` and `memory` has none, but
    /// its files are not shown.
    #[serde(default)]
    pub covered: bool,
}

/// Files that show the size of a box, and that its agent keeps up to date.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeFiles {
    /// Descriptor of the content of `/proc/meminfo`.
    pub meminfo_fd: i32,
    /// Descriptor of the content of `/proc/stat`.
    pub stat_fd: i32,
    /// As [`SizeView::memory_mb`].
    pub memory_mb: u32,
    /// As [`SizeView::processors`].
    pub processors: Vec<u32>,
    /// As [`SizeView::kernel_started`].
    pub kernel_started: u64,
}
