//! Settings of the size, number and lifetime of sandboxes and rows.

use std::ops::RangeInclusive;
use std::time::Duration;

use domain::Resources;

use super::super::declare::{section, words};
use super::super::read::{ANY_SPAN, Auto, COUNT_MAX, Number, Optional, size};
use super::super::text::IMAGE;

/// Bounds on the memory of a sandbox, in mebibytes.
const MEMORY_MB: RangeInclusive<u32> = Resources::MEMORY_MB.0..=Resources::MEMORY_MB.1;

/// Bounds on the virtual CPUs of a sandbox.
const VCPUS: RangeInclusive<u32> = Resources::VCPUS.0..=Resources::VCPUS.1;

/// Bounds on the processes of a sandbox.
pub(super) const PIDS: RangeInclusive<u32> = 8..=4_194_304;

/// The most bytes of output that a server will hold for one caller.
const OUTPUT_BYTES_MAX: u64 = 1 << 30;

/// Largest file of ext4, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 40;

/// Bounds on the number of rows: a table of a million still fits a disk, and is counted in
/// milliseconds.
const ROWS: RangeInclusive<u64> = 1..=1_000_000;

/// Bounds on the number of snapshots, whose sizes are added up for each new one.
const SNAPSHOTS: RangeInclusive<u64> = 1..=10_000;

/// Bounds on the memory for requests, in mebibytes: the least takes a few bodies of the largest
/// kind of JSON, the most is a machine's worth.
const REQUEST_MEMORY_MB: RangeInclusive<u64> = 16..=1_048_576;

section! {
    /// Default values of requests, and the maximum that a request may ask for.
    pub struct Defaults {
        /// Default image of a spawn. Unset: the provider's own (native: `host`).
        pub image: Option<String> as Optional(IMAGE),
        /// Default lifetime of a sandbox; at most `defaults.max_ttl`.
        pub ttl: Duration = "30m",
        /// Default memory limit of a spawn in MiB.
        pub memory_mb: u32 = "512" as Number(MEMORY_MB),
        /// Default number of virtual CPUs of a spawn.
        pub vcpus: u32 = "1" as Number(VCPUS),
        /// Default maximum number of processes and threads in a sandbox.
        pub pids: u32 = "256" as Number(PIDS),
        /// Maximum lifetime that a spawn or an extension may ask for.
        pub max_ttl: Duration = "24h",
        /// Maximum memory of one sandbox in MiB; `auto` is three quarters of the memory of the
        /// machine or of the server's container.
        pub max_memory_mb: Option<u32> = "auto" as Auto(MEMORY_MB),
        /// Maximum number of virtual CPUs of one sandbox; `auto` is as many as the server may run
        /// on.
        pub max_vcpus: Option<u32> = "auto" as Auto(VCPUS),
        /// Maximum `disk_mb` in MiB; `auto` is half of the disk that `data_dir` is on. A number is
        /// also the limit of a sandbox without `disk_mb`.
        pub max_disk_mb: Option<u32> = "auto" as Auto(1..=Resources::DISK_MB.1),
        /// Maximum number of processes and threads that a spawn may ask for; at least `defaults.pids`. Each
        /// uses one of the host's process ids, which `kernel.pid_max` limits.
        pub max_pids: u32 = "4096" as Number(PIDS),
        /// Default deadline of a command; at most `defaults.max_exec_timeout`.
        pub default_exec_timeout: Duration = "60s",
        /// Maximum deadline that a command may ask for.
        pub max_exec_timeout: Duration = "10m",
        /// Maximum number of sandboxes at once; 0 means no limit.
        pub max_sandboxes: u64 = "0" as Number(0..=COUNT_MAX),
        /// Maximum number of sandboxes of one owner at once; 0 means no limit. It does not apply to
        /// sandboxes without an owner.
        pub max_sandboxes_per_owner: u64 = "0" as Number(0..=COUNT_MAX),
        /// Handling of a spawn when there is no room: `reject` or `queue`.
        pub spawn_overflow: Overflow = "reject",
        /// Maximum time that a spawn may wait for room.
        pub spawn_queue_timeout: Duration = "30s",
        /// Maximum number of spawns that may wait for room at once.
        pub max_spawn_queue: usize = "100" as Number(1..=100_000),
        /// Maximum number of waiting spawns of one owner; `auto` is as many as stay free for other
        /// owners.
        pub max_spawn_queue_per_owner: Option<usize> = "auto" as Auto(1..=100_000),
    }
}

