//! Socket in the folder of a box, over which its agent is reached.

use std::io;
use std::os::unix::net::UnixListener;
use std::time::Instant;

use super::fault::{not_made, not_written};
use super::folder::BoxFolder;
use super::launcher::{LaunchError, Launched, failed};
use crate::agent::AgentGuest;
use crate::{Error, Result};

/// Box that has been launched and has answered.
#[derive(Debug)]
pub struct Running {
    pub(crate) guest: AgentGuest,
    /// True if its devices are the very files of the host.
    pub(crate) shares_devices: bool,
    /// Time at which the launcher was done.
    pub(crate) launched: Instant,
}

/// Makes the socket, has `launch` start the box whose agent listens on it, and connects.
pub(crate) async fn run<F>(folder: &BoxFolder, launch: impl FnOnce(UnixListener) -> F) -> Result<Running>
where
    F: Future<Output = std::result::Result<Launched, LaunchError>>,
{
    let listener = folder.listen().map_err(not_written)?;
    listener.set_nonblocking(true).map_err(not_made)?;
    // Connected before the agent listens: the first request waits in the socket.
    let stream = folder.connect().await.map_err(not_made)?;
    let launching = launch(listener);
    let (launched, guest) = tokio::join!(async { (launching.await, Instant::now()) }, AgentGuest::connect(stream));
    let (outcome, launched) = launched;
    // If both failed, the launcher has the cause.
    let shares_devices = outcome.map_err(failed)?.shares_devices;
    Ok(Running { guest: guest?, shares_devices, launched })
}

/// Opens a connection to the agent of a running box.
pub(crate) async fn dial(folder: &BoxFolder) -> Result<AgentGuest> {
    let stream = folder.connect().await.map_err(|error| {
        let absent = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        if absent.contains(&error.kind()) { Error::Gone } else { Error::failed("reach the agent", error) }
    })?;
    AgentGuest::connect(stream).await
}
