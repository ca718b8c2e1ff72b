//! Snapshots of sandboxes, and forks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Labels, Span, StringMap};

/// A snapshot that sandboxes can start from. A provider that supports snapshots has the capability `snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotSummary {
    /// Identifier of the snapshot.
    pub id: String,
    /// `sandbox` for a snapshot of a sandbox, `template` for the files of a template that was built. `image` for one that the provider takes of a machine right after it has
    /// booted an image, and starts the sandboxes of that image from. `warm_pool` for one of a box in which the commands
    /// of a warm pool entry have run. A spawn cannot name the latter two.
    pub kind: String,
    /// Name from the caller, or the name of the warm pool entry; absent without a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Owner of the source sandbox; absent without an owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// Source sandbox; absent for a snapshot of an image or of the warm pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// Provider that stores it and starts sandboxes from it.
    pub provider: String,
    /// Image of the source sandbox; for a snapshot of an image, its digest.
    pub image: String,
    /// Release of the kernel that sandboxes from this snapshot run on.
    pub kernel: String,
    /// Bytes of storage that it uses.
    pub size_bytes: u64,
    /// True if it includes the sandbox's memory and processes, not only its files.
    pub memory: bool,
    /// Time at which it was taken (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub created_at: String,
}

/// A snapshot to take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRequest {
    /// Display name, which need not be unique: letters, digits, `.`, `_` and `-`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9._-]{1,64}$")]
    pub name: Option<String>,
    /// True to include memory and processes, false for files only; the provider's default unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

/// Copies of a sandbox to make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// Number of copies; 1 unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub count: Option<u32>,
    /// Lifetime of the copies, such as `30m`; the server's default unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub ttl: Option<String>,
    /// Labels of the copies, in addition to the sandbox's; a value here replaces the sandbox's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Labels>)]
    pub metadata: Option<StringMap>,
}
