//! Templates: named spawn requests.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Labels, OwnerId, Span, StringMap, TemplateName};

/// A stored template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    /// Names it in every path.
    pub name: String,
    /// See [`crate::SpawnRequest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Memory limit in mebibytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// Virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Bound of an own file system in mebibytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u32>,
    /// Whether the image's entry point is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<bool>,
    /// Lifetime in the form `1h30m0s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// The provider to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Labels.
    #[serde(default)]
    pub metadata: StringMap,
    /// When it was first saved (RFC 3339, UTC).
    pub created_at: String,
    /// When it was last saved (RFC 3339, UTC).
    pub updated_at: String,
}

/// A template to store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateRequest {
    /// 1 to 128 characters: letters, digits, `.`, `_` and `-`.
    #[schema(value_type = TemplateName)]
    pub name: String,
    /// See [`crate::SpawnRequest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub image: Option<String>,
    /// Memory limit in mebibytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 16, maximum = 16_777_216)]
    pub memory_mb: Option<u32>,
    /// Virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1024)]
    pub vcpus: Option<u32>,
    /// Bound of an own file system in mebibytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 16_777_216)]
    pub disk_mb: Option<u32>,
    /// Whether to start the image's entry point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<bool>,
    /// Lifetime, such as `30m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub ttl: Option<String>,
    /// The provider to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub provider: Option<String>,
    /// Labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Labels>)]
    pub metadata: Option<StringMap>,
}

/// New values for a template; what is left out is cleared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateBody {
    /// See [`crate::SpawnRequest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub image: Option<String>,
    /// Memory limit in mebibytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 16, maximum = 16_777_216)]
    pub memory_mb: Option<u32>,
    /// Virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1024)]
    pub vcpus: Option<u32>,
    /// Bound of an own file system in mebibytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 16_777_216)]
    pub disk_mb: Option<u32>,
    /// Whether to start the image's entry point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<bool>,
    /// Lifetime, such as `30m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub ttl: Option<String>,
    /// The provider to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub provider: Option<String>,
    /// Labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Labels>)]
    pub metadata: Option<StringMap>,
}

/// Values that win over the template's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateSpawnRequest {
    /// See [`crate::SpawnRequest`].
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
    /// Bound of an own file system in mebibytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 16_777_216)]
    pub disk_mb: Option<u32>,
    /// Whether to start the image's entry point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<bool>,
    /// Lifetime, such as `30m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub ttl: Option<String>,
    /// Labels, added to the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Labels>)]
    pub metadata: Option<StringMap>,
    /// Whom it counts for; the header `X-User-ID` overrides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<OwnerId>)]
    pub owner_id: Option<String>,
}
