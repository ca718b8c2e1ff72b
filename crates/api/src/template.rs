//! Templates: named spawn requests.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::spawn_options::with_spawn_options;
use crate::{OwnerId, StringMap, TemplateName};

/// A stored template: a named set of defaults for spawns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    /// Name of the template, used in every path.
    pub name: String,
    /// Owner; absent for a template of the operator, which every owner may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// Name of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Memory limit in mebibytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// Number of virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Size limit of the sandbox's file system in mebibytes; 0 for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u32>,
    /// Maximum number of processes and threads at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// True to start the image's entry point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<bool>,
    /// Lifetime in the form `1h30m0s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// Name of the provider to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Labels of a sandbox.
    #[serde(default)]
    pub metadata: StringMap,
    /// Connections out of a sandbox, which a spawn can only restrict further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<crate::EgressPolicy>,
    /// Idle time after which a sandbox is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_pause: Option<String>,
    /// Snapshot that a build made, which sandboxes start from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Commands that run before a sandbox counts as running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare: Option<Vec<crate::PrepareCommand>>,
    /// Time at which it was first saved (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Time at which it was last saved (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub updated_at: String,
}

with_spawn_options! {
    /// A template to store.
    pub struct TemplateRequest {
        /// Name of 1 to 128 characters: letters, digits, `.`, `_` and `-`.
        #[schema(value_type = TemplateName)]
        pub name: String,
    }
}

with_spawn_options! {
    /// Values that override the template's; labels are added to the template's.
    pub struct TemplateSpawnRequest {
        /// Owner charged for the sandbox; the header `X-User-ID` overrides it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<OwnerId>)]
        pub owner_id: Option<String>,
    }
}
