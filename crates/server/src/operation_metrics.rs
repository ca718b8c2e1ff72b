//! Statistics of operations: counts, outcomes and durations.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

/// Operation that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A sandbox was requested.
    Spawn,
    /// A command was run to its end.
    Exec,
    /// A command was run with its output streamed.
    ExecStream,
    /// A sandbox was destroyed.
    Destroy,
    /// A lifetime was set anew.
    Extend,
    /// A snapshot of a sandbox was taken.
    Snapshot,
    /// A snapshot was removed.
    SnapshotDelete,
    /// Copies of a sandbox were made.
    Fork,
    /// A background process was started.
    ProcessStart,
    /// Background processes were listed.
    ProcessList,
    /// A client began to read the output of a background process.
    ProcessAttach,
    /// The stdin of a background process was written.
    ProcessInput,
    /// A background process was sent a signal, or its terminal resized.
    ProcessControl,
    /// A background process was removed.
    ProcessRemove,
    /// A file was read.
    FileRead,
    /// A file was written.
    FileWrite,
    /// A file was deleted.
    FileDelete,
    /// A directory was listed.
    FileList,
    /// A file was described.
    FileStat,
    /// A file was moved.
    FileMove,
    /// A file's mode was set.
    FileChmod,
    /// Files were looked for.
    FileGlob,
    /// The content of files was searched.
    FileSearch,
    /// The content of files was replaced.
    FileReplace,
    /// A directory was packed.
    FileArchive,
    /// An archive was unpacked.
    FileUnpack,
    /// A directory was described.
    FileManifest,
    /// Many files were removed, or their modes and times set.
    FileAmend,
    /// A directory was made.
    FileMakeDir,
    /// Files were watched, or the changes of a watcher taken.
    FileWatch,
    /// A user of a sandbox was looked for.
    Account,
    /// A context was made.
    ContextCreate,
    /// Contexts were listed.
    ContextList,
    /// Code was run in a context.
    ContextRun,
    /// Completions of code were looked for.
    ContextComplete,
    /// The code of a context was interrupted.
    ContextInterrupt,
    /// A context was restarted.
    ContextRestart,
    /// A context was removed.
    ContextDelete,
    /// The console was read.
    Logs,
    /// The ports that listen were listed.
    Ports,
    /// A connection to a port was opened.
    Connect,
    /// A port was listened on for the caller.
    Listen,
    /// A request was passed on to a port.
    Preview,
}

impl Operation {
    /// Returns its name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Spawn => "spawn",
            Operation::Exec => "exec",
            Operation::ExecStream => "exec_stream",
            Operation::Destroy => "destroy",
            Operation::Extend => "extend",
            Operation::Snapshot => "snapshot",
            Operation::SnapshotDelete => "snapshot_delete",
            Operation::Fork => "fork",
            Operation::ProcessStart => "process_start",
            Operation::ProcessList => "process_list",
            Operation::ProcessAttach => "process_attach",
            Operation::ProcessInput => "process_input",
            Operation::ProcessControl => "process_control",
            Operation::ProcessRemove => "process_remove",
            Operation::FileRead => "file_read",
            Operation::FileWrite => "file_write",
            Operation::FileDelete => "file_delete",
            Operation::FileList => "file_list",
            Operation::FileStat => "file_stat",
            Operation::FileMove => "file_move",
            Operation::FileChmod => "file_chmod",
            Operation::FileGlob => "file_glob",
            Operation::FileSearch => "file_search",
            Operation::FileReplace => "file_replace",
            Operation::FileArchive => "file_archive",
            Operation::FileUnpack => "file_unpack",
            Operation::FileManifest => "file_manifest",
            Operation::FileAmend => "file_amend",
            Operation::FileMakeDir => "file_make_dir",
            Operation::FileWatch => "file_watch",
            Operation::Account => "account",
            Operation::ContextCreate => "context_create",
            Operation::ContextList => "context_list",
            Operation::ContextRun => "context_run",
            Operation::ContextComplete => "context_complete",
            Operation::ContextInterrupt => "context_interrupt",
            Operation::ContextRestart => "context_restart",
            Operation::ContextDelete => "context_delete",
            Operation::Logs => "logs",
            Operation::Ports => "ports",
            Operation::Connect => "connect",
            Operation::Listen => "listen",
            Operation::Preview => "preview",
        }
    }
}

/// Upper bounds of the classes in which durations are counted: from the duration of a call into
/// a box up to the default of the longest deadline of a command.
pub const BOUNDS: [Duration; 18] = [
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(300),
    Duration::from_secs(600),
];

/// Durations, counted in classes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Histogram {
    /// Number of durations above the bound before and up to this one of [`BOUNDS`].
    classes: [u64; BOUNDS.len()],
    pub count: u64,
    pub total: Duration,
    /// Shortest duration; zero without any.
    pub min: Duration,
    pub max: Duration,
}

