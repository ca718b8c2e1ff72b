//! Texts of the terms of a sandbox. Their environment has a column of its own, the last one: it may be large, and only
//! the start of a process needs it.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{PortAccess, ProcessDefaults, SandboxId, Terms};
use serde::{Deserialize, Serialize};

use super::super::error::{Error, Result};
use super::connections::Connections;

/// Terms without their environment, as stored.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    made_of: String,
    #[serde(default)]
    pauses_at_end: bool,
    #[serde(default)]
    wakes: bool,
    ports: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lifetime_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workdir: Option<String>,
}

/// Reads a text that [`text`] wrote.
pub(super) fn terms(text: Option<&str>) -> Result<Option<Box<Terms>>> {
    let read = |text: &str| {
        let Stored { made_of, pauses_at_end, wakes, ports, lifetime_ms, user, workdir } =
            serde_json::from_str(text).ok()?;
        let ports = PortAccess::parse(&ports)?;
        let lifetime = lifetime_ms.map(Duration::from_millis);
        let defaults = ProcessDefaults { env: BTreeMap::new(), user, workdir };
        Some(Box::new(Terms { made_of, defaults, pauses_at_end, wakes, ports, lifetime }))
    };
    text.map(|text| read(text).ok_or_else(|| Error::Corrupt("the terms of a sandbox".to_owned()))).transpose()
}

/// Writes terms, without their environment.
pub(super) fn text(terms: &Terms) -> String {
    let Terms { made_of, defaults, pauses_at_end, wakes, ports, lifetime } = terms;
    let stored = Stored {
        made_of: made_of.clone(),
        pauses_at_end: *pauses_at_end,
        wakes: *wakes,
        ports: ports.as_str().to_owned(),
        lifetime_ms: lifetime.map(|lifetime| u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX)),
        user: defaults.user.clone(),
        workdir: defaults.workdir.clone(),
    };
    serde_json::to_string(&stored).expect("texts are JSON")
}

/// Writes the environment of terms; `None` for an empty one.
pub(super) fn env_text(terms: &Terms) -> Option<String> {
    let env = &terms.defaults.env;
    (!env.is_empty()).then(|| serde_json::to_string(env).expect("texts are JSON"))
}

/// Reads the environment of a sandbox.
pub(super) async fn env(readers: &Connections, id: &SandboxId) -> Result<BTreeMap<String, String>> {
    let found: Option<Option<String>> =
        sqlx::query_scalar("SELECT env FROM sandboxes WHERE id = $1").bind(id.as_str()).fetch_optional(readers).await?;
    let read = |text: String| serde_json::from_str(&text);
    let env = found.flatten().map(read).transpose();
    Ok(env.map_err(|_| Error::Corrupt("the environment of a sandbox".to_owned()))?.unwrap_or_default())
}
