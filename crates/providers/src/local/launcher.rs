//! Start of launchers, and their reports.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use guest_protocol::{LAUNCH_LINE_BYTES_MAX, LAUNCH_LISTENER, Launch, LaunchReport};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio_util::task::TaskTracker;

use super::agent_file::AgentFile;
use super::fault::not_made;
use super::refill::refill_soon;
use crate::{Error, disk};

/// Limit for making a box. A thousandth of it is usual; a machine that swaps may need seconds.
pub(crate) const LAUNCH_WAIT: Duration = Duration::from_secs(30);
/// Number of launchers that wait. A larger burst starts its launchers on demand.
const WAITING_MAX: usize = 4;

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

/// A box whose first process has been made and recorded.
#[derive(Debug)]
pub(crate) struct Launched {
    /// True if the devices of the box are the very files of the host.
    pub(crate) shares_devices: bool,
    /// Launcher at work; `None` if it is done.
    launcher: Option<Launcher>,
}

impl Launched {
    /// Returns the box of these reports, all that came: its agent has been executed.
    pub(crate) fn done(reports: &[u8]) -> Result<Launched, LaunchError> {
        let shares_devices = recorded(reports)?.ok_or_else(ended)?;
        Ok(Launched { shares_devices, launcher: None })
    }

    /// Waits until the agent has been executed.
    pub(crate) async fn executed(self) -> Result<(), LaunchError> {
        let Some(mut launcher) = self.launcher else { return Ok(()) };
        while within(launcher.read()).await? {}
        recorded(&launcher.reports).map(drop)
    }
}

/// Launchers of a provider. Some wait for an order at any time: to start a program takes a fifth of
/// the time in which a box is made.
#[derive(Debug)]
pub(crate) struct Launchers {
    agent: AgentFile,
    state: Arc<Mutex<State>>,
    tasks: TaskTracker,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Launcher>,
    is_refilling: bool,
}

impl Launchers {
    /// Returns launchers of boxes with this agent, none of which waits yet.
    pub(crate) fn new(agent: AgentFile, tasks: TaskTracker) -> Launchers {
        Launchers { agent, state: Arc::default(), tasks }
    }

    /// Starts to make the box of `launch`, and returns once its first process is recorded.
    pub(crate) async fn launch(&self, listener: UnixListener, launch: &Launch) -> Result<Launched, LaunchError> {
        let mut launcher = self.take()?;
        let shares_devices = within(launcher.order(listener, launch)).await?;
        Ok(Launched { shares_devices, launcher: Some(launcher) })
    }

    fn take(&self) -> io::Result<Launcher> {
        loop {
            let waiting = self.state.lock().waiting.pop();
            match waiting.map(|mut launcher| (launcher.is_waiting(), launcher)) {
                Some((true, launcher)) => return Ok(launcher),
                // Ended from outside.
                Some((false, _)) => {}
                None => return Launcher::start(&self.agent),
            }
        }
    }

    /// Starts launchers in the background until [`WAITING_MAX`] wait.
    pub(crate) fn refill(&self) {
        {
            let mut state = self.state.lock();
            if state.is_refilling || state.waiting.len() >= WAITING_MAX {
                return;
            }
            state.is_refilling = true;
        }
        let agent = self.agent.clone();
        let state = Arc::clone(&self.state);
        refill_soon(&self.tasks, move || {
            loop {
                let started = Launcher::start(&agent);
                let mut state = state.lock();
                state.is_refilling = match started {
                    Ok(launcher) => {
                        state.waiting.push(launcher);
                        state.waiting.len() < WAITING_MAX
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot start a launcher in advance");
                        false
                    }
                };
                if !state.is_refilling {
                    return;
                }
            }
        });
    }
}

/// Process that waits for an order, or works on one. It is killed when this is dropped.
#[derive(Debug)]
struct Launcher {
    child: Child,
    control: UnixStream,
    /// Its reports so far.
    reports: Vec<u8>,
}

impl Launcher {
    fn start(agent: &AgentFile) -> io::Result<Launcher> {
        let agent = agent.for_a_box()?;
        let (control, theirs) = control()?;
        let mut command = Command::new(agent.path());
        command.arg("launch").env_clear().kill_on_drop(true);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(agent.duplicate()?);
        Ok(Launcher { child: command.spawn()?, control, reports: Vec::new() })
    }

