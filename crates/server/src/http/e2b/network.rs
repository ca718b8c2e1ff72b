//! Rules of E2B on connections out of a sandbox, as policies.

use domain::{EgressEntry, EgressMode, EgressPolicy, PortAccess};
use serde::Deserialize;
use serde_json::Value;

use crate::http::error::{Result, malformed};

/// Networks that stand for all hosts.
const ALL: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// Rules of a new sandbox, or new ones of a running one.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    #[serde(alias = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    allow_public_traffic: Option<bool>,
    rules: Option<Value>,
    egress_proxy: Option<Value>,
    dns_servers: Option<Vec<Value>>,
    mask_request_host: Option<Value>,
    https_ports: Option<Vec<Value>>,
}

impl Network {
    /// Returns whom the ports of the sandbox are open to.
    pub fn ports(&self) -> PortAccess {
        if self.allow_public_traffic == Some(false) { PortAccess::Token } else { PortAccess::Public }
    }

    /// Returns the policy on connections. `internet` is the field beside the rules, which closes all that they do not
    /// open.
    ///
    /// # Errors
    /// If a rule has no equal here.
    pub fn policy(&self, internet: Option<bool>) -> Result<EgressPolicy> {
        self.check()?;
        let internet = internet.or(self.allow_internet_access);
        let allow = entries("allowOut", self.allow_out.as_deref())?;
        let denied = self.deny_out.as_deref().unwrap_or_default();
        let denies_all = internet == Some(false) || denied.iter().any(|target| ALL.contains(&target.as_str()));
        if denies_all {
            let mode = if allow.is_empty() { EgressMode::None } else { EgressMode::AllowList };
            return Ok(EgressPolicy { mode, allow, ..EgressPolicy::default() });
        }
        let deny = entries("denyOut", Some(denied))?;
        if !allow.is_empty() && !deny.is_empty() {
            return Err(malformed(
                "`network.allowOut` cannot make exceptions from a `network.denyOut` that does not deny everything; deny \
                 `0.0.0.0/0`, or leave one of them out",
            ));
        }
        Ok(EgressPolicy { mode: EgressMode::Open, deny, ..EgressPolicy::default() })
    }

    /// Refuses by name what would change the isolation of the sandbox and is not supported.
    fn check(&self) -> Result<()> {
        let is_given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !is_empty(value));
        let are_given = |values: &Option<Vec<Value>>| values.as_ref().is_some_and(|values| !values.is_empty());
        for (field, given) in [
            ("rules", is_given(&self.rules)),
            ("egressProxy", is_given(&self.egress_proxy)),
            ("dnsServers", are_given(&self.dns_servers)),
            ("maskRequestHost", is_given(&self.mask_request_host)),
            ("httpsPorts", are_given(&self.https_ports)),
        ] {
            if given {
                return Err(malformed(format!("`network.{field}` is not supported by this server; leave it out")));
            }
        }
        Ok(())
    }
}

/// Returns whether a value says nothing.
pub fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn entries(field: &str, texts: Option<&[String]>) -> Result<Vec<EgressEntry>> {
    let parse = |text: &String| match EgressEntry::parse(text) {
        Ok(EgressEntry::List(_)) => Err(malformed(format!("`network.{field}`: `{text}` is no host or network"))),
        Ok(entry) => Ok(entry),
        Err(error) => Err(malformed(format!("`network.{field}`: `{text}` {error}"))),
    };
    texts.unwrap_or_default().iter().map(parse).collect()
}

#[cfg(test)]
mod test {
    use serde_json::json;

    use super::*;

    fn policy(network: Value, internet: Option<bool>) -> Result<(EgressMode, Vec<String>, Vec<String>), String> {
        let network: Network = serde_json::from_value(network).unwrap();
        let policy = network.policy(internet).map_err(|error| error.message())?;
        let texts = |entries: &[EgressEntry]| entries.iter().map(ToString::to_string).collect();
        Ok((policy.mode, texts(&policy.allow), texts(&policy.deny)))
    }

    #[test]
    fn rules_become_the_policy_that_lets_the_same_connections_through() {
        use EgressMode::{AllowList, None as Nothing, Open};
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        for (network, internet, mode, allow, deny) in [
            (json!({}), None, Open, &[][..], &[][..]),
            (json!({}), Some(true), Open, &[], &[]),
            (json!({}), Some(false), Nothing, &[], &[]),
            (json!({"allowOut": ["1.1.1.1"]}), Some(false), AllowList, &["1.1.1.1"], &[]),
            (json!({"denyOut": ["0.0.0.0/0"]}), None, Nothing, &[], &[]),
            (json!({"denyOut": ["0.0.0.0/0"], "allowOut": ["example.org"]}), None, AllowList, &["example.org"], &[]),
            (json!({"denyOut": ["8.8.8.0/24"]}), None, Open, &[], &["8.8.8.0/24"]),
            (json!({"allowOut": ["1.1.1.1"]}), None, Open, &[], &[]),
            (json!({"allowInternetAccess": false}), None, Nothing, &[], &[]),
            (json!({"rules": {}, "dnsServers": [], "egressProxy": null}), None, Open, &[], &[]),
        ] {
            let expected = Ok((mode, list(allow), list(deny)));
            assert_eq!(policy(network.clone(), internet), expected, "{network} {internet:?}");
        }
    }

    #[test]
    fn what_has_no_equal_is_refused_by_name() {
        for (network, word) in [
            (json!({"rules": {"a": []}}), "`network.rules`"),
            (json!({"egressProxy": {"address": "x"}}), "`network.egressProxy`"),
            (json!({"dnsServers": ["1.1.1.1"]}), "`network.dnsServers`"),
            (json!({"maskRequestHost": "x"}), "`network.maskRequestHost`"),
            (json!({"httpsPorts": [1]}), "`network.httpsPorts`"),
            (json!({"allowOut": ["1.1.1.1"], "denyOut": ["1.1.1.0/24"]}), "`network.allowOut`"),
            (json!({"denyOut": ["a b"]}), "`network.denyOut`"),
            (json!({"denyOut": ["@list"]}), "`network.denyOut`"),
        ] {
            let refused = policy(network.clone(), None).unwrap_err();
            assert!(refused.contains(word), "{network}: {refused}");
        }
    }

    #[test]
    fn ports_are_public_unless_the_rules_say_otherwise() {
        for (network, expected) in [
            (json!({}), PortAccess::Public),
            (json!({"allowPublicTraffic": true}), PortAccess::Public),
            (json!({"allowPublicTraffic": false}), PortAccess::Token),
        ] {
            assert_eq!(serde_json::from_value::<Network>(network).unwrap().ports(), expected);
        }
    }
}