impl Histogram {
    /// Counts one duration in its class.
    pub fn observe(&mut self, took: Duration) {
        if let Some(class) = BOUNDS.iter().position(|bound| took <= *bound) {
            self.classes[class] += 1;
        }
        self.min = if self.count == 0 { took } else { self.min.min(took) };
        self.max = self.max.max(took);
        self.total = self.total.saturating_add(took);
        self.count += 1;
    }

    /// Returns the mean; zero without any.
    #[must_use]
    pub fn mean(&self) -> Duration {
        mean(self.total, self.count)
    }

    /// Returns each bound, with the number of durations at or below it.
    pub fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> {
        let mut below = 0;
        BOUNDS.into_iter().zip(self.classes).map(move |(bound, count)| {
            below += count;
            (bound, below)
        })
    }
}

/// Returns `total` divided by `count`; zero for a count of zero.
#[must_use]
pub fn mean(total: Duration, count: u64) -> Duration {
    let ns = total.as_nanos().checked_div(u128::from(count)).unwrap_or(0);
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Outcomes and durations of one operation on one provider.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OperationStats {
    pub succeeded: u64,
    pub failed: u64,
    /// Durations of all, successful or not.
    pub latency: Histogram,
}

/// Statistics of every operation on every provider since the start. Their number is that of
/// operations and providers: nothing a caller sends adds one.
#[derive(Debug, Default)]
pub struct Operations {
    tallies: Mutex<BTreeMap<(Operation, String), OperationStats>>,
    phases: Mutex<BTreeMap<(&'static str, String), Histogram>>,
}

impl Operations {
    /// Counts one operation with its outcome and duration.
    pub fn record(&self, operation: Operation, provider: &str, succeeded: bool, took: Duration) {
        let mut all = self.tallies.lock();
        let tally = all.entry((operation, provider.to_owned())).or_default();
        *if succeeded { &mut tally.succeeded } else { &mut tally.failed } += 1;
        tally.latency.observe(took);
    }

    /// Counts the durations of the phases of a spawn.
    pub fn record_phases(&self, provider: &str, phases: impl IntoIterator<Item = (&'static str, Duration)>) {
        let mut all = self.phases.lock();
        for (phase, took) in phases {
            all.entry((phase, provider.to_owned())).or_default().observe(took);
        }
    }

    /// Returns the counts of each operation on each provider.
    #[must_use]
    pub fn tallies(&self) -> Vec<(Operation, String, OperationStats)> {
        let all = self.tallies.lock();
        all.iter().map(|((operation, provider), tally)| (*operation, provider.clone(), tally.clone())).collect()
    }

    /// Returns the durations of each phase of spawns on each provider.
    #[must_use]
    pub fn phases(&self) -> Vec<(&'static str, String, Histogram)> {
        let all = self.phases.lock();
        all.iter().map(|((phase, provider), times)| (*phase, provider.clone(), times.clone())).collect()
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_rise() {
        assert!(BOUNDS.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn what_was_recorded_is_counted_by_operation_provider_and_outcome() {
        let operations = Operations::default();
        let ms = Duration::from_millis;
        operations.record(Operation::Exec, "mock", true, ms(30));
        operations.record(Operation::Exec, "mock", false, ms(10));
        operations.record(Operation::Exec, "native", true, ms(1));
        let tallies = operations.tallies();
        assert_eq!(tallies.len(), 2);
        let (operation, provider, tally) = &tallies[0];
        assert_eq!((*operation, provider.as_str()), (Operation::Exec, "mock"));
        assert_eq!((tally.succeeded, tally.failed), (1, 1));
        let latency = &tally.latency;
        assert_eq!((latency.count, latency.total, latency.mean()), (2, ms(40), ms(20)));
        assert_eq!((latency.min, latency.max), (ms(10), ms(30)));
    }

    #[test]
    fn nothing_has_no_mean() {
        assert_eq!(Histogram::default().mean(), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn classes_hold_what_lies_at_or_below_their_bound(all in prop::collection::vec(0u64..1_000_000_000_000, 0..50)) {
            let mut histogram = Histogram::default();
            for ns in &all {
                histogram.observe(Duration::from_nanos(*ns));
            }
            for (bound, count) in histogram.cumulative() {
                let expected = all.iter().filter(|ns| Duration::from_nanos(**ns) <= bound).count();
                prop_assert_eq!(count, expected as u64);
            }
            prop_assert_eq!(histogram.count, all.len() as u64);
            prop_assert_eq!(histogram.total, Duration::from_nanos(all.iter().sum()));
            prop_assert_eq!(histogram.min, Duration::from_nanos(all.iter().copied().min().unwrap_or(0)));
            prop_assert_eq!(histogram.max, Duration::from_nanos(all.iter().copied().max().unwrap_or(0)));
        }
    }
}
