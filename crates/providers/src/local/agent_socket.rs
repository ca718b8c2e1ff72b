//! Socket in the folder of a box, over which its agent is reached.

use std::pin::pin;
use std::time::Instant;

use super::fault::not_made;
use super::folder::BoxFolder;
use super::launcher::{LaunchError, Launched, failed};
use super::process::Process;
use crate::agent::{AgentGuest, unreached};
use crate::{Error, Result};

/// Box that has been launched and has answered.
#[derive(Debug)]
pub struct Running {
    pub(crate) process: Process,
    pub(crate) guest: AgentGuest,
    /// True if its devices are the very files of the host.
    pub(crate) shares_devices: bool,
    /// Time at which the agent was executed, or had answered.
    pub(crate) launched: Instant,
    /// Name of the phase up to then.
    pub(crate) phase: &'static str,
}

/// Name of the phase in which a box comes to be, up to its agent.
pub(crate) const BOX_PHASE: &str = "box";

/// Has `launch` start the box whose agent listens on the socket of `folder`, and connects.
pub(crate) async fn run(
    folder: &BoxFolder,
    launch: impl Future<Output = std::result::Result<Launched, LaunchError>>,
) -> Result<Running> {
    // Connected before the agent listens: the first request waits in the socket.
    let stream = folder.connect().await.map_err(not_made)?;
    let launched = launch.await.map_err(failed)?;
    let Some((pid, started)) = folder.pid() else { return Err(not_made("the launcher recorded no process")) };
    let Some(process) = Process::find(pid, started).map_err(not_made)? else {
        launched.executed().await.map_err(failed)?;
        return Err(Error::Gone);
    };
    let shares_devices = launched.shares_devices;
    let mut connecting = pin!(AgentGuest::connect(stream));
    let mut executed = pin!(launched.executed());
    let (guest, launched) = tokio::select! {
        // What the launcher still closes, the box does not need.
        guest = &mut connecting => (guest, Instant::now()),
        executed = &mut executed => {
            executed.map_err(failed)?;
            let launched = Instant::now();
            return Ok(Running { process, guest: connecting.await?, shares_devices, launched, phase: BOX_PHASE });
        }
    };
    match guest {
        Ok(guest) => Ok(Running { process, guest, shares_devices, launched, phase: BOX_PHASE }),
        // If both failed, the launcher has the cause.
        Err(error) => Err(executed.await.map_err(failed).err().unwrap_or(error)),
    }
}

/// Opens a connection to the agent of a running box.
pub(crate) async fn dial(folder: &BoxFolder) -> Result<AgentGuest> {
    let stream = folder.connect().await.map_err(|error| unreached("reach the agent", error))?;
    AgentGuest::connect(stream).await
}
