//! `process.Process`: commands and terminals in a sandbox, over the background processes of the box.
//!
//! A process belongs to the sandbox, not to the call that started it: it ends by itself, at its deadline, by a signal,
//! or with the sandbox. It waits for each of its streams while it has any, so that none of them loses output.

pub mod input;
mod output;
mod table;
mod wire;

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use futures_util::{StreamExt, stream};
use providers::{Attach, AttachFrom, Background, BackgroundStdin, ProcessAction, ProcessEvent, Signal, TerminalSize};

use self::output::events;
use self::table::{TAG_BYTES_MAX, living, living_one, newest_one};
use self::wire::{
    Config, Empty, Event, EventMessage, ListResponse, ProcessRequest, Pty, SendSignalRequest, SignalName, StartRequest,
    UpdateRequest,
};
use super::connect::{Call, Messages, metered, server_stream, unary};
use super::in_box::while_it_runs;
use super::user::{Actor, actor};
use crate::control::{AttachedProcess, Error, ExecCommand, ExecRequest, ProcessRef, StartProcess};
use crate::http::error::{ApiError, Result, RpcCode, rpc};
use crate::http::request_memory::LIST_BYTES;
use crate::http::state::Api;

/// Longest wait for the end of a process that was killed. A caller who hears of the kill may look for its pid.
const KILL_WAIT: Duration = Duration::from_secs(2);
/// Variables with the name of the user.
const USER_NAMES: [&str; 2] = ["USER", "LOGNAME"];

/// Starts a process, and follows it.
pub async fn start(api: &Api, id: &str, user: Option<&str>, request: Request) -> Response {
    let ping = EventMessage::from(Event::Keepalive {});
    server_stream(request, &api.stop, ping, |message, call| begin(api, id, user, message, call)).await
}

async fn begin(
    api: &Api,
    id: &str,
    user: Option<&str>,
    message: StartRequest,
    call: Call,
) -> Result<Messages<EventMessage>> {
    let StartRequest { process, pty, tag, stdin } = message;
    let config = process.filter(|config| !config.cmd.is_empty());
    let config = config.ok_or_else(|| invalid("name the program to start in `process.cmd`"))?;
    if tag.as_ref().is_some_and(|tag| tag.len() > TAG_BYTES_MAX) {
        return Err(invalid(format!("`tag` must be at most {TAG_BYTES_MAX} bytes")));
    }
    let terminal = pty.map(size).transpose()?;
    let actor = actor(&api.control, id, user).await?;
    let has_stdin = terminal.is_some() || stdin.unwrap_or(true);
    let background = Background {
        is_paced: true,
        note: Some(table::Note::text(&config, tag.as_deref())),
        stdin: if has_stdin { BackgroundStdin::Open } else { BackgroundStdin::Ends },
        ..Background::default()
    };
    let request = command(config, &actor, call.timeout())?;
    let start = StartProcess { request, background, terminal, is_bounded: false };
    let started = api.control.start_process(id, start).await.map_err(start_error)?;
    let pid = started.pid.or(started.ended_pid).unwrap_or_default();
    let process = ProcessRef::Number(started.process);
    follow(api, id, &process, pid, AttachFrom::Position(0), terminal.is_some()).await
}

/// Returns the command of a process.
fn command(config: Config, actor: &Actor, timeout: Option<Duration>) -> Result<ExecRequest> {
    let Config { cmd, args, envs, cwd } = config;
    let mut env = BTreeMap::new();
    if actor.is_only {
        // The only user of the box has another name.
        env.extend(USER_NAMES.map(|variable| (variable.to_owned(), actor.name.clone())));
        env.insert("HOME".to_owned(), actor.home.clone());
    }
    env.extend(envs);
    let workdir = actor.absolute(cwd.as_deref().unwrap_or_default())?;
    Ok(ExecRequest {
        command: ExecCommand::Argv(std::iter::once(cmd).chain(args).collect()),
        env,
        env_secret: BTreeMap::new(),
        workdir: Some(workdir),
        user: actor.user.clone(),
        timeout,
        stdin: None,
    })
}

