//! Snapshots of sandboxes, and forks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Labels, Span, StringMap};

/// A snapshot that sandboxes can be made of. A provider that keeps snapshots has the capability
/// `snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotSummary {
    /// Identifier of the snapshot.
    pub id: String,
    /// `sandbox` for one that was taken of a sandbox. `image` for one that the provider takes by itself, of a
    /// machine that has booted an image and run nothing, and makes the sandboxes of that image from. `warm_pool`
    /// for one of a box in which the commands of an entry of the warm pool have run. No spawn names one of the
    /// last two.
    pub kind: String,
    /// Name that the caller gave it, or that of the entry of the warm pool; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Owner of the sandbox that it was taken of; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// Sandbox that it was taken of; absent for one of an image or of the warm pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// Provider that keeps it, and makes the sandboxes of it.
    pub provider: String,
    /// Image of the sandbox that it was taken of; the digest for one of an image.
    pub image: String,
    /// Release of the kernel that sandboxes of it run on.
    pub kernel: String,
    /// Bytes that it takes where it is kept.
    pub size_bytes: u64,
    /// True if it has the memory and the processes of the sandbox, and not only its files.
    pub memory: bool,
    /// Time at which it was taken (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub created_at: String,
}

/// A snapshot to take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRequest {
    /// Name for people, which need not be unique: letters, digits, `.`, `_` and `-`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9._-]{1,64}$")]
    pub name: Option<String>,
    /// True to keep the memory and the processes too, false for the files alone; unless set, what the provider
    /// keeps.
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
