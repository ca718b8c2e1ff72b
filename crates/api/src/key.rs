//! Keys of owners.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::OwnerId;

/// Part of the API that a key of an owner opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum KeyScope {
    /// Read the owner's sandboxes, and its quota.
    #[serde(rename = "sandboxes:read")]
    SandboxesRead,
    /// Create, use and destroy the owner's sandboxes; includes `sandboxes:read`.
    #[serde(rename = "sandboxes:write")]
    SandboxesWrite,
    /// Take, list and remove snapshots of the owner's sandboxes.
    #[serde(rename = "snapshots")]
    Snapshots,
    /// Manage the owner's templates, and read the operator's.
    #[serde(rename = "templates")]
    Templates,
    /// List images.
    #[serde(rename = "images")]
    Images,
    /// List the secrets that the owner may use, without their values.
    #[serde(rename = "secrets")]
    Secrets,
    /// Receive events of the owner's sandboxes.
    #[serde(rename = "events")]
    Events,
    /// Read the metrics of the whole service.
    #[serde(rename = "metrics")]
    Metrics,
}

/// Form of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyFormat {
    /// `tbx_` and 40 hexadecimal digits.
    Tidebox,
    /// `e2b_` and 40 hexadecimal digits, for clients that demand this form.
    E2b,
}

/// A key to create.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnerKeyRequest {
    /// Owner that requests with the key act as.
    #[schema(value_type = OwnerId)]
    pub owner_id: String,
    /// Display name: 1 to 64 characters; need not be unique.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    pub name: Option<String>,
    /// Parts of the API that the key opens. The default is `sandboxes:write`, `snapshots`, `templates` and `events`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1)]
    pub scopes: Option<Vec<KeyScope>>,
    /// Time after which the key expires, such as `720h`; never if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::Span>)]
    pub ttl: Option<String>,
    /// Form of the key; `tidebox` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<KeyFormat>,
}

/// A key of an owner, without its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerKey {
    /// Identifier, which opens nothing.
    pub id: String,
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Owner that requests with the key act as.
    pub owner_id: String,
    /// Parts of the API that the key opens.
    pub scopes: Vec<String>,
    /// First characters of the key.
    pub prefix: String,
    /// Time of its creation (RFC 3339, UTC).
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Time from which it opens nothing (RFC 3339, UTC); absent for a key that does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    /// Time at which it was revoked (RFC 3339, UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub revoked_at: Option<String>,
    /// Time of the last request with it (RFC 3339, UTC); absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub last_used_at: Option<String>,
}

/// A key that was created. No later response contains its text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedOwnerKey {
    /// The key without its text.
    pub key: OwnerKey,
    /// The text to send as `X-API-Key`.
    pub secret: String,
}

impl fmt::Debug for CreatedOwnerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreatedOwnerKey").field("key", &self.key).finish_non_exhaustive()
    }
}
