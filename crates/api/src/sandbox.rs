//! Sandboxes: requests and descriptions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::spawn_options::with_spawn_options;
use crate::{OwnerId, Span, StringMap};

/// An isolated, short-lived environment to run commands in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// Identifier of the sandbox, used in every path.
    pub id: String,
    /// `creating`, `running`, `paused`, `destroying` or `failed`.
    pub state: String,
    /// Provider that runs the sandbox.
    pub provider: String,
    /// Image that the sandbox was created from.
    pub image: String,
    /// Memory limit in mebibytes.
    pub memory_mb: u32,
    /// Number of virtual CPUs.
    pub vcpus: u32,
    /// Size limit of the sandbox's file system in mebibytes; absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u32>,
    /// Maximum number of processes and threads at once; 0 if the server does not report it.
    #[serde(default, skip_serializing_if = "is_untold")]
    pub pids: u32,
    /// Time of the spawn request (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Time at which it is destroyed unless extended (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// Labels of the sandbox.
    #[serde(default)]
    pub metadata: StringMap,
    /// Owner charged for the sandbox; absent if the request named none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// Id of the worker that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Reason for the failure; only in state `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Idle time after which it is paused; absent for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_pause: Option<String>,
    /// True while the sandbox is paused on disk and takes no memory; absent otherwise, and if a worker or another
    /// service holds the sandbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_disk: bool,
    /// Memory that was returned to the system; only in the response to a pause with `reclaim`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaimed: Option<Reclaimed>,
    /// Domain below which its ports have host names; only in the response to a spawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_domain: Option<String>,
}

with_spawn_options! {
    /// A sandbox to create. Server defaults apply to absent fields.
    pub struct SpawnRequest {
        /// Owner charged for the sandbox; the header `X-User-ID` overrides it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<OwnerId>)]
        pub owner_id: Option<String>,
        /// Template whose values are the defaults of the other fields.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(min_length = 1)]
        pub template: Option<String>,
        /// Id of the snapshot to start from, instead of an image or a template. The snapshot sets image, provider and
        /// sizes unless the request does; another provider starts the sandbox from an image of the snapshot's files.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(min_length = 1)]
        pub snapshot: Option<String>,
    }
}

/// A new lifetime of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// Lifetime from now, such as `30m`; may be shorter than before.
    #[schema(value_type = Span)]
    pub ttl: String,
}

/// A request to pause a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// True to pause the sandbox even while requests use it; they then wait until it resumes.
    #[serde(default)]
    pub force: bool,
    /// True to return memory of the paused sandbox to the system; also works if it is already paused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reclaim: bool,
    /// True to write the paused sandbox to disk, so that it takes no memory until it resumes; also works if it is
    /// already paused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub to_disk: bool,
}

/// Memory of a paused sandbox before and after the reclaim: everything that counts towards its limit, including the
/// page cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reclaimed {
    /// Memory before the reclaim, in bytes.
    pub memory_before_bytes: u64,
    /// Memory after the reclaim, in bytes.
    pub memory_after_bytes: u64,
    /// Kernel interface that was used: `memory.reclaim` or `memory.force_empty`.
    pub by: String,
}

/// Confirmation of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Completed action: `destroyed`, `written`, `deleted`, `moved`, `chmod applied`.
    pub status: String,
}

/// Result of removing expired sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pruned {
    /// Number of expired sandboxes that were removed.
    pub pruned: u64,
}

/// Returns true for a limit that the server has not told.
fn is_untold(limit: &u32) -> bool {
    *limit == 0
}
