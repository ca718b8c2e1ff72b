//! Requests to kernels.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use kernels::Request;
use providers::{Attach, AttachFrom, Chain, Guest, ProcessAction, ProcessEvents, Signal};
use tokio_util::task::TaskTracker;

use super::events::CodeRequest;
use super::kernel::Process;

/// Request to a kernel, without its number.
#[derive(Debug, Clone)]
pub(super) enum Order {
    Run(CodeRequest),
    Complete { code: String, cursor: usize },
}

impl Order {
    /// Returns the bytes for the kernel.
    fn to_bytes(&self, run: u64) -> Bytes {
        let request = match self {
            Self::Run(CodeRequest { code, env, .. }) => Request::Run { run, code, env },
            Self::Complete { code, cursor } => Request::Complete { run, code, cursor: *cursor },
        };
        request.to_bytes().into()
    }
}

/// A run whose request was sent.
pub(super) struct Sent {
    pub(super) output: ProcessEvents,
    pub(super) process: Process,
    /// Number of the request.
    pub(super) run: u64,
}

/// Sends a request to a kernel.
pub(super) async fn send(
    tasks: &TaskTracker,
    guest: &Arc<dyn Guest>,
    process: &mut Process,
    order: &Order,
) -> providers::Result<Sent> {
    let run = process.next_run;
    let attach = Attach { from: AttachFrom::Position(process.position), follow: true, input: None };
    // First, because output without a reader may be lost.
    let output = guest.attach_process(process.number, attach).await?;
    let input = stream::iter([Ok(order.to_bytes(run))]).boxed();
    // Not waited for: a kernel that is busy with what it was given before reads it later, and output has to be read
    // for it to get there.
    process.next_run += 1;
    let number = process.number;
    let writer = Arc::clone(guest);
    let written = tasks.spawn(async move { writer.process_input(number, input, false).await });
    let written = async move { written.await.unwrap_or(Err(providers::Error::Gone)) };
    Ok(Sent { output: with_input(output, written), process: process.clone(), run })
}

/// Returns output that breaks off with the error of an input, if that fails for good.
fn with_input(
    output: ProcessEvents,
    written: impl Future<Output = providers::Result<()>> + Send + 'static,
) -> ProcessEvents {
    let failed = stream::once(written).filter_map(|outcome| async move {
        match outcome {
            // The output tells how the process ended.
            Ok(()) | Err(providers::Error::Conflict(_) | providers::Error::NotFound(_)) => None,
            Err(error) => Some(Err(error)),
        }
    });
    let ended = output.map(Some).chain(stream::once(async { None }));
    stream::select(ended, failed.map(Some))
        .take_while(|event| std::future::ready(event.is_some()))
        .filter_map(std::future::ready)
        .boxed()
}

/// Interrupts what a kernel runs.
pub(super) async fn interrupt(guest: &Arc<dyn Guest>, process: u64) -> providers::Result<()> {
    let signal = Signal::named("INT").expect("is a signal");
    guest.control_process(process, ProcessAction::SignalCommand(signal)).await
}

/// Removes the process of a kernel, if it is there.
pub(super) async fn remove(guest: &Arc<dyn Guest>, process: u64) {
    match guest.remove_process(process).await {
        Ok(()) | Err(providers::Error::NotFound(_)) => {}
        Err(error) => tracing::debug!(error = %Chain(&error), "cannot remove a kernel"),
    }
}
