//! Conversions of egress policies and of accounts.

use domain::{EgressEntry, EgressMode, EgressPolicy, SecretUse};

use super::scalars::{shortened, time};
use crate::control::EgressState;
use crate::http::error::{ApiError, malformed};

/// Converts a policy from the API.
pub fn egress_policy(body: &api::EgressPolicy) -> Result<EgressPolicy, ApiError> {
    let mode = match body.mode {
        api::EgressMode::None => EgressMode::None,
        api::EgressMode::AllowList => EgressMode::AllowList,
        api::EgressMode::Open => EgressMode::Open,
    };
    let secrets = body.secrets.iter().enumerate().map(|(index, text)| {
        SecretUse::parse(text)
            .map_err(|error| malformed(format!("`egress.secrets[{index}]`: `{}` {error}", shortened(text))))
    });
    let secrets = secrets.collect::<Result<Vec<_>, _>>()?;
    Ok(EgressPolicy { mode, allow: entries("allow", &body.allow)?, deny: entries("deny", &body.deny)?, secrets })
}

fn entries(field: &str, texts: &[String]) -> Result<Vec<EgressEntry>, ApiError> {
    let entries = texts.iter().enumerate().map(|(index, text)| {
        EgressEntry::parse(text)
            .map_err(|error| malformed(format!("`egress.{field}[{index}]`: `{}` {error}", shortened(text))))
    });
    entries.collect()
}

/// Converts a policy to the API.
pub fn policy(policy: &EgressPolicy) -> api::EgressPolicy {
    let mode = match policy.mode {
        EgressMode::None => api::EgressMode::None,
        EgressMode::AllowList => api::EgressMode::AllowList,
        EgressMode::Open => api::EgressMode::Open,
    };
    api::EgressPolicy {
        mode,
        allow: policy.allow.iter().map(ToString::to_string).collect(),
        deny: policy.deny.iter().map(ToString::to_string).collect(),
        secrets: policy.secrets.iter().map(ToString::to_string).collect(),
    }
}

/// Converts policies and account of a sandbox to the API.
pub fn egress(state: EgressState) -> api::Egress {
    let EgressState { policies, is_enforced, counts, decisions } = state;
    api::Egress {
        policy: policy(&policies.own),
        template_policy: policies.template.as_ref().map(policy),
        enforced: is_enforced,
        open: counts.open,
        allowed: counts.allowed,
        denied: counts.denied,
        failed: counts.failed,
        bytes_sent: counts.bytes_sent,
        bytes_received: counts.bytes_received,
        decisions: decisions
            .into_iter()
            .map(|decision| api::EgressDecision {
                time: time(decision.at),
                host: decision.host,
                port: decision.port,
                address: decision.address.map(|address| address.to_string()),
                verdict: decision.verdict.as_str().to_owned(),
                reason: decision.reason,
            })
            .collect(),
    }
}
