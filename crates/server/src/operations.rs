//! How often what was done, how it went, and how long it took.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What the service does, for its figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A sandbox was asked for.
    Spawn,
    /// A command was run to its end.
    Exec,
    /// A command was run with its output streamed.
    ExecStream,
    /// A sandbox was destroyed.
    Destroy,
    /// A lifetime was set anew.
    Extend,
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
    /// The console was read.
    Logs,
}

impl Operation {
    /// Its name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Spawn => "spawn",
            Operation::Exec => "exec",
            Operation::ExecStream => "exec_stream",
            Operation::Destroy => "destroy",
            Operation::Extend => "extend",
            Operation::FileRead => "file_read",
            Operation::FileWrite => "file_write",
            Operation::FileDelete => "file_delete",
            Operation::FileList => "file_list",
            Operation::FileStat => "file_stat",
            Operation::FileMove => "file_move",
            Operation::FileChmod => "file_chmod",
            Operation::FileGlob => "file_glob",
            Operation::Logs => "logs",
        }
    }
}

/// The figures of one operation on one provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// How often it went well.
    pub succeeded: u64,
    /// How often it did not.
    pub failed: u64,
    /// All the time it took.
    pub total: Duration,
}

/// The figures of every operation on every provider since the start.
#[derive(Debug, Default)]
pub struct Operations {
    figures: Mutex<BTreeMap<(Operation, String), Figures>>,
}

impl Operations {
    /// Counts one.
    pub fn record(&self, operation: Operation, provider: &str, succeeded: bool, took: Duration) {
        let mut all = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        let figures = all.entry((operation, provider.to_owned())).or_default();
        *if succeeded { &mut figures.succeeded } else { &mut figures.failed } += 1;
        figures.total += took;
    }
}