    fn is_waiting(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends the order. Returns whether the box shares its devices, once its first process is
    /// recorded.
    async fn order(&mut self, listener: UnixListener, launch: &Launch) -> Result<bool, LaunchError> {
        // A launcher that refused has sent its reason before it closed its end.
        let sent = self.send(listener, launch).await;
        loop {
            if let Some(shares_devices) = recorded(&self.reports)? {
                return Ok(shares_devices);
            }
            if !self.read().await? {
                return sent.and_then(|()| Err(ended())).map_err(LaunchError::from);
            }
        }
    }

    async fn send(&mut self, listener: UnixListener, launch: &Launch) -> io::Result<()> {
        let mut message = vec![LAUNCH_LISTENER];
        serde_json::to_writer(&mut message, launch)?;
        message.push(b'\n');
        let sent = self.control.async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let descriptors = [listener.as_fd()];
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            Ok(sendmsg(&self.control, &[IoSlice::new(&message)], &mut ancillary, SendFlags::NOSIGNAL)?)
        });
        let sent = sent.await?;
        self.control.write_all(&message[sent..]).await
    }

    /// Reads more of the reports. Returns false at their end.
    async fn read(&mut self) -> io::Result<bool> {
        let room = LAUNCH_LINE_BYTES_MAX.saturating_sub(self.reports.len());
        Ok((&mut self.control).take(room as u64).read_buf(&mut self.reports).await? > 0)
    }
}

/// Runs one step of a launch within its limit.
async fn within<T, E: From<io::Error>>(step: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    match tokio::time::timeout(LAUNCH_WAIT, step).await {
        Ok(outcome) => outcome,
        Err(_) => Err(E::from(io::ErrorKind::TimedOut.into())),
    }
}

fn ended() -> io::Error {
    io::Error::other("it exited without a report")
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

/// Returns whether the box shares its devices; `None` if its first process is not recorded yet.
fn recorded(reports: &[u8]) -> Result<Option<bool>, LaunchError> {
    let mut is_recorded = false;
    let mut shares_devices = false;
    for line in reports.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
        match serde_json::from_slice(line).map_err(io::Error::from)? {
            LaunchReport::Pid(_) => is_recorded = true,
            LaunchReport::SharesDevices => shares_devices = true,
            LaunchReport::Failed { step, errno } => return Err(LaunchError::Refused { step, errno }),
        }
    }
    Ok(is_recorded.then_some(shares_devices))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_failure_after_the_pid_is_a_failure() {
        assert_eq!(recorded(b"{\"pid\":7}\n").unwrap(), Some(false));
        assert_eq!(recorded(b"\"shares_devices\"\n{\"pid\":7}\n").unwrap(), Some(true));
        let failed = recorded(b"{\"pid\":7}\n{\"failed\":{\"step\":\"mount an overlay\",\"errno\":1}}\n");
        assert!(matches!(failed, Err(LaunchError::Refused { errno: 1, .. })));
        assert_eq!(recorded(b"{\"pid\":7}").unwrap(), None, "the line is not complete");
        assert!(recorded(b"nonsense\n").is_err());
        assert!(Launched::done(b"").is_err() && Launched::done(b"\"shares_devices\"\n").is_err());
    }

    #[tokio::test]
    async fn a_launcher_that_died_while_it_waited_is_replaced() {
        let tasks = TaskTracker::new();
        tasks.close();
        let launchers = Launchers::new(AgentFile::sealed().unwrap(), tasks.clone());
        launchers.refill();
        tasks.wait().await;
        let mut waiting = launchers.take().unwrap();
        assert!(waiting.is_waiting() && launchers.state.lock().waiting.len() == WAITING_MAX - 1, "it was taken");
        waiting.child.kill().await.unwrap();
        let dead = waiting.child.id();
        launchers.state.lock().waiting.push(waiting);
        let mut next = launchers.take().unwrap();
        assert!(next.is_waiting() && next.child.id() != dead);
    }

    #[tokio::test]
    async fn a_launcher_whose_server_is_gone_ends() {
        let Launcher { mut child, control, .. } = Launcher::start(&AgentFile::sealed().unwrap()).unwrap();
        drop(control);
        let ended = tokio::time::timeout(LAUNCH_WAIT, child.wait()).await.unwrap();
        assert!(ended.unwrap().success());
    }

    #[test]
    fn a_launcher_without_disk_says_so_and_one_without_namespaces_does_not() {
        let refused = |step: &str| LaunchError::Refused { step: step.to_owned(), errno: Errno::NOSPC.raw_os_error() };
        assert!(matches!(failed(refused("record the pid")), Error::Full(_)));
        assert!(matches!(failed(refused("make namespaces")), Error::Failed { .. }));
    }
}
