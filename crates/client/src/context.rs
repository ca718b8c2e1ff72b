//! Contexts: interpreters that keep their state between runs of code.

use api::{CompleteRequest, Completions, Context, ContextRequest, RunLine, RunRequest, Status};
use reqwest::Method;

use crate::connection::{Patience, Size};
use crate::line::Lines;
use crate::line_stream::LineStream;
use crate::path::segment;
use crate::sandbox::sandbox_path;
use crate::{Client, Result};

/// Longest line of a run: the longest message of an interpreter, and the JSON around it.
const LINE_BYTES_MAX: usize = 20 * 1024 * 1024;

/// Contexts. `context` is an id, such as `python` for the default context of that language.
impl Client {
    /// Makes a context in the sandbox `id`, and starts its interpreter.
    ///
    /// # Errors
    /// `bad_request` if the sandbox has no interpreter for the language, another [`crate::Error`] if no answer comes.
    pub async fn create_context(&self, id: &str, request: &ContextRequest) -> Result<Context> {
        self.send_json(Method::POST, &sandbox_path(id, "/contexts")?, request, Patience::Long).await
    }

    /// Returns the contexts of the sandbox `id`, the oldest first.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn contexts(&self, id: &str) -> Result<Vec<Context>> {
        self.get_list(&sandbox_path(id, "/contexts")?).await
    }

    /// Returns one context.
    ///
    /// # Errors
    /// `not_found` if there is none, another [`crate::Error`] if no answer comes.
    pub async fn context(&self, id: &str, context: &str) -> Result<Context> {
        self.get(&context_path(id, context, "")?).await
    }

    /// Runs code in a context; without one, in the default context of the request's language. Dropping the stream
    /// interrupts the code.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes. Code that fails is no error: the
    /// stream says so.
    pub async fn run_code(&self, id: &str, context: Option<&str>, request: &RunRequest) -> Result<RunStream> {
        let path = match context {
            Some(context) => context_path(id, context, "/run")?,
            None => sandbox_path(id, "/run")?,
        };
        let http = self.request(Method::POST, &path, Patience::Long);
        let response = self.send(self.with_json(http, request)?).await?;
        self.check_type(&response, "application/x-ndjson")?;
        let until = "the code ended; its outcome is unknown";
        let events = LineStream::new(self, response, Lines::up_to(LINE_BYTES_MAX), "a line of a run", until);
        Ok(RunStream { events, has_ended: false })
    }

    /// Returns how code can be completed before its character `cursor`, in the state that a context has.
    ///
    /// # Errors
    /// `not_found` if there is no such context, another [`crate::Error`] if no answer comes.
    pub async fn complete_code(&self, id: &str, context: &str, code: &str, cursor: usize) -> Result<Completions> {
        let request = CompleteRequest { code: code.to_owned(), cursor: Some(cursor) };
        let http = self.request(Method::POST, &context_path(id, context, "/complete")?, Patience::Short);
        self.call(self.with_json(http, &request)?, Size::List).await
    }

    /// Interrupts the code that a context runs, as Ctrl-C does. Returns `idle` if it runs none.
    ///
    /// # Errors
    /// `not_found` if there is no such context, another [`crate::Error`] if no answer comes.
    pub async fn interrupt_context(&self, id: &str, context: &str) -> Result<Status> {
        self.call(self.request(Method::POST, &context_path(id, context, "/interrupt")?, Patience::Short), Size::Small)
            .await
    }

    /// Starts the interpreter of a context anew, without its state.
    ///
    /// # Errors
    /// `not_found` if there is no such context, another [`crate::Error`] if no answer comes.
    pub async fn restart_context(&self, id: &str, context: &str) -> Result<Context> {
        self.call(self.request(Method::POST, &context_path(id, context, "/restart")?, Patience::Long), Size::Small)
            .await
    }

    /// Ends the interpreter of a context with all that it started, and forgets the context.
    ///
    /// # Errors
    /// `not_found` if there is no such context, another [`crate::Error`] if no answer comes.
    pub async fn delete_context(&self, id: &str, context: &str) -> Result<()> {
        self.delete::<Status>(&context_path(id, context, "")?, Patience::Long).await.map(drop)
    }
}

fn context_path(id: &str, context: &str, rest: &str) -> Result<String> {
    sandbox_path(id, &format!("/contexts/{}{rest}", segment("the context", context)?))
}

/// Events of a run, as a stream. Dropping it interrupts the code.
#[derive(Debug)]
pub struct RunStream {
    events: LineStream,
    has_ended: bool,
}

impl RunStream {
    /// Returns the next event; `None` after [`RunLine::End`] or an error. Events that only keep the connection alive
    /// are left out. Cancel-safe: no event is lost by dropping this future.
    ///
    /// # Errors
    /// [`crate::Error::Cut`] if the stream ends without the end of the run, [`crate::Error::Timeout`] if the server sends nothing for
    /// [`crate::Options::silence_max`], [`crate::Error::Protocol`] for a line that cannot be read. The outcome of the code is
    /// then unknown.
    pub async fn next(&mut self) -> Result<Option<RunLine>> {
        if self.has_ended {
            return Ok(None);
        }
        let event = self.read().await;
        self.has_ended = matches!(event, Ok(RunLine::End { .. }) | Err(_));
        event.map(Some)
    }

    async fn read(&mut self) -> Result<RunLine> {
        loop {
            let event = self.events.next().await?;
            if event != RunLine::KeepAlive {
                return Ok(event);
            }
        }
    }
}
