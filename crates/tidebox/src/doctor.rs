//! `tidebox doctor`: the abilities of this host and its server, and what is missing.

mod doors;
pub mod finding;
mod local;

use std::process::ExitCode;

use clap::Args;
use client::Client;
use serde::Serialize;
use server::config::load;

use self::finding::{Finding, Level};
use crate::config::layers::Layers;
use crate::context::Context;
use crate::failure::Result;
use crate::firecracker::wanted::Wanted;
use crate::output::harmless;

/// Report what this host can do, what is missing, and how to get it
#[derive(Debug, Args)]
#[command(
    after_help = "Checks this host, and the server if it answers. Uses only the settings that name the programs and\n\
    the kernel of virtual machines. Exits with 1 if no box can be made: by the server if it answers,\n\
    else by any provider on this host."
)]
pub struct DoctorArgs {
    #[command(flatten)]
    layers: Layers,
}

#[derive(Debug, Serialize)]
struct Report {
    local: Vec<Finding>,
    server: Vec<Finding>,
}

/// Prints the findings about this host and the server.
pub async fn run(context: &Context, args: &DoctorArgs) -> Result {
    let (wanted, faults) = match load(&args.layers.inputs()) {
        Ok(loaded) => (Wanted::of(&loaded.config), Vec::new()),
        Err(faults) => (Wanted::default(), faults),
    };
    let (ready, server) = server_findings(&context.client).await;
    let mut local = local::local_findings(&wanted).await;
    local.extend(faults.iter().map(|fault| Finding::lacking("config", Level::Warn, "has a fault", fault.to_string())));
    let report = Report { local, server };
    let healthy = ready.unwrap_or_else(|| can_make_boxes(&report.local));
    context.output.print(&report, |report| {
        let at = harmless(context.client.base_url());
        let Report { local, server } = report;
        let news = server.iter().filter(|finding| finding.level != Level::Warn || !local.contains(finding));
        format!("This host\n{}\nThe server at {at}\n{}", finding::list(local), finding::list(news))
    })?;
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns whether any provider lacks nothing on this host.
fn can_make_boxes(local: &[Finding]) -> bool {
    let mut providers = local.iter().map(|it| it.area.as_str()).filter(|area| !matches!(*area, "host" | "config"));
    providers.any(|area| local.iter().all(|it| it.area != area || it.level != Level::Missing))
}

/// Returns the findings about the server, and whether it can make boxes; `None` if the connection
/// to it fails.
async fn server_findings(client: &Client) -> (Option<bool>, Vec<Finding>) {
    let server = match client.health().await {
        Ok(server) => server,
        Err(error @ client::Error::Connect { .. }) => {
            return (None, vec![Finding::lacking("server", Level::Warn, "cannot be reached", error.to_string())]);
        }
        Err(error) => {
            return (
                Some(false),
                vec![Finding::lacking("server", Level::Missing, "does not answer as expected", error.to_string())],
            );
        }
    };
    let fact = format!("version {}, up for {}", server.version, server.uptime);
    let ready = client.ready().await;
    let is_ready = ready.is_ok();
    let mut findings = vec![match ready {
        Ok(_) => Finding::ok("server", fact),
        Err(error) => {
            Finding::lacking("server", Level::Missing, format!("{fact}, cannot make boxes"), error.to_string())
        }
    }];
    let own = env!("CARGO_PKG_VERSION");
    if server.version != own {
        findings.push(Finding::lacking(
            "version",
            Level::Warn,
            format!("the server is {}, this program {own}", server.version),
            "use the same release for both",
        ));
    }
    findings.extend(doors::open_to_others(client).await);
    match client.providers().await {
        Ok(providers) => providers.into_iter().for_each(|provider| findings.extend(of_provider(provider))),
        Err(error) => findings.push(Finding::lacking(
            "providers",
            Level::Warn,
            "the server does not report its providers",
            crate::failure::Failure::from(error).said().map(|(_, message)| message.to_owned()).unwrap_or_default(),
        )),
    }
    (Some(is_ready), findings)
}

fn of_provider(provider: api::ProviderHealth) -> Vec<Finding> {
    let api::ProviderHealth { name, healthy, default, error, capabilities, missing, .. } = provider;
    let default = if default { ", the default" } else { "" };
    let first = if healthy {
        Finding::ok(&name, format!("healthy{default}: {}", capabilities.join(", ")))
    } else {
        let reason = error.unwrap_or_else(|| "it reports no reason".to_owned());
        Finding::lacking(&name, Level::Missing, format!("not healthy{default}"), reason)
    };
    let rest = missing.into_iter().map(|missing| Finding::lacking(&name, Level::Warn, "could do more", missing));
    std::iter::once(first).chain(rest).collect()
}

#[cfg(test)]
mod test {
    use super::{Finding, Level, can_make_boxes};

    #[test]
    fn one_provider_that_lacks_nothing_is_enough() {
        let host = Finding::ok("host", "Linux");
        let no_docker = Finding::lacking("docker", Level::Missing, "no socket", "start it");
        let half = Finding::lacking("native", Level::Missing, "no overlay", "load it");
        let native = Finding::ok("native", "namespaces");
        let soft = Finding::lacking("native", Level::Warn, "soft limits", "be root");
        assert!(can_make_boxes(&[host.clone(), native.clone(), soft, no_docker.clone()]));
        assert!(!can_make_boxes(&[host.clone(), native, half, no_docker]));
        assert!(!can_make_boxes(&[host]));
    }
}
