//! What a sandbox may use.

/// The size of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Resources {
    /// Memory limit in mebibytes.
    pub memory_mb: u32,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Bound of an own file system in mebibytes; 0 for no bound of its own.
    pub disk_mb: u32,
    /// The most processes and threads at once.
    pub pids: u32,
}

/// A size outside what makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be between {min} and {max}")]
pub struct InvalidResource {
    /// The field of the request.
    pub field: &'static str,
    /// The smallest value that is accepted.
    pub min: u32,
    /// The largest value that is accepted.
    pub max: u32,
}

impl Resources {
    /// The least and the most memory, in mebibytes: below it not even a shell and the
    /// agent fit. The upper bounds here keep every product with 1,048,576 or 100,000
    /// far from an overflow.
    pub const MEMORY_MB: (u32, u32) = (16, 16_777_216);
    /// The fewest and the most virtual CPUs.
    pub const VCPUS: (u32, u32) = (1, 1024);
    /// The least and the most of a file system's bound, in mebibytes.
    pub const DISK_MB: (u32, u32) = (0, 16_777_216);

    /// Checks the size against what any runtime could make of it.
    ///
    /// # Errors
    /// [`InvalidResource`] names the first field out of range.
    pub fn check(&self) -> Result<(), InvalidResource> {
        let within = |field, value, (min, max): (u32, u32)| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(InvalidResource { field, min, max }) }
        };
        within("memory_mb", self.memory_mb, Self::MEMORY_MB)?;
        within("vcpus", self.vcpus, Self::VCPUS)?;
        within("disk_mb", self.disk_mb, Self::DISK_MB)?;
        within("pids", self.pids, (8, 4_194_304))
    }
}
