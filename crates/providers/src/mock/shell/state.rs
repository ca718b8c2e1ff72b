//! State of the commands of one request, and of the shells in which they run.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::OutputEvent;
use crate::mock::boxed::Boxed;

/// Reason why a command cannot continue to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Halt {
    /// The reader is gone: `SIGPIPE`.
    Broken,
    Full,
}

/// State shared by the commands of one request.
pub(super) struct Run {
    pub(super) inside: Arc<Boxed>,
    pub(super) kill: CancellationToken,
    pub(super) background: TaskTracker,
    pub(super) events: mpsc::Sender<OutputEvent>,
    /// Cancelled when the command has ended. The output of its children then goes to the console.
    pub(super) ended: CancellationToken,
}

impl Run {
    /// Sends output to its reader, and to the console once the command has ended.
    pub(super) async fn output(&self, event: fn(Bytes) -> OutputEvent, bytes: Bytes) -> Result<(), Halt> {
        let Some(permit) = self.ended.run_until_cancelled(self.events.reserve()).await else {
            self.inside.console().push(&bytes);
            // A loop that writes to the console never waits for anything else.
            tokio::task::yield_now().await;
            return Ok(());
        };
        permit.map_err(|_| Halt::Broken)?.send(event(bytes));
        Ok(())
    }
}

/// A shell with its variables and working directory.
#[derive(Clone)]
pub(super) struct Shell {
    pub(super) run: Arc<Run>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: String,
    pub(super) depth: usize,
    pub(super) has_exited: bool,
}

impl Shell {
    pub(super) fn new(run: Arc<Run>, env: BTreeMap<String, String>, cwd: String) -> Shell {
        Shell { run, env, cwd, depth: 0, has_exited: false }
    }

    /// Returns `path` as an absolute path, relative to the working directory.
    pub(super) fn absolute(&self, path: &str) -> String {
        if path.starts_with('/') || path.is_empty() { path.to_owned() } else { format!("{}/{path}", self.cwd) }
    }
}
