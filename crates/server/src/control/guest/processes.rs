//! Background processes of a sandbox.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use providers::{Attach, Background, Guest, ProcessAction, ProcessEvents, ProcessInfo, Signal, TerminalSize};
use serde_json::json;

use super::exec::{ExecRequest, Handle};
use crate::control::error::{Result, above};
use crate::control::service::Control;
use crate::events::EventType;
use crate::operation_metrics::Operation;
use store::Sandbox;

/// A command to start in the background.
#[derive(Debug, Clone)]
pub struct StartProcess {
    /// The command; its stdin is what `background` says.
    pub request: ExecRequest,
    pub background: Background,
    /// Size of the terminal; `None` for none.
    pub terminal: Option<TerminalSize>,
    /// True if the deadline of commands in the foreground is in force.
    pub is_bounded: bool,
}

/// A process, as a caller names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessRef {
    Number(u64),
    Name(String),
}

impl fmt::Display for ProcessRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessRef::Number(number) => number.fmt(f),
            ProcessRef::Name(name) => name.fmt(f),
        }
    }
}

/// A process whose output is read.
pub struct AttachedProcess {
    pub output: ProcessEvents,
    /// Control of the process.
    pub handle: Handle,
}

/// Control of a process by its number.
struct ByNumber {
    guest: Arc<dyn Guest>,
    number: u64,
}

impl fmt::Debug for ByNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByNumber").field("number", &self.number).finish_non_exhaustive()
    }
}

#[async_trait]
impl providers::Control for ByNumber {
    async fn resize(&self, size: TerminalSize) -> providers::Result<()> {
        self.guest.control_process(self.number, ProcessAction::Resize(size)).await
    }

    async fn signal(&self, signal: Signal) -> providers::Result<()> {
        self.guest.control_process(self.number, ProcessAction::Signal(signal)).await
    }
}

/// Finds a process.
async fn find(guest: &Arc<dyn Guest>, process: &ProcessRef) -> providers::Result<ProcessInfo> {
    let is_meant = |listed: &ProcessInfo| match process {
        ProcessRef::Number(number) => listed.process == *number,
        ProcessRef::Name(name) => listed.name.as_ref() == Some(name),
    };
    let found = guest.processes().await?.into_iter().find(is_meant);
    found.ok_or_else(|| {
        let fault = "ended processes are not kept forever; list the known ones with GET …/processes";
        providers::Error::NotFound(format!("there is no process `{process}` in this sandbox; {fault}"))
    })
}

/// Returns the number of a process.
async fn number(guest: &Arc<dyn Guest>, process: &ProcessRef) -> providers::Result<u64> {
    match process {
        ProcessRef::Number(number) => Ok(*number),
        ProcessRef::Name(_) => find(guest, process).await.map(|found| found.process),
    }
}

impl Control {
    /// Starts a command in the background; see [`Guest::start_process`].
    ///
    /// # Errors
    /// As [`Guest::start_process`].
    pub async fn start_process(self: &Arc<Self>, id: &str, start: StartProcess) -> Result<ProcessInfo> {
        let StartProcess { request, background, terminal, is_bounded } = start;
        let _using = self.pauses.in_use.begin(id, Operation::ProcessStart);
        let sandbox = self.usable(id).await?;
        let timeout = if is_bounded {
            let limits = self.limits_of(sandbox.owner.as_ref()).await?;
            limits.exec_timeout(request.timeout).map_err(|error| {
                self.publish_if_limited(
                    Operation::ProcessStart.as_str(),
                    Some(&sandbox.provider),
                    above("timeout", error),
                )
            })?
        } else {
            request.timeout.unwrap_or(Duration::MAX)
        };
        let secrets = self.secret_variables(&request.env_secret, sandbox.owner.as_ref()).await?;
        let started = Instant::now();
        let defaults = self.defaults_of(&sandbox).await?;
        let command = providers::Command { terminal, ..request.command(timeout, defaults, secrets) };
        let outcome = async {
            let guest = self.guest(&sandbox).await?;
            guest.start_process(command, background).await.map_err(|error| self.guest_error(&sandbox, error))
        }
        .await;
        self.record(Operation::ProcessStart, &sandbox.provider, outcome.is_ok(), started);
        let process = outcome?;
        let data = json!({"background": true, "process_id": process.process, "name": process.name});
        self.publish(EventType::ExecStarted, Some(&sandbox.id), data);
        Ok(process)
    }