words! {
    /// Treatment of a request that finds no room.
    pub enum Overflow {
        /// An error at once.
        Reject = "reject",
        /// A place in a queue.
        Queue = "queue",
    }
}

section! {
    /// Bounds on sizes, disk space, memory and rows.
    pub struct Limits {
        /// Maximum size of each output stream in a buffered result; the rest is cut off. Bytes, or
        /// a number with `KiB`, `MiB` or `GiB`; at most `1GiB`.
        pub max_output_bytes: usize = "8MiB" as size(OUTPUT_BYTES_MAX),
        /// Maximum size of a file that is written. Bytes, or a number with `KiB`, `MiB`, `GiB` or
        /// `TiB`; at most `16TiB`.
        pub max_file_bytes: u64 = "1GiB" as size(FILE_BYTES_MAX),
        /// Free space in MiB that sandboxes must leave so that the server can always write, on the
        /// disk of the data folder and on every other disk with boxes. Images leave twice as much.
        pub reserve_disk_mb: u64 = "1024" as Number(0..=COUNT_MAX),
        /// Free inodes that sandboxes must leave on these disks so that the server can always
        /// create files; images leave twice as many. No effect on file systems that do not count
        /// inodes (btrfs).
        pub reserve_inodes: u64 = "10000" as Number(0..=COUNT_MAX),
        /// Memory in MiB that all requests together may use in the server: bodies, collected
        /// output, data for slow readers. Beyond it, requests are refused with 503.
        pub request_memory_mb: u64 = "256" as Number(REQUEST_MEMORY_MB),
        /// Maximum number of templates; one more gets 429.
        pub max_templates: u64 = "1000" as Number(ROWS),
        /// Maximum number of owners with a quota; one more gets 429.
        pub max_quotas: u64 = "10000" as Number(ROWS),
    }
}

section! {
    /// Bounds on the snapshots of sandboxes.
    pub struct Snapshots {
        /// Maximum number of snapshots; one more gets 429.
        pub max: u64 = "100" as Number(SNAPSHOTS),
        /// Maximum number of snapshots of one owner's sandboxes; one more gets 429. 0 means no
        /// limit.
        pub max_per_owner: u64 = "0" as Number(0..=COUNT_MAX),
        /// Maximum size of all snapshots in MiB; 0 means no limit.
        pub max_mb: u64 = "10240" as Number(0..=COUNT_MAX),
    }
}

section! {
    /// Retention of the rows of ended sandboxes.
    pub struct Retention {
        /// Time for which a destroyed or failed sandbox is remembered; until then, a second DELETE
        /// succeeds.
        pub destroyed: Duration = "24h" as ANY_SPAN,
        /// Maximum number of destroyed sandboxes that are remembered; the oldest are forgotten
        /// first.
        pub max_destroyed: u64 = "10000" as Number(ROWS),
        /// Maximum number of destroyed sandboxes of one owner that are remembered.
        pub max_destroyed_per_owner: u64 = "1000" as Number(ROWS),
        /// Maximum number of failed sandboxes that are remembered and listed; the oldest are
        /// forgotten first.
        pub max_failed: u64 = "1000" as Number(ROWS),
        /// Maximum number of failed sandboxes of one owner that are remembered and listed.
        pub max_failed_per_owner: u64 = "100" as Number(ROWS),
    }
}
