//! Texts of what builds gave templates.

use std::collections::BTreeMap;

use domain::{BuildId, Built, ProcessDefaults, SnapshotId};
use serde::{Deserialize, Serialize};

use super::super::error::{Error, Result};
use super::prepare::{prepare, prepare_text};

/// Outcome of a build, as stored.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    build: String,
    snapshot: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workdir: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<String>,
}

/// Writes the outcome of a build.
pub(super) fn built_text(built: Option<&Built>) -> Option<String> {
    built.map(|built| {
        let Built { build, snapshot, defaults: ProcessDefaults { env, user, workdir }, start } = built.clone();
        let (build, snapshot) = (build.to_string(), snapshot.to_string());
        let start = (!start.is_empty()).then_some(start);
        let stored = Stored { build, snapshot, env, user, workdir, start: prepare_text(start.as_deref()) };
        serde_json::to_string(&stored).expect("texts are JSON")
    })
}

/// Reads a text that [`built_text`] wrote.
pub(super) fn built(text: Option<&str>) -> Result<Option<Built>> {
    let corrupt = || Error::Corrupt("the build of a template".to_owned());
    let read = |text: &str| {
        let stored: Stored = serde_json::from_str(text).map_err(|_| corrupt())?;
        let Stored { build, snapshot, env, user, workdir, start } = stored;
        Ok(Built {
            build: BuildId::parse(&build).ok_or_else(corrupt)?,
            snapshot: SnapshotId::parse(&snapshot).map_err(|_| corrupt())?,
            defaults: ProcessDefaults { env, user, workdir },
            start: prepare(start.as_deref())?.unwrap_or_default(),
        })
    };
    text.map(read).transpose()
}
