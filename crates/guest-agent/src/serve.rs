//! The agent: its start, and the connections that it accepts.

mod body;
mod connection;
pub(crate) mod container;
mod headers;
pub(crate) mod machine;
mod peer;
mod route;
pub(crate) mod rows;
mod stdio;

use std::future::pending;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use guest_protocol::{Boot, SOCKET_BUFFER_BYTES};
use rustix::fs::Mode;
use rustix::net::SocketFlags;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::process::{DumpableBehavior, getpid, set_child_subreaper, set_dumpable_behavior, umask};
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::{LocalSet, spawn_local};

use crate::agent::{Agent, Seen};
use crate::descriptor::{readable, take};
use crate::diverted::DivertedSockets;
use crate::exec::reaping;
use crate::memory::keep_while_busy;
use crate::ptrace::{self, TracerHandle};
use crate::size::{self, Size};
use crate::{exec, pids, prepare_rootfs, tracer_notes, vsock, watchdog};

/// Maximum number of connections. The server keeps one, and opens another after a restart.
const CONNECTIONS_MAX: usize = 64;
/// Pause before the next accept when no descriptor is left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Runs the agent with these parameters.
pub(crate) fn run(boot: Option<&str>) -> ExitCode {
    let Some(boot) = boot.and_then(begin) else { return ExitCode::FAILURE };
    // Before the runtime opens descriptors of its own.
    let [oom_events, turns, sockets] =
        [boot.oom_events_fd, boot.turns_fd, boot.sockets_fd].map(|fd| fd.map(take).transpose());
    let (Ok(listener), Ok(oom_events), Ok(turns), Ok(sockets)) = (take(boot.listener_fd), oom_events, turns, sockets)
    else {
        return ExitCode::FAILURE;
    };
    let Ok(diverted) = boot.diverted.as_ref().map(DivertedSockets::take).transpose() else {
        return ExitCode::FAILURE;
    };
    let Ok(size) = boot.size_files.as_ref().map(Size::take).transpose() else { return ExitCode::FAILURE };
    // The root of a box without its own view of groups may be that of the host.
    let pids_events = size.as_ref().and_then(|_| pids::open_events());
    let ways = Ways { listener: Listener::Unix(listener), from_outside_only: false, first: None, turns };
    run_until_end(boot, ways, Seen { oom_events, sockets, diverted, kernel: None, size, pids_events })
}

/// Parses the parameters and prepares the process. `None` if `boot` cannot be parsed or the
/// process cannot be protected.
fn begin(boot: &str) -> Option<Boot> {
    let boot = serde_json::from_str::<Boot>(boot).ok()?;
    protect(&boot).then_some(boot)
}

/// Prepares the process. Returns false if it cannot be protected.
fn protect(boot: &Boot) -> bool {
    // No other process of the box may inspect this one, even as the same user. A tracer must, and
    // it is a process of the box's user.
    if boot.traced.is_none() && set_dumpable_behavior(DumpableBehavior::NotDumpable).is_err() {
        return false;
    }
    // Only needed where the agent is not process 1.
    let _ = set_child_subreaper(Some(getpid()));
    umask(Mode::WGRP | Mode::WOTH);
    keep_while_busy();
    true
}

/// Socket that the agent listens on, not registered yet.
#[derive(Debug)]
enum Listener {
    /// A unix socket.
    Unix(OwnedFd),
    /// A port of the machine's vsock.
    Vsock(vsock::Listener),
}

/// Socket that the agent accepts connections on.
#[derive(Debug)]
enum Accepting {
    Unix(UnixListener),
    Vsock(AsyncFd<OwnedFd>),
}

