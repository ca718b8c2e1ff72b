//! `tidebox snapshot` and `tidebox fork`: the files of sandboxes kept, and copies of sandboxes.

use std::process::ExitCode;

use api::{ForkRequest, SnapshotRequest, SnapshotSummary};
use clap::{Args, Subcommand};

use crate::context::Context;
use crate::failure::Result;
use crate::output::{harmless, pairs, table};
use crate::values::or_dash;

/// Manage snapshots: saved sandboxes that new sandboxes start from
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Take a snapshot of a sandbox and print its ID; `spawn --snapshot` makes sandboxes from it
    Create {
        /// Sandbox ID
        id: String,
        /// Display name: letters, digits, `.`, `_` and `-`
        #[arg(long)]
        name: Option<String>,
    },
    /// List snapshots, newest first
    #[command(visible_alias = "ls")]
    List,
    /// Show one snapshot
    #[command(visible_alias = "inspect")]
    Get {
        /// Snapshot ID
        id: String,
    },
    /// Remove snapshots; sandboxes made from them remain
    #[command(visible_alias = "rm")]
    Delete {
        /// Snapshot IDs
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

/// Copy a sandbox and print the IDs of the copies, one per line; if one copy fails, all are removed
#[derive(Debug, Args)]
pub struct ForkArgs {
    /// Sandbox ID
    id: String,
    /// Number of copies
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    count: u32,
    /// Lifetime of each copy, such as 30m
    #[arg(long, value_name = "DURATION")]
    ttl: Option<String>,
}

pub async fn run(context: &Context, args: SnapshotArgs) -> Result {
    let Context { client, output } = context;
    match args.command {
        Command::Create { id, name } => {
            let snapshot = client.take_snapshot(&id, &SnapshotRequest { name, memory: None }).await?;
            output.print(&snapshot, |snapshot| harmless(&snapshot.id))?;
        }
        Command::List => output.print(&client.snapshots().await?, |snapshots| listed(snapshots))?,
        Command::Get { id } => output.print(&client.snapshot(&id).await?, described)?,
        Command::Delete { ids } => {
            for id in ids {
                output.print(&client.delete_snapshot(&id).await?, |_| harmless(&id))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn fork(context: &Context, args: ForkArgs) -> Result {
    let request = ForkRequest { count: Some(args.count), ttl: args.ttl, metadata: None };
    let copies = context.client.fork(&args.id, &request).await?;
    context.output.print(&copies, |copies| {
        let ids: Vec<String> = copies.iter().map(|copy| harmless(&copy.id)).collect();
        ids.join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn listed(snapshots: &[SnapshotSummary]) -> String {
    let header = ["ID", "KIND", "NAME", "SANDBOX", "PROVIDER", "IMAGE", "BYTES", "CREATED"];
    table(
        &header,
        snapshots.iter().map(|snapshot| {
            [
                snapshot.id.clone(),
                snapshot.kind.clone(),
                or_dash(snapshot.name.as_ref()),
                or_dash(snapshot.sandbox_id.as_ref()),
                snapshot.provider.clone(),
                snapshot.image.clone(),
                snapshot.size_bytes.to_string(),
                snapshot.created_at.clone(),
            ]
        }),
    )
}

fn described(snapshot: &SnapshotSummary) -> String {
    pairs([
        ("id", snapshot.id.clone()),
        ("kind", snapshot.kind.clone()),
        ("name", or_dash(snapshot.name.as_ref())),
        ("owner", or_dash(snapshot.owner_id.as_ref())),
        ("sandbox", or_dash(snapshot.sandbox_id.as_ref())),
        ("provider", snapshot.provider.clone()),
        ("image", snapshot.image.clone()),
        ("size", format!("{} bytes", snapshot.size_bytes)),
        ("memory", if snapshot.memory { "yes" } else { "no" }.to_owned()),
        ("created", snapshot.created_at.clone()),
    ])
}
