//! Commands: one `POST /exec` from its first frame to its last.

pub(crate) mod background;
pub(crate) mod control;
pub(crate) mod entrypoint;
pub(crate) mod plan;
mod process_tree;
pub(crate) mod processes;
pub(crate) mod reapers;
pub(crate) mod reaping;
mod spawn;
mod streams;
mod terminal;

use std::future::{Future, pending};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use guest_protocol::frame::{Kind, encode};
use guest_protocol::{Exec, Exit, Failure, TerminalSize};
use hyper::body::Incoming;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::Instant;

use self::process_tree::{ProcessTree, kill};
use self::reapers::Reaper;
use self::spawn::{Ends, Report};
use self::streams::{Input, Phase, Stdin, drain, pump};
use crate::agent::Agent;
use crate::failure::{Result, invalid, reason, refused};
use crate::oom;
use crate::users::Ids;

/// Time that an exec waits, after its main process has ended, for children that hold its pipes.
const GRACE: Duration = Duration::from_millis(250);
/// Longest wait for the first frame, which a client sends together with the request.
const START_WAIT: Duration = Duration::from_secs(30);
/// Longest wait for a program to be executed. Then it counts as running anyway: it may have stopped
/// its reaper, which would have reported.
const BEGIN_WAIT: Duration = Duration::from_secs(5);
/// Exit code at the deadline.
const CODE_TIMED_OUT: i32 = 124;
/// Exit code of signal 9, also of a command whose reaper was killed.
const CODE_KILLED: i32 = 137;

/// Runs the command that `body` describes: sends to `begun` its number, or the failure, then its
/// frames to `to`. When the receiver of `to` is dropped before the last frame, everything is
/// killed.
pub(crate) async fn run(
    agent: Rc<Agent>,
    body: Incoming,
    to: mpsc::Sender<Bytes>,
    begun: oneshot::Sender<Result<u64>>,
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
            // If the receiver is gone, the client is too.
            let _ = begun.send(Err(failure));
            return;
        }
    };
    let listed = agent.commands.add(Rc::clone(&command.reaper), command.terminal.clone());
    if begun.send(Ok(listed.number())).is_err() {
        kill(&agent, &ProcessTree::Command(Rc::clone(&command.reaper))).await;
        return;
    }
    let Some(exit) = command.run(&agent, |stdin| input.pump(stdin), &to, permit, refused).await else { return };
    drop(listed);
    if let Ok(json) = serde_json::to_vec(&exit) {
        let _ = to.send(encode(Kind::Exit, &json)).await;
    }
}

/// Exit code of a program that was not executed, and the kernel's reason.
type NotExecuted = (i32, Errno);

async fn first(input: &mut Input) -> Result<Exec> {
    let frame = tokio::time::timeout(START_WAIT, input.next()).await.map_err(|_| no_start())??;
    let frame = frame.filter(|frame| frame.kind == Kind::Start).ok_or_else(no_start)?;
    serde_json::from_slice(&frame.payload).map_err(|error| invalid(format!("the start frame is malformed: {error}")))
}

fn no_start() -> Failure {
    invalid("a command must begin with a start frame")
}

/// A command that has been started.
struct Command {
    exec: Exec,
    reaper: Rc<Reaper>,
    started: Instant,
    oom_kills_before: u64,
    pids_refused_before: u64,
    stdin: Option<pipe::Sender>,
    /// Output; of a terminal, stderr too.
    stdout: pipe::Receiver,
    /// `None` with a terminal.
    stderr: Option<pipe::Receiver>,
    report: pipe::Receiver,
    terminal: Option<Rc<OwnedFd>>,
}

impl Command {
    fn start(agent: &Agent, mut exec: Exec) -> Result<Command> {
        let plan = plan::plan(&mut exec, &agent.boot, &agent.variables(), agent.descriptors)?;
        let pipes = match exec.terminal {
            Some(size) => Pipes::open_terminal(size, plan.ids.as_ref())?,
            None => Pipes::open(agent, exec.stdin).map_err(plan::no_room)?,
        };
        let oom_kills_before = oom::kills(agent.oom_events.as_ref());
        let pids_refused_before = agent.pids_refused();
        let started = Instant::now();
        let group = agent.kernel.as_ref().map(|kernel| kernel.group.dir());
        let pid = spawn::spawn(&plan, &pipes.theirs, group).map_err(plan::no_room)?;
        let reaper = agent.reapers.add(pid);
        drop(pipes.theirs);
        if let Some(size) = &agent.size {
            size.use_now();
        }
        let stdin = pipes.stdin.map(pipe::Sender::from_owned_fd_unchecked).transpose();
        Ok(Command {
            exec,
            reaper,
            started,
            oom_kills_before,
            pids_refused_before,
            stdin: stdin.map_err(|error| io_failure(&error))?,
            stdout: receiver(pipes.stdout)?,
            stderr: pipes.stderr.map(receiver).transpose()?,
            report: receiver(pipes.report)?,
            terminal: pipes.terminal.map(Rc::new),
        })
    }

