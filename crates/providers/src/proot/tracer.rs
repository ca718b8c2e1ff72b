//! Start of the tracer mode of the agent program, of its sweep mode and of its halt mode.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::Duration;

use guest_protocol::{HALTED, Halt, Sweep, Trace};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};

use crate::local::agent_file::AgentFile;
use crate::local::launcher::{LAUNCH_WAIT, LaunchError, Launched, control, talk};

/// Limit for the sweep mode, which gives up earlier by itself.
const SWEEP_WAIT: Duration = Duration::from_secs(15);
/// Limit for each step of the halt mode, which gives up earlier by itself.
const HALT_WAIT: Duration = Duration::from_secs(10);

/// Starts a box. On success `PRoot` has been executed.
pub(super) async fn trace(agent: &AgentFile, listener: UnixListener, trace: &Trace) -> Result<Launched, LaunchError> {
    let (mut control, theirs) = control()?;
    let mut child = {
        let mut command = std::process::Command::new(agent.path());
        command.arg("trace").env_clear().stdin(Stdio::from(theirs));
        command.stdout(Stdio::from(OwnedFd::from(listener))).stderr(Stdio::null());
        // Not a tokio command: the process stays, and the watch on the box reaps it.
        command.spawn()?
    };
    let talked = tokio::time::timeout(LAUNCH_WAIT, talk(&mut control, trace)).await;
    let talked = talked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(LaunchError::from);
    match talked.and_then(|reports| Launched::done(&reports)) {
        Ok(launched) => Ok(launched),
        Err(error) => {
            drop(control);
            // It may have ended by itself, and its own child ends with it.
            child
                .kill()
                .or_else(|error| if error.kind() == io::ErrorKind::InvalidInput { Ok(()) } else { Err(error) })?;
            let _ = tokio::task::spawn_blocking(move || child.wait()).await;
            Err(error)
        }
    }
}

/// Ends all processes of a box.
pub(super) async fn sweep(agent: &AgentFile, sweep: &Sweep) -> io::Result<()> {
    let mut line = serde_json::to_vec(sweep)?;
    line.push(b'\n');
    let mut command = Command::new(agent.path());
    command.arg("sweep").env_clear().kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let work = async {
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(&line).await?;
        }
        child.wait().await
    };
    let status =
        tokio::time::timeout(SWEEP_WAIT, work).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if status.success() { Ok(()) } else { Err(io::Error::other("some of its processes did not exit")) }
}

/// Box that stands still. It goes on when this is dropped, or the server ends.
#[derive(Debug)]
pub(super) struct Halted {
    child: Child,
    /// Closed to have the box go on.
    stdin: ChildStdin,
}

/// Has all processes of a box stand still; `None` if some do not, and all go on.
pub(super) async fn halt(agent: &AgentFile, halt: &Halt) -> io::Result<Option<Halted>> {
    let mut line = serde_json::to_vec(halt)?;
    line.push(b'\n');
    let mut command = Command::new(agent.path());
    command.arg("halt").env_clear();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let pipes = (child.stdin.take(), child.stdout.take());
    let (Some(mut stdin), Some(mut stdout)) = pipes else { return Err(io::ErrorKind::BrokenPipe.into()) };
    let mut answer = vec![0; HALTED.len()];
    let work = async {
        stdin.write_all(&line).await?;
        stdout.read_exact(&mut answer).await
    };
    match tokio::time::timeout(HALT_WAIT, work).await {
        Ok(Ok(_)) => Ok(Some(Halted { child, stdin })),
        Ok(Err(error)) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        Ok(Err(_)) | Err(_) => Ok(None),
    }
}

impl Halted {
    /// Lets the box go on. Returns false if it did not stand still all the time.
    pub(super) async fn go_on(mut self) -> io::Result<bool> {
        drop(self.stdin);
        let ended = tokio::time::timeout(HALT_WAIT, self.child.wait()).await;
        Ok(ended.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??.success())
    }
}
