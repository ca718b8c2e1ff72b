//! Commands: one `POST /exec` from its first frame to its last.

pub(crate) mod entrypoint;
pub(crate) mod plan;
pub(crate) mod reapers;
mod spawn;
mod streams;
pub(crate) mod tree;

use std::future::{Future, pending};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use guest_protocol::frame::{Kind, encode};
use guest_protocol::{Exec, Exit, Failure};
use hyper::body::Incoming;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::Instant;

use self::reapers::Reaper;
use self::spawn::{Ends, Report};
use self::streams::{Input, Phase, drain, pump};
use self::tree::{Tree, kill};
use crate::failure::{Result, invalid, reason, refused};
use crate::oom;
use crate::serve::Agent;

/// So long after its main process has ended an exec waits for children that hold
/// its pipes.
const GRACE: Duration = Duration::from_millis(250);
/// A client sends the first frame together with the request.
const START_WAIT: Duration = Duration::from_secs(30);
/// So long a program may take to be executed before it counts as running anyway:
/// it may have stopped its reaper, which would have told.
const BEGIN_WAIT: Duration = Duration::from_secs(5);
/// The exit code at the deadline.
const CODE_TIMED_OUT: i32 = 124;
/// The exit code of signal 9, also of a command whose reaper was killed.
const CODE_KILLED: i32 = 137;

/// Runs what `body` asks for: tells `begun` whether it runs, then gives its frames
/// to `to`. When the other end of `to` is dropped before the last frame,
/// everything is killed.
pub(crate) async fn run(
    agent: Rc<Agent>,
    body: Incoming,
    to: mpsc::Sender<Bytes>,
    begun: oneshot::Sender<Result<()>>,
    permit: OwnedSemaphorePermit,
) {
    let mut input = Input::new(body);
    let start = tokio::select! {
        start = first(&mut input) => start,
        () = to.closed() => return,
    };
    let begins = async {
        let mut command = Command::start(&agent, start?)?;
        let refused = command.begin(&agent, to.closed()).await?;
        Ok((command, refused))
    };
    let (command, refused) = match begins.await {
        Ok(begins) => begins,
        Err(failure) => {
            // If nobody listens any more, nobody misses it.
            let _ = begun.send(Err(failure));
            return;
        }
    };
    if begun.send(Ok(())).is_err() {
        kill(&agent, &Tree::Command(Rc::clone(&command.reaper))).await;
        return;
    }
    let Some(exit) = command.run(&agent, input, &to, permit, refused).await else { return };
    if let Ok(json) = serde_json::to_vec(&exit) {
        let _ = to.send(encode(Kind::Exit, &json)).await;
    }
}

/// The exit code of a program that was not executed, and why it was not.
type NotExecuted = (i32, Errno);

async fn first(input: &mut Input) -> Result<Exec> {
    let no_start = || invalid("a command begins with a start frame");
    let frame = tokio::time::timeout(START_WAIT, input.next()).await.map_err(|_| no_start())??;
    let frame = frame.filter(|frame| frame.kind == Kind::Start).ok_or_else(no_start)?;
    serde_json::from_slice(&frame.payload).map_err(|error| invalid(format!("the start frame makes no sense: {error}")))
}

/// A command that has been started.
struct Command {
    exec: Exec,
    reaper: Rc<Reaper>,
    started: Instant,
    oom_kills_before: u64,
    stdin: Option<pipe::Sender>,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
    report: pipe::Receiver,
}

impl Command {
    fn start(agent: &Agent, mut exec: Exec) -> Result<Command> {
        let plan = plan::plan(&mut exec, &agent.boot, agent.descriptors)?;
        let pipes = Pipes::open(agent, exec.stdin).map_err(plan::no_room)?;
        let oom_kills_before = oom::kills(agent.oom_events.as_ref());
        let started = Instant::now();
        let pid = spawn::spawn(&plan, &pipes.theirs).map_err(plan::no_room)?;
        let reaper = agent.reapers.add(pid);
        drop(pipes.theirs);
        let receiver = |fd| pipe::Receiver::from_owned_fd_unchecked(fd).map_err(|error| io_failure(&error));
        let stdin = pipes.stdin.map(pipe::Sender::from_owned_fd_unchecked).transpose();
        Ok(Command {
            exec,
            reaper,
            started,
            oom_kills_before,
            stdin: stdin.map_err(|error| io_failure(&error))?,
            stdout: receiver(pipes.stdout)?,
            stderr: receiver(pipes.stderr)?,
            report: receiver(pipes.report)?,
        })
    }