impl Accepting {
    fn new(listener: Listener) -> std::io::Result<Accepting> {
        match listener {
            Listener::Unix(listener) => {
                let listener = std::os::unix::net::UnixListener::from(listener);
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener).map(Accepting::Unix)
            }
            Listener::Vsock(listener) => {
                let listener = OwnedFd::from(listener);
                rustix::io::ioctl_fionbio(&listener, true)?;
                readable(listener).map(Accepting::Vsock)
            }
        }
    }

    /// Accepts the next connection. What is read from and written to a stream does not depend on the
    /// family of its addresses.
    async fn accept(&self) -> std::io::Result<UnixStream> {
        match self {
            Accepting::Unix(listener) => listener.accept().await.map(|(stream, _)| stream),
            Accepting::Vsock(listener) => loop {
                let mut guard = listener.readable().await?;
                let accepted =
                    guard.try_io(|listener| vsock::accept(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK));
                match accepted {
                    Ok(Ok(Some(stream))) => return UnixStream::from_std(stream.into()),
                    // Of the machine itself, or asked for again.
                    Ok(Ok(None)) | Err(_) => {}
                    Ok(Err(error)) => return Err(error),
                }
            },
        }
    }
}

/// Sockets through which servers reach the agent.
#[derive(Debug)]
struct Ways {
    /// The socket that later servers connect to.
    listener: Listener,
    /// True if the box's own processes can find the socket; their connections are then closed.
    from_outside_only: bool,
    /// Connection that is open from the start.
    first: Option<stdio::Stdio>,
    /// Listener of the system call filter, on which calls wait for their turn.
    turns: Option<OwnedFd>,
}

fn run_until_end(boot: Boot, ways: Ways, seen: Seen) -> ExitCode {
    let Ok(ties) = boot.traced.as_ref().map(ptrace::tie).transpose() else { return ExitCode::FAILURE };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() else {
        return ExitCode::FAILURE;
    };
    match LocalSet::new().block_on(&runtime, serve(boot, ways, seen, ties)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Serves until the deadline, or until a task that the agent needs has failed.
async fn serve(boot: Boot, ways: Ways, seen: Seen, ties: Option<(TracerHandle, OwnedFd)>) -> std::io::Result<()> {
    let (ties, notes) = ties.unzip();
    let Ways { listener, from_outside_only, first, turns } = ways;
    let listener = Accepting::new(listener)?;
    let agent = Rc::new(Agent::new(boot, seen, ties, turns)?);
    if agent.boot.furnish {
        let faults = prepare_rootfs::furnish(&agent.boot);
        faults.into_iter().for_each(|fault| agent.console.push(format!("tidebox: {fault}")));
    }
    if agent.boot.diverted.as_ref().is_some_and(|it| it.writes_resolv_conf)
        && let Some(fault) = prepare_rootfs::name_server()
    {
        agent.console.push(format!("tidebox: {fault}"));
    }
    // Before the first child: until the signal is blocked, the kernel drops it, and a child that has
    // ended by then would stay a zombie.
    let child_signals = reaping::child_signals()?;
    if !agent.boot.holds_slots {
        exec::entrypoint::start(&agent);
        spawn_local(reaping::kill_strangers(Rc::clone(&agent)));
    }
    spawn_local(Rc::clone(&agent.activity).trim_when_idle());
    if agent.size.is_some() {
        spawn_local(size::renewal::follow(Rc::clone(&agent)));
    }
    if agent.boot.soft_memory_mb > 0 {
        spawn_local(watchdog::run(Rc::clone(&agent), agent.boot.soft_memory_mb));
    }
    let reaping = spawn_local(reaping::reap(Rc::clone(&agent), child_signals));
    spawn_local(Rc::clone(&agent).settle_soon());
    if let Some(first) = first {
        spawn_local(first.serve(Rc::clone(&agent)));
    }
    let tracer = Rc::clone(&agent);
    let following = spawn_local(async move {
        match notes {
            Some(notes) => tracer_notes::follow(tracer, notes).await,
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
        reaping::kill_all(&agent).await;
    }
    Ok(())
}

async fn accept(agent: Rc<Agent>, listener: Accepting, from_outside_only: bool) -> std::io::Result<()> {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok(stream) if from_outside_only && !peer::is_from_outside(&stream) => drop(permit),
            Ok(stream) => {
                // On failure there are more turns between the two.
                let _ = set_socket_send_buffer_size(&stream, SOCKET_BUFFER_BYTES);
                let agent = Rc::clone(&agent);
                let is_vsock = matches!(listener, Accepting::Vsock(_));
                spawn_local(async move {
                    let stream = vsock::Pieces::new(stream, is_vsock);
                    connection::serve(agent, stream, &connection::builder()).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}
