//! The agent: its start, its state, and the connections that it accepts.

mod body;
mod route;
pub(crate) mod rows;
pub(crate) mod stdio;

use std::convert::Infallible;
use std::future::{Future, pending};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use guest_protocol::Boot;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::fs::{Mode, OFlags};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getpid, getrlimit, set_child_subreaper, set_dumpable_behavior, setrlimit, umask,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::{LocalSet, spawn_local};

use crate::budget::Budget;
use crate::console::Console;
use crate::deadline::Deadline;
use crate::descriptor::take;
use crate::exec::control::Commands;
use crate::exec::reapers::{self, Reapers};
use crate::memory::Activity;
use crate::ptrace::{self, TracerHandle};
use crate::{exec, prepare_rootfs, turns, watchdog};

/// Maximum number of connections. The server keeps one, and opens another after a restart.
const CONNECTIONS_MAX: usize = 64;
/// Maximum number of commands at once, including those whose children still write to the console.
const EXECS_MAX: usize = 1024;
/// Descriptors of a command: up to four pipes, or three copies of a terminal and a pipe. Their
/// other ends are open for a moment.
const DESCRIPTORS_PER_EXEC: usize = 4;
/// Descriptors for connections, files that are being transferred, `/proc`, and the runtime.
const DESCRIPTORS_RESERVED: usize = 256;
/// Maximum number of file operations at once. A stalled reader keeps its place until the server
/// cancels the operation.
const FILE_OPERATIONS_MAX: usize = 128;
/// Maximum number of streams of one connection: all commands and files, and some short requests.
const STREAMS_MAX: u32 = 2048;
/// Bytes that the server may have in flight on one stream.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// Bytes that the server may have in flight on all streams of a connection together: enough for all
/// that a server has at once. Otherwise a few commands that do not read their stdin would block the
/// stdin of all others.
const CONNECTION_WINDOW_BYTES: u32 = 576 * 1024 * 1024;
/// Large frames: fewer of them are cheaper on a unix socket, and far cheaper below a tracer.
const FRAME_BYTES_MAX: u32 = 256 * 1024;
/// Bytes that HTTP/2 buffers of a stream before the client has received them.
const SEND_BUFFER_BYTES: usize = 512 * 1024;
/// Maximum size of a request's headers: a path of 4,096 bytes, encoded for a header, takes up to
/// nine times as many.
const HEADERS_BYTES_MAX: u32 = 128 * 1024;
/// Maximum number of requests that a client may reset before the agent has handled them.
const UNSEEN_RESETS_MAX: usize = 2048;
/// Pause before the next accept when no descriptor is left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// State that all parts of the agent share. There is one thread, so nothing is locked.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) boot: Boot,
    pub(crate) pid: i32,
    pub(crate) reapers: Reapers,
    pub(crate) commands: Commands,
    pub(crate) console: Console,
    pub(crate) oom_events: Option<OwnedFd>,
    pub(crate) dev_null: OwnedFd,
    /// Connection to the tracer, if the box is made by one.
    pub(crate) ties: Option<TracerHandle>,
    /// Limit on descriptors that commands get: the one that the agent was started with.
    pub(crate) descriptors: Rlimit,
    deadline: Deadline,
    activity: Rc<Activity>,
    budget: Rc<Budget>,
    pub(crate) execs: Arc<Semaphore>,
    file_operations: Arc<Semaphore>,
}

/// Runs the agent; `boot` is its second argument.
pub(crate) fn run(boot: Option<&str>) -> ExitCode {
    let Some(boot) = boot.and_then(begin) else { return ExitCode::FAILURE };
    // Before the runtime opens descriptors of its own.
    let taken = (take(boot.listener_fd), boot.oom_events_fd.map(take).transpose(), boot.turns_fd.map(take).transpose());
    let (Ok(listener), Ok(oom_events), Ok(turns)) = taken else { return ExitCode::FAILURE };
    run_until_end(boot, Ways { listener, from_outside_only: false, first: None, turns }, oom_events)
}

/// Prepares the process, in every mode of the agent. `None` if `boot` cannot be parsed or the
/// process cannot be protected.
fn begin(boot: &str) -> Option<Boot> {
    let boot = serde_json::from_str::<Boot>(boot).ok()?;
    // No other process of the box may inspect this one, even as the same user. A tracer must, and
    // it is a process of the box's user.
    if boot.traced.is_none() {
        set_dumpable_behavior(DumpableBehavior::NotDumpable).ok()?;
    }
    // Only needed where the agent is not process 1.
    let _ = set_child_subreaper(Some(getpid()));
    umask(Mode::WGRP | Mode::WOTH);
    Some(boot)
}

