//! Contexts: kernels in sandboxes, which keep their state between runs of code.
//!
//! A context is a background process of its box, whose name and note say what it is. So it lasts as long as the box,
//! also in snapshots and forks with memory, and a server that was restarted finds it again. [`kernel`] is what this
//! server knows of a kernel, [`start`] starts one, and [`run`] has it run code.

pub mod context;
pub mod events;
pub(super) mod kernel;
mod progress;
mod requests;
mod run;
mod start;
pub mod streams;
pub(super) mod warm_up;

use std::sync::Arc;
use std::time::Instant;

use kernels::Language;
use providers::Guest;
use store::Sandbox;
use tokio::sync::mpsc;

use self::context::{Context, ContextId, ContextState, Found, NewContext, no_context};
use self::events::{CodeRequest, Deadline, RunEvent, check_code};
use self::kernel::{Process, Turn};
use self::requests::Order;
use self::run::Run;
use super::conflict::Conflict;
use super::error::{Result, above};
use super::service::Control;
use crate::budget::Account;
use crate::operation_metrics::Operation;

/// Most completions of a text.
const MATCHES_MAX: usize = 1000;

/// Context that a request is for.
#[derive(Debug, Clone)]
pub enum Target {
    /// The context of this id, which must have this language, if one is given.
    Id { id: ContextId, language: Option<Language> },
    /// The default context of a language, which is made with these options if it is not there.
    Default(NewContext),
}

impl Target {
    fn id(&self) -> ContextId {
        match self {
            Self::Id { id, .. } => id.clone(),
            Self::Default(options) => ContextId::default_of(options.language),
        }
    }
}

/// A run that has begun.
#[derive(Debug)]
pub struct CodeRun {
    pub context: ContextId,
    /// Events of the run. Dropping them interrupts it.
    pub events: mpsc::Receiver<RunEvent>,
}

/// Completions of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completions {
    /// Character with which each match begins.
    pub start: usize,
    /// Texts for what is between `start` and the cursor.
    pub matches: Vec<String>,
}

impl Control {
    /// Makes a context, and starts its interpreter.
    ///
    /// # Errors
    /// [`crate::control::Error::Invalid`] if the sandbox cannot run the language; as [`Control::start_process`].
    pub async fn create_context(self: &Arc<Self>, id: &str, options: NewContext) -> Result<Context> {
        let make = |sandbox: Sandbox, guest| async move {
            let context = ContextId::random();
            let mut turn = self.kernels.of(&sandbox.id, &context).turn().await?;
            self.started(&sandbox, &guest, &context, options, &mut turn).await
        };
        self.in_sandbox(Operation::ContextCreate, id, make).await
    }

    /// Returns the contexts of a sandbox, in the order of their making.
    ///
    /// # Errors
    /// As [`Control::processes`].
    pub async fn contexts(self: &Arc<Self>, id: &str) -> Result<Vec<Context>> {
        let list = |sandbox: Sandbox, guest| async move {
            let found = self.found_contexts(&sandbox, &guest).await?;
            Ok(found.into_iter().map(|found| self.with_state(&sandbox, found.context)).collect())
        };
        self.in_sandbox(Operation::ContextList, id, list).await
    }

    /// Returns a context of a sandbox.
    ///
    /// # Errors
    /// [`crate::control::Error::NotFound`] if there is no such context.
    pub async fn context(self: &Arc<Self>, id: &str, context: &ContextId) -> Result<Context> {
        let look = |sandbox: Sandbox, guest| async move {
            let found = self.found_context(&sandbox, &guest, context).await?.ok_or_else(|| no_context(context))?;
            Ok(self.with_state(&sandbox, found.context))
        };
        self.in_sandbox(Operation::ContextList, id, look).await
    }

