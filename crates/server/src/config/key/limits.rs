//! Keys of `limits` and `retention`.

use super::{COUNT_MAX, Default, Key, read};

/// The most bytes of output that a server will hold for one caller.
const OUTPUT_BYTES_MAX: u64 = 1 << 30;

/// Largest file of ext4, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 40;

/// Largest bound on rows: a table of a million rows still fits a disk, and is counted in
/// milliseconds.
const ROWS_MAX: u64 = 1_000_000;

/// Bounds on the memory for requests, in mebibytes: the least takes a few bodies of the largest
/// kind of JSON, the most is a machine's worth.
const REQUEST_MEMORY_MB: std::ops::RangeInclusive<u64> = 16..=1_048_576;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: "limits.max_output_bytes",
        default: Default::Text("8MiB"),
        doc: &[
            "The most bytes of each output stream in a buffered result; what is above is",
            "cut off. Bytes, or a number with KiB, MiB or GiB.",
        ],
        read: |config, value, _| {
            let bytes = read::size(value, OUTPUT_BYTES_MAX)?;
            config.limits.max_output_bytes = usize::try_from(bytes).map_err(|_| "is more than memory can address")?;
            Ok(())
        },
    },
    Key {
        name: "limits.max_file_bytes",
        default: Default::Text("1GiB"),
        doc: &["The largest file that may be written. Bytes, or a number with KiB, MiB, GiB or TiB."],
        read: |config, value, _| read::size(value, FILE_BYTES_MAX).map(|it| config.limits.max_file_bytes = it),
    },
    Key {
        name: "limits.reserve_disk_mb",
        default: Default::Text("1024"),
        doc: &["Free space in MiB that sandboxes must leave, so that the server can always write."],
        read: |config, value, _| read::integer(value, 0..=COUNT_MAX).map(|it| config.limits.reserve_disk_mb = it),
    },
    Key {
        name: "limits.reserve_inodes",
        default: Default::Text("10000"),
        doc: &[
            "Free inodes that sandboxes must leave, so that the server can always make files.",
            "Means nothing on file systems that do not count them (btrfs).",
        ],
        read: |config, value, _| read::integer(value, 0..=COUNT_MAX).map(|it| config.limits.reserve_inodes = it),
    },
    Key {
        name: "limits.request_memory_mb",
        default: Default::Text("256"),
        doc: &[
            "Memory in MiB that all requests together may hold in the server: bodies, collected",
            "output, what waits for slow readers. Beyond it, requests are refused with 503.",
        ],
        read: |config, value, _| read::integer(value, REQUEST_MEMORY_MB).map(|it| config.limits.request_memory_mb = it),
    },
    Key {
        name: "limits.max_templates",
        default: Default::Text("1000"),
        doc: &["How many templates there may be."],
        read: |config, value, _| read::integer(value, 1..=ROWS_MAX).map(|it| config.limits.max_templates = it),
    },
    Key {
        name: "limits.max_quotas",
        default: Default::Text("10000"),
        doc: &["How many owners may have a quota of their own."],
        read: |config, value, _| read::integer(value, 1..=ROWS_MAX).map(|it| config.limits.max_quotas = it),
    },
    Key {
        name: "retention.destroyed",
        default: Default::Text("24h"),
        doc: &["How long a destroyed sandbox is remembered: a second DELETE is a success that long."],
        read: |config, value, _| read::duration(value).map(|it| config.retention.destroyed = it),
    },
    Key {
        name: "retention.max_destroyed",
        default: Default::Text("10000"),
        doc: &["How many destroyed sandboxes are remembered at most; the oldest go first."],
        read: |config, value, _| read::integer(value, 1..=ROWS_MAX).map(|it| config.retention.max_destroyed = it),
    },
    Key {
        name: "retention.max_destroyed_per_owner",
        default: Default::Text("1000"),
        doc: &["The same for one owner."],
        read: |config, value, _| {
            read::integer(value, 1..=ROWS_MAX).map(|it| config.retention.max_destroyed_per_owner = it)
        },
    },
    Key {
        name: "retention.max_failed",
        default: Default::Text("1000"),
        doc: &["How many failed sandboxes are remembered and listed at most; the oldest go first."],
        read: |config, value, _| read::integer(value, 1..=ROWS_MAX).map(|it| config.retention.max_failed = it),
    },
    Key {
        name: "retention.max_failed_per_owner",
        default: Default::Text("100"),
        doc: &["The same for one owner."],
        read: |config, value, _| {
            read::integer(value, 1..=ROWS_MAX).map(|it| config.retention.max_failed_per_owner = it)
        },
    },
];
