//! State of a shell, and the effect of a command on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::streams::{Io, Outlet};
use crate::mock::boxed::Boxed;

/// Process id that `$$` gives, in every shell.
pub(super) const PID: &str = "2";

/// State shared by the commands of one request.
pub(super) struct Run {
    pub(super) inside: Arc<Boxed>,
    pub(super) outlet: Arc<Outlet>,
    pub(super) kill: CancellationToken,
    pub(super) background: TaskTracker,
}

/// Result of a command: its exit code, and the effect on the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// The script goes on.
    Next(i32),
    /// The shell itself ends.
    Exit(i32),
}

impl Flow {
    pub(super) fn code(self) -> i32 {
        match self {
            Flow::Next(code) | Flow::Exit(code) => code,
        }
    }
}

/// A shell with its variables and working directory.
#[derive(Clone)]
pub(super) struct Shell {
    pub(super) run: Arc<Run>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: String,
    pub(super) args: Vec<String>,
    pub(super) status: i32,
    pub(super) depth: usize,
}

impl Shell {
    /// Returns `path` as an absolute path, relative to the working directory.
    pub(super) fn absolute(&self, path: &str) -> String {
        if path.starts_with('/') || path.is_empty() { path.to_owned() } else { format!("{}/{path}", self.cwd) }
    }
}

/// Writes an error message to stderr and returns the exit code.
pub(super) async fn complain(io: &Io, message: &str, code: i32) -> Flow {
    // The command fails with the same code if the message cannot be written.
    let _ = io.stderr.write(format!("{message}\n")).await;
    Flow::Next(code)
}
