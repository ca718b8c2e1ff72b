//! The arguments of the command line, and their dispatch to the subcommands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use client::{Client, Options};

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Format, Output, note};
use crate::{
    attach, audit, bench, completion, config, contexts, cp, destroy, doctor, egress, events, exec, extend, firecracker,
    forward, get, grep, image, key, kill, list, logs, mcp, open, pause, ports, provider, prune, ps, repl, run, secret,
    serve, shell, snapshot, spawn, stats, sync, template, top, version, worker,
};

/// Disposable sandboxes for unreviewed code.
#[derive(Debug, Parser)]
#[command(name = "tidebox", version, propagate_version = false, arg_required_else_help = true, term_width = 100)]
#[command(after_help = "Start with `tidebox serve`, then `tidebox run host uname -a`.\n\n\
    Exit codes: 0 done, 1 the service or the connection failed, 2 wrong usage. `exec` and `run` return\n\
    the exit code of the command, 1 if their --code fails, or 125 if they fail themselves.")]
pub struct CommandLine {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Default address of `tidebox serve`.
const DEFAULT_URL: &str = "http://127.0.0.1:7423";

/// Options of every subcommand.
#[derive(Debug, Args)]
struct Global {
    /// Server URL
    #[arg(
        long,
        global = true,
        env = "TIDEBOX_URL",
        hide_env_values = true,
        default_value = DEFAULT_URL,
        value_name = "URL",
        help_heading = "General"
    )]
    url: String,
    /// API key; prefer the environment variable, which others cannot read
    #[arg(
        long,
        global = true,
        env = "TIDEBOX_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        help_heading = "General"
    )]
    api_key: Option<String>,
    /// PEM file with the authorities to trust for https, or with the server's own certificate,
    /// instead of the system's authorities
    #[arg(
        long,
        global = true,
        env = "TIDEBOX_CA_FILE",
        hide_env_values = true,
        value_name = "FILE",
        help_heading = "General"
    )]
    ca_file: Option<PathBuf>,
    /// Owner that requests are charged to
    #[arg(
        long,
        global = true,
        env = "TIDEBOX_USER_ID",
        hide_env_values = true,
        value_name = "ID",
        help_heading = "General"
    )]
    user_id: Option<String>,
    /// Output format
    #[arg(long, global = true, value_enum, default_value_t = Format::Table, value_name = "FORMAT", help_heading = "General")]
    output: Format,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    #[command(flatten)]
    Remote(Box<Remote>),
    Config(config::ConfigArgs),
    Worker(worker::WorkerArgs),
    Firecracker(firecracker::FirecrackerArgs),
    Completion(completion::CompletionArgs),
    Version(version::VersionArgs),
}

/// Subcommands that speak to a server. The others must work with any `--url`.
#[derive(Debug, Subcommand)]
enum Remote {
    Run(run::RunArgs),
    Spawn(spawn::SpawnArgs),
    List(list::ListArgs),
    Get(get::GetArgs),
    Exec(exec::ExecArgs),
    Shell(shell::ShellArgs),
    Repl(repl::ReplArgs),
    Contexts(contexts::ContextsArgs),
    Mcp(mcp::McpArgs),
    Ps(ps::PsArgs),
    Attach(attach::AttachArgs),
    Kill(kill::KillArgs),
    Cp(cp::CpArgs),
    Sync(sync::SyncArgs),
    Grep(grep::GrepArgs),
    Logs(logs::LogsArgs),
    Stats(stats::StatsArgs),
    Top(top::TopArgs),
    Ports(ports::PortsArgs),
    Egress(egress::EgressArgs),
    Forward(forward::ForwardArgs),
    Open(open::OpenArgs),
    Extend(extend::ExtendArgs),
    Pause(pause::PauseArgs),
    Resume(pause::ResumeArgs),
    Snapshot(snapshot::SnapshotArgs),
    Fork(snapshot::ForkArgs),
    Destroy(destroy::DestroyArgs),
    Prune(prune::PruneArgs),
    Template(template::TemplateArgs),
    Secret(secret::SecretArgs),
    Key(key::KeyArgs),
    Provider(provider::ProviderArgs),
    Image(image::ImageArgs),
    Events(events::EventsArgs),
    Audit(audit::AuditArgs),
    Doctor(doctor::DoctorArgs),
    Bench(bench::BenchArgs),
}

