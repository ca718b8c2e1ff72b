//! Direct connection to an agent without the Engine: to the agent's socket, through the
//! container's root that the kernel shows under `/proc` to processes on the same machine that may
//! inspect its processes.
//!
//! The Engine relays through two more processes and four more pipes, which took two thirds of the
//! time of a large stream. Without a direct way (an Engine elsewhere, a runtime with a kernel of
//! its own, a server without the permission) the Engine relays.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bollard::models::ContainerInspectResponse;
use guest_protocol::AGENT_SOCKET;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use tokio::net::UnixStream;

use crate::agent::{AgentGuest, connect_unix};

/// Limit for the agent's response. A running agent answers at once; after the limit the Engine's
/// way is tried, which waits longer.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
/// Most bytes read of a `cgroup` file: a dozen lines with a path each.
const CGROUP_BYTES_MAX: usize = 16 * 1024;

/// First process of a container, as the Engine reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FirstProcess {
    /// Id of the container: 64 hexadecimal digits.
    pub(super) container: String,
    /// Pid on the Engine's machine.
    pub(super) pid: i32,
}

impl FirstProcess {
    /// Returns the first process of a container that runs.
    pub(super) fn of(inspected: &ContainerInspectResponse) -> Option<FirstProcess> {
        let state = inspected.state.as_ref().filter(|state| state.running == Some(true))?;
        let pid = state.pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        Some(FirstProcess { container: inspected.id.clone().unwrap_or_default(), pid })
    }
}

/// Connects to the agent; `None` if there is no direct way.
pub(super) async fn reach(process: &FirstProcess) -> Option<AgentGuest> {
    let reached = tokio::time::timeout(ANSWER_WAIT, async {
        let stream = connect(process).await.map_err(|error| error.to_string())?;
        AgentGuest::connect(stream).await.map_err(|error| crate::Chain(&error).to_string())
    });
    match reached.await {
        Ok(Ok(guest)) => Some(guest),
        Ok(Err(error)) => {
            tracing::debug!(container = process.container, error, "reaching the agent through the Engine");
            None
        }
        Err(_) => None,
    }
}

async fn connect(process: &FirstProcess) -> io::Result<UnixStream> {
    let socket = socket(process)?;
    let stream = connect_unix(&socket).await?;
    // A process that may write there can put a socket of its own in the agent's place.
    if stream.peer_cred()?.pid() == Some(process.pid) {
        Ok(stream)
    } else {
        Err(strange("its socket belongs to another process"))
    }
}

/// Opens the agent's socket. Anything else in its place is refused.
fn socket(process: &FirstProcess) -> io::Result<OwnedFd> {
    let dir = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Held open, the descriptor stays with this process and never means a later one of the same
    // pid.
    let held = openat(CWD, format!("/proc/{}", process.pid), dir, Mode::empty())?;
    if !is_of(&held, &process.container)? {
        return Err(strange("the Engine's process ids differ from ours"));
    }
    let root = openat(&held, "root", dir, Mode::empty())?;
    let path = AGENT_SOCKET.trim_start_matches('/');
    // Links of the box could lead out of it.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let socket = openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    if FileType::from_raw_mode(fstat(&socket)?.st_mode) != FileType::Socket {
        return Err(strange("it is not a socket"));
    }
    Ok(socket)
}

/// Returns whether the process with this pid here belongs to the container.
pub(super) fn is_here(process: &FirstProcess) -> bool {
    let dir = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = openat(CWD, format!("/proc/{}", process.pid), dir, Mode::empty());
    held.is_ok_and(|held| is_of(&held, &process.container).unwrap_or(false))
}

/// Returns whether a process is in the container: the Engine names control groups by its id.
fn is_of(process: impl AsFd, container: &str) -> io::Result<bool> {
    let file = openat(process, "cgroup", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut groups = vec![0; CGROUP_BYTES_MAX];
    let mut len = 0;
    while len < groups.len() {
        match rustix::io::read(&file, &mut groups[len..])? {
            0 => break,
            read => len += read,
        }
    }
    Ok(!container.is_empty() && String::from_utf8_lossy(&groups[..len]).contains(container))
}

fn strange(what: &'static str) -> io::Error {
    io::Error::other(what)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_process_that_is_in_no_such_container_has_no_agent() {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        for container in ["", &"0123456789abcdef".repeat(4)] {
            let refused = socket(&FirstProcess { container: container.to_owned(), pid }).unwrap_err();
            assert!(refused.to_string().contains("process ids differ"), "{refused}");
        }
        assert!(socket(&FirstProcess { container: "/".to_owned(), pid: -1 }).is_err());
    }
}