/// Returns the error of a start: this call has nothing that could exist already.
fn start_error(error: Error) -> ApiError {
    if let Error::NotSupported(text) = error { invalid(text) } else { error.into() }
}

/// Follows a process that runs, or has ended lately.
pub async fn connect(api: &Api, id: &str, request: Request) -> Response {
    let ping = EventMessage::from(Event::Keepalive {});
    server_stream(request, &api.stop, ping, |message: ProcessRequest, _| async move {
        let found = newest_one(&api.control, id, message.process).await?;
        let pid = found.pid.or(found.ended_pid).unwrap_or_default();
        if let Some(exit) = &found.exit {
            let events = [Event::Start { pid }, Event::End(table::end(exit))];
            return Ok(stream::iter(events.map(|event| Ok(event.into()))).boxed());
        }
        // What it has written before is for those who followed it then.
        let from = AttachFrom::Position(found.end);
        follow(api, id, &ProcessRef::Number(found.process), pid, from, found.terminal.is_some()).await
    })
    .await
}

async fn follow(
    api: &Api,
    id: &str,
    process: &ProcessRef,
    pid: u32,
    from: AttachFrom,
    has_terminal: bool,
) -> Result<Messages<EventMessage>> {
    let attach = Attach { from, follow: true, input: None };
    let AttachedProcess { output, handle: _ } = api.control.attach_process(id, process, attach).await?;
    let begun = stream::once(async move { Ok(Event::Start { pid }.into()) });
    let messages = begun.chain(events(&api.control, id, output, has_terminal)).boxed();
    // A box that is paused does not end the output.
    Ok(while_it_runs(api, id, messages))
}

/// Lists the processes that live.
pub async fn list(api: &Api, id: &str, request: Request) -> Response {
    metered(request, |_: Empty, meter| async move {
        meter.hold(LIST_BYTES).await?;
        let processes = api.control.processes(id).await?;
        Ok(ListResponse { processes: living(&processes) })
    })
    .await
}

/// Sends a signal to a process and to what runs in its process group.
pub async fn send_signal(api: &Api, id: &str, request: Request) -> Response {
    unary(request, |message: SendSignalRequest| async move {
        let signal = signal(message.signal)?;
        let found = living_one(&api.control, id, message.process).await?;
        let process = ProcessRef::Number(found.process);
        api.control.control_found_process(id, found.process, ProcessAction::SignalCommand(signal)).await?;
        if signal.name() == "KILL" {
            let from = AttachFrom::Position(found.end);
            // One that has ended, or is still ending after the wait, was sent the signal all the same.
            let _ = tokio::time::timeout(KILL_WAIT, ended(api, id, &process, from)).await;
        }
        Ok(Empty {})
    })
    .await
}

/// Waits for the end of a process.
async fn ended(api: &Api, id: &str, process: &ProcessRef, from: AttachFrom) -> Result<()> {
    let attach = Attach { from, follow: true, input: None };
    let mut output = api.control.attach_process(id, process, attach).await?.output;
    while let Some(Ok(event)) = output.next().await {
        if matches!(event, ProcessEvent::Exit(_)) {
            break;
        }
    }
    Ok(())
}

fn signal(name: Option<SignalName>) -> Result<Signal> {
    let found = match &name {
        Some(SignalName::Name(name)) if name == "SIGNAL_SIGKILL" => Signal::named("KILL"),
        Some(SignalName::Name(name)) if name == "SIGNAL_SIGTERM" => Signal::named("TERM"),
        Some(SignalName::Number(9)) => Signal::named("KILL"),
        Some(SignalName::Number(15)) => Signal::named("TERM"),
        _ => None,
    };
    let unimplemented = "`signal` must be `SIGNAL_SIGKILL` or `SIGNAL_SIGTERM`; send others with `kill` in the sandbox";
    found.ok_or_else(|| rpc(RpcCode::Unimplemented, unimplemented))
}

