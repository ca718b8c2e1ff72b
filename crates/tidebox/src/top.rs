//! `tidebox top`: the resources that all sandboxes use, shown anew each second.
//!
//! No mode of the terminal is changed, so there is nothing to restore, however the program ends. What
//! it drew is drawn over from the first of its lines on.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use api::SandboxStats;
use clap::Args;
use client::Filter;

use crate::context::Context;
use crate::failure::Result;
use crate::image::progress::bytes;
use crate::output::{Format, stdout, table};
use crate::signals::Signals;
use crate::stats::{dash, percent, whole};

/// Size of a terminal that does not say its own.
const USUAL_SIZE: Size = Size { columns: 80, rows: 24 };

/// Show the resource usage of all running sandboxes, busiest first
///
/// On a terminal, redraws the table every second (see --interval) until Ctrl-C; otherwise prints it once.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print the table once, even on a terminal
    #[arg(long)]
    once: bool,
    /// Seconds between updates
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Show only sandboxes of this provider
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    columns: u16,
    rows: u16,
}

pub async fn run(context: &Context, args: &TopArgs) -> Result {
    let filter = Filter { provider: args.provider.as_deref(), ..Filter::default() };
    let is_drawn = !args.once && context.output.format == Format::Table && std::io::stdout().is_terminal();
    if !is_drawn {
        let mut all = context.client.stats_of_all(&filter).await?;
        sort(&mut all);
        context.output.print(&all, |all| lines(all))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut signals = Signals::listen()?;
    let mut drawn = Drawn::default();
    loop {
        let next = async {
            let mut all = context.client.stats_of_all(&filter).await?;
            sort(&mut all);
            stdout(drawn.over(&screen(&all), size()).as_bytes())?;
            tokio::time::sleep(Duration::from_secs(args.interval)).await;
            Result::Ok(())
        };
        tokio::select! {
            done = next => done?,
            code = signals.next() => {
                // Ctrl-C is the way to end it, and no failure.
                return Ok(if code == 128 + 2 { ExitCode::SUCCESS } else { ExitCode::from(code) });
            }
        }
    }
}

/// Sorts by use of processors, then of memory, the most first.
fn sort(all: &mut [SandboxStats]) {
    all.sort_by(|a, b| {
        cpu_share(b).total_cmp(&cpu_share(a)).then_with(|| b.memory.used_bytes.cmp(&a.memory.used_bytes))
    });
}

/// Returns the share of a processor; a negative one if it is unknown, to sort it last.
fn cpu_share(stats: &SandboxStats) -> f64 {
    stats.cpu.share.unwrap_or(-1.0)
}

fn lines(all: &[SandboxStats]) -> String {
    let header = ["ID", "PROVIDER", "CPU", "MEMORY", "LIMIT", "PROCESSES", "SENT", "RECEIVED", "UPTIME"];
    table(&header, all.iter().map(row))
}

fn row(stats: &SandboxStats) -> [String; 9] {
    let egress = stats.egress.as_ref();
    [
        stats.sandbox_id.clone(),
        stats.provider.clone(),
        stats.cpu.share.map_or_else(dash, percent),
        stats.memory.used_bytes.map_or_else(dash, bytes),
        stats.memory.limit_bytes.map_or_else(dash, bytes),
        stats.processes.count.map_or_else(dash, |count| count.to_string()),
        egress.map_or_else(dash, |egress| bytes(egress.sent_bytes)),
        egress.map_or_else(dash, |egress| bytes(egress.received_bytes)),
        whole(stats.uptime_ms),
    ]
}

/// Returns the lines of a screen: sums, and the table.
fn screen(all: &[SandboxStats]) -> Vec<String> {
    let busy: f64 = all.iter().filter_map(|stats| stats.cpu.share).sum();
    let memory: u64 = all.iter().filter_map(|stats| stats.memory.used_bytes).sum();
    let sums = format!("{} sandboxes, {} of a processor, {} of memory", all.len(), percent(busy), bytes(memory));
    std::iter::once(sums).chain(lines(all).lines().map(str::to_owned)).collect()
}

fn size() -> Size {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => Size { columns: size.ws_col, rows: size.ws_row },
        _ => USUAL_SIZE,
    }
}

/// Lines on the screen.
#[derive(Debug, Default)]
struct Drawn {
    lines: usize,
    columns: u16,
}

impl Drawn {
    /// Returns what draws `lines` over the earlier ones, no line longer than the terminal and no more
    /// of them than it has.
    fn over(&mut self, lines: &[String], size: Size) -> String {
        let mut text = String::new();
        if size.columns < self.columns {
            // The terminal has wrapped earlier lines, so they are more than they were.
            text.push_str("\x1b[H\x1b[2J");
        } else if self.lines > 0 {
            let _ = write!(text, "\r\x1b[{}A\x1b[J", self.lines);
        }
        let rows = usize::from(size.rows).saturating_sub(1).max(1);
        let shown = if lines.len() > rows { rows.saturating_sub(1).max(1) } else { lines.len() };
        for line in &lines[..shown] {
            text.extend(line.chars().take(usize::from(size.columns).saturating_sub(1)));
            text.push('\n');
        }
        self.lines = shown;
        if shown < lines.len() && shown < rows {
            let more: String = format!("… {} more", lines.len() - shown);
            text.extend(more.chars().take(usize::from(size.columns).saturating_sub(1)));
            text.push('\n');
            self.lines += 1;
        }
        self.columns = size.columns;
        text
    }
}

#[cfg(test)]
mod test {
    use super::{Drawn, Size};

    fn lines(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("line {n} {}", "x".repeat(100))).collect()
    }

    #[test]
    fn a_screen_is_never_larger_than_the_terminal() {
        for (columns, rows, count) in [(80, 24, 100), (10, 3, 100), (1, 1, 5), (200, 50, 2), (80, 24, 23), (80, 2, 2)] {
            let text = Drawn::default().over(&lines(count), Size { columns, rows });
            let most = usize::from(rows).saturating_sub(1).max(1);
            assert!(text.lines().count() <= most, "{columns} × {rows}: {text}");
            assert!(text.lines().all(|line| line.chars().count() < usize::from(columns)), "{columns} × {rows}: {text}");
        }
        let text = Drawn::default().over(&lines(100), Size { columns: 80, rows: 24 });
        assert!(text.ends_with("… 78 more\n"), "{text}");
    }

    #[test]
    fn each_screen_is_drawn_over_the_one_before() {
        let (mut drawn, size) = (Drawn::default(), Size { columns: 80, rows: 24 });
        assert!(!drawn.over(&lines(5), size).contains('\x1b'));
        assert!(drawn.over(&lines(2), size).starts_with("\r\x1b[5A\x1b[J"));
        assert!(drawn.over(&lines(9), size).starts_with("\r\x1b[2A\x1b[J"));
        let narrower = drawn.over(&lines(9), Size { columns: 40, rows: 24 });
        assert!(narrower.starts_with("\x1b[H\x1b[2J"), "{narrower:?}");
    }
}
