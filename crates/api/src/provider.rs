//! Providers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::StringMap;

/// Whether a provider can be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderHealth {
    /// Its name.
    pub name: String,
    /// Whether it can make sandboxes now.
    pub healthy: bool,
    /// Whether it is used when a request names none.
    pub default: bool,
    /// How long the check took, in milliseconds.
    pub latency_ms: u64,
    /// When it was checked last (RFC 3339, UTC).
    pub last_checked: String,
    /// Why it is not healthy; only then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The version of what is behind it, such as a Docker Engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What it could start boxes with, by name; absent where there is no choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runtimes: Vec<String>,
    /// How many boxes of ours it holds; with the capability `runtime_inventory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_count: Option<u64>,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// What this host lacks for it, with what to do about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// A request that has nothing to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Empty {}

/// All about one provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderDetail {
    /// Its name.
    pub name: String,
    /// Whether it can make sandboxes now.
    pub healthy: bool,
    /// Whether it is used when a request names none.
    pub default: bool,
    /// How many active sandboxes it runs.
    pub sandbox_count: u64,
    /// Its last check.
    pub health: ProviderHealth,
    /// How it works here.
    pub config: ProviderConfig,
}

/// How a provider works on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderConfig {
    /// What runs the boxes, such as `namespaces`.
    pub runtime: String,
    /// Which network a box sees, such as `loopback`.
    pub network_mode: String,
    /// How boxes are kept apart from the host: `vm`, `container` or `none`.
    pub isolation: String,
    /// Who holds each limit: `hard` (the kernel), `soft` (the box itself) or `none`.
    pub limits: StringMap,
}
