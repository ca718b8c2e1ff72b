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
    /// The value, never shown in a response.
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
        let of_hosts = secret_schema(
            "RequestSecret",
            text_schema(
                r"^[!-~]([ -~]{0,8190}[!-~])?$",
                "The value, never shown in a response: printable ASCII characters without leading or trailing spaces.",
            ),
        )
        .property(
            "hosts",
            list_schema(
                &SecretHost::name(),
                "Hosts that it is sent to over HTTPS: names, or all names below one; port 443 if none is given.",
            )
            .min_items(Some(1)),
        )
        .property(
            "header",
            optional_text_schema(
                r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$",
                "Name of the header that it is sent in; `authorization` by default.",
            ),
        )
        .property(
            "form",
            optional_text_schema(
                r"^(plain|bearer|basic:[!-9;-~]{0,256})$",
                "Form of the header's value: `plain`, `bearer`, or `basic:` followed by a user, with the value as the \
                 password. The default is `bearer`, or `plain` for a header other than `authorization`.",
            ),
        )
        .required("hosts");
        let of_commands = secret_schema(
            "CommandSecret",
            text_schema(
                r"^[\x01-\x7f]{1,8192}$",
                "The value, never shown in a response: 1 to 8,192 bytes without NUL.",
            ),
        )
        .property("hosts", ArrayBuilder::new().items(Ref::from_schema_name(SecretHost::name())).max_items(Some(0)))
        .property("header", ObjectBuilder::new().schema_type(Type::Null))
        .property("form", ObjectBuilder::new().schema_type(Type::Null));
        let either = OneOfBuilder::new().description(Some(
            "A secret that the server adds to requests to its hosts, or a secret for variables of commands. A secret \
             for hosts never enters a sandbox.",
        ));
        RefOr::T(either.item(of_hosts).item(of_commands).into())
    }
}

/// Returns the schema of the fields that secrets for hosts and secrets for commands share.
fn secret_schema(title: &str, value: ObjectBuilder) -> ObjectBuilder {
    ObjectBuilder::new()
        .title(Some(title))
        .property("value", value.max_length(Some(8192)).write_only(true))
        .property("owners", list_schema(&OwnerId::name(), "Owners whose sandboxes may use it; all if absent."))
        .required("value")
        .additional_properties(Some(AdditionalProperties::FreeForm(false)))
}

fn text_schema(pattern: &str, description: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).description(Some(description))
}

fn optional_text_schema(pattern: &str, description: &str) -> ObjectBuilder {
    text_schema(pattern, description).schema_type(SchemaType::from_iter([Type::String, Type::Null]))
}

/// Returns the schema of a list whose items have the schema `item`.
fn list_schema(item: &str, description: &str) -> ArrayBuilder {
    ArrayBuilder::new().items(Ref::from_schema_name(item)).max_items(Some(LISTED_MAX)).description(Some(description))
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
