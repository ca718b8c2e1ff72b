//! Ways in which boxes can be made on a host.

/// Features that this host allows boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// True if boxes have ids of their own, and layers mapped to them; else they run as one user.
    pub(super) privileged: bool,
    /// True if changes can lie in the data folder; else they lie in memory.
    pub(super) disk_upper: bool,
    /// True if image files can be mounted, so that the disk of a box can be bounded.
    pub(super) images: bool,
    /// True if the changes of boxes can be kept as snapshots.
    pub(super) snapshots: bool,
}
