//! Conversions of the commands that run before a sandbox counts as running.

use domain::PrepareCommand;

use super::exec::exec_request;
use super::processes::background;
use super::scalars::{duration, span};
use crate::http::error::{ApiError, malformed};

/// Converts such commands from the API. What a command may be is what an exec may be.
pub fn prepare(commands: Vec<api::PrepareCommand>) -> Result<Vec<PrepareCommand>, ApiError> {
    commands.into_iter().map(one).collect()
}

fn one(command: api::PrepareCommand) -> Result<PrepareCommand, ApiError> {
    check(&command)?;
    let api::PrepareCommand { command, args, mode, env, workdir, user, timeout, background, name, stdin_open } =
        command;
    Ok(PrepareCommand {
        command,
        args,
        is_argv: mode == api::ExecMode::Argv,
        env: env.0,
        workdir,
        user,
        timeout: timeout.map(|text| span("timeout", &text)).transpose()?,
        background,
        name,
        stdin_open,
    })
}

fn check(command: &api::PrepareCommand) -> Result<(), ApiError> {
    if !command.background && (command.name.is_some() || command.stdin_open) {
        return Err(malformed("`name` and `stdin_open` of a command of `prepare` are only for `background: true`"));
    }
    let mut exec = api::ExecRequest {
        command: command.command.clone(),
        user: command.user.clone(),
        timeout: command.timeout.clone(),
        background: command.background,
        name: command.name.clone(),
        stdin_open: command.stdin_open,
        ..api::ExecRequest::default()
    };
    background(&mut exec)?;
    exec_request(exec).map(drop)
}

/// Converts such commands to the API.
pub fn to_api(commands: Vec<PrepareCommand>) -> Vec<api::PrepareCommand> {
    commands.into_iter().map(one_to_api).collect()
}

fn one_to_api(command: PrepareCommand) -> api::PrepareCommand {
    let PrepareCommand { command, args, is_argv, env, workdir, user, timeout, background, name, stdin_open } = command;
    api::PrepareCommand {
        command,
        args,
        mode: if is_argv { api::ExecMode::Argv } else { api::ExecMode::Shell },
        env: api::StringMap(env),
        workdir,
        user,
        timeout: timeout.map(duration),
        background,
        name,
        stdin_open,
    }
}
