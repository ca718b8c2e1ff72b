//! The agent as the first process of a container that another runtime makes, such as a Docker
//! Engine. Its standard streams are the first connection.
//!
//! Data that a dead server left half-written in those streams stays there, so they carry one
//! connection only. Later ones come through [`crate::relay`] and a socket, each whole from its
//! first byte.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use guest_protocol::{AGENT_SOCKET, SoftLimits};
use hyper_util::rt::TokioTimer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, chmod};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use super::{Agent, Ways, begin, builder, connection, run_until_end};
use crate::descriptor::peer_process;
use crate::descriptor::standard;
use crate::launch::{Part, add_filter, bound_each, duplicate_to, limit_resources};

/// Files in which control groups of version 2 and 1 count kills by the memory limit, as Engines
/// mount them in a container.
const OOM_EVENTS: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];
/// Interval of pings: the standard streams do not end when the server does.
const PING_PERIOD: Duration = Duration::from_secs(10);
/// Time without an answer to a ping after which the server counts as gone and its commands are
/// ended.
const PING_WAIT: Duration = Duration::from_secs(20);
/// Mode of the agent's socket.
const EVERYBODY_CONNECTS: Mode =
    Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP).union(Mode::WGRP).union(Mode::ROTH).union(Mode::WOTH);
/// Enough of a `stat` file to reach the parent's pid.
const STAT_BYTES_MAX: usize = 512;

/// Runs the agent; `boot` is its second argument.
pub(crate) fn run(boot: Option<&str>) -> ExitCode {
    let Some(boot) = boot.and_then(begin) else { return ExitCode::FAILURE };
    // The container's maker has set limits too, and some kernels know fewer of them.
    let _ = limit_resources(&SoftLimits::default());
    let _ = bound_each(Part::HALF);
    // A profile set by the operator may have a filter that refuses further ones.
    let _ = add_filter();
    let oom_events = OOM_EVENTS
        .iter()
        .find_map(|path| rustix::fs::open(*path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok());
    let Ok(first) = Stdio::take() else { return ExitCode::FAILURE };
    let Ok(listener) = UnixListener::bind(AGENT_SOCKET) else { return ExitCode::FAILURE };
    // The relay is a user without privileges. Other processes that connect get no answer.
    if chmod(AGENT_SOCKET, EVERYBODY_CONNECTS).is_err() {
        return ExitCode::FAILURE;
    }
    run_until_end(
        boot,
        Ways { listener: listener.into(), from_outside_only: true, first: Some(first), turns: None },
        oom_events,
    )
}

/// A connection over the standard streams.
#[derive(Debug)]
pub(super) struct Stdio {
    input: OwnedFd,
    output: OwnedFd,
}

impl Stdio {
    /// Takes the standard streams and leaves the null device in their place.
    fn take() -> io::Result<Stdio> {
        let stdio = Stdio { input: standard(&io::stdin())?, output: standard(&io::stdout())? };
        let null = File::options().read(true).write(true).open("/dev/null")?;
        for number in 0..=2 {
            duplicate_to(&null, number)?;
        }
        Ok(stdio)
    }

    /// Serves until the server disconnects.
    pub(super) async fn serve(self, agent: Rc<Agent>) {
        let input = pipe::Receiver::from_owned_fd_unchecked(self.input);
        let output = pipe::Sender::from_owned_fd_unchecked(self.output);
        // On failure there is still the socket.
        let (Ok(input), Ok(output)) = (input, output) else { return };
        let mut builder = builder();
        builder.timer(TokioTimer::new()).keep_alive_interval(PING_PERIOD).keep_alive_timeout(PING_WAIT);
        connection(agent, tokio::io::join(input, output), &builder).await;
    }
}

/// Returns whether the process at the other end is outside the container, where it has no pid in
/// this namespace, or was started from there: its parent then has none.
pub(super) fn is_from_outside(stream: &UnixStream) -> bool {
    let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
    pid.is_some_and(|pid| pid == 0 || parent(pid) == Some(0) && is_still_there(stream))
}

/// Returns whether the process that connected is still alive, so that its pid did not belong to
/// another when its parent was looked up.
fn is_still_there(stream: &UnixStream) -> bool {
    match peer_process(stream) {
        Ok(process) => {
            let mut ended = [PollFd::new(&process, PollFlags::IN)];
            matches!(poll(&mut ended, Some(&Timespec::default())), Ok(0))
        }
        // Kernels before 6.5, and gVisor, identify processes by pid only.
        Err(error) => error.raw_os_error() == Some(libc::ENOPROTOOPT),
    }
}

fn parent(pid: i32) -> Option<i32> {
    let mut buffer = [0; STAT_BYTES_MAX];
    let file = rustix::fs::open(format!("/proc/{pid}/stat"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let len = rustix::io::read(file, &mut buffer[..]).ok()?;
    let stat = String::from_utf8_lossy(buffer.get(..len)?).into_owned();
    // The name in parentheses may contain anything, so count from its end.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod test {
    use super::{is_from_outside, is_still_there, parent};

    #[tokio::test]
    async fn who_has_connected_and_ended_is_not_taken_for_a_later_process() {
        let dir = tempfile::tempdir().expect("a folder can be made");
        let path = dir.path().join("socket");
        let listener = tokio::net::UnixListener::bind(&path).expect("a socket can be bound");
        // It connects, leaves the connection to a child, and ends.
        let script = "import os, socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                      if os.fork() == 0: s.recv(1)\n";
        let connected = std::process::Command::new("python3").args(["-c", script]).arg(&path).spawn();
        let mut connected = connected.expect("python runs");
        let (stream, _) = listener.accept().await.expect("it connects");
        connected.wait().expect("it ends");
        assert!(!is_still_there(&stream));
        assert!(!is_from_outside(&stream));
        let _ours = tokio::net::UnixStream::connect(&path).await.expect("there is a listener");
        let (stream, _) = listener.accept().await.expect("we connect");
        assert!(is_still_there(&stream));
    }

    #[test]
    fn a_process_of_the_box_has_a_parent_in_it() {
        let child = std::process::Command::new("/bin/cat").stdin(std::process::Stdio::piped()).spawn();
        let mut child = child.expect("a child can be started");
        let pid = i32::try_from(child.id()).expect("process ids are small");
        assert_eq!(parent(pid), Some(rustix::process::getpid().as_raw_nonzero().get()));
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert_eq!(parent(pid), None);
    }
}
