//! Sandboxes: requests and descriptions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Labels, OwnerId, Span, StringMap};

/// An isolated, short-lived environment to run commands in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// Identifier of the sandbox, used in every path.
    pub id: String,
    /// `creating`, `running`, `destroying` or `failed`.
    pub state: String,
    /// Provider that runs the sandbox.
    pub provider: String,
    /// Image that the sandbox was made from.
    pub image: String,
    /// Memory limit in mebibytes.
    pub memory_mb: u32,
    /// Number of virtual CPUs.
    pub vcpus: u32,
    /// Size limit of its own file system in mebibytes; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u32>,
    /// Time of the spawn request (RFC 3339, UTC).
    pub created_at: String,
    /// Time at which it is destroyed unless extended (RFC 3339, UTC).
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
    /// Domain below which its ports have host names; only in the answer to a spawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_domain: Option<String>,
}

/// A sandbox to make. Server defaults apply to absent fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SpawnRequest {
    /// Name of the image, such as `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub image: Option<String>,
    /// Provider to use; the default one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub provider: Option<String>,
    /// Memory limit in mebibytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 16, maximum = 16_777_216)]
    pub memory_mb: Option<u32>,
    /// Number of virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1024)]
    pub vcpus: Option<u32>,
    /// Size limit of its own file system in mebibytes; 0 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 16_777_216)]
    pub disk_mb: Option<u32>,
    /// True to start the image's entry point beside the sandbox's own init; its output is the
    /// console. False if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<bool>,
    /// Lifetime, such as `30m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub ttl: Option<String>,
    /// Labels of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Labels>)]
    pub metadata: Option<StringMap>,
    /// Owner charged for the sandbox; the header `X-User-ID` overrides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<OwnerId>)]
    pub owner_id: Option<String>,
    /// Template whose values are the defaults of the fields above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub template: Option<String>,
}

/// A new lifetime of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// Lifetime from now, such as `30m`; may shorten.
    #[schema(value_type = Span)]
    pub ttl: String,
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
