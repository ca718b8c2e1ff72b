//! A run of code in a context.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use providers::{Chain, ExitStatus, Guest, ProcessEvent, ProcessEvents};
use serde_json::json;
use store::Sandbox;
use tokio::sync::mpsc;
use tokio::time::{Instant as Deadline, sleep_until};
use tokio_util::sync::CancellationToken;

use super::context::{ContextId, no_context};
use super::events::{DIED, Outcome, RunEnd, RunEvent};
use super::kernel::Turn;
use super::progress::{Progress, Stage};
use super::requests::{Order, Sent, interrupt, remove, send};
use super::streams::Streams;
use crate::budget::Account;
use crate::control::error::Result;
use crate::control::pause::activity::Using;
use crate::control::service::Control;
use crate::events::EventType;
use crate::operation_metrics::Operation;

/// Time that code has to end after it was interrupted.
const GRACE: Duration = Duration::from_secs(3);
/// Pause between interrupts: an interpreter may lose one that comes while it starts a program.
const REPEAT: Duration = Duration::from_secs(1);

/// A run that has its turn.
pub(super) struct Run {
    pub(super) control: Arc<Control>,
    pub(super) sandbox: Sandbox,
    pub(super) guest: Arc<dyn Guest>,
    pub(super) context: ContextId,
    pub(super) turn: Turn,
    pub(super) order: Order,
    pub(super) timeout: Duration,
    pub(super) account: Account,
    pub(super) operation: Operation,
    pub(super) using: Using,
}

/// End of the output of a run.
enum Over {
    /// The kernel has handled the request.
    Handled,
    /// The kernel ended.
    Ended(ExitStatus),
    /// The kernel ended before it had begun.
    Before,
    /// The kernel did not end the code in time, or writes nonsense.
    Stuck(Option<String>),
    /// A request ended the kernel.
    Stopped,
    Cut(providers::Error),
}

impl Run {
    /// Begins the run. Its events come until its end; dropping them interrupts it.
    pub(super) async fn begin(mut self) -> Result<mpsc::Receiver<RunEvent>> {
        let started = Instant::now();
        let sent = self.send().await;
        let (sent, is_new) = match sent {
            Ok(sent) => sent,
            Err(error) => {
                self.control.record(self.operation, &self.sandbox.provider, false, started);
                return Err(error);
            }
        };
        // One: the next piece is decoded while the one before is on its way.
        let (sender, events) = mpsc::channel(1);
        let control = Arc::clone(&self.control);
        control.tasks().spawn(self.finish(sent, is_new, sender, started));
        Ok(events)
    }

    /// Sends the request to the kernel, which is started if it does not run. Returns whether it is new.
    async fn send(&mut self) -> Result<(Sent, bool)> {
        let mut is_new = false;
        if let Some(process) = self.turn.process.as_mut() {
            match send(self.control.tasks(), &self.guest, process, &self.order).await {
                Ok(sent) => return Ok((sent, false)),
                // The process has ended, and may be forgotten.
                Err(providers::Error::NotFound(_) | providers::Error::Conflict(_)) => is_new = true,
                Err(error) => return Err(self.control.guest_error(&self.sandbox, error)),
            }
        }
        self.replace().await?;
        let process = self.turn.process.as_mut().expect("was started");
        let sent = send(self.control.tasks(), &self.guest, process, &self.order).await;
        Ok((sent.map_err(|error| self.control.guest_error(&self.sandbox, error))?, is_new))
    }

    /// Starts the kernel anew, with the options that it had. Where that fails, the next run tries it again.
    async fn replace(&mut self) -> Result<()> {
        let process = self.turn.process.as_mut().ok_or_else(|| no_context(&self.context))?;
        remove(&self.guest, process.number).await;
        let options = process.options.clone();
        (*process, _) = self.control.start_kernel(&self.sandbox, &self.guest, &self.context, &options).await?;
        Ok(())
    }

