//! Secrets of the operator.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{OwnerId, SecretHost};

/// A secret to store, with the hosts that it is sent to.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretRequest {
    /// The value, which no answer ever shows: 1 to 8,192 printable ASCII characters without a space at
    /// either end.
    #[schema(pattern = r"^[!-~]([ -~]{0,8190}[!-~])?$", max_length = 8192, write_only)]
    pub value: String,
    /// Hosts that it is sent to, by HTTPS: names, or all names below one, those without a port at 443.
    #[schema(value_type = Vec<SecretHost>, min_items = 1, max_items = 100)]
    pub hosts: Vec<String>,
    /// Name of the header that it is sent in; `authorization` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$", example = "x-api-key")]
    pub header: Option<String>,
    /// Form of the header's value: `plain`, `bearer`, or `basic:` and a user, whose password the value
    /// is. `bearer` if left out, `plain` for a header other than `authorization`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = r"^(plain|bearer|basic:[!-9;-~]{0,256})$", example = "bearer")]
    pub form: Option<String>,
    /// Owners whose sandboxes may use it; all if left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<OwnerId>, max_items = 100)]
    pub owners: Vec<String>,
}

impl fmt::Debug for SecretRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretRequest").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// A stored secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    /// Name by which policies name it.
    pub name: String,
    /// Hosts that it is sent to.
    pub hosts: Vec<String>,
    /// Name of the header that it is sent in.
    pub header: String,
    /// Form of the header's value: `plain`, `bearer`, or `basic:` and a user.
    pub form: String,
    /// Owners whose sandboxes may use it; all if empty.
    pub owners: Vec<String>,
    /// Time of the first save.
    pub created_at: String,
    /// Time of the last save.
    pub updated_at: String,
}