    /// Waits until the program is executed, but not past the command's deadline.
    /// One that cannot be is the command's own failure, with an exit code.
    ///
    /// # Errors
    /// Everything else that keeps the command from running.
    async fn begin(&mut self, agent: &Agent, abandoned: impl Future<Output = ()>) -> Result<Option<NotExecuted>> {
        let wait = BEGIN_WAIT.min(Duration::from_millis(self.exec.timeout_ms));
        let first = tokio::select! {
            first = read_report(&self.report) => first,
            () = tokio::time::sleep(wait) => None,
            () = abandoned => {
                kill(agent, &Tree::Command(Rc::clone(&self.reaper))).await;
                None
            }
        };
        match first {
            Some(Report::Refused(step, errno)) => {
                let code = plan::code_of_refusal(&self.exec, step, errno)?;
                // What follows says that the process is past its execution.
                let _ = read_report(&self.report).await;
                Ok(Some((code, errno)))
            }
            Some(Report::Begun | Report::Exited(_)) | None => Ok(None),
        }
    }

    /// Until the last byte of output; `None` if the client has gone.
    async fn run(
        self,
        agent: &Rc<Agent>,
        input: Input,
        to: &mpsc::Sender<Bytes>,
        permit: OwnedSemaphorePermit,
        refused: Option<NotExecuted>,
    ) -> Option<Exit> {
        let Command { exec, reaper, started, oom_kills_before, stdin, stdout, stderr, report } = self;
        let tree = Tree::Command(Rc::clone(&reaper));
        let (phase, watched) = watch::channel(Phase::Running);
        let mut streams = Streams {
            outputs: pin!(async {
                tokio::join!(
                    pump(stdout, Kind::Stdout, to.clone(), watched.clone()),
                    pump(stderr, Kind::Stderr, to.clone(), watched.clone()),
                )
            }),
            stdin: pin!(input.pump(stdin)),
            stdin_ended: false,
            left: None,
            to,
        };

        let mut timed_out = false;
        let mut report = pin!(read_end(&report));
        let deadline = tokio::time::sleep_until(started + Duration::from_millis(exec.timeout_ms));
        let mut ended = streams.run_until(report.as_mut(), deadline).await;
        if let Until::Deadline = ended {
            timed_out = true;
            kill(agent, &tree).await;
            ended = streams.run_until(report.as_mut(), pending()).await;
        }
        let duration = started.elapsed();
        let Until::Done(report) = ended else {
            kill(agent, &tree).await;
            return None;
        };
        let code = match (refused, report) {
            _ if timed_out => CODE_TIMED_OUT,
            (Some((code, errno)), _) => {
                complain(&exec, errno, to).await;
                code
            }
            (None, Some(Report::Exited(status))) => code(status),
            // Somebody has killed the reaper, and with it goes all that it had.
            (None, _) => CODE_KILLED,
        };
        let Some(left) = streams.finish(&phase).await else {
            kill(agent, &tree).await;
            return None;
        };
        keep_draining(agent, left, permit);
        let oom_killed = reaper.memory_killed.get() || oom::kills(agent.oom_events.as_ref()) > oom_kills_before;
        let duration_us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Some(Exit { code, timed_out, oom_killed, duration_us })
    }
}

/// The pipes that somebody still held when the exec ended.
type Left = (Option<pipe::Receiver>, Option<pipe::Receiver>);

/// The streams of a command while something else is waited for.
struct Streams<'a, Outputs, Stdin> {
    outputs: Pin<&'a mut Outputs>,
    stdin: Pin<&'a mut Stdin>,
    stdin_ended: bool,
    /// Filled when both outputs have ended.
    left: Option<Left>,
    to: &'a mpsc::Sender<Bytes>,
}

/// Why a wait is over.
enum Until<T> {
    Done(T),
    Deadline,
    /// The client has gone.
    Abandoned,
}

