//! Size of a sandbox.

/// The size of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Resources {
    /// Memory limit in mebibytes.
    pub memory_mb: u32,
    /// Number of virtual CPUs.
    pub vcpus: u32,
    /// Size limit of an own file system in mebibytes; 0 for none.
    pub disk_mb: u32,
    /// Maximum number of processes and threads at once, from 8 to 4,194,304.
    pub pids: u32,
}

/// The size fields of a request or a template; `None` for those that it leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SizeOptions {
    /// Memory limit in mebibytes.
    pub memory_mb: Option<u32>,
    /// Number of virtual CPUs.
    pub vcpus: Option<u32>,
    /// Size limit of an own file system in mebibytes; 0 for none.
    pub disk_mb: Option<u32>,
    /// Maximum number of processes and threads at once.
    pub pids: Option<u32>,
}

impl SizeOptions {
    /// Returns these fields, with those left out taken from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            memory_mb: self.memory_mb.or(other.memory_mb),
            vcpus: self.vcpus.or(other.vcpus),
            disk_mb: self.disk_mb.or(other.disk_mb),
            pids: self.pids.or(other.pids),
        }
    }

    /// Returns the size, with the fields left out taken from `default`.
    #[must_use]
    pub fn unwrap_or(self, default: Resources) -> Resources {
        Resources {
            memory_mb: self.memory_mb.unwrap_or(default.memory_mb),
            vcpus: self.vcpus.unwrap_or(default.vcpus),
            disk_mb: self.disk_mb.unwrap_or(default.disk_mb),
            pids: self.pids.unwrap_or(default.pids),
        }
    }
}

/// A size outside the accepted range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be between {min} and {max}")]
pub struct InvalidResource {
    /// Field of the request.
    pub field: &'static str,
    /// Smallest accepted value, in the unit of the field.
    pub min: u32,
    /// Largest accepted value, in the unit of the field.
    pub max: u32,
}

impl Resources {
    /// Lowest and highest memory limit, in mebibytes: below it not even a shell and the agent fit.
    /// The upper bounds here keep every product with 1,048,576 or 100,000 far from an overflow.
    pub const MEMORY_MB: (u32, u32) = (16, 16_777_216);
    /// Lowest and highest number of virtual CPUs.
    pub const VCPUS: (u32, u32) = (1, 1024);
    /// Lowest and highest size limit of a file system, in mebibytes; 0 means no limit.
    pub const DISK_MB: (u32, u32) = (0, 16_777_216);
    /// Lowest and highest number of processes and threads.
    pub const PIDS: (u32, u32) = (8, 4_194_304);

    /// Checks that every field is in the range that runtimes accept.
    ///
    /// # Errors
    /// [`InvalidResource`] names the first field out of range.
    pub fn check(&self) -> Result<(), InvalidResource> {
        within("memory_mb", self.memory_mb, Self::MEMORY_MB)?;
        within("vcpus", self.vcpus, Self::VCPUS)?;
        within("disk_mb", self.disk_mb, Self::DISK_MB)?;
        within("pids", self.pids, Self::PIDS)
    }
}

/// Checks that a field is in its range, bounds included.
fn within(field: &'static str, value: u32, (min, max): (u32, u32)) -> Result<(), InvalidResource> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(InvalidResource { field, min, max }) }
}