    /// Waits until the program is executed, at most until the command's deadline. A program that
    /// cannot be executed is an outcome of the command, with an exit code.
    ///
    /// # Errors
    /// Every other reason that keeps the command from running.
    async fn begin(&mut self, agent: &Agent, abandoned: impl Future<Output = ()>) -> Result<Option<NotExecuted>> {
        let wait = BEGIN_WAIT.min(Duration::from_millis(self.exec.timeout_ms));
        let first = tokio::select! {
            first = read_report(&self.report, &self.reaper) => first,
            () = tokio::time::sleep(wait) => None,
            () = abandoned => {
                kill(agent, &ProcessTree::Command(Rc::clone(&self.reaper))).await;
                None
            }
        };
        match first {
            Some(Report::Refused(step, errno)) => {
                let code = plan::code_of_refusal(&self.exec, step, errno)?;
                // The next report confirms that the process is past its execution.
                let _ = read_report(&self.report, &self.reaper).await;
                Ok(Some((code, errno)))
            }
            Some(Report::Begun(_) | Report::Exited(_)) | None => Ok(None),
        }
    }

    /// Runs until the last byte of output was sent; `None` if the client has gone. `feed` writes the
    /// command's stdin.
    async fn run<F: Future<Output = ()>>(
        self,
        agent: &Rc<Agent>,
        feed: impl FnOnce(Stdin) -> F,
        to: &mpsc::Sender<Bytes>,
        permit: OwnedSemaphorePermit,
        refused: Option<NotExecuted>,
    ) -> Option<Exit> {
        let Command {
            exec,
            reaper,
            started,
            oom_kills_before,
            pids_refused_before,
            stdin,
            stdout,
            stderr,
            report,
            terminal,
        } = self;
        let tree = ProcessTree::Command(Rc::clone(&reaper));
        let (phase, watched) = watch::channel(Phase::Running);
        let mut streams = Streams {
            outputs: pin!(async {
                tokio::join!(
                    pump(Some(stdout), Kind::Stdout, to.clone(), watched.clone()),
                    pump(stderr, Kind::Stderr, to.clone(), watched.clone()),
                )
            }),
            stdin: pin!(feed(Stdin::new(Rc::clone(agent), stdin, terminal.is_some()))),
            stdin_ended: false,
            left: None,
            to,
        };

        let mut timed_out = false;
        let mut report = pin!(read_end(&report, &reaper));
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
        let (code, signal) = match (refused, report) {
            _ if timed_out => (CODE_TIMED_OUT, None),
            (Some((code, errno)), _) => {
                complain(&exec, errno, to).await;
                (code, None)
            }
            (None, Some(Report::Exited(status))) => (code(status), signal_of(status)),
            // The reaper was killed, and with it every process below it.
            (None, _) => (CODE_KILLED, Some(libc::SIGKILL)),
        };
        let Some(left) = streams.finish(&phase).await else {
            kill(agent, &tree).await;
            return None;
        };
        keep_draining(agent, left, permit);
        let oom_killed = reaper.memory_killed.get() || oom::kills(agent.oom_events.as_ref()) > oom_kills_before;
        let pids_exhausted = agent.pids_refused() > pids_refused_before;
        let duration_us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Some(Exit { code, signal, timed_out, oom_killed, pids_exhausted, duration_us })
    }
}

/// Pipes that other processes still held when the exec ended.
type Left = (Option<pipe::Receiver>, Option<pipe::Receiver>);

/// Streams of a command, moved while another event is awaited.
struct Streams<'a, Outputs, Stdin> {
    outputs: Pin<&'a mut Outputs>,
    stdin: Pin<&'a mut Stdin>,
    stdin_ended: bool,
    /// Set when both outputs have ended.
    left: Option<Left>,
    to: &'a mpsc::Sender<Bytes>,
}

/// Reason for the end of a wait.
enum Until<T> {
    Done(T),
    Deadline,
    Abandoned,
}

