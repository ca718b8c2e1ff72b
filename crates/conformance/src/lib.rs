//! Conformance suite that every provider passes.
//!
//! Each bullet in the documentation of [`providers::Provider`] and [`providers::Guest`] has a case
//! here, but for those that take a second server or an option that not every provider has. A case
//! that a provider cannot pass by its nature is skipped, with the reason. That is decided before
//! anything runs.

#![expect(clippy::unwrap_used, reason = "a case fails by panicking")]

mod accounts;
mod answers;
mod archives;
mod case;
mod connection;
mod contexts;
mod coverage;
mod disk;
mod egress;
mod exec;
mod files;
mod followed;
mod images;
mod lifecycle;
mod listen;
mod output;
mod pauses;
mod ports;
mod processes;
mod program;
mod search;
mod shares;
mod slots;
mod snapshots;
mod stats;
mod subject;
mod terminal;
mod tree;

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::time::Instant;

use tokio::task::JoinSet;

use case::CASE_TIME_MAX;
pub use case::Case;
pub use coverage::Coverage;
use coverage::Layer;
pub use snapshots::Kept;
pub use subject::{Need, Subject};

/// Results of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Cases that passed.
    pub passed: Vec<&'static str>,
    /// Cases that were skipped, each with the reason.
    pub skipped: Vec<(&'static str, String)>,
    /// Cases that were left out, because the suite runs whole on another provider.
    pub left_out: Vec<&'static str>,
    /// Cases that failed, each with what was observed.
    pub failed: Vec<(&'static str, String)>,
    /// Parts of a box that the provider keeps.
    pub kept: Kept,
}

impl Report {
    /// Returns the provider's row of the table in `docs/operate/providers.md`: its name, how many cases
    /// passed, how many were skipped, and why.
    #[must_use]
    pub fn row(&self, provider: &str) -> String {
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, reason) in &self.skipped {
            *reasons.entry(reason).or_default() += 1;
        }
        let reasons: Vec<String> = reasons.into_iter().map(|(reason, count)| format!("{reason} ({count})")).collect();
        let why = if reasons.is_empty() { "–".to_owned() } else { reasons.join("; ") };
        format!("| `{provider}` | {} | {} | {why} |", self.passed.len(), self.skipped.len())
    }
}

/// Returns the cases of what the agent does in every box.
fn agent_cases() -> Vec<Case> {
    let groups = [
        exec::cases(),
        terminal::cases(),
        processes::cases(),
        output::cases(),
        files::cases(),
        tree::cases(),
        search::cases(),
        archives::cases(),
        accounts::cases(),
        followed::cases(),
        contexts::cases(),
    ];
    groups.into_iter().flatten().collect()
}

/// Returns the cases of what differs between providers.
fn provider_cases() -> Vec<Case> {
    let groups = [
        lifecycle::cases(),
        ports::cases(),
        listen::cases(),
        egress::cases(),
        pauses::cases(),
        snapshots::cases(),
        answers::cases(),
        images::cases(),
        slots::cases(),
        shares::cases(),
        disk::cases(),
        stats::cases(),
    ];
    groups.into_iter().flatten().collect()
}

/// Returns all cases, each with whether this coverage includes it.
fn covered(coverage: Coverage) -> impl Iterator<Item = (Case, bool)> {
    let layers = [(Layer::Provider, provider_cases()), (Layer::Agent, agent_cases())];
    layers.into_iter().flat_map(move |(layer, cases)| {
        cases.into_iter().enumerate().map(move |(index, case)| (case, coverage.includes(layer, index)))
    })
}

/// Variable with parts of names, separated by `|`: only the cases whose names contain one of them run. For
/// work on a provider whose suite takes long.
const ONLY: &str = "TIDEBOX_CASES";

/// Runs every case against one provider and prints each result. After a case its boxes are
/// stopped, and the provider must hold none.
///
/// # Panics
/// If any case failed, after all of them have run.
pub async fn run(subject: Subject) -> Report {
    let mut report = Report::default();
    let only = std::env::var(ONLY).ok();
    let is_left_out = |name: &str| only.as_ref().is_some_and(|only| !only.split('|').any(|part| name.contains(part)));
    for (case, is_covered) in covered(subject.coverage()) {
        if !is_covered {
            report.left_out.push(case.name);
            continue;
        }
        let left_out = is_left_out(case.name).then(|| format!("{ONLY} names other cases"));
        if let Some(reason) = left_out.or_else(|| case.needs.iter().find_map(|need| subject.lacks(*need))) {
            say(&format!("skipped: {} ({reason})", case.name));
            report.skipped.push((case.name, reason));
            continue;
        }
        let begun = Instant::now();
        match guarded(&subject, (case.run)(subject.clone())).await {
            Ok(()) => {
                say(&format!("ok       {} <{:.3}s>", case.name, begun.elapsed().as_secs_f64()));
                report.passed.push(case.name);
            }
            Err(seen) => {
                say(&format!("FAILED   {}: {seen}", case.name));
                report.failed.push((case.name, seen));
            }
        }
    }
    match guarded(&subject, snapshots::kept(subject.clone())).await {
        Ok(kept) => report.kept = kept,
        Err(seen) => report.failed.push(("a snapshot can be tried", seen)),
    }
    let (passed, skipped, failed) = (report.passed.len(), report.skipped.len(), report.failed.len());
    say(&format!("{}: {passed} hold, {failed} do not, {skipped} skipped", subject.provider().name()));
    match report.left_out.len() {
        0 => say(&report.row(subject.provider().name())),
        count => say(&format!("{count} cases were left out: TIDEBOX_SUITES={} runs them", subject.suite())),
    }
    say(&format!("snapshot, memory, fork, suspend: {}", report.kept.row(subject.provider().name())));
    if !report.failed.is_empty() {
        fail(&report);
    }
    report
}

/// Prints what failed once more, and fails the test. The failures are then the last lines of what a
/// long run has printed, which a backtrace would follow.
fn fail(report: &Report) -> ! {
    for (name, seen) in &report.failed {
        say(&format!("FAILED   {name}: {seen}"));
    }
    resume_unwind(Box::new("cases of the suite failed"))
}

/// Runs `work` within the time of a case, and stops its boxes. Returns what it returns, or what was seen
/// if it failed.
async fn guarded<T: Send + 'static>(
    subject: &Subject,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, String> {
    let mut task = JoinSet::new();
    task.spawn(work);
    let result = match tokio::time::timeout(CASE_TIME_MAX, task.join_next()).await {
        Ok(Some(Ok(result))) => Ok(result),
        Ok(Some(Err(error))) => {
            Err(error.try_into_panic().map_or_else(|error| error.to_string(), |panic| text(&*panic)))
        }
        Ok(None) => Err("it did not run".to_owned()),
        Err(_) => Err(format!("it did not end within {CASE_TIME_MAX:?}")),
    };
    drop(task);
    subject.stop_all().await?;
    let left = subject.provider().inventory().await.map_err(|error| format!("no inventory: {error}"))?;
    let result = result?;
    if left.is_empty() { Ok(result) } else { Err(format!("boxes are left behind: {left:?}")) }
}

/// Returns the message of a panic.
fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_else(|| "a panic".to_owned())
}

#[expect(clippy::print_stdout, reason = "the suite runs in tests, whose output is captured")]
fn say(line: &str) {
    println!("{line}");
}
