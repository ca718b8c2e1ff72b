//! Processes at the other end of the agent's socket.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use tokio::net::UnixStream;

use crate::descriptor::peer_process;

/// Enough of a `stat` file to reach the parent's pid.
const STAT_BYTES_MAX: usize = 512;

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
