//! Start of the tracer mode of the agent program, and of its sweep mode.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::Duration;

use guest_protocol::{Sweep, Trace};
use tokio::io::AsyncWriteExt;

use crate::local::agent_file::AgentFile;
use crate::local::launcher::{LAUNCH_WAIT, LaunchError, Launched, control, talk};

/// Limit for the sweep mode, which gives up earlier by itself.
const SWEEP_WAIT: Duration = Duration::from_secs(15);

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
    let mut command = tokio::process::Command::new(agent.path());
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
    if status.success() { Ok(()) } else { Err(io::Error::other("some of its processes do not end")) }
}
