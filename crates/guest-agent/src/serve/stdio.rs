//! The agent as the first process of somebody else's container, such as an
//! Engine's: its standard streams are the first connection.
//!
//! Whatever a server that has died left half-written in those streams stays
//! there, so they carry one connection only. Later ones come through
//! [`crate::relay`] and a socket, each whole from its first byte.

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

/// Where control groups of version 2 and 1 count kills by the memory limit, as
/// Engines show them in a container.
const OOM_EVENTS: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];
/// The standard streams do not end when the server does, so it is asked whether
/// it is there.
const PING_PERIOD: Duration = Duration::from_secs(10);
/// A server that has not answered for so long is gone, and its commands end.
const PING_WAIT: Duration = Duration::from_secs(20);
/// The mode of the agent's socket.
const EVERYBODY_CONNECTS: Mode =
    Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP).union(Mode::WGRP).union(Mode::ROTH).union(Mode::WOTH);
/// More of a `stat` file is not needed.
const STAT_BYTES_MAX: usize = 512;

/// Runs the agent; `boot` is its second argument.
pub(crate) fn run(boot: Option<&str>) -> ExitCode {
    let Some(boot) = boot.and_then(begin) else { return ExitCode::FAILURE };
    // Whoever made the container has set limits too, and some kernels know fewer.
    let _ = limit_resources(&SoftLimits::default());
    let _ = bound_each(Part::HALF);
    // A profile of the operator's may have a filter refuse to be added to.
    let _ = add_filter();
    let oom_events = OOM_EVENTS
        .iter()
        .find_map(|path| rustix::fs::open(*path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok());
    let Ok(first) = Stdio::take() else { return ExitCode::FAILURE };
    let Ok(listener) = UnixListener::bind(AGENT_SOCKET) else { return ExitCode::FAILURE };
    // The relay is a user without powers. Others that connect get no answer.
    if chmod(AGENT_SOCKET, EVERYBODY_CONNECTS).is_err() {
        return ExitCode::FAILURE;
    }
    run_until_end(
        boot,
        Ways { listener: listener.into(), from_outside_only: true, first: Some(first), turns: None },
        oom_events,
    )
}

/// The standard streams as a connection.
#[derive(Debug)]
pub(super) struct Stdio {
    input: OwnedFd,
    output: OwnedFd,
}

impl Stdio {
    /// Takes the standard streams, and leaves the null device in their place.
    fn take() -> io::Result<Stdio> {
        let stdio = Stdio { input: standard(&io::stdin())?, output: standard(&io::stdout())? };
        let null = File::options().read(true).write(true).open("/dev/null")?;
        for number in 0..=2 {
            duplicate_to(&null, number)?;
        }
        Ok(stdio)
    }

    /// Until the server goes away.
    pub(super) async fn serve(self, agent: Rc<Agent>) {
        let input = pipe::Receiver::from_owned_fd_unchecked(self.input);
        let output = pipe::Sender::from_owned_fd_unchecked(self.output);
        // Without them there is still the socket.
        let (Ok(input), Ok(output)) = (input, output) else { return };
        let mut builder = builder();
        builder.timer(TokioTimer::new()).keep_alive_interval(PING_PERIOD).keep_alive_timeout(PING_WAIT);
        connection(agent, tokio::io::join(input, output), &builder).await;
    }
}

/// Tells whether the process at the other end is outside of the container, where it
/// has no number of ours, or was started from there: its parent then has none.
pub(super) fn is_from_outside(stream: &UnixStream) -> bool {
    let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
    pid.is_some_and(|pid| pid == 0 || parent(pid) == Some(0) && is_still_there(stream))
}

/// Tells whether the process that connected has not ended, so that its number was
/// not another's when its parent was looked up.
fn is_still_there(stream: &UnixStream) -> bool {
    match peer_process(stream) {
        Ok(process) => {
            let mut ended = [PollFd::new(&process, PollFlags::IN)];
            matches!(poll(&mut ended, Some(&Timespec::default())), Ok(0))
        }
        // Kernels before 6.5, and gVisor, know processes by their numbers only.
        Err(error) => error.raw_os_error() == Some(libc::ENOPROTOOPT),
    }
}

fn parent(pid: i32) -> Option<i32> {
    let mut buffer = [0; STAT_BYTES_MAX];
    let file = rustix::fs::open(format!("/proc/{pid}/stat"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let len = rustix::io::read(file, &mut buffer[..]).ok()?;
    let stat = String::from_utf8_lossy(buffer.get(..len)?).into_owned();
    // The name in parentheses may hold anything, so count from its end.
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
