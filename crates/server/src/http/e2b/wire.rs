//! Types of E2B's control plane, and their conversions.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{PortAccess, ProcessDefaults, State, Terms, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use super::network::{Network, is_empty};
use crate::auth::box_token::{self, Purpose};
use crate::control::{Sandbox, SpawnRequest};
use crate::http::error::{Result, malformed};
use crate::http::state::Api;

/// Version of E2B's agent whose features the data plane has.
const ENVD_VERSION: &str = "0.6.4";
/// Lifetime of a sandbox where a request leaves it out.
pub const TIMEOUT: Duration = Duration::from_secs(300);
/// `clientID` of every sandbox, which no SDK reads.
const CLIENT_ID: &str = "tidebox";
/// Mebibytes that a sandbox reports as its disk where nothing bounds it.
const DISK_MB: u32 = 0;

/// A request for a sandbox. Fields that are not known are ignored: later SDKs send more.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    timeout: Option<u64>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<Network>,
    volume_mounts: Option<Value>,
    iam: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
struct AutoResume {
    #[serde(default)]
    enabled: bool,
}

impl NewSandbox {
    /// Completes the request for a sandbox of a template.
    ///
    /// # Errors
    /// If a field is not supported and would change the isolation or the data of the sandbox.
    pub fn fill(self, request: &mut SpawnRequest) -> Result<()> {
        refuse("volumeMounts", self.volume_mounts.as_ref())?;
        refuse("iam", self.iam.as_ref())?;
        if self.auto_pause_memory == Some(false) {
            return Err(malformed(
                "`autoPauseMemory: false` is not supported: a paused sandbox keeps its memory here; leave it out",
            ));
        }
        let network = self.network.unwrap_or_default();
        request.options.egress = Some(network.policy(self.allow_internet_access)?);
        if let Some(seconds) = self.timeout {
            request.options.ttl = Some(lifetime(seconds)?);
        }
        request.options.metadata.extend(self.metadata.unwrap_or_default());
        request.terms = Some(Terms {
            made_of: self.template_id,
            defaults: ProcessDefaults { env: self.env_vars.unwrap_or_default(), ..ProcessDefaults::default() },
            pauses_at_end: self.auto_pause.unwrap_or(false),
            wakes: self.auto_resume.is_some_and(|resume| resume.enabled),
            ports: network.ports(),
            ..Terms::default()
        });
        Ok(())
    }
}

fn refuse(field: &str, value: Option<&Value>) -> Result<()> {
    if value.is_none_or(is_empty) {
        return Ok(());
    }
    Err(malformed(format!("`{field}` is not supported by this server; leave it out")))
}

/// Converts a lifetime in seconds.
///
/// # Errors
/// If it is 0.
pub fn lifetime(seconds: u64) -> Result<Duration> {
    if seconds == 0 { Err(malformed("`timeout` must be at least 1 second")) } else { Ok(Duration::from_secs(seconds)) }
}

/// A request to connect to a sandbox.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Connect {
    pub timeout: Option<u64>,
    pub memory: Option<bool>,
}

/// A new lifetime.
#[derive(Debug, Clone, Deserialize)]
pub struct Timeout {
    pub timeout: u64,
}

/// A request to pause a sandbox.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Pause {
    pub memory: Option<bool>,
}

/// Refuses a pause, or a resume, without the memory.
///
/// # Errors
/// If `memory` is false.
pub fn check_memory(memory: Option<bool>) -> Result<()> {
    if memory == Some(false) {
        return Err(malformed(
            "`memory: false` is not supported: a paused sandbox keeps its memory here; leave it out",
        ));
    }
    Ok(())
}

/// Returns the answer to whoever made a sandbox, or connects to it.
pub fn sandbox(api: &Api, row: &Sandbox, domain: Option<&str>) -> Value {
    let mut answer = json!({
        "templateID": made_of(row),
        "sandboxID": row.id.as_str(),
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": token(api, Purpose::Access, row),
        "domain": domain,
    });
    if row.terms.as_ref().is_some_and(|terms| terms.ports == PortAccess::Token) {
        answer["trafficAccessToken"] = token(api, Purpose::Traffic, row).into();
    }
    answer
}

/// Returns an entry of the list of sandboxes.
pub fn listed(row: &Sandbox) -> Value {
    let state = if row.state == State::Paused { "paused" } else { "running" };
    json!({
        "templateID": made_of(row),
        "sandboxID": row.id.as_str(),
        "clientID": CLIENT_ID,
        "startedAt": time(row.created_at),
        "endAt": time(row.expires_at),
        "cpuCount": row.resources.vcpus,
        "memoryMB": row.resources.memory_mb,
        "diskSizeMB": disk_mb(row),
        "state": state,
        "envdVersion": ENVD_VERSION,
        "metadata": row.metadata,
    })
}

