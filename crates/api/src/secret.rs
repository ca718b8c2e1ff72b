//! Secrets of the operator.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type,
};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::{OwnerId, SecretHost};

/// Most hosts, and most owners, of one secret.
const LISTED_MAX: usize = 100;

/// A secret to store: for requests to hosts, which the server sends it with, or for variables of
/// commands. The former never enters a sandbox.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRequest {
    /// The value, which no answer ever shows.
    pub value: String,
    /// Hosts that it is sent to over HTTPS: names, or all names below one; port 443 if none is given.
    /// None for a secret of commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Name of the header that it is sent in; `authorization` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Form of the header's value: `plain`, `bearer`, or `basic:` followed by a user, with the value as the password.
    /// The default is `bearer`, or `plain` for a header other than `authorization`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
    /// Owners whose sandboxes may use it; all if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<String>,
}

impl PartialSchema for SecretRequest {
    fn schema() -> RefOr<Schema> {
        let text = |pattern: &str, description: &str| {
            let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern));
            text.description(Some(description))
        };
        let optional_text = |pattern: &str, description: &str| {
            text(pattern, description).schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        };
        let null = || ObjectBuilder::new().schema_type(Type::Null);
        let list = |name, description: &str| {
            let list = ArrayBuilder::new().items(Ref::from_schema_name(name)).max_items(Some(LISTED_MAX));
            list.description(Some(description))
        };
        let secret = |title, value: ObjectBuilder| {
            ObjectBuilder::new()
                .title(Some(title))
                .property("value", value.max_length(Some(8192)).write_only(true))
                .property("owners", list(OwnerId::name(), "Owners whose sandboxes may use it; all if absent."))
                .required("value")
                .additional_properties(Some(AdditionalProperties::FreeForm(false)))
        };
        let of_hosts = secret(
            "RequestSecret",
            text(
                r"^[!-~]([ -~]{0,8190}[!-~])?$",
                "The value, which no answer ever shows: printable ASCII characters without leading or trailing spaces.",
            ),
        )
        .property(
            "hosts",
            list(
                SecretHost::name(),
                "Hosts that it is sent to over HTTPS: names, or all names below one; port 443 if none is given.",
            )
            .min_items(Some(1)),
        )
        .property(
            "header",
            optional_text(
                r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$",
                "Name of the header that it is sent in; `authorization` by default.",
            ),
        )
        .property(
            "form",
            optional_text(
                r"^(plain|bearer|basic:[!-9;-~]{0,256})$",
                "Form of the header's value: `plain`, `bearer`, or `basic:` followed by a user, with the value as the \
                 password. The default is `bearer`, or `plain` for a header other than `authorization`.",
            ),
        )
        .required("hosts");
        let of_commands = secret(
            "CommandSecret",
            text(r"^[\x01-\x7f]{1,8192}$", "The value, which no answer ever shows: 1 to 8,192 bytes without NUL."),
        )
        .property("hosts", ArrayBuilder::new().items(Ref::from_schema_name(SecretHost::name())).max_items(Some(0)))
        .property("header", null())
        .property("form", null());
        let either = OneOfBuilder::new().description(Some(
            "A secret that the server adds to requests to its hosts, or a secret for variables of commands. A secret \
             for hosts never enters a sandbox.",
        ));
        RefOr::T(either.item(of_hosts).item(of_commands).into())
    }
}

impl ToSchema for SecretRequest {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((SecretHost::name().into_owned(), SecretHost::schema()));
        schemas.push((OwnerId::name().into_owned(), OwnerId::schema()));
    }
}

impl fmt::Debug for SecretRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretRequest").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// A stored secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    /// Name that policies refer to.
    pub name: String,
    /// Hosts that it is sent to; empty for a secret for commands.
    pub hosts: Vec<String>,
    /// Name of the header that it is sent in; absent for a secret for commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Form of the header's value: `plain`, `bearer`, or `basic:` followed by a user; absent for a secret for commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
    /// Owners whose sandboxes may use it; all if empty.
    pub owners: Vec<String>,
    /// Time of the first save.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Time of the last save.
    #[schema(format = DateTime)]
    pub updated_at: String,
}