    /// Interrupts the code that a context runs. Returns false if it runs none.
    ///
    /// # Errors
    /// [`crate::control::Error::NotFound`] if there is no such context.
    pub async fn interrupt_context(self: &Arc<Self>, id: &str, context: &ContextId) -> Result<bool> {
        let send = |sandbox: Sandbox, guest: Arc<dyn Guest>| async move {
            let found = self.found_context(&sandbox, &guest, context).await?.ok_or_else(|| no_context(context))?;
            let number = found.context.process;
            let signal =
                || async { requests::interrupt(&guest, number).await.map_err(|e| self.guest_error(&sandbox, e)) };
            self.kernels.of(&sandbox.id, context).interrupt(signal).await
        };
        self.in_sandbox(Operation::ContextInterrupt, id, send).await
    }

    /// Starts the interpreter of a context anew, without its state. Code that runs in it is ended.
    ///
    /// # Errors
    /// [`crate::control::Error::NotFound`] if there is no such context; as [`Control::create_context`].
    pub async fn restart_context(self: &Arc<Self>, id: &str, context: &ContextId) -> Result<Context> {
        let restart = |sandbox: Sandbox, guest| async move {
            let mut turn = self.kernels.of(&sandbox.id, context).turn_after_end().await?;
            let process = self.process_of(&sandbox, &guest, context, &mut turn).await?;
            let options = process.ok_or_else(|| no_context(context))?.options.clone();
            self.started(&sandbox, &guest, context, options, &mut turn).await
        };
        self.in_sandbox(Operation::ContextRestart, id, restart).await
    }

    /// Ends the interpreter of a context with all that it started, and forgets the context.
    ///
    /// # Errors
    /// [`crate::control::Error::NotFound`] if there is no such context.
    pub async fn delete_context(self: &Arc<Self>, id: &str, context: &ContextId) -> Result<()> {
        let delete = |sandbox: Sandbox, guest: Arc<dyn Guest>| async move {
            let mut turn = self.kernels.of(&sandbox.id, context).turn_after_end().await?;
            let number = self.process_of(&sandbox, &guest, context, &mut turn).await?.map(|process| process.number);
            turn.process.take();
            requests::remove(&guest, number.ok_or_else(|| no_context(context))?).await;
            Ok(())
        };
        self.in_sandbox(Operation::ContextDelete, id, delete).await
    }

    /// Begins to run code in a context, after the runs that came before.
    ///
    /// # Errors
    /// [`crate::control::Error::Invalid`] for code or variables with a NUL; [`crate::control::Error::NotFound`] if there
    /// is no such context; [`crate::control::Error::LimitReached`] for a deadline above the maximum, and if too many
    /// runs wait; as [`Control::create_context`].
    pub async fn run_code(
        self: &Arc<Self>,
        id: &str,
        target: Target,
        request: CodeRequest,
        account: Account,
    ) -> Result<CodeRun> {
        request.check()?;
        let deadline = request.deadline;
        self.order(id, target, Order::Run(request), Operation::ContextRun, deadline, account).await
    }

    /// Returns how code can be completed before its character `cursor`, in the state that a context has.
    ///
    /// # Errors
    /// As [`Control::run_code`].
    pub async fn complete_code(
        self: &Arc<Self>,
        id: &str,
        context: &ContextId,
        code: String,
        cursor: usize,
        account: Account,
    ) -> Result<Completions> {
        check_code(&code)?;
        let order = Order::Complete { code, cursor };
        let target = Target::Id { id: context.clone(), language: None };
        let mut run = self.order(id, target, order, Operation::ContextComplete, Deadline::Default, account).await?;
        let mut completions = Completions { start: cursor, matches: Vec::new() };
        while let Some(event) = run.events.recv().await {
            match event {
                RunEvent::Completions { start, mut matches } => {
                    matches.truncate(MATCHES_MAX);
                    completions = Completions { start, matches };
                }
                RunEvent::Cut(error) => return Err(self.cut(id, error).await),
                RunEvent::Started { .. }
                | RunEvent::Output(..)
                | RunEvent::Result { .. }
                | RunEvent::Error { .. }
                | RunEvent::Dropped
                | RunEvent::End(_) => {}
            }
        }
        Ok(completions)
    }

