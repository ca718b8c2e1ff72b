//! `tidebox provider`: the providers of the server.

use std::process::ExitCode;

use api::{ProviderDetail, ProviderHealth};
use clap::{Args, Subcommand};

use crate::context::Context;
use crate::failure::Result;
use crate::output::{pairs, table};
use crate::values::labels;

/// Show providers and their health
#[derive(Debug, Args)]
pub struct ProviderArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List providers with the result of their last check
    #[command(visible_alias = "ls")]
    List,
    /// Show one provider
    #[command(visible_alias = "inspect")]
    Get {
        /// Provider name
        name: String,
    },
    /// Check all providers now; exits with 1 if no provider is healthy
    Test,
}

pub async fn run(context: &Context, args: ProviderArgs) -> Result {
    let Context { client, output } = context;
    match args.command {
        Command::List => output.print(&client.providers().await?, |providers| listed(providers))?,
        Command::Get { name } => output.print(&client.provider(&name).await?, described)?,
        Command::Test => {
            let results = client.test_providers().await?;
            output.print(&results, |results| {
                table(&["NAME", "HEALTHY"], results.iter().map(|(name, healthy)| [name.clone(), yes_or_no(*healthy)]))
            })?;
            if !results.values().any(|healthy| *healthy) {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn yes_or_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

fn listed(providers: &[ProviderHealth]) -> String {
    let header = ["NAME", "HEALTHY", "DEFAULT", "LATENCY", "CAPABILITIES", "NOTE"];
    table(
        &header,
        providers.iter().map(|provider| {
            [
                provider.name.clone(),
                yes_or_no(provider.healthy),
                yes_or_no(provider.default),
                format!("{} ms", provider.latency_ms),
                provider.capabilities.join(","),
                provider.error.iter().chain(&provider.missing).cloned().collect::<Vec<_>>().join("; "),
            ]
        }),
    )
}

fn described(provider: &ProviderDetail) -> String {
    let mut lines = vec![
        ("name", provider.name.clone()),
        ("healthy", yes_or_no(provider.healthy)),
        ("default", yes_or_no(provider.default)),
        ("sandboxes", provider.sandbox_count.to_string()),
        ("runtime", provider.config.runtime.clone()),
        ("network", provider.config.network_mode.clone()),
        ("isolation", provider.config.isolation.clone()),
        ("limits", labels(&provider.config.limits)),
        ("capabilities", provider.health.capabilities.join(",")),
        ("checked", format!("{} in {} ms", provider.health.last_checked, provider.health.latency_ms)),
    ];
    lines.extend(provider.health.version.clone().map(|version| ("version", version)));
    if !provider.health.runtimes.is_empty() {
        lines.push(("runtimes", provider.health.runtimes.join(",")));
    }
    lines.extend(provider.health.error.clone().map(|error| ("error", error)));
    lines.extend(provider.health.missing.iter().map(|missing| ("missing", missing.clone())));
    pairs(lines)
}
