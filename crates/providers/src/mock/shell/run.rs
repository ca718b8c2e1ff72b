//! Start and end of commands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::state::{Run, Shell};
use super::streams::{Io, PIECES_MAX, Sink, Source};
use crate::agent::check_command;
use crate::mock::boxed::Boxed;
use crate::{Command, Control, Error, ExitStatus, Interactive, OutputEvent, Result, Signal, TerminalSize};

/// The longest wait for output of background processes after the main process has ended, the same
/// as in every box.
const DRAIN: Duration = Duration::from_millis(250);

/// A command that was started.
pub(in crate::mock) struct Running {
    pub(in crate::mock) interactive: Interactive,
    pub(in crate::mock) tasks: Tasks,
}

/// Tasks that carry out a command and its children.
pub(in crate::mock) struct Tasks {
    main: JoinHandle<()>,
    background: TaskTracker,
}

impl Tasks {
    /// Waits until all have ended, which those of a killed command do at once.
    pub(in crate::mock) async fn ended(self) {
        // It panics only if a command did.
        let _ = self.main.await;
        self.background.close();
        self.background.wait().await;
    }
}

/// Starts a command in a box.
pub(in crate::mock) fn start(inside: &Arc<Boxed>, command: Command) -> Result<Running> {
    check_command(&command.argv, &command.env)?;
    if command.terminal.is_some() {
        return Err(Error::NotSupported("the provider `mock` has no terminals; leave out `tty`".to_owned()));
    }
    let cwd = command.workdir.clone().unwrap_or_else(|| "/workspace".to_owned());
    if !cwd.starts_with('/') || !inside.fs().is_dir(&cwd) {
        return Err(Error::Invalid(format!("the working directory {cwd} does not exist")));
    }
    let (events, receiver) = mpsc::channel(PIECES_MAX);
    let background = TaskTracker::new();
    let run = Arc::new(Run {
        inside: Arc::clone(inside),
        kill: inside.dead().child_token(),
        background: background.clone(),
        events,
        ended: CancellationToken::new(),
    });
    let guard = run.kill.clone().drop_guard();
    let shell = Shell::new(Arc::clone(&run), environment(&command.env), cwd);
    let (end_by, ended_by) = oneshot::channel();
    let main = inside.tasks().spawn(supervise(run, shell, command, ended_by));
    let reader = Reader { receiver, dead: inside.dead().clone(), guard };
    let output = stream::unfold(Some(reader), |reader| async move { reader?.next().await }).boxed();
    let interactive = Interactive { output, control: Arc::new(Signals(Mutex::new(Some(end_by)))) };
    Ok(Running { interactive, tasks: Tasks { main, background } })
}

/// Runs a command until it ends, reaches its deadline, or its reader is dropped.
async fn supervise(run: Arc<Run>, mut shell: Shell, command: Command, signal: oneshot::Receiver<Signal>) {
    let io = Io {
        stdin: command.stdin.map_or_else(|| Source::bytes(Bytes::new()), Source::stream),
        stdout: Sink::Reader(Arc::clone(&run), OutputEvent::Stdout),
        stderr: Sink::Reader(Arc::clone(&run), OutputEvent::Stderr),
    };
    let began = Instant::now();
    let work = async {
        tokio::select! {
            code = shell.command(&command.argv, io) => (code, None, false),
            Ok(signal) = signal => (128 + signal.number(), Some(signal), false),
            () = sleep(command.timeout) => (124, None, true),
        }
    };
    let Some((code, signal, timed_out)) = run.kill.run_until_cancelled(work).await else { return };
    let duration = began.elapsed();
    if signal.is_none() && !timed_out {
        run.background.close();
        let _ = timeout(DRAIN, run.background.wait()).await;
    } else {
        run.kill.cancel();
    }
    run.ended.cancel();
    let exit = ExitStatus { code, signal, timed_out, oom_killed: false, pids_exhausted: false, duration };
    // The reader may have been dropped.
    let _ = run.events.send(OutputEvent::Exit(exit)).await;
}

fn environment(requested: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let usual = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/root"),
        ("LANG", "C.UTF-8"),
        ("TERM", "xterm"),
    ];
    let usual = usual.map(|(name, value)| (name.to_owned(), value.to_owned()));
    usual.into_iter().chain(requested.clone()).collect()
}

/// Delivery of signals to a command. Programs of a mock box handle no signal, so each has its
/// default effect.
#[derive(Debug)]
struct Signals(Mutex<Option<oneshot::Sender<Signal>>>);

#[async_trait]
impl Control for Signals {
    async fn resize(&self, _: TerminalSize) -> Result<()> {
        Err(Error::Invalid("the command has no terminal to resize".to_owned()))
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        match signal.name() {
            "CHLD" | "CONT" | "URG" | "WINCH" => Ok(()),
            "STOP" | "TSTP" | "TTIN" | "TTOU" => Err(Error::NotSupported(
                "the provider `mock` cannot stop a command; send a `signal` that ends it".to_owned(),
            )),
            _ => {
                let end_by = self.0.lock().take();
                // A command that has ended needs no signal.
                let _ = end_by.map(|end_by| end_by.send(signal));
                Ok(())
            }
        }
    }
}

/// The reading end of a command's output.
struct Reader {
    receiver: mpsc::Receiver<OutputEvent>,
    dead: CancellationToken,
    /// Guard that kills the command if the reader is dropped before the exit.
    guard: DropGuard,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<OutputEvent>, Option<Reader>)> {
        match self.dead.run_until_cancelled(self.receiver.recv()).await.flatten() {
            Some(exit @ OutputEvent::Exit(_)) => {
                // Background children keep running.
                self.guard.disarm();
                Some((Ok(exit), None))
            }
            Some(event) => Some((Ok(event), Some(self))),
            None => Some((Err(Error::Gone), None)),
        }
    }
}
