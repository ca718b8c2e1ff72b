//! `tidebox stats`: the resources that a sandbox uses.

use std::process::ExitCode;
use std::time::Duration;

use api::SandboxStats;
use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::image::progress::bytes;
use crate::output::pairs;

/// Show the resource usage of a sandbox
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// Sandbox ID
    id: String,
}

pub async fn run(context: &Context, args: &StatsArgs) -> Result {
    let stats = context.client.stats(&args.id).await?;
    context.output.print(&stats, described)?;
    Ok(ExitCode::SUCCESS)
}

/// Describes the use of resources, a line for each.
fn described(stats: &SandboxStats) -> String {
    let SandboxStats { sandbox_id, provider, uptime_ms, cpu, memory, processes, disk, egress, .. } = stats;
    let share = cpu.share.map_or_else(String::new, |share| {
        let window = cpu.window_ms.map(|ms| format!(" in the last {}", whole(ms))).unwrap_or_default();
        let limit = cpu.limit.map(|limit| format!(" of {limit}00 %")).unwrap_or_default();
        format!(", {}{limit}{window}", percent(share))
    });
    pairs([
        ("id", sandbox_id.clone()),
        ("provider", provider.clone()),
        ("uptime", whole(*uptime_ms)),
        ("cpu", cpu.used_ms.map_or_else(dash, |ms| format!("{:.1} s{share}", ms as f64 / 1000.0))),
        ("memory", used_of_limit(memory.used_bytes, memory.limit_bytes, bytes)),
        ("memory peak", memory.peak_bytes.map_or_else(dash, bytes)),
        ("processes", used_of_limit(processes.count, processes.limit, |count| count.to_string())),
        ("disk", used_of_limit(disk.used_bytes, disk.limit_bytes, bytes)),
        ("sent", egress.as_ref().map_or_else(dash, |egress| bytes(egress.sent_bytes))),
        ("received", egress.as_ref().map_or_else(dash, |egress| bytes(egress.received_bytes))),
    ])
}

fn used_of_limit(used: Option<u64>, limit: Option<u64>, text: fn(u64) -> String) -> String {
    match (used, limit) {
        (Some(used), Some(limit)) => format!("{} of {}", text(used), text(limit)),
        (None, Some(limit)) => format!("- of {}", text(limit)),
        (used, None) => used.map_or_else(dash, text),
    }
}

/// Returns the cell of what is not known.
pub fn dash() -> String {
    "-".to_owned()
}

/// Formats a share of one processor: 1 is `100.0 %`.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Formats a time by its two largest units, such as `2h5m`.
pub fn whole(ms: u64) -> String {
    let seconds = Duration::from_millis(ms).as_secs();
    let days = seconds / 86_400;
    let hours = seconds / 3600 % 24;
    let minutes = seconds / 60 % 60;
    match (days, hours, minutes, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds}s"),
        (0, 0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (0, hours, minutes, _) => format!("{hours}h{minutes}m"),
        (days, hours, ..) => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod test {
    use super::whole;

    #[test]
    fn a_time_is_shown_by_its_largest_units() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (61, "1m1s"), (3600, "1h0m"), (7_500, "2h5m"), (90_000, "1d1h")]
        {
            assert_eq!(whole(seconds * 1000 + 999), text);
        }
    }
}
