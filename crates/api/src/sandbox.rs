//! Sandboxes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Labels, OwnerId, Span, StringMap};

/// An isolated, short-lived place to run commands in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// Names it in every path.
    pub id: String,
    /// `creating`, `running`, `destroying` or `failed`.
    pub state: String,
    /// The provider that runs it.
    pub provider: String,
    /// The image that it was made from.
    pub image: String,
    /// Memory limit in mebibytes.
    pub memory_mb: u32,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Bound of its own file system in mebibytes; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u32>,
    /// When it was asked for (RFC 3339, UTC).
    pub created_at: String,
    /// When it is destroyed unless extended (RFC 3339, UTC).
    pub expires_at: String,
    /// Labels.
    #[serde(default)]
    pub metadata: StringMap,
    /// Whom it counts for; absent if nobody was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// The worker that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Why it failed; only in state `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Domain below which its ports have host names; on spawn responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_domain: Option<String>,
}

/// What to make. Server defaults apply to what is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SpawnRequest {
    /// The image's name, such as `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub image: Option<String>,
    /// The provider to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub provider: Option<String>,
    /// Memory limit in mebibytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 16, maximum = 16_777_216)]
    pub memory_mb: Option<u32>,
    /// Virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1024)]
    pub vcpus: Option<u32>,
    /// Bound of an own file system in mebibytes; 0 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 16_777_216)]
    pub disk_mb: Option<u32>,
    /// Whether to start the image's entry point beside the sandbox's own init; its output is the console. Left out: no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<bool>,
    /// Lifetime, such as `30m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub ttl: Option<String>,
    /// Labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Labels>)]
    pub metadata: Option<StringMap>,
    /// Whom it counts for; the header `X-User-ID` overrides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<OwnerId>)]
    pub owner_id: Option<String>,
    /// A template whose values are the defaults of the fields above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub template: Option<String>,
}

/// A new lifetime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// Lifetime from now, such as `30m`; may shorten.
    #[schema(value_type = Span)]
    pub ttl: String,
}

/// That something was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// What was done: `destroyed`, `written`, `deleted`, `moved`, `chmod applied`.
    pub status: String,
}

/// What a prune removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pruned {
    /// How many expired sandboxes.
    pub pruned: u64,
}
