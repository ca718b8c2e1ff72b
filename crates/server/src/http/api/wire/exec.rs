//! Conversions of commands.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use domain::SecretName;
use providers::ExitStatus;

use super::scalars::{duration, given, shortened, span};
use crate::control::ExecCommand;
use crate::control::ExecRequest;
use crate::http::error::{ApiError, malformed};

/// Decodes text of a request to bytes.
pub fn bytes(field: &str, text: String, encoding: api::TextEncoding) -> Result<Bytes, ApiError> {
    match encoding {
        api::TextEncoding::Utf8 => Ok(Bytes::from(text)),
        api::TextEncoding::Base64 => BASE64
            .decode(&text)
            .map(Bytes::from)
            .map_err(|error| malformed(format!("`{field}` is not base64: {error}"))),
    }
}

/// Converts the body of an exec.
pub fn exec_request(body: api::ExecRequest) -> Result<ExecRequest, ApiError> {
    if body.command.is_empty() {
        return Err(malformed("`command` is empty; set the command to run"));
    }
    let command = match body.mode {
        api::ExecMode::Shell => ExecCommand::Shell { line: body.command, args: body.args },
        api::ExecMode::Argv => ExecCommand::Argv([vec![body.command], body.args].concat()),
    };
    Ok(ExecRequest {
        command,
        env: body.env.0,
        env_secret: secret_variables(body.env_secret)?,
        workdir: body.workdir,
        user: given("user", body.user)?,
        timeout: body.timeout.map(|text| span("timeout", &text)).transpose()?,
        stdin: body.stdin.map(|text| bytes("stdin", text, body.stdin_encoding)).transpose()?,
    })
}

/// Converts the variables that get the values of secrets.
fn secret_variables(variables: api::StringMap) -> Result<BTreeMap<String, SecretName>, ApiError> {
    let named = variables.0.into_iter().map(|(variable, name)| {
        let secret = SecretName::parse(&name);
        let secret = secret.ok_or_else(|| {
            let rule = "does not name a secret; write 1 to 64 letters, digits, `.`, `_` or `-`";
            malformed(format!("`env_secret.{}`: `{}` {rule}", shortened(&variable), shortened(&name)))
        })?;
        Ok((variable, secret))
    });
    named.collect()
}

/// Converts the exit of a command and its output to the API.
pub fn exec_result(exit: ExitStatus, stdout: String, stderr: String, truncated: bool) -> api::ExecResult {
    let ExitStatus { code: exit_code, signal: _, timed_out, oom_killed, pids_exhausted, duration: took } = exit;
    api::ExecResult {
        exit_code,
        stdout,
        stderr,
        duration: duration(took),
        timed_out,
        oom_killed,
        pids_exhausted,
        truncated,
    }
}
