//! Code that runs in the contexts of a box before its sandbox counts as running.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{PrepareCommand, ProcessDefaults};
use futures_util::StreamExt;
use kernels::{Language, Message, Piece};
use providers::{Guest, ProcessEvent};
use tokio_util::task::TaskTracker;

use super::context::{ContextId, NewContext, of_process};
use super::events::{CodeRequest, Deadline};
use super::kernel::Process;
use super::requests::{Order, send};
use super::start::start;
use super::streams::Streams;
use crate::control::error::{Error, Result};

/// Largest message that is kept until it is complete, in bytes.
const RESULT_BYTES_MAX: usize = 256 * 1024;

/// End of the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::control) enum WarmedUp {
    Done,
    /// It failed, with this error.
    Failed(String),
    /// It did not end in time.
    Late,
}

/// Runs code in the default context of its language, which is made if it is not there.
pub(in crate::control) async fn warm_up(
    guest: &Arc<dyn Guest>,
    language: Language,
    command: &PrepareCommand,
    timeout: Duration,
    convert: &impl Fn(providers::Error) -> Error,
) -> Result<WarmedUp> {
    let context = ContextId::default_of(language);
    let processes = guest.processes().await.map_err(convert)?;
    let found = processes.iter().filter_map(of_process).rfind(|found| found.context.id == context);
    let mut process = match found {
        Some(found) => Process::from(found),
        None => {
            let PrepareCommand { workdir, user, env, .. } = command.clone();
            let options = NewContext { language, workdir, user, env };
            start(guest, &context, &options, ProcessDefaults::default(), convert).await?.0
        }
    };
    match tokio::time::timeout(timeout, run(guest, &mut process, &command.command)).await {
        Ok(ended) => ended.map_err(convert),
        Err(_) => Ok(WarmedUp::Late),
    }
}

/// Runs code to its end, whatever it writes.
async fn run(guest: &Arc<dyn Guest>, process: &mut Process, code: &str) -> providers::Result<WarmedUp> {
    let tasks = TaskTracker::new();
    let request = CodeRequest { code: code.to_owned(), env: BTreeMap::new(), deadline: Deadline::Default };
    let mut sent = send(&tasks, guest, process, &Order::Run(request)).await?;
    let mut streams = Streams::new(&sent.process.marker, sent.process.position);
    let mut failed = None;
    while let Some(event) = sent.output.next().await {
        let event = event?;
        if let ProcessEvent::Exit(exit) = event {
            return Ok(WarmedUp::Failed(format!("the interpreter ended with exit code {}", exit.code)));
        }
        streams.push(event);
        loop {
            match streams.next_piece() {
                Ok(Some((_, Piece::Message(Message::Error { run, name, value, .. })))) if run == sent.run => {
                    failed = Some(format!("{name}: {value}"));
                }
                // The kernel writes the end on stdout after all else.
                Ok(Some((_, Piece::Message(Message::End { run })))) if run == sent.run => {
                    return Ok(failed.map_or(WarmedUp::Done, WarmedUp::Failed));
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(broken) => return Ok(WarmedUp::Failed(broken.to_string())),
            }
        }
        // Results are of no use here.
        streams.drop_messages_above(RESULT_BYTES_MAX);
    }
    Err(providers::Error::Gone)
}
