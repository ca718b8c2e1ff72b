//! Start of the launcher, and its reports.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::Duration;

use guest_protocol::{LAUNCH_LINE_BYTES_MAX, Launch, LaunchReport};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Command;

use super::agent_file::AgentFile;
use super::fault::not_made;
use crate::{Error, disk};

/// Limit for making a box. A thousandth of it is usual; a machine that swaps may need seconds.
pub(crate) const LAUNCH_WAIT: Duration = Duration::from_secs(30);

/// Failure of a launch.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// The kernel refused a step.
    #[error("cannot {step}: {}", io::Error::from_raw_os_error(*errno))]
    Refused {
        /// Action that was refused.
        step: String,
        errno: i32,
    },
    /// The launcher could not be started or ended without a report.
    #[error("the launcher: {0}")]
    Launcher(#[from] io::Error),
}

/// Steps that the kernel refuses with the error number of a full disk for other reasons.
const NOT_ON_DISK: [&str; 3] = ["make namespaces", "make a control group namespace", "join a control group"];

/// Converts the failure of a launch into the caller's error.
pub(crate) fn failed(error: LaunchError) -> Error {
    match &error {
        LaunchError::Refused { step, errno } if !NOT_ON_DISK.contains(&step.as_str()) && is_full(*errno) => {
            tracing::debug!(step, errno, "the disk is full");
            disk::full()
        }
        LaunchError::Refused { .. } | LaunchError::Launcher(_) => not_made(error),
    }
}

fn is_full(errno: i32) -> bool {
    [Errno::NOSPC, Errno::DQUOT].contains(&Errno::from_raw_os_error(errno))
}

/// Result of a successful launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Launched {
    /// Pid of the box's first process on the host.
    pub(crate) pid: u32,
    /// True if the devices of the box are the very files of the host.
    pub(crate) shares_devices: bool,
}

/// Makes the box of `launch`. On success the agent has been executed.
pub(crate) async fn launch(
    agent: &AgentFile,
    listener: UnixListener,
    launch: &Launch,
) -> Result<Launched, LaunchError> {
    let agent = agent.for_a_box()?;
    let (mut control, theirs) = control()?;
    let mut child = {
        let mut command = Command::new(agent.path());
        command.arg("launch").env_clear().kill_on_drop(true);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::from(OwnedFd::from(listener))).stderr(agent.duplicate()?);
        command.spawn()?
    };
    let launching = async {
        let reports = talk(&mut control, launch).await;
        child.wait().await?;
        reports
    };
    let reports =
        tokio::time::timeout(LAUNCH_WAIT, launching).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    outcome(&reports)
}

/// Returns the two ends of the connection to a launcher, the second for the launcher itself.
pub(crate) fn control() -> io::Result<(UnixStream, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The launcher reads and writes its end in blocking mode.
    rustix::io::ioctl_fionbio(&theirs, false)?;
    Ok((UnixStream::from_std(ours.into())?, theirs))
}

/// Sends an order, and returns the reports on it once the launcher has closed its end.
pub(crate) async fn talk(control: &mut UnixStream, order: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    // A launcher that refused has sent its reason before it closed its end.
    let sent = control.write_all(&line).await;
    let mut reports = Vec::new();
    control.take(LAUNCH_LINE_BYTES_MAX as u64).read_to_end(&mut reports).await?;
    sent.map(|()| reports)
}

pub(crate) fn outcome(reports: &[u8]) -> Result<Launched, LaunchError> {
    let (mut pid, mut shares_devices) = (None, false);
    for line in reports.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line).map_err(io::Error::from)? {
            LaunchReport::Pid(number) => pid = Some(number),
            LaunchReport::SharesDevices => shares_devices = true,
            LaunchReport::Failed { step, errno } => return Err(LaunchError::Refused { step, errno }),
        }
    }
    let pid = pid.ok_or_else(|| io::Error::other("it ended without a word"))?;
    Ok(Launched { pid, shares_devices })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_failure_after_the_pid_is_a_failure() {
        assert_eq!(outcome(b"{\"pid\":7}\n").unwrap(), Launched { pid: 7, shares_devices: false });
        let sharing = outcome(b"\"shares_devices\"\n{\"pid\":7}\n").unwrap();
        assert_eq!(sharing, Launched { pid: 7, shares_devices: true });
        let failed = outcome(b"{\"pid\":7}\n{\"failed\":{\"step\":\"mount an overlay\",\"errno\":1}}\n");
        assert!(matches!(failed, Err(LaunchError::Refused { errno: 1, .. })));
        assert!(outcome(b"").is_err());
        assert!(outcome(b"nonsense\n").is_err());
    }

    #[test]
    fn a_launcher_without_disk_says_so_and_one_without_namespaces_does_not() {
        let refused = |step: &str| LaunchError::Refused { step: step.to_owned(), errno: Errno::NOSPC.raw_os_error() };
        assert!(matches!(failed(refused("record the pid")), Error::Full(_)));
        assert!(matches!(failed(refused("make namespaces")), Error::Failed { .. }));
    }
}