impl<Outputs: Future<Output = Left>, Stdin: Future<Output = ()>> Streams<'_, Outputs, Stdin> {
    async fn run_until<T>(&mut self, done: impl Future<Output = T>, deadline: impl Future<Output = ()>) -> Until<T> {
        let mut done = pin!(done);
        let mut deadline = pin!(deadline);
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

    /// Moves output after the end of the main process: until the pipes are drained, or until the
    /// bytes in them after [`GRACE`] have been sent. `None` if the client has gone.
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

/// Reads the reaper's report; `None` if it ended without one.
async fn read_report(pipe: &pipe::Receiver, reaper: &Reaper) -> Option<Report> {
    loop {
        pipe.readable().await.ok()?;
        let mut bytes = [0; spawn::REPORT_BYTES];
        match pipe.try_read(&mut bytes) {
            Ok(spawn::REPORT_BYTES) => {
                let report = Report::parse(bytes);
                if let Some(Report::Begun(main)) = report {
                    reaper.main.set(Some(main));
                }
                return report;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => return None,
        }
    }
}

/// Reads the reaper's last report: the end of the main process.
async fn read_end(pipe: &pipe::Receiver, reaper: &Reaper) -> Option<Report> {
    loop {
        match read_report(pipe, reaper).await {
            Some(Report::Begun(_) | Report::Refused(..)) => {}
            end => return end,
        }
    }
}

/// Returns the exit code of a status as `waitpid` gives it.
fn code(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

/// Returns the signal that ended a process, if one did.
fn signal_of(status: i32) -> Option<i32> {
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}

/// Returns the reason why a program was not executed, in a shell's words.
fn complaint(exec: &Exec, errno: Errno) -> String {
    let program = exec.argv.first().map_or("", String::as_str);
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => format!("{program}: not found"),
        errno => format!("{program}: {}", reason(errno)),
    }
}

/// Writes the reason why a program was not executed to stderr.
async fn complain(exec: &Exec, errno: Errno, to: &mpsc::Sender<Bytes>) {
    let text = format!("tidebox: {}\n", complaint(exec, errno));
    // If the receiver is gone, the client is too.
    let _ = to.send(encode(Kind::Stderr, text.as_bytes())).await;
}

/// Moves the further output of background processes to the console.
fn keep_draining(agent: &Rc<Agent>, (stdout, stderr): Left, permit: OwnedSemaphorePermit) {
    // The descriptors count as those of a command until the pipes are closed.
    let permit = Rc::new(permit);
    for pipe in [stdout, stderr].into_iter().flatten() {
        let agent = Rc::clone(agent);
        let permit = Rc::clone(&permit);
        tokio::task::spawn_local(async move {
            drain(pipe, &agent.console).await;
            drop(permit);
        });
    }
}

/// Pipes of a command, or its terminal: the agent's ends and the command's.
struct Pipes {
    theirs: Ends,
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
    report: OwnedFd,
    terminal: Option<OwnedFd>,
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
            // Only the agent's ends: a command expects its own to block.
            rustix::io::ioctl_fionbio(ours, true)?;
        }
        let theirs = Ends {
            stdin: their_stdin,
            stdout: their_stdout,
            stderr: their_stderr,
            report: their_report,
            is_terminal: false,
        };
        Ok(Pipes { theirs, stdin, stdout, stderr: Some(stderr), report, terminal: None })
    }

    /// Opens a terminal in place of all three streams.
    fn open_terminal(size: TerminalSize, ids: Option<&Ids>) -> Result<Pipes> {
        let (ours, theirs) = terminal::open(size, ids)?;
        let (report, their_report) = pipe_with(PipeFlags::CLOEXEC).map_err(plan::no_room)?;
        for ours in [&ours, &report] {
            rustix::io::ioctl_fionbio(ours, true).map_err(plan::no_room)?;
        }
        let stdin = Some(duplicate(&ours)?);
        let stdout = duplicate(&ours)?;
        let theirs = Ends {
            stdin: duplicate(&theirs)?,
            stdout: duplicate(&theirs)?,
            stderr: theirs,
            report: their_report,
            is_terminal: true,
        };
        Ok(Pipes { theirs, stdin, stdout, stderr: None, report, terminal: Some(ours) })
    }
}

fn duplicate(fd: &OwnedFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(plan::no_room)
}

fn receiver(fd: OwnedFd) -> Result<pipe::Receiver> {
    pipe::Receiver::from_owned_fd_unchecked(fd).map_err(|error| io_failure(&error))
}

fn io_failure(error: &std::io::Error) -> Failure {
    refused("cannot watch a command", Errno::from_io_error(error).unwrap_or(Errno::IO))
}
