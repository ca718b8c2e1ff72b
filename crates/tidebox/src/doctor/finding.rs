//! Findings about the host and the server.

use serde::Serialize;

/// Level of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// Works, but could do more.
    Warn,
    Missing,
}

/// One finding about the host or the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Provider's name, or `host` or `server`.
    pub area: String,
    pub level: Level,
    pub fact: String,
    /// Change or installation that gives more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// Makes a finding without a defect.
    pub fn ok(area: &str, fact: impl Into<String>) -> Finding {
        Finding { area: area.to_owned(), level: Level::Ok, fact: fact.into(), remedy: None }
    }

    /// Makes a finding with a defect and its remedy.
    pub fn lacking(area: &str, level: Level, fact: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { area: area.to_owned(), level, fact: fact.into(), remedy: Some(remedy.into()) }
    }
}
