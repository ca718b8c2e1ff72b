//! `tidebox repl`: an interpreter of a sandbox, at this terminal.

mod editor;
mod history;
mod unfinished;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use api::{CodeLanguage, ContextRequest, ContextState, RunRequest};
use clap::Args;
use client::RunStream;
use tokio::task::JoinSet;

use self::editor::{INTERRUPTED, Kernel, Reader, Typed};
use crate::code::{self, Code, Display, Images, ImagesArgs, language_name, language_parser};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Format, harmless, note};
use crate::signals::Signals;

/// Input that leaves, as in the interpreters' own prompts.
const FAREWELLS: [&str; 6] = ["exit", "exit()", "quit", "quit()", "q()", ".exit"];
/// Number of the Ctrl-C that restarts an interpreter, which has ignored the ones before.
const RESTARTING_INTERRUPT: u32 = 3;

/// Talk with an interpreter in a sandbox
#[derive(Debug, Args)]
#[command(
    allow_missing_positional = true,
    after_help = "The interpreter keeps its state when you leave, and `exec --code` shares it. Ctrl-C interrupts the\n\
    code or clears the line, and the third Ctrl-C restarts an interpreter that ignores it. Ctrl-D leaves.\n\
    Tab completes. Code with open brackets, blocks or strings continues on the next line. An empty line\n\
    ends a block of Python, and two empty lines end any code. The history is in\n\
    $XDG_STATE_HOME/tidebox or ~/.local/state/tidebox. If stdin or stdout is not a terminal, repl runs\n\
    stdin as one piece of code, with the exit codes of `run --code`.\n\n\
    tidebox repl sb-…\n\
    tidebox repl javascript sb-… --new\n\
    tidebox repl bash sb-… < script.sh"
)]
pub struct ReplArgs {
    /// Language of the interpreter; python if omitted
    #[arg(value_parser = language_parser())]
    language: Option<CodeLanguage>,
    /// Sandbox ID
    id: String,
    /// Make a new context, and delete it at the end
    #[arg(long, conflicts_with = "context")]
    new: bool,
    /// Use this context instead of the default context of the language
    #[arg(long, value_name = "ID")]
    context: Option<String>,
    /// Deadline of each run, such as 30s; the server's default if omitted
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    #[command(flatten)]
    images: ImagesArgs,
}

pub async fn run(context: &Context, args: ReplArgs) -> Result {
    talk(context, args).await.map_err(Failure::of_exec)
}

async fn talk(context: &Context, args: ReplArgs) -> Result {
    let ReplArgs { language, id, new, context: context_id, timeout, images } = args;
    let is_interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if is_interactive && context.output.format == Format::Json {
        return Err(Failure::usage("a REPL prints text; pass the code on stdin, or use `tidebox exec ID --code`"));
    }
    let mut signals = Signals::listen()?;
    let mut target = Target::find(context, &id, language, context_id).await?;
    if new {
        let request = ContextRequest { language: target.language, ..ContextRequest::default() };
        target.context_id = Some(context.client.create_context(&id, &request).await?.id);
    }
    let session = Session { context, id: &id, target, timeout };
    let result = if is_interactive {
        session.converse(images.images(), &mut signals).await
    } else {
        session.run_stdin(images.images(), &mut signals).await
    };
    if new && let Some(context_id) = &session.target.context_id {
        // It may have ended with its sandbox.
        let _ = context.client.delete_context(&id, context_id).await;
    }
    result.map(ExitCode::from)
}

/// Context that runs the code.
#[derive(Debug)]
struct Target {
    language: CodeLanguage,
    /// Absent for the default context of the language, which is made at its first run.
    context_id: Option<String>,
}

impl Target {
    async fn find(
        context: &Context,
        id: &str,
        language: Option<CodeLanguage>,
        context_id: Option<String>,
    ) -> Result<Target> {
        let Some(context_id) = context_id else {
            return Ok(Target { language: language.unwrap_or_default(), context_id: None });
        };
        let found = context.client.context(id, &context_id).await?;
        if language.is_some_and(|language| language != found.language) {
            let name = language_name(found.language);
            return Err(Failure::usage(format!("the language of context {context_id} is {name}; omit the language")));
        }
        Ok(Target { language: found.language, context_id: Some(context_id) })
    }

    /// Returns the id of the context.
    fn id(&self) -> &str {
        self.context_id.as_deref().unwrap_or_else(|| language_name(self.language))
    }
}

/// Requests that interrupt code.
type Interrupting = JoinSet<client::Result<()>>;

/// A REPL in a sandbox.
#[derive(Debug)]
struct Session<'a> {
    context: &'a Context,
    id: &'a str,
    target: Target,
    timeout: Option<String>,
}

/// End of a run at the terminal.
enum End {
    /// The next prompt follows.
    Prompt,
    /// A signal ends this process, with this exit code.
    Signal(u8),
}

