//! Conversions of the commands that run before a sandbox counts as running.

use domain::PrepareCommand;

use super::contexts::{code_language, language};
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
    let api::PrepareCommand {
        command,
        args,
        mode,
        language: code,
        env,
        workdir,
        user,
        timeout,
        background,
        name,
        stdin_open,
    } = command;
    Ok(PrepareCommand {
        command,
        args,
        is_argv: mode == api::ExecMode::Argv,
        language: code.map(|code| language(code).name().to_owned()),
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
    let is_command = !command.args.is_empty() || command.mode == api::ExecMode::Argv || command.background;
    if command.language.is_some() && is_command {
        return Err(malformed("`args`, `mode` and `background` of `prepare` are not for code with a `language`"));
    }
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
    let PrepareCommand { command, args, is_argv, language, env, workdir, user, timeout, background, name, stdin_open } =
        command;
    api::PrepareCommand {
        command,
        args,
        mode: if is_argv { api::ExecMode::Argv } else { api::ExecMode::Shell },
        language: language.and_then(|name| name.parse().ok()).map(code_language),
        env: api::StringMap(env),
        workdir,
        user,
        timeout: timeout.map(duration),
        background,
        name,
        stdin_open,
    }
}