    async fn order(
        self: &Arc<Self>,
        id: &str,
        target: Target,
        order: Order,
        operation: Operation,
        deadline: Deadline,
        account: Account,
    ) -> Result<CodeRun> {
        let using = self.pauses.in_use.begin(id, operation);
        let sandbox = self.usable(id).await?;
        let limits = self.limits_of(sandbox.owner.as_ref()).await?;
        let timeout = match deadline {
            Deadline::Default => None,
            Deadline::After(timeout) => Some(timeout),
            Deadline::Longest => Some(limits.exec_timeout_max),
        };
        let timeout = limits.exec_timeout(timeout).map_err(|error| {
            self.publish_if_limited(operation.as_str(), Some(&sandbox.provider), above("timeout", error))
        })?;
        let context = target.id();
        let kernel = self.kernels.of(&sandbox.id, &context);
        let mut turn = kernel.turn().await?;
        let guest = self.guest(&sandbox).await?;
        let found = self.process_of(&sandbox, &guest, &context, &mut turn).await?;
        match (found.map(|process| process.options.language), target) {
            (None, Target::Id { id, .. }) => return Err(no_context(&id)),
            (None, Target::Default(options)) => {
                self.started(&sandbox, &guest, &context, options, &mut turn).await?;
            }
            (Some(has), Target::Id { language: Some(asked), .. }) if has != asked => {
                return Err(Conflict::OtherLanguage { context: context.to_string(), language: has.name() }.into());
            }
            (Some(_), Target::Id { .. } | Target::Default(_)) => {}
        }
        let control = Arc::clone(self);
        let run =
            Run { control, sandbox, guest, context: context.clone(), turn, order, timeout, account, operation, using };
        Ok(CodeRun { context, events: run.begin().await? })
    }

    /// Starts the kernel of a context in the place of the one that it has.
    async fn started(
        &self,
        sandbox: &Sandbox,
        guest: &Arc<dyn Guest>,
        id: &ContextId,
        options: NewContext,
        turn: &mut Turn,
    ) -> Result<Context> {
        if let Some(process) = &*turn.process {
            requests::remove(guest, process.number).await;
        }
        let (process, info) = self.start_kernel(sandbox, guest, id, &options).await?;
        let number = process.number;
        *turn.process = Some(process);
        Ok(Context { id: id.clone(), options, state: ContextState::Idle, process: number, started: info.started })
    }

    /// Returns the process of a context whose turn it is; `None` if the box has none.
    async fn process_of<'a>(
        &self,
        sandbox: &Sandbox,
        guest: &Arc<dyn Guest>,
        id: &ContextId,
        turn: &'a mut Turn,
    ) -> Result<Option<&'a Process>> {
        if turn.process.is_none() {
            *turn.process = self.found_context(sandbox, guest, id).await?.map(Process::from);
        }
        Ok(turn.process.as_ref())
    }

    async fn found_context(&self, sandbox: &Sandbox, guest: &Arc<dyn Guest>, id: &ContextId) -> Result<Option<Found>> {
        let found = self.found_contexts(sandbox, guest).await?;
        // The newest, should one of its name have ended before.
        Ok(found.into_iter().rfind(|found| found.context.id == *id))
    }

    fn with_state(&self, sandbox: &Sandbox, context: Context) -> Context {
        let is_busy = context.state == ContextState::Idle && self.kernels.is_busy(&sandbox.id, &context.id);
        Context { state: if is_busy { ContextState::Busy } else { context.state }, ..context }
    }

    /// Does something in a running sandbox, and records it.
    async fn in_sandbox<T, F>(
        &self,
        operation: Operation,
        id: &str,
        act: impl FnOnce(Sandbox, Arc<dyn Guest>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let _using = self.pauses.in_use.begin(id, operation);
        let sandbox = self.usable(id).await?;
        let started = Instant::now();
        let provider = sandbox.provider.clone();
        let outcome = async {
            let guest = self.guest(&sandbox).await?;
            act(sandbox, guest).await
        }
        .await;
        self.record(operation, &provider, outcome.is_ok(), started);
        outcome
    }
}
