//! Commands over a WebSocket.

use providers::{Signal, TerminalSize};

use super::super::error::{ApiError, malformed};
use super::{exec_request, shortened};
use crate::control::ExecRequest;

/// How large a terminal is of which nobody says it.
const SIZE_DEFAULT: (u16, u16) = (80, 24);

/// What a first message asks for.
#[derive(Debug)]
pub struct SocketCommand {
    /// The command.
    pub request: ExecRequest,
    /// Its terminal, if it is to have one.
    pub terminal: Option<TerminalSize>,
    /// Whether its output is sent as it is.
    pub binary: bool,
}

/// Reads a first message.
pub fn socket_start(body: api::SocketStart) -> Result<SocketCommand, ApiError> {
    let api::SocketStart { kind: _, command, args, mode, env, workdir, user, timeout, tty, cols, rows, binary } = body;
    let terminal = match (tty, cols, rows) {
        (true, cols, rows) => Some(terminal_size(cols.unwrap_or(SIZE_DEFAULT.0), rows.unwrap_or(SIZE_DEFAULT.1))?),
        (false, None, None) => None,
        (false, ..) => return Err(malformed("`cols` and `rows` are the size of a terminal; ask for one with `tty`")),
    };
    let body = api::ExecRequest { command, args, mode, env, workdir, user, timeout, ..api::ExecRequest::default() };
    Ok(SocketCommand { request: exec_request(body)?, terminal, binary })
}

/// Reads the size of a terminal.
pub fn terminal_size(cols: u16, rows: u16) -> Result<TerminalSize, ApiError> {
    if cols == 0 || rows == 0 {
        return Err(malformed("`cols` and `rows` are at least 1"));
    }
    Ok(TerminalSize { cols, rows })
}

/// Reads the name of a signal.
pub fn signal(name: &str) -> Result<Signal, ApiError> {
    Signal::named(name).ok_or_else(|| {
        malformed(format!("`signal`: there is no `{}`; send a name such as `SIGINT` or `SIGTERM`", shortened(name)))
    })
}
