//! Output of processes, as messages of a stream.

use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use providers::{ProcessEvent, ProcessEvents};

use super::table;
use super::wire::{Data, Event, EventMessage, encoded};
use crate::control::{Control, Error, Resource};
use crate::http::e2b::connect::Cut;
use crate::http::error::{RpcCode, rpc};

/// Returns the messages for the output of a process, up to its end. They break off when the sandbox ends.
pub fn events(
    control: &Arc<Control>,
    id: &str,
    output: ProcessEvents,
    has_terminal: bool,
) -> impl Stream<Item = Result<EventMessage, Cut>> + Send + use<> {
    let following = Following { control: Arc::clone(control), id: id.to_owned(), output, has_terminal, is_over: false };
    stream::unfold(following, |mut following| async move {
        let next = following.next().await?;
        following.is_over = !matches!(next, Ok(EventMessage { event: Event::Data(_) }));
        Some((next, following))
    })
}

struct Following {
    control: Arc<Control>,
    id: String,
    output: ProcessEvents,
    has_terminal: bool,
    is_over: bool,
}

impl Following {
    async fn next(&mut self) -> Option<Result<EventMessage, Cut>> {
        if self.is_over {
            return None;
        }
        loop {
            let event = match self.output.next().await {
                Some(Ok(event)) => event,
                Some(Err(error)) => return Some(Err(cut(&self.control, &self.id, error).await)),
                None => return Some(Err(Cut::Gone)),
            };
            let event = match event {
                ProcessEvent::Stdout(bytes) if self.has_terminal => Event::Data(Data::Pty(encoded(&bytes))),
                ProcessEvent::Stdout(bytes) => Event::Data(Data::Stdout(encoded(&bytes))),
                ProcessEvent::Stderr(bytes) => Event::Data(Data::Stderr(encoded(&bytes))),
                ProcessEvent::Exit(exit) if exit.timed_out => {
                    let text = "the process was killed at the deadline of the call that started it";
                    return Some(Err(rpc(RpcCode::DeadlineExceeded, text).into()));
                }
                ProcessEvent::Exit(exit) => Event::End(table::end(&exit)),
                // A late stream begins with what comes next.
                ProcessEvent::Screen(_) | ProcessEvent::Position(_) => continue,
            };
            return Some(Ok(event.into()));
        }
    }
}

/// Returns the end of a stream that the box broke off.
async fn cut(control: &Control, id: &str, error: providers::Error) -> Cut {
    // A pause to disk ends the connection to the box, too.
    if matches!(error, providers::Error::Gone | providers::Error::Conflict(_)) {
        return Cut::Gone;
    }
    let error = control.cut(id, error).await;
    let is_gone = matches!(error, Error::NotFound(Resource::Sandbox, _) | Error::Conflict(_));
    if is_gone { Cut::Gone } else { error.into() }
}
