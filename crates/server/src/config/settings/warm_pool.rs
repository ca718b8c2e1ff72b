//! Settings of boxes that are kept ready.

use std::time::Duration;

use domain::Resources;

use super::super::declare::section;
use super::super::read::{Number, Optional};
use super::super::text::{IMAGE, LABEL};

section! {
    /// Boxes that are kept ready for spawns that ask for the same: one takes such a box instead of
    /// making its own.
    pub struct WarmPool {
        /// Template of the boxes; the keys below count before its values. Unset: none.
        pub template: Option<String> as Optional(LABEL),
        /// Provider of the boxes. Unset: the template's, else the default one.
        pub provider: Option<String> as Optional(LABEL),
        /// Image of the boxes. Unset: as for a spawn that names none.
        pub image: Option<String> as Optional(IMAGE),
        /// Memory limit of the boxes in MiB. Unset: as for a spawn that names none.
        pub memory_mb: Option<u32> as Optional(Number(Resources::MEMORY_MB.0..=Resources::MEMORY_MB.1)),
        /// Virtual CPUs of the boxes. Unset: as for a spawn that names none.
        pub vcpus: Option<u32> as Optional(Number(Resources::VCPUS.0..=Resources::VCPUS.1)),
        /// Size limit in MiB of the boxes' own file system. Unset: as for a spawn that names none.
        pub disk_mb: Option<u32> as Optional(Number(0..=Resources::DISK_MB.1)),
        /// The most processes and threads of the boxes. Unset: as for a spawn that names none.
        pub pids: Option<u32> as Optional(Number(Resources::PIDS.0..=Resources::PIDS.1)),
        /// Number of boxes that are ready when none has been taken.
        pub count: u32 = "1" as Number(1..=10_000),
        /// Age at which a box that was not taken is replaced by a new one.
        pub max_age: Duration = "1h",
        /// True to run the commands of the template's `prepare` in one box only, and to make the others, also
        /// those of spawns that find none ready, of a snapshot of it.
        pub snapshot: bool = "false",
    }
}