/// Returns the details of a sandbox, without its token.
pub fn detail(row: &Sandbox, internet: Option<bool>, domain: &str) -> Value {
    let mut detail = listed(row);
    let terms = row.terms.as_deref().cloned().unwrap_or_else(|| Terms { wakes: true, ..Terms::default() });
    let on_timeout = if terms.pauses_at_end { "pause" } else { "kill" };
    detail["domain"] = domain.into();
    detail["allowInternetAccess"] = internet.into();
    detail["network"] = json!({"allowPublicTraffic": terms.ports == PortAccess::Public});
    detail["lifecycle"] = json!({"onTimeout": on_timeout, "autoResume": terms.wakes});
    detail
}

fn made_of(row: &Sandbox) -> &str {
    row.terms.as_ref().map_or(&row.image, |terms| &terms.made_of)
}

fn disk_mb(row: &Sandbox) -> u32 {
    if row.resources.disk_mb == 0 { DISK_MB } else { row.resources.disk_mb }
}

/// Returns the token of a sandbox.
pub fn token(api: &Api, purpose: Purpose, row: &Sandbox) -> String {
    box_token::token(&api.settings.preview_key, purpose, row.id.as_str())
}

/// Formats a time, cut to the milliseconds that are stored: clients send it back as a filter.
pub fn time(at: Timestamp) -> String {
    format!("{:.3}", Timestamp::from_millisecond(at.as_millisecond()).unwrap_or(at))
}

#[cfg(test)]
mod test {
    use super::*;

    fn filled(body: Value) -> Result<SpawnRequest, String> {
        let body: NewSandbox = serde_json::from_value(body).map_err(|error| error.to_string())?;
        let mut request = SpawnRequest::default();
        body.fill(&mut request).map_err(|error| error.message())?;
        Ok(request)
    }

    #[test]
    fn the_least_request_has_the_terms_of_e2b() {
        let request = filled(json!({"templateID": "base", "futureField": {"x": 1}, "secure": true, "mcp": {"a": {}}}));
        let request = request.unwrap();
        let terms = request.terms.unwrap();
        assert_eq!(terms, Terms { made_of: "base".to_owned(), ports: PortAccess::Public, ..Terms::default() });
        assert_eq!(request.options.ttl, None);
        assert_eq!(request.options.egress.unwrap().mode, domain::EgressMode::Open);
    }

    #[test]
    fn every_field_that_is_supported_has_its_place() {
        let request = filled(json!({
            "templateID": "t", "timeout": 7, "metadata": {"k": "v"}, "envVars": {"A": "b"}, "autoPause": true,
            "autoResume": {"enabled": true}, "allow_internet_access": false, "network": {"allowPublicTraffic": false},
        }));
        let request = request.unwrap();
        let terms = request.terms.unwrap();
        assert_eq!(request.options.ttl, Some(Duration::from_secs(7)));
        assert_eq!(request.options.metadata["k"], "v");
        assert_eq!(request.options.egress.unwrap().mode, domain::EgressMode::None);
        assert_eq!((terms.defaults.env["A"].as_str(), terms.pauses_at_end, terms.wakes), ("b", true, true));
        assert_eq!(terms.ports, PortAccess::Token);
    }

    #[test]
    fn what_would_change_isolation_or_data_is_refused_by_name_and_nothing_is_read_loosely() {
        for (field, value) in [
            ("volumeMounts", json!([{"name": "v", "path": "/v"}])),
            ("iam", json!({"role": "x"})),
            ("autoPauseMemory", json!(false)),
            ("timeout", json!(0)),
            ("timeout", json!("60")),
            ("timeout", json!(-1)),
            ("timeout", json!(1.5)),
            ("metadata", json!({"k": 1})),
            ("envVars", json!({"k": null})),
        ] {
            let mut body = json!({"templateID": "base"});
            body[field] = value.clone();
            filled(body).expect_err(&format!("{field} {value}"));
        }
        filled(json!({"templateId": "base"})).unwrap_err();
    }

    #[test]
    fn what_says_nothing_is_not_refused() {
        for (field, value) in [("volumeMounts", json!([])), ("iam", Value::Null), ("autoPauseMemory", json!(true))] {
            let mut body = json!({"templateID": "base"});
            body[field] = value;
            filled(body).unwrap();
        }
    }

    #[test]
    fn times_are_cut_and_never_rounded_up() {
        let at: Timestamp = "2026-11-27T01:02:03.9999999Z".parse().unwrap();
        assert_eq!(time(at), "2026-11-27T01:02:03.999Z");
    }
}
