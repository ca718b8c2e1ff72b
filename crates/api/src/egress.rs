//! Connections out of a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::{EgressEntry, SecretUse};

/// Most entries of a policy.
const ENTRIES_MAX: usize = 1000;
/// Most secrets of a policy.
const SECRETS_MAX: usize = 50;

/// Connections that a policy lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EgressMode {
    /// None.
    None,
    /// Those to the targets in `allow`.
    AllowList,
    /// All but those to the targets in `deny`.
    Open,
}

/// Policy on connections out of a sandbox.
///
/// A target is a host (`pypi.org`), all names below one (`*.example.net`), an address or a network
/// (`10.0.0.0/8`), each with or without a port (`pypi.org:443`); or a list of the operator
/// (`@packages`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressPolicy {
    /// Connections that are allowed.
    pub mode: EgressMode,
    /// Targets that `allow-list` allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Targets that no mode allows; takes precedence over `allow`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// Secrets of the operator that the server puts into requests to the hosts that they are bound to:
    /// `name`, or `name@host` to narrow one to a host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
}

impl PartialSchema for EgressPolicy {
    fn schema() -> RefOr<Schema> {
        let policies = OneOfBuilder::new()
            .description(Some(
                "Policy for connections out of a sandbox; at most 1,000 entries and 32 KiB in total. `allow` is only \
                 for `allow-list`, and `secrets` is not for `none`.",
            ))
            .item(policy_schema("AllowListEgress", EgressMode::AllowList, ENTRIES_MAX, SECRETS_MAX))
            .item(policy_schema("OpenEgress", EgressMode::Open, 0, SECRETS_MAX))
            .item(policy_schema("NoEgress", EgressMode::None, 0, 0));
        RefOr::T(policies.into())
    }
}

/// Returns the schema of the policies with one mode.
fn policy_schema(title: &str, mode: EgressMode, allowed_max: usize, secrets_max: usize) -> ObjectBuilder {
    let mode = ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some([serde_json::json!(mode)]))
        .description(Some("Connections that are allowed."));
    let secrets = ArrayBuilder::new()
        .items(Ref::from_schema_name(SecretUse::name()))
        .max_items(Some(secrets_max))
        .description(Some("Secrets that the server sends to the hosts they are bound to."));
    ObjectBuilder::new()
        .title(Some(title))
        .property("mode", mode)
        .property("allow", entries_schema(allowed_max, "Targets that `allow-list` allows."))
        .property("deny", entries_schema(ENTRIES_MAX, "Targets that no mode allows; takes precedence over `allow`."))
        .property("secrets", secrets)
        .required("mode")
        .additional_properties(Some(AdditionalProperties::FreeForm(false)))
}

fn entries_schema(max: usize, description: &str) -> ArrayBuilder {
    ArrayBuilder::new()
        .items(Ref::from_schema_name(EgressEntry::name()))
        .max_items(Some(max))
        .description(Some(description))
}

impl ToSchema for EgressPolicy {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((EgressEntry::name().into_owned(), EgressEntry::schema()));
        schemas.push((SecretUse::name().into_owned(), SecretUse::schema()));
    }
}

/// Policies and counters of the connections out of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Egress {
    /// The sandbox's own policy.
    pub policy: EgressPolicy,
    /// Policy of the sandbox's template, which also applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_policy: Option<EgressPolicy>,
    /// True if the sandbox has no other network. If false, its processes can bypass the policy.
    pub enforced: bool,
    /// Connections that are open.
    pub open: u64,
    /// Connections made since the server started.
    pub allowed: u64,
    /// Connections that a policy or a limit refused since the server started.
    pub denied: u64,
    /// Connections that failed because of the host since the server started.
    pub failed: u64,
    /// Bytes sent to hosts since the server started.
    pub bytes_sent: u64,
    /// Bytes received from hosts since the server started.
    pub bytes_received: u64,
    /// Latest decisions, newest first, at most 100.
    pub decisions: Vec<EgressDecision>,
}

/// A connection that a process in a sandbox requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressDecision {
    /// Time of the decision; for a connection that was refused later, the time it was closed.
    #[schema(format = DateTime)]
    pub time: String,
    /// Host as the process wrote it.
    pub host: String,
    /// Port of the host.
    pub port: u16,
    /// Address that was dialled, or the first one that was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// `allowed`, `denied` or `failed`.
    pub verdict: String,
    /// Reason of a refusal or failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
