//! Settings of boxes that are kept ready.

use std::time::Duration;

use domain::Resources;

use super::super::declare::section;
use super::super::read::{Number, Optional};
use super::super::text::{IMAGE, LABEL};

section! {
    /// Boxes that are kept ready: a spawn that asks for the same takes one of them instead of
    /// making a new one.
    pub struct WarmPool {
        /// Template of the boxes; the keys below override its values. Unset: none.
        pub template: Option<String> as Optional(LABEL),
        /// Provider of the boxes. Unset: the template's, else the default one.
        pub provider: Option<String> as Optional(LABEL),
        /// Image of the boxes. Unset: the default of a spawn.
        pub image: Option<String> as Optional(IMAGE),
        /// Memory limit of the boxes in MiB. Unset: the default of a spawn.
        pub memory_mb: Option<u32> as Optional(Number(Resources::MEMORY_MB.0..=Resources::MEMORY_MB.1)),
        /// Virtual CPUs of the boxes. Unset: the default of a spawn.
        pub vcpus: Option<u32> as Optional(Number(Resources::VCPUS.0..=Resources::VCPUS.1)),
        /// Size limit of each box's own file system in MiB. Unset: the default of a spawn.
        pub disk_mb: Option<u32> as Optional(Number(0..=Resources::DISK_MB.1)),
        /// Maximum number of processes and threads in each box. Unset: the default of a spawn.
        pub pids: Option<u32> as Optional(Number(Resources::PIDS.0..=Resources::PIDS.1)),
        /// Number of boxes to keep ready.
        pub count: u32 = "1" as Number(1..=10_000),
        /// Age at which a box that was not taken is replaced by a new one.
        pub max_age: Duration = "1h",
        /// True to run the template's `prepare` commands in one box only, and to make the other boxes,
        /// including those for spawns that find none ready, from a snapshot of it.
        pub snapshot: bool = "false",
    }
}
