//! The tracer mode: starts PRoot and supervises the box from outside.
//!
//! It becomes the box's user, PRoot its child, and the agent PRoot's. It enforces the limits, at
//! full speed, since no tracer slows it. A process that loses its parent in the box finally becomes
//! its child, so that it can end everything when PRoot or the agent has ended: without PRoot these
//! would continue as ordinary processes of the host.

mod bounds;
mod requests;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use guest_protocol::{Boot, LaunchReport, SoftLimits, Trace, Traced};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Resource, Rlimit, Signal, getpid, getrlimit, kill_process, pidfd_open,
    set_child_subreaper, set_dumpable_behavior, set_parent_process_death_signal, setrlimit, setsid,
};
use rustix::thread::set_no_new_privs;

use self::bounds::Watch;
use self::requests::Requests;
use super::descriptors::own;
use super::go::{Sent, channel, go, wait_for_go};
use super::order::{ORDER, read_order, report, report_failure};
use super::process::start_time;
use super::refused::{At, Refused};
use super::shares::{self, Part};
use super::syscall::{CloneFlags, Cloned, clone3};
use super::{parent, privileges, seccomp, syscall};
use crate::{end_box, sockets};

/// Number of the listening socket in PRoot, and so in the agent.
const LISTENER_FD: i32 = 3;
/// Number of the file that counts kills by the memory limit.
const OOM_EVENTS_FD: i32 = 4;
/// Number of the pipe with the notes.
const NOTES_FD: i32 = 5;
/// Number of the socket that lists the sockets of the host.
const SOCKETS_FD: i32 = 6;
/// Name of the FIFO that the agent holds open.
const LIFE: &str = "life";
/// Processes of the box that do not count towards the guest's limit: PRoot, this mode, and the
/// agent with its reapers.
const OWN_PROCESSES: u32 = 16;

/// Runs the tracer mode.
pub(crate) fn run() -> ExitCode {
    let Ok((control, listener)) = take_descriptors() else { return ExitCode::FAILURE };
    let started = read_order::<Trace>(control.as_fd()).and_then(|trace| start(&trace, &control, &listener));
    drop(listener);
    match started {
        Ok(watched) => {
            drop(control);
            watched.until_the_end()
        }
        Err(refused) => {
            report_failure(control.as_fd(), refused);
            ExitCode::FAILURE
        }
    }
}

/// Moves descriptors 0 and 1 to higher numbers.
fn take_descriptors() -> Result<(OwnedFd, OwnedFd), Errno> {
    let taken = (own(std::io::stdin())?, own(std::io::stdout())?);
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for number in 0..=2 {
        syscall::duplicate_to(&null, number)?;
    }
    Ok(taken)
}

/// A box that runs.
struct Watched {
    id: Option<u32>,
    proot: Pid,
    proot_fd: OwnedFd,
    /// Reading end of the FIFO, which the agent's end closes.
    life: OwnedFd,
    requests: Requests,
    watch: Watch,
}

/// Descriptors that PRoot gets.
struct Given<'a> {
    listener: &'a OwnedFd,
    oom_events: OwnedFd,
    notes: OwnedFd,
}

fn start(trace: &Trace, control: &OwnedFd, listener: &OwnedFd) -> Result<Watched, Refused> {
    syscall::reset_signals();
    // Signals of the server's terminal must not reach its boxes.
    setsid().at("start a session")?;
    let dir = &trace.dir;
    let life = open(dir, LIFE, OFlags::RDONLY | OFlags::NONBLOCK).at("open the server's liveness pipe")?;
    let count =
        open(dir, "events", OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC).at("make the count of memory kills")?;
    let oom_events = open(dir, "events", OFlags::RDONLY).at("open the count of memory kills")?;
    let (notes, our_notes) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).at("make a pipe")?;
    let notes = own(notes).at("make a pipe")?;
    let our_notes = own(our_notes).at("make a pipe")?;
    let root = open(dir, "root", OFlags::RDONLY | OFlags::DIRECTORY).at("open the root")?;
    parent::limit_processors(trace.bounds.vcpus)?;
    let (ours, theirs) = channel()?;
    match clone3(CloneFlags::NONE, libc::SIGCHLD, None).at("fork")? {
        Cloned::Child => {
            drop(ours);
            let refused = become_proot(trace, theirs, &Given { listener, oom_events, notes });
            report_failure(control.as_fd(), refused);
            std::process::exit(1)
        }
        Cloned::Parent(proot) => {
            drop((theirs, oom_events, notes));
            let watch = Watch::new(trace.bounds, trace.id.is_some(), count, our_notes, root);
            let outcome = settle(trace, control.as_fd(), ours.as_fd(), proot);
            if outcome.is_err() {
                // The process waits for this one, so its pid cannot have been reused.
                let _ = kill_process(proot, Signal::KILL);
            }
            let proot_fd = outcome?;
            Ok(Watched { id: trace.id, proot, proot_fd, life, requests: Requests::default(), watch })
        }
    }
}

/// Opens a file of the directory of the box.
fn open(dir: &str, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(format!("{dir}/{name}"), flags, Mode::from_raw_mode(0o600)).and_then(own)
}

