//! Providers: health, configuration and capabilities.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::StringMap;

/// Result of the last check of a provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderHealth {
    /// Name of the provider.
    pub name: String,
    /// True if it can make sandboxes now.
    pub healthy: bool,
    /// True if requests that name no provider use it.
    pub default: bool,
    /// Duration of the check, in milliseconds.
    pub latency_ms: u64,
    /// Time of the last check (RFC 3339, UTC).
    pub last_checked: String,
    /// Reason for being unhealthy; absent while healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Version of the software behind the provider, such as Docker Engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Names of the runtimes that it can start boxes with; absent if there is only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runtimes: Vec<String>,
    /// Number of this service's boxes on the provider; only with the capability `runtime_inventory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_count: Option<u64>,
    /// Capabilities of the provider, such as `runtime_inventory`.
    pub capabilities: Vec<String>,
    /// Missing host features that the provider needs, each with its remedy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// A request body without fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Empty {}

/// A provider with its configuration and last check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderDetail {
    /// Name of the provider.
    pub name: String,
    /// True if it can make sandboxes now.
    pub healthy: bool,
    /// True if requests that name no provider use it.
    pub default: bool,
    /// Number of active sandboxes that it runs.
    pub sandbox_count: u64,
    /// Result of its last check.
    pub health: ProviderHealth,
    /// Configuration of the provider on this host.
    pub config: ProviderConfig,
}

/// Configuration of a provider on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderConfig {
    /// Runtime of the boxes, such as `namespaces`.
    pub runtime: String,
    /// Network that a box sees, such as `loopback`.
    pub network_mode: String,
    /// Isolation of boxes from the host: `vm`, `container` or `none`.
    pub isolation: String,
    /// Enforcement of each limit, by name: `hard` (by the kernel), `soft` (by the box itself) or `none`.
    pub limits: StringMap,
}