/// Reads the arguments of the process and does what they ask.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match command_line().try_get_matches_from(&arguments).and_then(|matches| CommandLine::from_arg_matches(&matches)) {
        Ok(asked) => {
            let output = Output { format: asked.global.output };
            do_as_asked(asked, output).unwrap_or_else(|failure| {
                output.complain(&failure);
                ExitCode::from(failure.exit())
            })
        }
        Err(error) => misunderstood(&error, &arguments),
    }
}

/// Returns the whole command line, as `--help` and completion show it.
fn command_line() -> clap::Command {
    CommandLine::command()
}

fn do_as_asked(asked: CommandLine, output: Output) -> Result {
    let CommandLine { global, command } = asked;
    match command {
        Command::Serve(args) => serve::run(&args),
        Command::Config(args) => config::run(&args, output),
        Command::Worker(args) => worker::run(&args, output),
        Command::Firecracker(args) => firecracker::run(args, output),
        Command::Completion(args) => completion::run(&args, command_line()),
        Command::Version(args) => version::run(&args, output),
        Command::Remote(remote) => speak(&global, *remote, output),
    }
}

/// Returns the value of an option or a variable. An empty variable counts as unset.
fn unless_blank(value: Option<&str>) -> Option<&str> {
    value.filter(|value| !value.trim().is_empty())
}

fn speak(global: &Global, remote: Remote, output: Output) -> Result {
    let url = unless_blank(Some(&global.url)).unwrap_or(DEFAULT_URL);
    let options = Options {
        api_key: unless_blank(global.api_key.as_deref()),
        user_id: unless_blank(global.user_id.as_deref()),
        ca_file: global.ca_file.as_deref().filter(|path| !path.as_os_str().is_empty()),
        ..Options::default()
    };
    let client = Client::open(url, options)?;
    let context = Context { client, output };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::io("the runtime cannot be started", &error))?;
    let result = runtime.block_on(dispatch(remote, &context));
    // A thread may still read stdin; the process does not wait for it.
    runtime.shutdown_background();
    result
}

async fn dispatch(remote: Remote, context: &Context) -> Result {
    match remote {
        Remote::Run(args) => run::run(context, args).await,
        Remote::Spawn(args) => spawn::run(context, args).await,
        Remote::List(args) => list::run(context, &args).await,
        Remote::Get(args) => get::run(context, &args).await,
        Remote::Exec(args) => exec::run(context, args).await,
        Remote::Shell(args) => shell::run(context, args).await,
        Remote::Repl(args) => repl::run(context, args).await,
        Remote::Contexts(args) => contexts::run(context, &args).await,
        Remote::Mcp(args) => mcp::run(context, args).await,
        Remote::Ps(args) => ps::run(context, &args).await,
        Remote::Attach(args) => attach::run(context, args).await,
        Remote::Kill(args) => kill::run(context, &args).await,
        Remote::Cp(args) => cp::run(context, &args).await,
        Remote::Sync(args) => sync::run(context, &args).await,
        Remote::Grep(args) => grep::run(context, &args).await,
        Remote::Logs(args) => logs::run(context, &args).await,
        Remote::Stats(args) => stats::run(context, &args).await,
        Remote::Top(args) => top::run(context, &args).await,
        Remote::Ports(args) => ports::run(context, &args).await,
        Remote::Egress(args) => egress::run(context, args).await,
        Remote::Forward(args) => forward::run(context, args).await,
        Remote::Open(args) => open::run(context, args).await,
        Remote::Extend(args) => extend::run(context, &args).await,
        Remote::Pause(args) => pause::pause(context, &args).await,
        Remote::Resume(args) => pause::resume(context, &args).await,
        Remote::Snapshot(args) => snapshot::run(context, args).await,
        Remote::Fork(args) => snapshot::fork(context, args).await,
        Remote::Destroy(args) => destroy::run(context, &args).await,
        Remote::Prune(args) => prune::run(context, &args).await,
        Remote::Template(args) => template::run(context, args).await,
        Remote::Secret(args) => secret::run(context, args).await,
        Remote::Key(args) => key::run(context, args).await,
        Remote::Provider(args) => provider::run(context, args).await,
        Remote::Image(args) => image::run(context, args).await,
        Remote::Events(args) => events::run(context, args).await,
        Remote::Audit(args) => audit::run(context, args).await,
        Remote::Doctor(args) => doctor::run(context, &args).await,
        Remote::Bench(args) => bench::run(context, &args).await,
    }
}

