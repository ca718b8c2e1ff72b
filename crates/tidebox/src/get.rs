//! `tidebox get`: one sandbox.

use std::process::ExitCode;

use api::{Reclaimed, Sandbox};
use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::image::progress::bytes;
use crate::output::pairs;
use crate::values::labels;

/// Show one sandbox
#[derive(Debug, Args)]
#[command(visible_alias = "inspect")]
pub struct GetArgs {
    /// Sandbox ID
    id: String,
}

pub async fn run(context: &Context, args: &GetArgs) -> Result {
    let sandbox = context.client.sandbox(&args.id).await?;
    context.output.print(&sandbox, described)?;
    Ok(ExitCode::SUCCESS)
}

/// Describes a sandbox, a line for each field.
pub fn described(sandbox: &Sandbox) -> String {
    let mut lines = vec![
        ("id", sandbox.id.clone()),
        ("state", if sandbox.on_disk { format!("{}, on disk", sandbox.state) } else { sandbox.state.clone() }),
        ("provider", sandbox.provider.clone()),
        ("image", sandbox.image.clone()),
        ("memory", format!("{} MiB", sandbox.memory_mb)),
        ("vcpus", sandbox.vcpus.to_string()),
    ];
    lines.extend(sandbox.disk_mb.map(|disk_mb| ("disk", format!("{disk_mb} MiB"))));
    lines.extend((sandbox.pids > 0).then(|| ("processes", sandbox.pids.to_string())));
    lines.push(("created", sandbox.created_at.clone()));
    lines.push(("expires", sandbox.expires_at.clone()));
    lines.extend(sandbox.owner_id.clone().map(|owner| ("owner", owner)));
    lines.extend(sandbox.worker_id.clone().map(|worker| ("worker", worker)));
    if !sandbox.metadata.is_empty() {
        lines.push(("metadata", labels(&sandbox.metadata)));
    }
    lines.extend(sandbox.error.clone().map(|error| ("error", error)));
    lines.extend(sandbox.reclaimed.as_ref().map(|reclaimed| ("reclaimed", handed_back(reclaimed))));
    pairs(lines)
}

/// Describes the memory that was handed back.
fn handed_back(reclaimed: &Reclaimed) -> String {
    let Reclaimed { memory_before_bytes: before, memory_after_bytes: after, by } = reclaimed;
    format!("{} of {} ({by})", bytes(before.saturating_sub(*after)), bytes(*before))
}
