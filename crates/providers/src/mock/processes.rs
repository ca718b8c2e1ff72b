//! Background processes of a box in memory.

use std::sync::Arc;

use super::boxed::Boxed;
use super::shell::run;
use crate::kept_processes::Launched;
use crate::{Background, Command, ProcessInfo, Result};

/// Process id of the first process of a box; that of the others is as much above it as their number.
const FIRST_PID: u64 = 1;

/// Starts a process in a box.
pub(super) async fn start(inside: &Arc<Boxed>, command: Command, background: Background) -> Result<ProcessInfo> {
    let launch = |number: u64, command| async move {
        let run::Running { interactive, tasks } = run::start(inside, command)?;
        let pid = u32::try_from(FIRST_PID + number).unwrap_or(u32::MAX);
        // Dropping the output is what kills it.
        Ok(Launched { interactive, pid, kill: Box::pin(tasks.ended()) })
    };
    inside.processes().start(command, background, launch).await
}