/// Subcommands of other programs that run boxes, with what does the same here.
const HABITS: [(&str, &str); 14] = [
    ("commit", "snapshot create"),
    ("delete", "destroy"),
    ("images", "image list"),
    ("import", "image import"),
    ("info", "doctor"),
    ("load", "image import"),
    ("port", "ports"),
    ("pull", "image pull"),
    ("remove", "destroy"),
    ("rmi", "image remove"),
    ("sh", "shell"),
    ("ssh", "shell"),
    ("start", "resume"),
    ("stop", "pause"),
];

/// Returns the subcommand that an unknown one stands for elsewhere.
fn meant(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    HABITS.iter().find(|(theirs, _)| theirs == unknown).map(|(_, ours)| *ours)
}

/// Prints help and version to stdout, and faults to stderr; as JSON if the arguments seem to ask
/// for it.
fn misunderstood(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let wants_json =
        arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--output=json")
            || arguments.windows(2).take_while(|pair| pair[0] != "--").any(|pair| pair == ["--output", "json"]);
    if !is_help && wants_json {
        let text = error.render().to_string();
        let message = text.trim().strip_prefix("error: ").unwrap_or(text.trim());
        note(&serde_json::json!({ "code": "usage", "message": message }).to_string());
    } else if error.print().is_err() {
        // Stderr is closed; the exit code still reports the fault.
    } else if let Some(ours) = meant(error) {
        note(&format!("\n  tip: use `tidebox {ours}`"));
    }
    ExitCode::from(if is_help { 0 } else { 2 })
}

#[cfg(test)]
mod test {
    use super::command_line;

    #[test]
    fn the_command_line_is_consistent() {
        command_line().debug_assert();
    }

    /// Returns the help of a command and its subcommands; all have these general options.
    fn shown(command: &mut clap::Command, path: &str, general: &str) -> String {
        let help = command.render_long_help().to_string();
        assert!(help.contains(general), "{path} lacks the general options:\n{help}");
        let mut text = format!("$ {path} --help\n{}\n", help.replace(general, "General: (as of tidebox)"));
        for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
            let path = format!("{path} {}", sub.get_name());
            text += &shown(sub, &path, general);
        }
        text
    }

    #[test]
    fn the_help_of_each_subcommand_is_what_was_reviewed() {
        let mut command = command_line();
        command.build();
        let help = command.render_long_help().to_string();
        let general = help.lines().skip_while(|line| *line != "General:");
        let general = general.take_while(|line| line.is_empty() || line.starts_with(' ') || *line == "General:");
        let general = general.collect::<Vec<_>>().join("\n");
        insta::assert_snapshot!("help", help);
        for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
            let name = sub.get_name().to_owned();
            let help = shown(sub, &format!("tidebox {name}"), general.trim_end());
            insta::assert_snapshot!(format!("help_{name}"), help);
        }
    }
}