/// Sockets through which servers reach the agent.
#[derive(Debug)]
struct Ways {
    /// A listening unix socket.
    listener: OwnedFd,
    /// True if the box's own processes can find the socket; their connections are then closed.
    from_outside_only: bool,
    /// Connection that is open from the start.
    first: Option<stdio::Stdio>,
    /// Listener of the system call filter, on which calls wait for their turn.
    turns: Option<OwnedFd>,
}

fn run_until_end(boot: Boot, ways: Ways, oom_events: Option<OwnedFd>) -> ExitCode {
    let Ok(ties) = boot.traced.as_ref().map(ptrace::tie).transpose() else { return ExitCode::FAILURE };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() else {
        return ExitCode::FAILURE;
    };
    match LocalSet::new().block_on(&runtime, serve(boot, ways, oom_events, ties)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Serves until the deadline, or until a task that the agent needs has failed.
async fn serve(
    boot: Boot,
    ways: Ways,
    oom_events: Option<OwnedFd>,
    ties: Option<(TracerHandle, OwnedFd)>,
) -> std::io::Result<()> {
    let (ties, notes) = ties.unzip();
    let Ways { listener, from_outside_only, first, turns } = ways;
    let listener = std::os::unix::net::UnixListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let descriptors = raise_descriptors();
    let limit =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let execs = (limit.saturating_sub(DESCRIPTORS_RESERVED) / DESCRIPTORS_PER_EXEC).clamp(1, EXECS_MAX);
    let agent = Rc::new(Agent {
        pid: getpid().as_raw_nonzero().get(),
        reapers: Reapers::default(),
        commands: Commands::default(),
        console: Console::default(),
        oom_events,
        ties,
        dev_null: rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?,
        descriptors,
        deadline: Deadline::new(boot.deadline_ms)?,
        activity: Rc::default(),
        budget: Budget::of(boot.memory_mb),
        execs: Arc::new(Semaphore::new(execs)),
        file_operations: Arc::new(Semaphore::new(FILE_OPERATIONS_MAX)),
        boot,
    });
    if agent.boot.furnish {
        let faults = prepare_rootfs::furnish(&agent.boot);
        faults.into_iter().for_each(|fault| agent.console.push(format!("tidebox: {fault}")));
    }
    if !agent.boot.holds_slots {
        exec::entrypoint::start(&agent);
        spawn_local(reapers::kill_strangers(Rc::clone(&agent)));
    }
    spawn_local(Rc::clone(&agent.activity).trim_when_idle());
    if agent.boot.soft_memory_mb > 0 {
        spawn_local(watchdog::run(Rc::clone(&agent), agent.boot.soft_memory_mb));
    }
    let reaping = spawn_local(reapers::reap(Rc::clone(&agent)));
    if let Some(turns) = turns {
        spawn_local(turns::give(turns));
    }
    if let Some(first) = first {
        spawn_local(first.serve(Rc::clone(&agent)));
    }
    let tracer = Rc::clone(&agent);
    let following = spawn_local(async move {
        match notes {
            Some(notes) => ptrace::follow(tracer, notes).await,
            None => pending().await,
        }
    });
    let accepting = spawn_local(accept(Rc::clone(&agent), listener, from_outside_only));
    tokio::select! {
        ended = agent.deadline.wait() => ended?,
        // Without reaping or accepting, the agent cannot work.
        ended = reaping => ended??,
        ended = accepting => ended??,
        ended = following => ended??,
    }
    // With process 1 the kernel ends all processes. Elsewhere the agent has to.
    if agent.pid != 1 {
        reapers::kill_all(&agent).await;
    }
    Ok(())
}

/// Raises the agent's limit on descriptors to its maximum and returns the previous limit.
fn raise_descriptors() -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    // On failure, fewer commands can run at once.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
    before
}

async fn accept(agent: Rc<Agent>, listener: UnixListener, from_outside_only: bool) -> std::io::Result<()> {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((stream, _)) if from_outside_only && !stdio::is_from_outside(&stream) => drop(permit),
            Ok((stream, _)) => {
                let agent = Rc::clone(&agent);
                spawn_local(async move {
                    connection(agent, stream, &builder()).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Serves the client at the other end of `io` until it disconnects.
async fn connection(
    agent: Rc<Agent>,
    io: impl AsyncRead + AsyncWrite + Unpin + 'static,
    builder: &http2::Builder<Local>,
) {
    let service = service_fn(move |request| {
        let agent = Rc::clone(&agent);
        async move { Ok::<_, Infallible>(route::answer(&agent, request).await) }
    });
    // A client that disconnects is normal, and there is nowhere to report it.
    let _ = builder.serve_connection(TokioIo::new(io), service).await;
}

/// Creates the HTTP/2 settings that all connections share.
fn builder() -> http2::Builder<Local> {
    let mut builder = http2::Builder::new(Local);
    builder
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX);
    builder
}

/// Executor that runs the tasks of a connection on the agent's only thread.
#[derive(Debug, Clone, Copy)]
struct Local;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        spawn_local(future);
    }
}
