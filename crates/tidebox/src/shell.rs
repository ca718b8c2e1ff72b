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
    after_help = "Ctrl-P Ctrl-Q leaves the shell, which goes on if it has a name. A line that breaks is opened anew\n\
    within a minute. The exit code is the shell's.\n\n\
    tidebox shell sb-…\n\
    tidebox shell sb-… --name work    (again: comes back to it)"
)]
pub struct ShellArgs {
    /// The sandbox
    id: String,
    /// Name of the session; one that runs already is attached to
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// User to run as: name, uid, name:group or uid:gid
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Absolute directory to start in
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// Keys that leave the shell; empty for none
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
