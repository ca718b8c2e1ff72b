//! Conversions of background processes.

use std::time::Duration;

use bytes::Bytes;
use providers::{Background, BackgroundStdin, ProcessInfo, process_name_fault};

use super::exec::bytes;
use super::scalars::{duration, span, time};
use super::socket::terminal;
use crate::control::ExecRequest;
use crate::control::ProcessRef;
use crate::control::StartProcess;
use crate::http::error::{ApiError, malformed};

/// Time for which a resumable command is kept without a reader.
const RESUMABLE_LINGER: Duration = Duration::from_secs(60);

/// Takes what is said about the background out of the body of an exec. Returns what makes the rest a
/// start; `None` for a command in the foreground.
pub fn background(
    body: &mut api::ExecRequest,
) -> Result<Option<impl FnOnce(ExecRequest) -> StartProcess + use<>>, ApiError> {
    if body.resumable && !body.stream && !body.background {
        return Err(only_for("resumable", "`stream: true`, and for `background: true`"));
    }
    if body.background {
        if body.stream {
            return Err(malformed("`stream` and `background` cannot be combined; read the output of the process"));
        }
        if body.exit_event {
            return Err(only_for("exit_event", "`stream: true`"));
        }
    }
    if !body.background {
        let given = [
            ("name", body.name.is_some()),
            ("stdin_open", body.stdin_open),
            ("tty", body.tty),
            ("cols", body.cols.is_some()),
            ("rows", body.rows.is_some()),
            ("linger", body.linger.is_some()),
            ("paced", body.paced),
            ("note", body.note.is_some()),
        ];
        if let Some((field, _)) = given.iter().find(|(_, is_given)| *is_given) {
            let of = "`background: true`; for a terminal in the foreground use the WebSocket `…/exec/ws`";
            return Err(only_for(field, of));
        }
        if !body.resumable {
            return Ok(None);
        }
    }
    if let Some(fault) = body.name.as_deref().and_then(process_name_fault) {
        return Err(malformed(fault));
    }
    let terminal = terminal(body.tty, body.cols.take(), body.rows.take())?;
    let is_background = body.background;
    let is_open = body.stdin_open || body.tty;
    let linger = body.linger.take().map(|text| span("linger", &text)).transpose()?;
    let input = body.stdin.take().map(|text| bytes("stdin", text, body.stdin_encoding)).transpose()?;
    let background = Background {
        name: body.name.take(),
        linger: if body.resumable { linger.or(Some(RESUMABLE_LINGER)) } else { linger },
        is_lossless: body.resumable,
        is_paced: body.paced,
        note: body.note.take(),
        input: input.unwrap_or_else(Bytes::new),
        stdin: if is_open { BackgroundStdin::Open } else { BackgroundStdin::Ends },
    };
    Ok(Some(move |request| StartProcess { request, background, terminal, is_bounded: !is_background }))
}

fn only_for(field: &str, of: &str) -> ApiError {
    malformed(format!("`{field}` is only for {of}"))
}

/// Parses the number or the name of a process in a path.
pub fn process_ref(text: &str) -> Result<ProcessRef, ApiError> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let number = text.parse().map(ProcessRef::Number);
        return number.map_err(|_| malformed("name a process by its number, or by a name with at least one letter"));
    }
    process_name_fault(text).map_or_else(|| Ok(ProcessRef::Name(text.to_owned())), |fault| Err(malformed(fault)))
}

/// Converts a process that was started to the API.
pub fn process_started(process: ProcessInfo) -> api::ProcessStarted {
    api::ProcessStarted { process_id: process.process, name: process.name }
}

/// Converts a process to the API.
pub fn process(process: ProcessInfo) -> api::Process {
    let ProcessInfo {
        process: process_id, name, command, pid, note, terminal, started, exit, first, end, readers, ..
    } = process;
    api::Process {
        process_id,
        name,
        command,
        note,
        state: if exit.is_some() { api::ProcessState::Exited } else { api::ProcessState::Running },
        pid,
        tty: terminal.is_some(),
        cols: terminal.map(|size| size.cols),
        rows: terminal.map(|size| size.rows),
        started_at: time(started),
        exit_code: exit.map(|exit| exit.code),
        timed_out: exit.is_some_and(|exit| exit.timed_out),
        oom_killed: exit.is_some_and(|exit| exit.oom_killed),
        pids_exhausted: exit.is_some_and(|exit| exit.pids_exhausted),
        duration: exit.map(|exit| duration(exit.duration)),
        first_seq: first,
        last_seq: end,
        readers,
    }
}