impl Session<'_> {
    fn request(&self, code: String) -> RunRequest {
        let language = if self.target.context_id.is_none() { Some(self.target.language) } else { None };
        RunRequest { code, language, timeout: self.timeout.clone(), ..RunRequest::default() }
    }

    /// Runs stdin as one piece of code.
    async fn run_stdin(&self, images: Images, signals: &mut Signals) -> Result<u8> {
        let work = async {
            let request = self.request(code::from_stdin().await?);
            let code = Code { context_id: self.target.context_id.clone(), request, images };
            code::perform(self.context, self.id, code).await
        };
        tokio::select! {
            exit = signals.next() => Err(Failure::silent(exit)),
            result = work => result,
        }
    }

    /// Reads code, runs it and prints its results, until the person leaves.
    async fn converse(&self, images: Images, signals: &mut Signals) -> Result<u8> {
        let kernel = Kernel {
            client: self.context.client.clone(),
            id: self.id.to_owned(),
            context_id: self.target.id().to_owned(),
            language: self.target.language,
        };
        let mut display = Display::new(images);
        if let End::Signal(exit) = self.start_interpreter(&mut display, signals).await? {
            return Err(Failure::silent(exit));
        }
        let mut reader = Reader::new(kernel)?;
        loop {
            match reader.read(signals).await? {
                Typed::Code(code) if code.trim().is_empty() => {}
                Typed::Code(code) if FAREWELLS.contains(&code.trim()) => return Ok(0),
                Typed::Code(code) => match self.run(code, &mut display, signals).await {
                    Ok(End::Prompt) => {}
                    Ok(End::Signal(exit)) => return Err(Failure::silent(exit)),
                    Err(failure) if is_final(&failure) => return Err(failure),
                    Err(failure) => self.context.output.complain(&failure),
                },
                Typed::Cleared => {}
                Typed::End => return Ok(0),
                Typed::Signal(exit) => return Err(Failure::silent(exit)),
            }
        }
    }

    /// Starts the interpreter, so that it completes the first line, and so that a missing interpreter is reported before
    /// code is typed.
    async fn start_interpreter(&self, display: &mut Display, signals: &mut Signals) -> Result<End> {
        let runs = match self.context.client.context(self.id, self.target.id()).await {
            Ok(found) => found.state != ContextState::Ended,
            Err(error) if error.is_code("not_found") => false,
            Err(error) => return Err(error.into()),
        };
        if runs { Ok(End::Prompt) } else { self.run(String::new(), display, signals).await }
    }

    /// Runs code and prints its results. Ctrl-C interrupts the code.
    async fn run(&self, code: String, display: &mut Display, signals: &mut Signals) -> Result<End> {
        display.begin_run();
        let request = self.request(code);
        let starting = code::start(&self.context.client, self.id, self.target.context_id.as_deref(), &request);
        let mut lines = tokio::select! {
            exit = signals.next() => return Ok(end_by(exit)),
            lines = starting => lines?,
        };
        // The output of the code is read while the server interrupts it.
        let mut interrupting = JoinSet::new();
        let end = self.follow(&mut lines, display, signals, &mut interrupting).await;
        // The next code would meet an interpreter that is not restarted yet.
        while let Some(done) = interrupting.join_next().await {
            if let Ok(Err(error)) = done {
                note_failed_interrupt(&error);
            }
        }
        end
    }

    async fn follow(
        &self,
        lines: &mut RunStream,
        display: &mut Display,
        signals: &mut Signals,
        interrupting: &mut Interrupting,
    ) -> Result<End> {
        let mut has_started = false;
        let mut interrupts = 0;
        loop {
            tokio::select! {
                line = code::next(lines) => {
                    has_started = true;
                    if display.show(line?).await?.is_some() {
                        display.end_line().await?;
                        return Ok(End::Prompt);
                    }
                }
                exit = signals.next() => {
                    // Code that waits for the code of another client is given up, and not interrupted.
                    if exit != INTERRUPTED || !has_started {
                        return Ok(end_by(exit));
                    }
                    interrupts += 1;
                    self.interrupt(interrupts, interrupting);
                }
                Some(Ok(Err(error))) = interrupting.join_next() => {
                    note_failed_interrupt(&error);
                }
            }
        }
    }

    fn interrupt(&self, number: u32, interrupting: &mut Interrupting) {
        let client = self.context.client.clone();
        let (id, context_id) = (self.id.to_owned(), self.target.id().to_owned());
        if number < RESTARTING_INTERRUPT {
            interrupting.spawn(async move { client.interrupt_context(&id, &context_id).await.map(drop) });
        } else if number == RESTARTING_INTERRUPT {
            interrupting.spawn(async move { client.restart_context(&id, &context_id).await.map(drop) });
        }
        if number + 1 == RESTARTING_INTERRUPT {
            note("tidebox: the code ignores the interrupt; Ctrl-C again restarts the interpreter, without its state");
        }
    }
}

fn note_failed_interrupt(error: &client::Error) {
    note(&harmless(&format!("tidebox: cannot interrupt the code: {error}")));
}

/// Returns what a signal means while no code of this client runs.
fn end_by(exit: u8) -> End {
    if exit == INTERRUPTED { End::Prompt } else { End::Signal(exit) }
}

/// Returns `true` if no further code can run, because the sandbox or the context is gone.
fn is_final(failure: &Failure) -> bool {
    failure.said().is_none_or(|(code, _)| matches!(code, "not_found" | "unauthorized" | "forbidden"))
}
