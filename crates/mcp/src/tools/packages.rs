//! The tool that installs packages.

use std::time::Duration;

use api::{EgressMode, ExecMode, ExecRequest};
use rmcp::model::ContentBlock;

use super::commands;
use crate::arguments::Install;
use crate::call::{Call, Target};
use crate::failure::{Failure, Result};

const TIME_MAX: Duration = Duration::from_secs(1800);
/// Most packages of one call.
const PACKAGES_MAX: usize = 100;

/// Manager of packages.
#[derive(Debug, Clone, Copy)]
struct Manager {
    name: &'static str,
    command: &'static [&'static str],
    /// Hosts that it asks.
    hosts: &'static [&'static str],
}

const MANAGERS: [Manager; 3] = [
    Manager {
        name: "pip",
        command: &["python3", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--"],
        hosts: &["pypi.org", "files.pythonhosted.org"],
    },
    Manager {
        name: "npm",
        command: &["npm", "install", "--no-audit", "--no-fund", "--"],
        hosts: &["registry.npmjs.org"],
    },
    Manager {
        name: "apt",
        command: &["sh", "-c", "apt-get update -q && exec apt-get install -q -y \"$@\"", "sh", "--"],
        hosts: &["deb.debian.org", "security.debian.org"],
    },
];

pub(super) async fn install(call: &Call, Install { packages, manager, sandbox }: Install) -> Result<Vec<ContentBlock>> {
    let name = manager.as_deref().unwrap_or("pip");
    let manager = MANAGERS.iter().find(|manager| manager.name == name);
    let manager =
        manager.ok_or_else(|| Failure::new(format!("there is no manager \"{name}\": use pip, npm or apt")))?;
    if packages.is_empty() || packages.len() > PACKAGES_MAX {
        return Err(Failure::new(format!("pass 1 to {PACKAGES_MAX} packages")));
    }
    let target = call.target(sandbox).await?;
    let (program, words) = manager.command.split_first().expect("a manager has a program");
    let request = ExecRequest {
        command: (*program).to_owned(),
        args: words.iter().map(|word| (*word).to_owned()).chain(packages).collect(),
        mode: ExecMode::Argv,
        timeout: Some(format!("{}s", TIME_MAX.as_secs())),
        ..ExecRequest::default()
    };
    let content = commands::start(call, &target, request).await?;
    Ok(match unreachable(call, &target, manager).await {
        Some(advice) => content.into_iter().chain([ContentBlock::text(advice)]).collect(),
        None => content,
    })
}

/// Advises on a sandbox that may reach no host of the manager.
async fn unreachable(call: &Call, target: &Target, manager: &Manager) -> Option<String> {
    let egress = call.client.egress(&target.id).await.ok()?;
    (egress.policy.mode == EgressMode::None).then(|| {
        let hosts = manager.hosts.join("\", \"");
        format!(
            "[the sandbox may reach no host, which is why {} finds nothing: use create_sandbox with `allow_hosts`: \
             [\"{hosts}\"]]",
            manager.name
        )
    })
}
