//! Commands.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Argument, Environment, FilePath, Span, StringMap};

/// The last line on stderr of a stream whose sandbox ended before its command.
pub const SANDBOX_ENDED: &str = "tidebox: the sandbox ended while the command was running\n";
/// The last line on stderr of a stream whose provider failed.
pub const PROVIDER_FAILED: &str = "tidebox: the provider failed while the command was running\n";
/// How the line on stderr begins that says that the deadline ended a command.
pub const TIMED_OUT: &str = "tidebox: the command was killed: it ran into its timeout of ";

/// A command to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// A shell command line, or a program with `mode: argv`.
    #[schema(pattern = r"^[^\x00]+$")]
    pub command: String,
    /// Arguments: quoted and appended to the command line, or passed as they are
    /// with `mode: argv`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Argument>)]
    pub args: Vec<String>,
    /// Whether a shell reads `command`.
    #[serde(default)]
    pub mode: ExecMode,
    /// Added to the sandbox's environment.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schema(value_type = Environment)]
    pub env: StringMap,
    /// Absolute directory to start in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FilePath>)]
    pub workdir: Option<String>,
    /// `name`, `uid`, `name:group` or `uid:gid`; the box's own user if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub user: Option<String>,
    /// Deadline, such as `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub timeout: Option<String>,
    /// Whether to answer with NDJSON chunks as they are written.
    #[serde(default)]
    pub stream: bool,
    /// What the command reads from stdin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// How `stdin` is written here.
    #[serde(default)]
    pub stdin_encoding: TextEncoding,
    /// How output is written in the answer.
    #[serde(default)]
    pub encoding: TextEncoding,
    /// Whether a stream ends with an `exit` chunk.
    #[serde(default)]
    pub exit_event: bool,
}

/// Who reads the command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecMode {
    /// `/bin/sh -c`.
    #[default]
    Shell,
    /// Nobody: `command` is a program, `args` are its arguments.
    Argv,
}

/// How bytes are written as text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TextEncoding {
    /// As they are; in answers, bytes that are no UTF-8 become U+FFFD.
    #[default]
    Utf8,
    /// Exact: standard base64 with padding.
    Base64,
}

/// How a command ended and what it wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecResult {
    /// Its own code; 128+n for signal n, 124 at the deadline, 126 not executable, 127 not found.
    pub exit_code: i32,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
    /// How long it ran, such as `1.5s`.
    pub duration: String,
    /// The deadline ended it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// The memory limit ended it or one of its children.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
    /// Output beyond `limits.max_output_bytes`, or beyond what the caller may hold of the server's memory, was dropped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// One line of a streamed answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecChunk {
    /// Where the data belongs.
    pub stream: ChunkStream,
    /// What was written, or the exit code in decimal. Empty to keep the connection alive.
    pub data: String,
    /// The deadline ended it; on `exit` only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// The memory limit ended it; on `exit` only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
}

/// What a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChunkStream {
    /// Standard output.
    Stdout,
    /// Standard error, and the service's own words on how a stream ended.
    Stderr,
    /// The exit code; only if `exit_event` asked for it.
    Exit,
}
