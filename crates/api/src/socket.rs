//! Commands over a WebSocket: the messages in both directions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Argument, Environment, ExecMode, FilePath, Span, StringMap};

/// The subprotocol of the WebSocket that runs a command.
pub const SOCKET_PROTOCOL: &str = "tidebox.v1";
/// How the subprotocol begins by which a page in a browser sends its key: what
/// follows is the key in base64url without padding.
pub const SOCKET_KEY_PROTOCOL: &str = "tidebox.key.";
/// Before the bytes of a binary frame of output: they were written to stdout,
pub const SOCKET_STDOUT: u8 = 1;
/// or to stderr.
pub const SOCKET_STDERR: u8 = 2;

/// What a client's message is, in its field `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SocketKind {
    /// [`SocketStart`].
    Start,
    /// [`SocketStdin`].
    Stdin,
    /// [`SocketEof`].
    Eof,
    /// [`SocketResize`].
    Resize,
    /// [`SocketSignal`].
    Signal,
}

/// The command to run: the first message, and sent once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SocketStart {
    /// `start`.
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
    /// Whether the command gets a terminal instead of three streams; all that it
    /// writes then comes as `stdout`.
    #[serde(default)]
    pub tty: bool,
    /// Characters in a line of the terminal; 80 if absent. Only with `tty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 65535)]
    pub cols: Option<u16>,
    /// Lines of the terminal; 24 if absent. Only with `tty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 65535)]
    pub rows: Option<u16>,
    /// Whether output comes in binary frames, as it is: a byte that says where it
    /// was written (1 stdout, 2 stderr), then what was written.
    #[serde(default)]
    pub binary: bool,
}

/// Text for the command's stdin. Raw bytes are sent as binary frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SocketStdin {
    /// `stdin`.
    #[serde(rename = "type")]
    pub kind: SocketKind,
    /// The text.
    pub data: String,
}

/// The end of stdin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SocketEof {
    /// `eof`.
    #[serde(rename = "type")]
    pub kind: SocketKind,
}

/// Another size of the terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SocketResize {
    /// `resize`.
    #[serde(rename = "type")]
    pub kind: SocketKind,
    /// Characters in a line.
    #[schema(minimum = 1, maximum = 65535)]
    pub cols: u16,
    /// Lines.
    #[schema(minimum = 1, maximum = 65535)]
    pub rows: u16,
}

/// A signal for what is in the foreground of the terminal, or for the command's
/// process group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SocketSignal {
    /// `signal`.
    #[serde(rename = "type")]
    pub kind: SocketKind,
    /// Its name, such as `SIGINT`.
    pub signal: String,
}

/// What the server says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum SocketOutput {
    /// The command wrote to stdout, or to its terminal.
    Stdout {
        /// What; bytes that are no UTF-8 become U+FFFD.
        data: String,
    },
    /// The command wrote to stderr, or the service says how it ended.
    Stderr {
        /// What; bytes that are no UTF-8 become U+FFFD.
        data: String,
    },
    /// The command ended. The last message.
    Exit {
        /// Its own code; 128+n for signal n, 124 at the deadline, 126 not executable, 127 not found.
        exit_code: i32,
        /// The deadline ended it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        timed_out: bool,
        /// The memory limit ended it or one of its children.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        oom_killed: bool,
    },
    /// There will be no exit; if the command ran, it was killed. The last message.
    Error {
        /// As in every error of the API.
        code: String,
        /// What to change.
        message: String,
    },
}
