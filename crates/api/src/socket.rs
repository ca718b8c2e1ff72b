//! Commands over a WebSocket: the messages in both directions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Argument, Environment, ExecMode, FilePath, SecretVariables, Span, StringMap};

/// Subprotocol of the WebSocket that runs a command.
pub const SOCKET_PROTOCOL: &str = "tidebox.v1";
/// Prefix of the subprotocol that carries the API key of a page in a browser: the key follows in
/// base64url without padding.
pub const SOCKET_KEY_PROTOCOL: &str = "tidebox.key.";
/// First byte of a binary frame of output that was written to stdout.
pub const SOCKET_STDOUT: u8 = 1;
/// First byte of a binary frame of output that was written to stderr.
pub const SOCKET_STDERR: u8 = 2;
/// First byte of a frame of a raw stream that holds a [`SocketOutput`] as JSON, or nothing to keep the
/// connection alive. Its other frames begin with [`SOCKET_STDOUT`] or [`SOCKET_STDERR`].
pub const FRAME_MESSAGE: u8 = 0;
/// Media type of a raw stream: frames of a byte for the kind, four for the length (big endian), and the payload.
pub const FRAMES_TYPE: &str = "application/octet-stream";
/// First byte of a binary frame that draws the screen of a terminal; it is not part of the output.
pub const SOCKET_SCREEN: u8 = 3;

/// Value of the field `type` in a client's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SocketKind {
    /// A [`SocketStart`] message.
    Start,
    /// A [`SocketStdin`] message.
    Stdin,
    /// A [`SocketEof`] message.
    Eof,
    /// A [`SocketResize`] message.
    Resize,
    /// A [`SocketSignal`] message.
    Signal,
}

/// The command to run. Sent once, as the first message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SocketStart {
    /// Always `start`.
    #[serde(rename = "type")]
    pub kind: SocketKind,
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
    /// True to give the command a terminal instead of three streams; all its output then arrives as `stdout`.
    #[serde(default)]
    pub tty: bool,
    /// Columns of the terminal; 80 if absent. Only with `tty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 65535)]
    pub cols: Option<u16>,
    /// Rows of the terminal; 24 if absent. Only with `tty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 65535)]
    pub rows: Option<u16>,
    /// True to receive output in binary frames, unchanged: one byte for the stream (1 stdout, 2
    /// stderr), then the output.
    #[serde(default)]
    pub binary: bool,
}

/// Text for the command's stdin. Raw bytes are sent as binary frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SocketStdin {
    /// Always `stdin`.
    #[serde(rename = "type")]
    pub kind: SocketKind,
    /// Text to append to stdin.
    pub data: String,
}

/// The end of stdin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SocketEof {
    /// Always `eof`.
    #[serde(rename = "type")]
    pub kind: SocketKind,
}

/// A new size of the terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SocketResize {
    /// Always `resize`.
    #[serde(rename = "type")]
    pub kind: SocketKind,
    /// Columns of the terminal.
    #[schema(minimum = 1, maximum = 65535)]
    pub cols: u16,
    /// Rows of the terminal.
    #[schema(minimum = 1, maximum = 65535)]
    pub rows: u16,
}

/// A signal for the foreground process group of the terminal or, without a terminal, for the command's process group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SocketSignal {
    /// Always `signal`.
    #[serde(rename = "type")]
    pub kind: SocketKind,
    /// Name of the signal, such as `SIGINT`.
    pub signal: String,
}

/// A message from the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum SocketOutput {
    /// Output on stdout, or on the terminal.
    Stdout {
        /// Output as text; bytes that are not UTF-8 become U+FFFD.
        data: String,
    },
    /// Output on stderr, or a line from the service about an abnormal end of the command.
    Stderr {
        /// Output as text; bytes that are not UTF-8 become U+FFFD.
        data: String,
    },
    /// The screen of the process's terminal, as it was when the client attached.
    Screen {
        /// Text and control sequences that draw the screen. They are not part of the output.
        data: String,
    },
    /// Sequence number of the next output; only for a background process. Sent before the first output, after each
    /// piece of text, and where output is missing.
    Position {
        /// Number of bytes that were written before the next output.
        seq: u64,
    },
    /// Last message: the command ended.
    Exit {
        /// Exit code: the command's own; 128+n for signal n, 124 at the deadline, 126 not
        /// executable, 127 not found.
        exit_code: i32,
        /// True if the deadline ended the command.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        timed_out: bool,
        /// True if the memory limit ended the command or one of its children.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        oom_killed: bool,
        /// True if the kernel refused a process or thread while the command ran because the sandbox reached `pids`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pids_exhausted: bool,
    },
    /// Last message: no exit follows. If the command ran, it was killed, unless it is a background process.
    Error {
        /// Error code, as in every error of the API.
        code: String,
        /// Explanation of the error and of its remedy, in English.
        message: String,
    },
}
