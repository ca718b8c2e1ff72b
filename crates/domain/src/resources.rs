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
    /// Checks the size against what any runtime could make of it.
    ///
    /// # Errors
    /// [`InvalidResource`] names the first field out of range.
    pub fn check(&self) -> Result<(), InvalidResource> {
        let within = |field, value, min, max| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(InvalidResource { field, min, max }) }
        };
        // Below 16 MiB not even a shell and the agent fit; the upper bounds keep
        // every product with 1,048,576 or 100,000 far from an overflow.
        within("memory_mb", self.memory_mb, 16, 16_777_216)?;
        within("vcpus", self.vcpus, 1, 1024)?;
        within("disk_mb", self.disk_mb, 0, 16_777_216)?;
        within("pids", self.pids, 8, 4_194_304)
    }
}
