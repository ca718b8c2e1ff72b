//! `tidebox shell`: a shell in a sandbox, at this terminal.

use api::ExecMode;
use clap::Args;

use crate::attach::{DETACH_KEYS, DetachKeys};
use crate::context::Context;
use crate::exec::{self, Interaction, SHELL};
use crate::failure::Result;

/// Open a shell in a sandbox
#[derive(Debug, Args)]
#[command(
    after_help = "Ctrl-P Ctrl-Q detaches from the shell, which keeps running if it has a name. If the connection\n\
    breaks, reconnects within a minute. The exit code is the code of the shell.\n\n\
    tidebox shell sb-…\n\
    tidebox shell sb-… --name work    (repeat to return to it)"
)]
pub struct ShellArgs {
    /// Sandbox ID
    id: String,
    /// Name the session; attach if the name is already running
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// User to run as: name, uid, name:group or uid:gid
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Working directory, as an absolute path
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// Keys that detach from the shell; empty to disable
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS, value_parser = DetachKeys::parse)]
    detach_keys: DetachKeys,
}

pub async fn run(context: &Context, args: ShellArgs) -> Result {
    let ShellArgs { id, name, user, workdir, detach_keys } = args;
    let request = api::ExecRequest {
        command: SHELL.to_owned(),
        mode: ExecMode::Shell,
        user,
        workdir,
        ..api::ExecRequest::default()
    };
    let interaction = Interaction { interactive: true, tty: true, detach: false, name, detach_keys };
    exec::interact(context, &id, request, interaction).await
}
