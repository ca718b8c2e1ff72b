//! Texts of policies on connections.

use domain::{EgressEntry, EgressMode, EgressPolicy, SandboxEgress, SecretUse};
use serde::{Deserialize, Serialize};

use super::super::error::{Error, Result};

/// A policy, as stored.
#[derive(Debug, Serialize, Deserialize)]
struct Policy {
    mode: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allow: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deny: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    secrets: Vec<String>,
}

/// Policies of a sandbox, as stored.
#[derive(Debug, Serialize, Deserialize)]
struct Policies {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    template: Option<Policy>,
    own: Policy,
}

fn stored(policy: &EgressPolicy) -> Policy {
    let texts = |entries: &[EgressEntry]| entries.iter().map(ToString::to_string).collect();
    Policy {
        mode: policy.mode.as_str().to_owned(),
        allow: texts(&policy.allow),
        deny: texts(&policy.deny),
        secrets: policy.secrets.iter().map(ToString::to_string).collect(),
    }
}

fn loaded(policy: &Policy) -> Option<EgressPolicy> {
    let entries = |texts: &[String]| texts.iter().map(|text| EgressEntry::parse(text).ok()).collect::<Option<Vec<_>>>();
    let mode = EgressMode::parse(&policy.mode)?;
    let secrets = policy.secrets.iter().map(|text| SecretUse::parse(text).ok()).collect::<Option<_>>()?;
    Some(EgressPolicy { mode, allow: entries(&policy.allow)?, deny: entries(&policy.deny)?, secrets })
}

fn corrupt() -> Error {
    Error::Corrupt("an egress policy".to_owned())
}

/// Returns the text of a template's policy.
pub(super) fn policy_text(policy: Option<&EgressPolicy>) -> Option<String> {
    policy.map(|policy| serde_json::to_string(&stored(policy)).expect("texts are JSON"))
}

/// Reads a text that [`policy_text`] wrote.
pub(super) fn policy(text: Option<&str>) -> Result<Option<EgressPolicy>> {
    let read = |text: &str| loaded(&serde_json::from_str(text).ok()?);
    text.map(|text| read(text).ok_or_else(corrupt)).transpose()
}

/// Returns the text of a sandbox's policies; `None` if they let nothing through and there is no
/// template's, which a later policy would have to keep to.
pub(super) fn policies_text(policies: &SandboxEgress) -> Option<String> {
    if policies.own == EgressPolicy::default() && policies.template.is_none() {
        return None;
    }
    let all = Policies { template: policies.template.as_ref().map(stored), own: stored(&policies.own) };
    Some(serde_json::to_string(&all).expect("texts are JSON"))
}

/// Reads a text that [`policies_text`] wrote.
pub(super) fn policies(text: Option<&str>) -> Result<SandboxEgress> {
    let Some(text) = text else { return Ok(SandboxEgress::default()) };
    let read = || {
        let all: Policies = serde_json::from_str(text).ok()?;
        let template = match &all.template {
            Some(policy) => Some(loaded(policy)?),
            None => None,
        };
        Some(SandboxEgress { template, own: loaded(&all.own)? })
    };
    read().ok_or_else(corrupt)
}
