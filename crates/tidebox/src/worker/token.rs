//! `tidebox worker token`: short-lived tokens by which workers authenticate. Works from the
//! configuration; no server has to run.

use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use server::config::{self, Auth, Inputs};
use server::worker_token::{self, Said};

use crate::failure::{Failure, Result};
use crate::output::{Output, pairs};

/// The longest token that is read, in bytes; a real one has some hundreds.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;

/// Make a short-lived token for a worker, or check a token
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct TokenArgs {
    #[command(subcommand)]
    command: Option<Command>,
    /// Worker ID
    #[arg(required = true)]
    id: Option<String>,
    /// Lifetime of the token, at most 15m
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    ttl: String,
    /// Scope: worker:heartbeat or worker:lease; both if omitted; may be repeated
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    #[command(flatten)]
    from: From,
}

/// Configuration that holds the signing key.
#[derive(Debug, Args)]
struct From {
    /// Configuration file, instead of ./tidebox.yaml, ~/.tidebox/config.yaml and /etc/tidebox/config.yaml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a token as the server would, and show its contents; exits with 1 if the server would refuse it
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
struct VerifyArgs {
    /// Token; prefer the environment variable or stdin, which others cannot read
    #[arg(env = "TIDEBOX_WORKER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    from: From,
}

pub fn run(args: &TokenArgs, output: Output) -> Result {
    match &args.command {
        Some(Command::Verify(args)) => verify(args, output),
        None => mint(args, output),
    }
}

fn mint(args: &TokenArgs, output: Output) -> Result {
    let auth = auth(&args.from)?;
    let id = args.id.as_deref().unwrap_or_default();
    let minted = worker_token::mint(&auth, id, &args.ttl, &args.scopes).map_err(Failure::usage)?;
    let json = json!({ "token": minted.token, "jti": minted.jti, "expires_at": minted.expires_at });
    output.print(&json, |_| minted.token.clone())?;
    Ok(ExitCode::SUCCESS)
}

fn verify(args: &VerifyArgs, output: Output) -> Result {
    let auth = auth(&args.from)?;
    // An empty variable counts as unset.
    let given = args.token.clone().filter(|token| !token.trim().is_empty());
    let token = given.map_or_else(from_stdin, Ok)?;
    let inspected = worker_token::inspect(&auth, token.trim());
    let said = inspected.claims.as_ref();
    let json = json!({
        "valid": inspected.refusal.is_none(),
        "reason": inspected.refusal,
        "claims": said.map(|said| json!({
            "worker_id": said.worker_id, "jti": said.jti, "aud": said.audience, "issued_at": said.issued_at,
            "not_before": said.not_before, "expires_at": said.expires_at, "scopes": said.scopes,
        })),
    });
    output.print(&json, |_| described(inspected.refusal, said))?;
    Ok(if inspected.refusal.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn described(refusal: Option<&'static str>, said: Option<&Said>) -> String {
    let mut lines = vec![("valid", refusal.map_or_else(|| "yes".to_owned(), |why| format!("no: {why}")))];
    if let Some(said) = said {
        lines.extend([
            ("worker", said.worker_id.clone()),
            ("id", said.jti.clone()),
            ("audience", said.audience.clone()),
            ("issued", said.issued_at.clone()),
        ]);
        lines.extend(said.not_before.clone().map(|time| ("not before", time)));
        let scopes = if said.scopes.is_empty() { "none".to_owned() } else { said.scopes.join(" ") };
        lines.extend([("expires", said.expires_at.clone()), ("scopes", scopes)]);
    }
    pairs(lines)
}

/// Loads the configuration of authentication.
fn auth(from: &From) -> Result<Auth> {
    let loaded = config::load(&Inputs::from_process(from.config.clone())).map_err(|faults| {
        let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
        Failure::usage(format!("the configuration is invalid: {}", lines.join("; ")))
    })?;
    Ok(loaded.config.auth)
}

fn from_stdin() -> Result<String> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(Failure::usage("pass the token on stdin or in TIDEBOX_WORKER_TOKEN"));
    }
    let mut bytes = Vec::new();
    let read = stdin.lock().take(TOKEN_BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|error| Failure::io("the token cannot be read from stdin", &error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
