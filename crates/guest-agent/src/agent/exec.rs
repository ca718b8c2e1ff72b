//! Commands.
//!
//! ```text
//! agent ──fork──▶ reaper ──fork──▶ command ──▶ its children …
//! ```
//!
//! The reaper adopts (`PR_SET_CHILD_SUBREAPER`) whatever the command leaves
//! behind, double-forked and in a session of its own or not, so that everything
//! that ever came from a command is found below its reaper. It reports how the
//! main process ended and lives on while it has children.

mod output;
mod spawn;
mod stdin;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use guest_protocol::frame::{Decoder, Kind};
use guest_protocol::{Exec, Exit, FailureKind};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustix::process::Pid;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;

use super::Agent;
use super::failure::{Result, failure, invalid};

pub(crate) use output::Output;

/// Commands at once in one box. Each costs us a few descriptors and a process.
const RUNNING_MAX: usize = 1024;
/// Exit code of a command that its deadline ended.
const CODE_TIMED_OUT: i32 = 124;
/// Exit code of a command whose reaper was killed.
const CODE_KILLED: i32 = 128 + 9;

/// Starts the command that a request's first frame describes. The rest of the
/// request is its stdin.
pub(crate) async fn start(agent: &Rc<Agent>, body: Incoming) -> Result<Output> {
    let (exec, body, decoder) = read_start(body).await?;
    if agent.children.running() >= RUNNING_MAX {
        return Err(failure(FailureKind::Exhausted, format!("{RUNNING_MAX} commands are running in this sandbox")));
    }
    let user = super::users::find(exec.user.as_deref(), agent.boot.single_user)?;
    let timeout = Duration::from_millis(exec.timeout_ms);
    let is_fed = exec.stdin;
    let program = exec.argv.first().cloned().unwrap_or_default();
    let workdir = exec.workdir.clone();
    let oom_before = agent.oom.count();
    let prepared = spawn::Prepared::new(exec, &user)?;
    let started = Instant::now();
    let pipes = spawn::fork(&prepared, is_fed)?;
    agent.children.add(pipes.reaper);
    let (tell_exit, exit) = oneshot::channel();
    let (hang_up, hung_up) = oneshot::channel();
    let running = Running {
        agent: Rc::clone(agent),
        reaper: pipes.reaper,
        report: spawn::receiver(pipes.report)?,
        started,
        deadline: tokio::time::Instant::now() + timeout,
        oom_before,
    };
    // From here on, dropping `hang_up` kills the command: this very function may
    // be dropped at any wait, when the caller leaves.
    tokio::task::spawn_local(running.supervise(tell_exit, hung_up));
    let (stdout, stderr) = (spawn::receiver(pipes.stdout)?, spawn::receiver(pipes.stderr)?);
    spawn::ready(pipes.ready, &workdir, &program).await?;
    if let Some(stdin) = pipes.stdin {
        tokio::task::spawn_local(stdin::feed(stdin, body, decoder));
    }
    Ok(Output::new(Rc::clone(&agent.console), stdout, stderr, exit, hang_up))
}

/// The first frame, and what came after it.
async fn read_start(mut body: Incoming) -> Result<(Exec, Incoming, Decoder)> {
    let mut decoder = Decoder::default();
    loop {
        match decoder.next_frame().map_err(|error| invalid(error.to_string()))? {
            Some(frame) if frame.kind == Kind::Start => {
                let exec = serde_json::from_slice(&frame.payload).map_err(|error| invalid(error.to_string()))?;
                return Ok((exec, body, decoder));
            }
            Some(_) => return Err(invalid("the first frame must say what to start")),
            None => match body.frame().await {
                Some(Ok(frame)) => decoder.feed(&frame.into_data().unwrap_or_else(|_| Bytes::new())),
                Some(Err(_)) | None => return Err(invalid("the request ended before it said what to start")),
            },
        }
    }
}

/// A command that has been started.
struct Running {
    agent: Rc<Agent>,
    reaper: Pid,
    report: Receiver,
    started: Instant,
    deadline: tokio::time::Instant,
    oom_before: u64,
}

impl Running {
    /// Waits for the end of the main process, and brings it about at the
    /// deadline or when the caller hangs up. Goes on whether or not anybody
    /// reads the output.
    async fn supervise(mut self, tell_exit: oneshot::Sender<Exit>, mut hung_up: oneshot::Receiver<()>) {
        let mut timed_out = false;
        let code = tokio::select! {
            code = report(&mut self.report) => code,
            () = tokio::time::sleep_until(self.deadline) => {
                timed_out = true;
                self.agent.children.kill_tree(self.reaper).await;
                CODE_TIMED_OUT
            }
            _ = &mut hung_up => {
                self.agent.children.kill_tree(self.reaper).await;
                return;
            }
        };
        let exit = Exit {
            code,
            timed_out,
            oom_killed: self.agent.oom.count() > self.oom_before,
            duration_us: u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX),
        };
        // Nobody may be left to tell.
        let _ = tell_exit.send(exit);
    }
}

/// How the main process ended, from its reaper.
async fn report(pipe: &mut Receiver) -> i32 {
    let mut status = [0u8; 4];
    match pipe.read_exact(&mut status).await {
        Ok(_) => exit_code(i32::from_ne_bytes(status)),
        Err(_) => CODE_KILLED,
    }
}

/// A wait status as shells tell it.
fn exit_code(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

/// Turns a pipe's end into what can be awaited.
fn nonblocking(fd: OwnedFd) -> std::io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
}