    /// Passes the events of the run on to its end.
    async fn finish(mut self, mut sent: Sent, mut is_new: bool, events: mpsc::Sender<RunEvent>, started: Instant) {
        let token = self.turn.begin().await;
        self.publish_start();
        let limit = Deadline::now() + self.timeout;
        let mut stage = Stage::Running;
        let (over, progress) = loop {
            let mut progress = Progress {
                events: events.clone(),
                streams: Streams::new(&sent.process.marker, sent.process.position),
                run: sent.run,
                is_new,
                has_begun: [false; 2],
                has_ended: [false; 2],
                has_failed: false,
                held: self.account.nothing(),
                stage,
                limit,
                again: limit,
                late: Vec::new(),
            };
            let over = self.follow(&mut sent.output, &mut progress, &token).await;
            stage = progress.stage;
            if !matches!(over, Over::Before) || is_new {
                break (over, progress);
            }
            // The kernel had ended before, unnoticed: the code did not run.
            is_new = true;
            match self.send_anew().await {
                Ok(again) => sent = again,
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "cannot replace a kernel that has ended");
                    break (over, progress);
                }
            }
        };
        drop(sent.output);
        self.end(over, progress, started).await;
    }

    async fn send_anew(&mut self) -> Result<Sent> {
        self.replace().await?;
        let process = self.turn.process.as_mut().expect("was started");
        let sent = send(self.control.tasks(), &self.guest, process, &self.order).await;
        sent.map_err(|error| self.control.guest_error(&self.sandbox, error))
    }

    /// Reads the output of the kernel up to the end of the run, and passes it on.
    async fn follow(&self, output: &mut ProcessEvents, progress: &mut Progress, token: &CancellationToken) -> Over {
        loop {
            let events = progress.events.clone();
            let event = tokio::select! {
                biased;
                () = token.cancelled() => return Over::Stopped,
                () = events.closed(), if progress.stage == Stage::Running => {
                    self.interrupt(progress, Stage::Left).await;
                    continue;
                }
                () = sleep_until(progress.limit) => {
                    if progress.stage != Stage::Running {
                        return Over::Stuck(None);
                    }
                    self.interrupt(progress, Stage::TimedOut).await;
                    continue;
                }
                () = sleep_until(progress.again), if progress.stage != Stage::Running => {
                    progress.again = Deadline::now() + REPEAT;
                    self.send_interrupt().await;
                    continue;
                }
                event = output.next() => event,
            };
            match event {
                Some(Ok(ProcessEvent::Exit(exit))) => {
                    return if progress.has_begun == [false; 2] { Over::Before } else { Over::Ended(exit) };
                }
                Some(Ok(event)) => progress.streams.push(event),
                Some(Err(error)) => return Over::Cut(error),
                None => return Over::Cut(providers::Error::Gone),
            }
            loop {
                let (stream, piece) = match progress.streams.next_piece() {
                    Ok(Some(found)) => found,
                    Ok(None) => break,
                    Err(broken) => return Over::Stuck(Some(broken.to_string())),
                };
                if let Some(event) = progress.take(stream, piece) {
                    if matches!(event, RunEvent::Started { .. }) {
                        self.interrupt_late(progress).await;
                    }
                    self.pass_on(event, progress, token).await;
                }
                if progress.has_ended == [true; 2] {
                    return Over::Handled;
                }
            }
            progress.make_room();
        }
    }

    /// Sends an event, as soon as the reader takes it. What is said after the deadline is dropped, but for errors.
    async fn pass_on(&self, event: RunEvent, progress: &mut Progress, token: &CancellationToken) {
        if progress.stage != Stage::Running {
            if matches!(event, RunEvent::Error { .. }) {
                progress.late.push(event);
            }
            return;
        }
        let events = progress.events.clone();
        let limit = progress.limit;
        tokio::select! {
            sent = events.send(event) => {
                if sent.is_err() {
                    self.interrupt(progress, Stage::Left).await;
                }
            }
            () = sleep_until(limit) => self.interrupt(progress, Stage::TimedOut).await,
            () = token.cancelled() => {}
        }
    }

    /// Interrupts code that was interrupted before it began, which a kernel ignores.
    async fn interrupt_late(&self, progress: &Progress) {
        if progress.stage != Stage::Running || self.turn.was_interrupted().await {
            self.send_interrupt().await;
        }
    }

    /// Interrupts the code, which then has to end soon.
    async fn interrupt(&self, progress: &mut Progress, stage: Stage) {
        progress.stage = stage;
        progress.limit = Deadline::now() + GRACE;
        progress.again = Deadline::now() + REPEAT;
        self.send_interrupt().await;
    }

    async fn send_interrupt(&self) {
        if let Some(process) = &*self.turn.process
            && let Err(error) = interrupt(&self.guest, process.number).await
        {
            tracing::debug!(error = %Chain(&error), "cannot interrupt the code of a context");
        }
    }

    /// Says how the run ended, and puts the kernel into a state for the next run.
    async fn end(mut self, over: Over, progress: Progress, started: Instant) {
        let Progress { events, streams, has_failed, stage, late, .. } = progress;
        let was_interrupted = self.turn.end().await;
        let position = streams.position();
        let mut restarted = false;
        let mut fault = None;
        let outcome = match over {
            Over::Handled => {
                if let Some(process) = self.turn.process.as_mut() {
                    process.position = position;
                }
                match stage {
                    Stage::TimedOut => Outcome::TimedOut,
                    Stage::Left => Outcome::Interrupted,
                    Stage::Running if has_failed && was_interrupted => Outcome::Interrupted,
                    Stage::Running if has_failed => Outcome::Failed,
                    Stage::Running => Outcome::Done,
                }
            }
            Over::Ended(exit) => {
                fault = Some(died(&exit));
                Outcome::Died
            }
            Over::Before => {
                fault = Some("the interpreter had ended, and another one ended too before it ran the code".to_owned());
                Outcome::Died
            }
            Over::Stopped => {
                fault = Some("a request ended the interpreter".to_owned());
                if let Some(process) = &*self.turn.process {
                    remove(&self.guest, process.number).await;
                }
                Outcome::Died
            }
            Over::Stuck(broken) => {
                restarted = match self.replace().await {
                    Ok(()) => true,
                    Err(error) => {
                        tracing::warn!(error = %Chain(&error), "cannot replace a kernel that does not end its code");
                        false
                    }
                };
                fault = broken;
                match stage {
                    Stage::Running => Outcome::Died,
                    Stage::TimedOut => Outcome::TimedOut,
                    Stage::Left => Outcome::Interrupted,
                }
            }
            Over::Cut(error) => {
                self.publish_end(None, started);
                drop(self);
                let _ = events.send(RunEvent::Cut(error)).await;
                return;
            }
        };
        self.publish_end(Some(outcome), started);
        let Self { turn, using, account, .. } = self;
        // A reader that is slow now keeps nobody waiting.
        drop((turn, using));
        for error in late {
            // The reader may have gone.
            let _ = events.send(error).await;
        }
        if let Some(value) = fault {
            let name = DIED.to_owned();
            let error = RunEvent::Error { name, value, traceback: String::new(), held: account.nothing() };
            let _ = events.send(error).await;
        }
        let _ = events.send(RunEvent::End(RunEnd { outcome, restarted, duration: started.elapsed() })).await;
    }

    fn is_code(&self) -> bool {
        matches!(self.order, Order::Run(_))
    }

    fn publish_start(&self) {
        if self.is_code() {
            let data = json!({"stream": true, "context": self.context.to_string()});
            self.control.publish(EventType::ExecStarted, Some(&self.sandbox.id), data);
        }
    }

    fn publish_end(&self, outcome: Option<Outcome>, started: Instant) {
        // As for a command, the operation succeeded if the code failed.
        let succeeded = matches!(outcome, Some(Outcome::Done | Outcome::Failed | Outcome::Interrupted));
        self.control.record(self.operation, &self.sandbox.provider, succeeded, started);
        if !self.is_code() {
            return;
        }
        let kind = match outcome {
            Some(Outcome::Done) => EventType::ExecCompleted,
            Some(Outcome::TimedOut) => EventType::ExecTimeout,
            Some(Outcome::Failed | Outcome::Interrupted | Outcome::Died) | None => EventType::ExecFailed,
        };
        let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let data = json!({"context": self.context.to_string(), "duration_ms": took_ms});
        self.control.publish(kind, Some(&self.sandbox.id), data);
    }
}

/// Returns how an interpreter ended, for the caller.
fn died(exit: &ExitStatus) -> String {
    let how = match exit {
        ExitStatus { oom_killed: true, .. } => "was killed, because the sandbox is out of memory".to_owned(),
        ExitStatus { signal: Some(signal), .. } => format!("was ended by the signal {}", signal.number()),
        ExitStatus { code, .. } => format!("ended with exit code {code}"),
    };
    format!("the interpreter {how}; its state is lost, and the next run starts another")
}
