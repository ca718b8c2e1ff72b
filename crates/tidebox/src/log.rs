//! The log of the service: lines on stderr, at a bounded rate.

mod sink;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::HashMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use server::config::{self, Format};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use self::sink::Line;

pub(crate) use self::sink::{Flush, lost};

/// Lines from one place in the program within [`WINDOW`]. Callers can cause some of them as often
/// as they like.
const LINES_MAX: u64 = 100;
/// Period after which the count starts again.
const WINDOW: Duration = Duration::from_secs(10);

/// Limit of the lines from each place in the program, so that a flood from one neither fills a
/// disk nor hides the lines from others. Lines left out are counted, and the count is logged.
#[derive(Debug, Clone, Default)]
pub(crate) struct Budget {
    /// Lines by place, of which there are as many as the program has.
    lines: Arc<Mutex<HashMap<&'static str, u64>>>,
}

impl Budget {
    /// Counts a line; returns `false` if it exceeds the limit.
    fn take(&self, place: &'static str) -> bool {
        let mut lines = self.lines.lock();
        let count = lines.entry(place).or_default();
        *count += 1;
        *count <= LINES_MAX
    }

    /// Starts a new window; returns the places that exceeded the limit, with the lines left out.
    fn renew(&self) -> Vec<(&'static str, u64)> {
        let lines = mem::take(&mut *self.lines.lock());
        lines
            .into_iter()
            .filter(|(_, count)| *count > LINES_MAX)
            .map(|(place, count)| (place, count - LINES_MAX))
            .collect()
    }

    /// Starts a new window every [`WINDOW`] and logs what was left out. Never returns.
    pub(crate) async fn keep(self) {
        let mut windows = tokio::time::interval(WINDOW);
        loop {
            windows.tick().await;
            for (place, lines) in self.renew() {
                tracing::warn!(place, lines, "log lines from one place were dropped because there were too many");
            }
        }
    }
}

impl<S: Subscriber> Layer<S> for Budget {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // A level more verbose than `info` asks for everything.
        *metadata.level() > Level::INFO || self.take(metadata.name())
    }
}

/// Sends the log to stderr, in the configured format, and panics with it. What waits is written when the [`Flush`] is
/// dropped.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start(logging: &config::Logging) -> io::Result<(Budget, Flush)> {
    sink::start()?;
    let is_terminal = std::io::stderr().is_terminal();
    let is_pretty = match logging.format {
        Format::Pretty => true,
        Format::Json => false,
        Format::Auto => is_terminal,
    };
    let logger = tracing_subscriber::fmt()
        .with_writer(|| Line)
        // The library would report to stderr what it cannot write there, and panic.
        .log_internal_errors(false)
        .with_max_level(max_level(logging.level))
        .with_ansi(is_terminal && std::env::var_os("NO_COLOR").is_none());
    let budget = Budget::default();
    if is_pretty {
        logger.with_target(false).finish().with(budget.clone()).init();
    } else {
        logger.json().flatten_event(true).finish().with(budget.clone()).init();
    }
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        tracing::error!(thread = thread.name(), backtrace, "{panic}");
    }));
    Ok((budget, Flush))
}

/// Adds a line to those of the log, as it is.
pub(crate) fn say(line: &str) {
    // Never fails.
    let _ = Line.write_all(format!("{line}\n").as_bytes());
}

fn max_level(level: config::Level) -> LevelFilter {
    match level {
        config::Level::Error => LevelFilter::ERROR,
        config::Level::Warn => LevelFilter::WARN,
        config::Level::Info => LevelFilter::INFO,
        config::Level::Debug => LevelFilter::DEBUG,
        config::Level::Trace => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_flood_from_one_place_leaves_the_lines_of_others_and_is_counted() {
        let budget = Budget::default();
        assert_eq!((0..500).filter(|_| budget.take("flood")).count() as u64, LINES_MAX);
        assert!(budget.take("other"));
        assert_eq!(budget.renew(), [("flood", 500 - LINES_MAX)]);
        assert!(budget.take("flood"), "the next window has room again");
        assert_eq!(budget.renew(), []);
    }
}
