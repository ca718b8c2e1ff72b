//! Conversions of WebSocket messages.

use providers::{Signal, TerminalSize};

use super::exec::exec_request;
use super::scalars::shortened;
use crate::control::ExecRequest;
use crate::http::error::{ApiError, malformed};

/// Columns and rows of a terminal whose size the client leaves out.
const SIZE_DEFAULT: (u16, u16) = (80, 24);

/// Command of a first message.
#[derive(Debug)]
pub struct SocketCommand {
    pub request: ExecRequest,
    /// Size of the terminal; `None` without one.
    pub terminal: Option<TerminalSize>,
    /// True if output is sent as binary messages.
    pub binary: bool,
}

/// Converts a first message.
pub fn socket_start(body: api::SocketStart) -> Result<SocketCommand, ApiError> {
    let api::SocketStart {
        kind: _,
        command,
        args,
        mode,
        env,
        env_secret,
        workdir,
        user,
        timeout,
        tty,
        cols,
        rows,
        binary,
    } = body;
    let terminal = terminal(tty, cols, rows)?;
    let body = api::ExecRequest {
        command,
        args,
        mode,
        env,
        env_secret,
        workdir,
        user,
        timeout,
        ..api::ExecRequest::default()
    };
    Ok(SocketCommand { request: exec_request(body)?, terminal, binary })
}

/// Converts the request for a terminal, and its size.
pub fn terminal(tty: bool, cols: Option<u16>, rows: Option<u16>) -> Result<Option<TerminalSize>, ApiError> {
    match (tty, cols, rows) {
        (true, cols, rows) => terminal_size(cols.unwrap_or(SIZE_DEFAULT.0), rows.unwrap_or(SIZE_DEFAULT.1)).map(Some),
        (false, None, None) => Ok(None),
        (false, ..) => Err(malformed("`cols` and `rows` are the size of a terminal; ask for one with `tty`")),
    }
}

/// Checks the size of a terminal: both at least 1.
pub fn terminal_size(cols: u16, rows: u16) -> Result<TerminalSize, ApiError> {
    if cols == 0 || rows == 0 {
        return Err(malformed("`cols` and `rows` are at least 1"));
    }
    Ok(TerminalSize { cols, rows })
}

/// Parses the name of a signal.
pub fn signal(name: &str) -> Result<Signal, ApiError> {
    Signal::named(name).ok_or_else(|| {
        malformed(format!("`signal`: unknown signal `{}`; send a name such as `SIGINT` or `SIGTERM`", shortened(name)))
    })
}