/// Records the pids, drops all capabilities, and lets the child continue.
fn settle(trace: &Trace, control: BorrowedFd<'_>, child: BorrowedFd<'_>, proot: Pid) -> Result<OwnedFd, Refused> {
    let own = getpid();
    let pids = format!("{own} {}\n{proot} {}\n", start_time(own)?, start_time(proot)?);
    fs::write(format!("{}/pid", trace.dir), pids).at("record the pids")?;
    let proot_fd = pidfd_open(proot, PidfdFlags::empty()).at("hold PRoot")?;
    set_child_subreaper(Some(getpid())).at("adopt orphaned processes")?;
    set_no_new_privs(true).at("give up new privileges")?;
    trace.id.map_or(Ok(()), privileges::become_user)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).at("hide from the box")?;
    let number = getpid().as_raw_nonzero().get().unsigned_abs();
    report(control, &LaunchReport::Pid(number)).at("report the pid")?;
    go(child, &Sent::default()).at("start PRoot")?;
    Ok(proot_fd)
}

/// Runs the child; returns only on an error.
fn become_proot(trace: &Trace, channel: OwnedFd, given: &Given<'_>) -> Refused {
    if wait_for_go(channel.as_fd()).is_err() {
        // The parent is gone: the box is not made.
        std::process::exit(1);
    }
    match prepare(trace, given) {
        Ok(mut command) => Refused {
            step: "execute PRoot".to_owned(),
            errno: Errno::from_io_error(&command.exec()).unwrap_or(Errno::IO),
        },
        Err(refused) => refused,
    }
}

fn prepare(trace: &Trace, given: &Given<'_>) -> Result<Command, Refused> {
    rustix::process::umask(Mode::from_raw_mode(0o022));
    setsid().at("start a session")?;
    let sockets = sockets::open().and_then(own).ok();
    let boot = Boot {
        listener_fd: LISTENER_FD,
        oom_events_fd: Some(OOM_EVENTS_FD),
        sockets_fd: sockets.is_some().then_some(SOCKETS_FD),
        traced: Some(Traced { notes_fd: NOTES_FD, ..trace.boot.traced.clone().unwrap_or_default() }),
        ..trace.boot.clone()
    };
    let boot = serde_json::to_string(&boot).map_err(|_| Errno::INVAL).at("prepare the agent's instructions")?;
    let (program, arguments) = trace.argv.split_first().ok_or(Errno::INVAL).at("find PRoot")?;
    let mut command = Command::new(program);
    command.args(arguments).arg("agent").env_clear().envs(&trace.env).env(ORDER, &boot).current_dir("/");
    privileges::end_before_the_server(false)?;
    syscall::close_at_exec_from(3).at("pass descriptors")?;
    let all = [(given.listener, LISTENER_FD), (&given.oom_events, OOM_EVENTS_FD), (&given.notes, NOTES_FD)];
    for (fd, number) in all {
        syscall::duplicate_to(fd, number).at("pass descriptors")?;
    }
    if let Some(sockets) = &sockets {
        syscall::duplicate_to(sockets, SOCKETS_FD).at("pass descriptors")?;
    }
    let pids = if trace.id.is_some() && trace.bounds.pids > 0 { trace.bounds.pids + OWN_PROCESSES } else { 0 };
    privileges::limit_resources(&SoftLimits { pids, ..SoftLimits::default() })?;
    shares::bound_each(if trace.id.is_some() { Part::WHOLE } else { Part::HALF })?;
    limit_files(trace.bounds.disk_mb).at("limit the open files")?;
    let filter = seccomp::program(seccomp::Profile::Tracer).map_err(|_| Errno::TOOBIG);
    let filter = filter.at("build the system call filter")?;
    trace.id.map_or(Ok(()), privileges::become_user)?;
    // PRoot kills its tracees before it ends by this signal.
    set_parent_process_death_signal(Some(Signal::QUIT)).at("end with the tracer mode")?;
    set_no_new_privs(true).at("give up new privileges")?;
    syscall::install_filter(&filter).at("install the system call filter")?;
    Ok(command)
}

fn limit_files(disk_mb: u32) -> Result<(), Errno> {
    if disk_mb == 0 {
        return Ok(());
    }
    let most = u64::from(disk_mb) * 1024 * 1024;
    let most = getrlimit(Resource::Fsize).maximum.map_or(most, |hard| hard.min(most));
    setrlimit(Resource::Fsize, Rlimit { current: Some(most), maximum: Some(most) })
}

impl Watched {
    /// Enforces the limits until PRoot or the agent ends, and then ends everything.
    fn until_the_end(mut self) -> ExitCode {
        loop {
            let wait = self.watch.look(self.proot.as_raw_nonzero().get());
            match self.wait(wait) {
                Waited::Time => {}
                Waited::Requests => self.requests.serve(&self.life, self.proot),
                Waited::End => break,
            }
        }
        let ended = match self.id {
            Some(id) => end_box::end_user(id),
            None => end_box::end_below(&[getpid().as_raw_nonzero().get(), self.proot.as_raw_nonzero().get()]),
        };
        if ended { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Waits for a request, for the end, or for at most `wait`.
    fn wait(&self, wait: Option<Duration>) -> Waited {
        let wait = wait.map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        let mut fds = [PollFd::new(&self.proot_fd, PollFlags::IN), PollFd::new(&self.life, PollFlags::IN)];
        match poll(&mut fds, wait.as_ref()) {
            Ok(0) | Err(Errno::INTR) => Waited::Time,
            // Without a way to wait the limits cannot be enforced.
            Err(_) => Waited::End,
            Ok(_) if fds[0].revents().is_empty() && fds[1].revents() == PollFlags::IN => Waited::Requests,
            Ok(_) => Waited::End,
        }
    }
}

/// Reason for the end of a wait.
enum Waited {
    Time,
    /// The agent has sent requests.
    Requests,
    /// `PRoot` or the agent has ended.
    End,
}