impl<Outputs: Future<Output = Left>, Stdin: Future<Output = ()>> Streams<'_, Outputs, Stdin> {
    async fn run_until<T>(&mut self, done: impl Future<Output = T>, deadline: impl Future<Output = ()>) -> Until<T> {
        let (mut done, mut deadline) = (pin!(done), pin!(deadline));
        loop {
            tokio::select! {
                biased;
                () = self.to.closed() => return Until::Abandoned,
                value = &mut done => return Until::Done(value),
                () = &mut deadline => return Until::Deadline,
                left = &mut self.outputs, if self.left.is_none() => self.left = Some(left),
                () = &mut self.stdin, if !self.stdin_ended => self.stdin_ended = true,
            }
        }
    }

    /// After the end of the main process: until the pipes are drained, or until
    /// what is in them after [`GRACE`] has been sent. `None` if the client has gone.
    async fn finish(mut self, phase: &watch::Sender<Phase>) -> Option<Left> {
        phase.send_replace(Phase::Ended);
        let mut deadline = Some(tokio::time::Instant::now() + GRACE);
        while self.left.is_none() {
            tokio::select! {
                biased;
                () = self.to.closed() => return None,
                left = &mut self.outputs => self.left = Some(left),
                () = &mut self.stdin, if !self.stdin_ended => self.stdin_ended = true,
                () = tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    deadline = None;
                    phase.send_replace(Phase::Finishing);
                }
            }
        }
        self.left
    }
}

/// What the reaper says; `None` if it ended without a word.
async fn read_report(pipe: &pipe::Receiver) -> Option<Report> {
    loop {
        pipe.readable().await.ok()?;
        let mut bytes = [0; spawn::REPORT_BYTES];
        match pipe.try_read(&mut bytes) {
            Ok(spawn::REPORT_BYTES) => return Report::parse(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => return None,
        }
    }
}

/// What the reaper says last: how the main process ended.
async fn read_end(pipe: &pipe::Receiver) -> Option<Report> {
    loop {
        match read_report(pipe).await {
            Some(Report::Begun | Report::Refused(..)) => {}
            end => return end,
        }
    }
}

/// The exit code of a status as `waitpid` gives it.
fn code(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

/// Why a program was not executed, as a shell would say it.
fn complaint(exec: &Exec, errno: Errno) -> String {
    let program = exec.argv.first().map_or("", String::as_str);
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => format!("{program}: not found"),
        errno => format!("{program}: {}", reason(errno)),
    }
}

/// Says on stderr why a program was not executed.
async fn complain(exec: &Exec, errno: Errno, to: &mpsc::Sender<Bytes>) {
    let text = format!("tidebox: {}\n", complaint(exec, errno));
    // If nobody listens any more, nobody misses it.
    let _ = to.send(encode(Kind::Stderr, text.as_bytes())).await;
}

/// Background processes go on writing; from now on to the console.
fn keep_draining(agent: &Rc<Agent>, (stdout, stderr): Left, permit: OwnedSemaphorePermit) {
    // The descriptors count as those of a command until the pipes are closed.
    let permit = Rc::new(permit);
    for pipe in [stdout, stderr].into_iter().flatten() {
        let (agent, permit) = (Rc::clone(agent), Rc::clone(&permit));
        tokio::task::spawn_local(async move {
            drain(pipe, &agent.console).await;
            drop(permit);
        });
    }
}

/// The pipes of a command: our ends and theirs.
struct Pipes {
    theirs: Ends,
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
    report: OwnedFd,
}

impl Pipes {
    fn open(agent: &Agent, wants_stdin: bool) -> Result<Pipes, Errno> {
        let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        let (report, their_report) = pipe_with(PipeFlags::CLOEXEC)?;
        let (their_stdin, stdin) = if wants_stdin {
            let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
            (theirs, Some(ours))
        } else {
            // Opened once at the start, since the box may replace `/dev/null`.
            (rustix::io::fcntl_dupfd_cloexec(&agent.dev_null, 3)?, None)
        };
        for ours in [Some(&stdout), Some(&stderr), Some(&report), stdin.as_ref()].into_iter().flatten() {
            // Only our ends: a command expects to wait for its own.
            rustix::io::ioctl_fionbio(ours, true)?;
        }
        let theirs = Ends { stdin: their_stdin, stdout: their_stdout, stderr: their_stderr, report: their_report };
        Ok(Pipes { theirs, stdin, stdout, stderr, report })
    }
}

fn io_failure(error: &std::io::Error) -> Failure {
    refused("cannot watch a command", Errno::from_io_error(error).unwrap_or(Errno::IO))
}
