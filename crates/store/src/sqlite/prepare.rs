//! Texts of the commands that run before a sandbox counts as running.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::PrepareCommand;
use serde::{Deserialize, Serialize};

use super::super::error::{Error, Result};

/// A command, as stored.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    command: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    args: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_argv: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    language: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workdir: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    background: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    stdin_open: bool,
}

/// Returns the text of a template's commands.
pub(super) fn prepare_text(commands: Option<&[PrepareCommand]>) -> Option<String> {
    let stored = |command: PrepareCommand| {
        let PrepareCommand {
            command,
            args,
            is_argv,
            language,
            env,
            workdir,
            user,
            timeout,
            background,
            name,
            stdin_open,
        } = command;
        let timeout_ms = timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        Stored { command, args, is_argv, language, env, workdir, user, timeout_ms, background, name, stdin_open }
    };
    let stored = |commands: &[PrepareCommand]| commands.iter().cloned().map(stored).collect::<Vec<_>>();
    commands.map(|commands| serde_json::to_string(&stored(commands)).expect("texts are JSON"))
}

/// Reads a text that [`prepare_text`] wrote.
pub(super) fn prepare(text: Option<&str>) -> Result<Option<Vec<PrepareCommand>>> {
    let loaded = |stored: Stored| {
        let Stored { command, args, is_argv, language, env, workdir, user, timeout_ms, background, name, stdin_open } =
            stored;
        let timeout = timeout_ms.map(Duration::from_millis);
        PrepareCommand { command, args, is_argv, language, env, workdir, user, timeout, background, name, stdin_open }
    };
    let read = |text: &str| serde_json::from_str::<Vec<Stored>>(text);
    let commands = text.map(read).transpose().map_err(|error| Error::Corrupt(format!("prepare: {error}")))?;
    Ok(commands.map(|commands| commands.into_iter().map(loaded).collect()))
}
