//! `tidebox audit`: the history of audited requests.

use std::process::ExitCode;

use api::AuditEntry;
use clap::Args;
use client::AuditQuery;

use crate::context::Context;
use crate::failure::Result;
use crate::output::{stdout, table};
use crate::values::or_dash;

/// Rows per request: the API's limit.
const PAGE_MAX: u32 = 1000;

/// Print the audit history, newest first
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Show only entries of this actor, such as admin, anonymous or worker:ID
    #[arg(long, value_name = "ACTOR")]
    actor: Option<String>,
    /// Show only this action, such as quotas.update or key.refused
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Show only requests with this method
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Show only responses with this status
    #[arg(long, value_name = "CODE")]
    status: Option<u16>,
    /// Show only paths that contain this text
    #[arg(long, value_name = "TEXT")]
    path: Option<String>,
    /// Show only entries at or after this time, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Show only entries before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Maximum number of rows
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print CSV with a header row
    #[arg(long)]
    csv: bool,
}

pub async fn run(context: &Context, args: AuditArgs) -> Result {
    let AuditArgs { actor, action, method, status, path, since, until, limit, csv } = args;
    let mut asked = AuditQuery { actor, action, method, status, path, since, until, limit: None, cursor: None };
    let mut left = limit;
    let mut rows = Vec::new();
    let mut is_first = true;
    while left > 0 && (is_first || asked.cursor.is_some()) {
        let page = left.min(PAGE_MAX);
        asked.limit = Some(page);
        left -= page;
        if csv {
            let (text, next) = context.client.audit_csv(&asked).await?;
            asked.cursor = next;
            // The output has one header row, that of the first page.
            let text = if is_first { &text } else { text.split_once("\r\n").map_or("", |(_, rest)| rest) };
            stdout(text.as_bytes())?;
        } else {
            let (page, next) = context.client.audit(&asked).await?;
            asked.cursor = next;
            rows.extend(page);
        }
        is_first = false;
    }
    if !csv {
        context.output.print(&rows, |rows| listed(rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn listed(rows: &[AuditEntry]) -> String {
    let header = ["TIME", "ACTOR", "ACTION", "STATUS", "METHOD", "PATH", "FROM", "DETAIL"];
    table(
        &header,
        rows.iter().map(|row| {
            [
                row.created_at.clone(),
                row.actor.clone(),
                row.action.clone(),
                row.status.to_string(),
                row.method.clone(),
                row.path.clone(),
                or_dash(row.remote_addr.as_ref()),
                or_dash(row.detail.as_ref()),
            ]
        }),
    )
}
