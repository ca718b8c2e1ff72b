//! `tidebox egress`: the connections out of a sandbox.

use std::process::ExitCode;

use api::{Egress, EgressMode, EgressPolicy};
use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::output::{pairs, table};
use crate::values::{EgressOptions, or_dash};

/// Show the outgoing connections of a sandbox, or set its egress policy
///
/// Without options, shows the policy, the counters and the newest decisions. With options, replaces the policy, and
/// closes open connections that the new policy does not allow.
#[derive(Debug, Args)]
pub struct EgressArgs {
    /// Sandbox ID
    id: String,
    #[command(flatten)]
    policy: EgressOptions,
}

pub async fn run(context: &Context, args: EgressArgs) -> Result {
    let egress = match args.policy.policy() {
        Some(policy) => context.client.set_egress(&args.id, &policy).await?,
        None => context.client.egress(&args.id).await?,
    };
    context.output.print(&egress, described)?;
    Ok(ExitCode::SUCCESS)
}

/// Describes a policy in one line.
pub fn in_words(policy: &EgressPolicy) -> String {
    let mode = match policy.mode {
        EgressMode::None => "none",
        EgressMode::AllowList => "allow-list",
        EgressMode::Open => "open",
    };
    let lists = [("allow", &policy.allow), ("deny", &policy.deny), ("secrets", &policy.secrets)];
    let mut text = mode.to_owned();
    for (word, entries) in lists {
        if !entries.is_empty() {
            text.push_str(&format!("; {word} {}", entries.join(", ")));
        }
    }
    text
}

fn described(egress: &Egress) -> String {
    let mut lines = vec![("policy", in_words(&egress.policy))];
    lines.extend(egress.template_policy.as_ref().map(|policy| ("template", in_words(policy))));
    let enforced = if egress.enforced { "yes" } else { "no: the box has another network" };
    lines.push(("enforced", enforced.to_owned()));
    let Egress { open, allowed, denied, failed, .. } = egress;
    lines.push(("connections", format!("{open} open, {allowed} allowed, {denied} denied, {failed} failed")));
    lines.push(("bytes", format!("{} sent, {} received", egress.bytes_sent, egress.bytes_received)));
    let mut text = pairs(lines);
    if !egress.decisions.is_empty() {
        let rows = egress.decisions.iter().map(|decision| {
            [
                decision.time.clone(),
                decision.verdict.clone(),
                format!("{}:{}", decision.host, decision.port),
                or_dash(decision.address.as_ref()),
                or_dash(decision.reason.as_ref()),
            ]
        });
        text.push_str("\n\n");
        text.push_str(&table(&["TIME", "VERDICT", "HOST", "ADDRESS", "REASON"], rows));
    }
    text
}
