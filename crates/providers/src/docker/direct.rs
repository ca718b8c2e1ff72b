//! The way to an agent that leaves the Engine out: to the agent's socket, through
//! the view of the container that the kernel gives to who is on the same machine
//! and may look at its processes.
//!
//! What the Engine relays goes through two processes and four pipes more, which
//! took two thirds of the time of a large stream. Where there is no such way (an
//! Engine elsewhere, a runtime with a kernel of its own, a server without the
//! right) there is the Engine's.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use guest_protocol::AGENT_SOCKET;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use tokio::net::UnixStream;

use crate::agent::AgentGuest;

/// An agent that runs answers at once. Past this the Engine's way is tried, which
/// waits longer.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
/// More of a `cgroup` file is not read: a dozen lines with a path each.
const CGROUP_BYTES_MAX: usize = 16 * 1024;

/// The first process of a container, as the Engine knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FirstProcess {
    /// The container's id: 64 hexadecimal digits.
    pub(super) container: String,
    /// Its number where the Engine is.
    pub(super) pid: i32,
}

/// Reaches the agent. `None` if there is no such way.
pub(super) async fn reach(process: &FirstProcess) -> Option<AgentGuest> {
    let reached = tokio::time::timeout(ANSWER_WAIT, async {
        let stream = connect(process).await.map_err(|error| error.to_string())?;
        AgentGuest::connect(stream).await.map_err(|error| crate::Chain(&error).to_string())
    });
    match reached.await {
        Ok(Ok(guest)) => Some(guest),
        Ok(Err(error)) => {
            tracing::debug!(container = process.container, error, "the agent is reached through the Engine");
            None
        }
        Err(_) => None,
    }
}

async fn connect(process: &FirstProcess) -> io::Result<UnixStream> {
    let socket = socket(process)?;
    // By the descriptor, which cannot become another file meanwhile.
    let stream = UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await?;
    // Whoever may write there can put a socket of its own in the agent's place.
    if stream.peer_cred()?.pid() == Some(process.pid) { Ok(stream) } else { Err(strange("its socket is not its own")) }
}

/// The agent's socket, and nothing else whatever the box has put in its place.
fn socket(process: &FirstProcess) -> io::Result<OwnedFd> {
    let dir = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Held open, it stays this process and never becomes a later one of the number.
    let held = openat(CWD, format!("/proc/{}", process.pid), dir, Mode::empty())?;
    if !is_of(&held, &process.container)? {
        return Err(strange("the Engine counts other processes than we do"));
    }
    let root = openat(&held, "root", dir, Mode::empty())?;
    let path = AGENT_SOCKET.trim_start_matches('/');
    // Links of the box could lead out of it.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let socket = openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    if FileType::from_raw_mode(fstat(&socket)?.st_mode) != FileType::Socket {
        return Err(strange("there is no socket"));
    }
    Ok(socket)
}

/// Says whether a process with this number here is the container's.
pub(super) fn is_here(process: &FirstProcess) -> bool {
    let dir = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = openat(CWD, format!("/proc/{}", process.pid), dir, Mode::empty());
    held.is_ok_and(|held| is_of(&held, &process.container).unwrap_or(false))
}

/// Whether a process is in the container: the Engine names control groups by it.
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
            assert!(refused.to_string().contains("counts other processes"), "{refused}");
        }
        assert!(socket(&FirstProcess { container: "/".to_owned(), pid: -1 }).is_err());
    }
}