    /// Returns the background processes of a sandbox, by number.
    ///
    /// # Errors
    /// As [`Guest::processes`].
    pub async fn processes(&self, id: &str) -> Result<Vec<ProcessInfo>> {
        let list = |guest: Arc<dyn Guest>| async move { guest.processes().await };
        self.inside(Operation::ProcessList, id, list).await.map(|(_, processes)| processes)
    }

    /// Returns the background processes of a sandbox that have this process id, or had it.
    ///
    /// # Errors
    /// As [`Guest::processes_of_pid`].
    pub async fn processes_of_pid(&self, id: &str, pid: u32) -> Result<Vec<ProcessInfo>> {
        let list = |guest: Arc<dyn Guest>| async move { guest.processes_of_pid(pid).await };
        self.inside(Operation::ProcessList, id, list).await.map(|(_, processes)| processes)
    }

    /// Returns one background process of a sandbox.
    ///
    /// # Errors
    /// [`crate::control::Error::NoFile`] if there is no such process.
    pub async fn process(&self, id: &str, process: &ProcessRef) -> Result<ProcessInfo> {
        let look = |guest: Arc<dyn Guest>| async move { find(&guest, process).await };
        self.inside(Operation::ProcessList, id, look).await.map(|(_, found)| found)
    }

    /// Begins to read the output of a process; see [`Guest::attach_process`].
    ///
    /// # Errors
    /// As [`Guest::attach_process`].
    pub async fn attach_process(
        self: &Arc<Self>,
        id: &str,
        process: &ProcessRef,
        attach: Attach,
    ) -> Result<AttachedProcess> {
        let open = |guest: Arc<dyn Guest>| async move {
            let number = number(&guest, process).await?;
            let output = guest.attach_process(number, attach).await?;
            Ok((output, ByNumber { guest, number }))
        };
        // As long as it is read, not only until it is opened.
        let using = self.pauses.in_use.begin(id, Operation::ProcessAttach);
        let (sandbox, (output, control)): (Sandbox, _) = self.inside(Operation::ProcessAttach, id, open).await?;
        let output = using.until_the_end(output);
        Ok(AttachedProcess { output, handle: Handle::new(self, sandbox, Arc::new(control)) })
    }

    /// Writes to the stdin of a process; see [`Guest::process_input`].
    ///
    /// # Errors
    /// As [`Guest::process_input`].
    pub async fn process_input(&self, id: &str, process: &ProcessRef, data: Bytes, end: bool) -> Result<()> {
        let write = |guest: Arc<dyn Guest>| async move {
            let number = number(&guest, process).await?;
            let content = stream::iter((!data.is_empty()).then_some(Ok(data))).boxed();
            guest.process_input(number, content, end).await
        };
        self.inside(Operation::ProcessInput, id, write).await.map(|_| ())
    }

    /// Carries out an action on a process.
    ///
    /// # Errors
    /// [`crate::control::Error::NoFile`] if there is no such process; as [`Guest::control_process`].
    pub async fn control_process(&self, id: &str, process: &ProcessRef, action: ProcessAction) -> Result<()> {
        let act = |guest: Arc<dyn Guest>| async move {
            let found = find(&guest, process).await?;
            guest.control_process(found.process, action).await
        };
        self.inside(Operation::ProcessControl, id, act).await.map(|_| ())
    }

    /// Carries out an action on a process that was found before. It has no effect after the end of the process.
    ///
    /// # Errors
    /// As [`Guest::control_process`].
    pub async fn control_found_process(&self, id: &str, number: u64, action: ProcessAction) -> Result<()> {
        let act = |guest: Arc<dyn Guest>| async move { guest.control_process(number, action).await };
        self.inside(Operation::ProcessControl, id, act).await.map(|_| ())
    }

    /// Kills a process with all its descendants, and forgets it.
    ///
    /// # Errors
    /// [`crate::control::Error::NoFile`] if there is no such process.
    pub async fn remove_process(&self, id: &str, process: &ProcessRef) -> Result<()> {
        let remove = |guest: Arc<dyn Guest>| async move {
            let number = number(&guest, process).await?;
            guest.remove_process(number).await
        };
        self.inside(Operation::ProcessRemove, id, remove).await.map(|_| ())
    }
}
