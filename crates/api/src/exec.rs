//! Commands: requests, results and chunks of streamed output.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Argument, Environment, FilePath, SecretVariables, Span, StringMap};

/// Last line on stderr of a stream whose sandbox ended before its command.
pub const SANDBOX_ENDED: &str = "tidebox: the sandbox ended while the command was running\n";
/// Last line on stderr of a stream whose provider failed.
pub const PROVIDER_FAILED: &str = "tidebox: the provider failed while the command was running\n";
/// Start of the line on stderr which reports that the deadline ended a command; the deadline
/// follows.
pub const TIMED_OUT: &str = "tidebox: the command was killed: it exceeded its timeout of ";

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
    /// Interpreter of `command`: a shell, or none.
    #[serde(default)]
    pub mode: ExecMode,
    /// Variables added to the sandbox's environment.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schema(value_type = Environment)]
    pub env: StringMap,
    /// Variables that hold the values of secrets for commands; maps a variable's name to a secret's name.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schema(value_type = SecretVariables)]
    pub env_secret: StringMap,
    /// Absolute path of the directory to start in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FilePath>)]
    pub workdir: Option<String>,
    /// User to run as: `name`, `uid`, `name:group` or `uid:gid`; the sandbox's default user if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    pub user: Option<String>,
    /// Deadline, such as `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub timeout: Option<String>,
    /// True to answer with NDJSON chunks as output is written.
    #[serde(default)]
    pub stream: bool,
    /// Content of the command's stdin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Encoding of `stdin` in this request.
    #[serde(default)]
    pub stdin_encoding: TextEncoding,
    /// Encoding of output in the response.
    #[serde(default)]
    pub encoding: TextEncoding,
    /// True to end a stream with an `exit` chunk.
    #[serde(default)]
    pub exit_event: bool,
    /// True to number the chunks of a stream, and to keep the command for a minute if the connection breaks, so that a
    /// client can resume reading. A background command then waits for its reader instead of losing its oldest output,
    /// and is kept for `linger` without a reader. Only with `stream` or `background`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resumable: bool,
    /// True to have a background process wait for each of its readers while it has any, instead of losing its oldest
    /// output for a slow one; and for its first reader for 30 seconds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paced: bool,
    /// Text that a background process keeps for its caller, at most 4096 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub note: Option<String>,
    /// True to start the command and answer immediately. The command keeps running when the caller disconnects, has no
    /// deadline unless `timeout` sets one, and ends with the sandbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// Name of a background process; unique among the running processes of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[0-9._-]*[A-Za-z][A-Za-z0-9._-]*$", max_length = 64)]
    pub name: Option<String>,
    /// True to keep the stdin of a background process open, for later input.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin_open: bool,
    /// True to give a background process a terminal, whose screen is kept for clients that attach later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tty: bool,
    /// Columns of the terminal; 80 if absent. Only with `tty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 65535)]
    pub cols: Option<u16>,
    /// Rows of the terminal; 24 if absent. Only with `tty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 65535)]
    pub rows: Option<u16>,
    /// Time without a reader after which a background process is killed and removed, such as `1m`. If absent, it is
    /// kept; with `resumable`, it is kept for a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub linger: Option<String>,
}

/// Interpreter of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecMode {
    /// A shell: `/bin/sh -c` runs the command line.
    #[default]
    Shell,
    /// No shell: `command` is a program, `args` are its arguments.
    Argv,
}

/// Encoding of bytes as text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TextEncoding {
    /// Unchanged; in responses, bytes that are not UTF-8 become U+FFFD.
    #[default]
    Utf8,
    /// Standard base64 with padding; exact for any bytes.
    Base64,
}

/// Exit code, output and duration of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecResult {
    /// Exit code: the command's own; 128+n for signal n, 124 at the deadline, 126 not executable,
    /// 127 not found.
    pub exit_code: i32,
    /// Output on stdout, in the requested encoding.
    pub stdout: String,
    /// Output on stderr, in the requested encoding.
    pub stderr: String,
    /// Duration of the command, such as `1.5s`.
    pub duration: String,
    /// True if the deadline ended the command.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// True if the memory limit ended the command or one of its children.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
    /// True if the kernel refused a process or thread while the command ran because the sandbox reached `pids`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pids_exhausted: bool,
    /// True if output was dropped: it exceeded `limits.max_output_bytes`, or the caller's share of
    /// the server's memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// A line of a streamed response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecChunk {
    /// Stream that the data belongs to.
    pub stream: ChunkStream,
    /// Output, the decimal exit code, or the number of missing bytes. Empty in a chunk that only keeps the connection
    /// alive.
    pub data: String,
    /// Sequence number to pass as `from` to continue after this chunk; only for a background process or a resumable
    /// stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// True if the deadline ended the command; on `exit` only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// True if the memory limit ended the command or one of its children; on `exit` only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
    /// True if the kernel refused a process or thread while the command ran because the sandbox reached `pids`; on
    /// `exit` only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pids_exhausted: bool,
}

/// Stream that a chunk belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChunkStream {
    /// Standard output of the command.
    Stdout,
    /// Standard error, and the service's own line on an abnormal end of the stream.
    Stderr,
    /// The exit code; only if the request set `exit_event`, and of every process.
    Exit,
    /// Output that is missing here, since it is no longer kept; only of a process.
    Gap,
}