/// Changes the size of the terminal of a process.
pub async fn update(api: &Api, id: &str, request: Request) -> Response {
    unary(request, |message: UpdateRequest| async move {
        let found = living_one(&api.control, id, message.process).await?;
        let Some(pty) = message.pty else { return Ok(Empty {}) };
        let size = size(pty)?;
        if found.terminal.is_none() {
            return Err(rpc(RpcCode::Internal, "the process has no terminal; start it with `pty`"));
        }
        api.control.control_found_process(id, found.process, ProcessAction::Resize(size)).await?;
        Ok(Empty {})
    })
    .await
}

fn size(pty: Pty) -> Result<TerminalSize> {
    let size = pty.size.ok_or_else(|| invalid("`pty` needs `size`, with `cols` and `rows`"))?;
    let number = |field, number: u32| {
        let fits = u16::try_from(number).ok().filter(|number| *number > 0);
        fits.ok_or_else(|| invalid(format!("`pty.size.{field}` must be 1 to 65535")))
    };
    Ok(TerminalSize { cols: number("cols", size.cols)?, rows: number("rows", size.rows)? })
}

fn invalid(text: impl Into<String>) -> ApiError {
    rpc(RpcCode::InvalidArgument, text)
}

#[cfg(test)]
mod test {
    use super::*;

    fn actor(is_only: bool) -> Actor {
        let user = (!is_only).then(|| "ann".to_owned());
        let home = "/home/ann".to_owned();
        Actor { user, name: "ann".to_owned(), workdir: home.clone(), home, is_only }
    }

    #[test]
    fn a_command_starts_in_the_home_of_its_user() {
        for (cwd, expected) in [
            (None, "/home/ann"),
            (Some(""), "/home/ann"),
            (Some("a"), "/home/ann/a"),
            (Some("~/b"), "/home/ann/b"),
            (Some("/c"), "/c"),
        ] {
            let config = Config { cmd: "x".to_owned(), cwd: cwd.map(str::to_owned), ..Config::default() };
            let request = command(config, &actor(false), None).unwrap();
            assert_eq!((request.workdir.as_deref(), request.user.as_deref()), (Some(expected), Some("ann")));
            assert!(request.env.is_empty());
        }
    }

    #[test]
    fn a_user_for_show_has_a_name_and_a_home_unless_the_call_says_otherwise() {
        let envs = BTreeMap::from([("HOME".to_owned(), "/elsewhere".to_owned())]);
        let config = Config { cmd: "x".to_owned(), envs, ..Config::default() };
        let request = command(config, &actor(true), None).unwrap();
        assert_eq!(request.user, None);
        let env: Vec<_> = request.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(env, [("HOME", "/elsewhere"), ("LOGNAME", "ann"), ("USER", "ann")]);
    }

    #[test]
    fn two_signals_can_be_sent() {
        for (name, expected) in [
            (Some(SignalName::Name("SIGNAL_SIGKILL".to_owned())), Some("KILL")),
            (Some(SignalName::Name("SIGNAL_SIGTERM".to_owned())), Some("TERM")),
            (Some(SignalName::Number(9)), Some("KILL")),
            (Some(SignalName::Number(15)), Some("TERM")),
            (Some(SignalName::Name("SIGNAL_SIGHUP".to_owned())), None),
            (Some(SignalName::Name("KILL".to_owned())), None),
            (Some(SignalName::Number(0)), None),
            (None, None),
        ] {
            assert_eq!(signal(name).ok().map(Signal::name), expected);
        }
    }

    #[test]
    fn a_terminal_has_a_size() {
        let of =
            |cols, rows| size(Pty { size: Some(wire::Size { cols, rows }) }).ok().map(|size| (size.cols, size.rows));
        assert_eq!(of(80, 24), Some((80, 24)));
        assert_eq!([of(0, 24), of(80, 0), of(65536, 24)], [None; 3]);
        assert!(size(Pty { size: None }).is_err());
    }
}
