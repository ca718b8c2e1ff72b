//! `tidebox mcp`: tools for models, over stdin and stdout or over HTTP.

mod clients;
mod install;

use std::net::SocketAddr;
use std::process::ExitCode;

use api::SpawnRequest;
use clap::{Args, Subcommand};
use mcp::{Listener, ListenerOptions, Options, Server};

use self::install::InstallArgs;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::note;
use crate::signals::Signals;
use crate::values::SpawnOptions;

/// Lifetime of a session's sandbox unless an option sets one. It starts again while the sandbox is used.
const TTL: &str = "1h";

/// Offer sandboxes to a model, by the Model Context Protocol
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Without --listen, mcp serves one client on stdin and stdout. Calls that name no sandbox use one that is\n\
    made at the first call, with the options below, and removed when the client leaves.\n\n\
    With --listen, every request brings its own API key, as `Authorization: Bearer KEY`, and names its\n\
    sandbox. The protocol is served at /mcp.\n\n\
    tidebox mcp install --client claude-code\n\
    tidebox mcp --image host --allow pypi.org --allow files.pythonhosted.org\n\
    tidebox mcp --listen 127.0.0.1:7424"
)]
pub struct McpArgs {
    #[command(subcommand)]
    command: Option<Command>,
    /// Address to serve HTTP on, instead of stdin and stdout
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["image", "template", "snapshot"])]
    listen: Option<SocketAddr>,
    /// Name that requests may have in `Host`; repeatable
    #[arg(long, value_name = "NAME", requires = "listen")]
    allow_host: Vec<String>,
    /// Origin of a web page that may send requests, such as `https://app.example.com`; repeatable
    #[arg(long, value_name = "ORIGIN", requires = "listen")]
    allow_origin: Vec<String>,
    /// Work also in sandboxes that were not made by a model
    #[arg(long)]
    all_sandboxes: bool,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

/// Sandbox for calls that name none.
#[derive(Debug, Args)]
struct SandboxArgs {
    /// Image to start from; the server's default if omitted
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    #[command(flatten)]
    options: SpawnOptions,
    /// Template that provides the defaults
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Snapshot to start from, instead of an image or a template
    #[arg(long, value_name = "ID", conflicts_with_all = ["image", "template"])]
    snapshot: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Install(InstallArgs),
}

pub async fn run(context: &Context, args: McpArgs) -> Result {
    if let Some(Command::Install(args)) = args.command {
        return install::run(context, args);
    }
    let mut signals = Signals::listen()?;
    let stop = async move {
        signals.next().await;
    };
    let fault = |error: std::io::Error| Failure::new("mcp", error.to_string());
    match args.listen {
        Some(address) => {
            let options = ListenerOptions {
                address,
                hosts: args.allow_host,
                origins: args.allow_origin,
                all_sandboxes: args.all_sandboxes,
            };
            let listener = Listener::bind(context.client.without_key(), options).await.map_err(fault)?;
            note(&format!("serving the Model Context Protocol on {}", listener.url().map_err(fault)?));
            listener.serve(stop).await.map_err(fault)?;
        }
        None => {
            let options = Options { sandbox: args.sandbox.request()?, all_sandboxes: args.all_sandboxes };
            Server::of_session(context.client.clone(), options).serve_stdio(stop).await.map_err(fault)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl SandboxArgs {
    fn request(self) -> Result<SpawnRequest> {
        let Self { image, options, template, snapshot } = self;
        let mut request = SpawnRequest { template, snapshot, ..options.with_image(image)?.into() };
        request.ttl.get_or_insert_with(|| TTL.to_owned());
        Ok(request)
    }
}
