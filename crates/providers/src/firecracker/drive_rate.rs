//! Limits on the use of drives.

/// Limits of one drive for a second; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DriveRate {
    /// Mebibytes read and written.
    pub mb: u32,
    /// Reads and writes.
    pub operations: u32,
}
