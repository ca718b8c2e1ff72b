//! Commands that run before a sandbox counts as running.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Argument, CodeLanguage, Environment, ExecMode, FilePath, Span, StringMap};

/// A command that runs before a sandbox counts as running. If it fails or exceeds its deadline, the spawn fails.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PrepareCommand {
    /// A shell command line, or a program with `mode: argv`.
    #[schema(pattern = r"^[^\x00]+$")]
    pub command: String,
    /// Arguments: quoted and appended to the command line, or passed as they are
    /// with `mode: argv`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Argument>)]
    pub args: Vec<String>,
    /// Interpreter of `command`: a shell, or none.
    #[serde(default)]
    pub mode: ExecMode,
    /// Language of `command`, which then is code for the default context of the language: the context is there with
    /// its state when the sandbox runs. Only with `timeout`, and with `workdir`, `user` and `env` of the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<CodeLanguage>,
    /// Variables added to the sandbox's environment.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schema(value_type = Environment)]
    pub env: StringMap,
    /// Absolute path of the directory to start in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FilePath>)]
    pub workdir: Option<String>,
    /// User to run as: `name`, `uid`, `name:group` or `uid:gid`; the sandbox's default user if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub user: Option<String>,
    /// Deadline, such as `30s`; a background command has none unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub timeout: Option<String>,
    /// True to start the command as a background process of the sandbox and continue immediately.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// Name of the background process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[0-9._-]*[A-Za-z][A-Za-z0-9._-]*$", max_length = 64)]
    pub name: Option<String>,
    /// True to keep the stdin of the background process open, for later input.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin_open: bool,
}
