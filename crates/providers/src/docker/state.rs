//! State of a box's container.

use bollard::Docker as Client;
use bollard::models::ContainerInspectResponse;

use super::direct::FirstProcess;
use super::fault::{self, LOOK_WAIT, within};
use crate::Result;

/// State of a box's container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Running(FirstProcess),
    Paused,
    NotRunning,
    Absent,
}

impl State {
    /// Reads the state of a container that is there.
    pub(super) fn of(inspected: &ContainerInspectResponse) -> State {
        if inspected.state.as_ref().is_some_and(|state| state.paused == Some(true)) {
            return State::Paused;
        }
        FirstProcess::of(inspected).map_or(State::NotRunning, State::Running)
    }
}

/// Asks the Engine for the state of a container.
pub(super) async fn state(client: &Client, name: &str) -> Result<State> {
    let looked = look(client, name).await;
    looked.map(|inspected| inspected.as_ref().map_or(State::Absent, State::of))
}

/// Returns the Engine's description of a container; `None` if there is none.
pub(super) async fn look(client: &Client, name: &str) -> Result<Option<ContainerInspectResponse>> {
    match within(LOOK_WAIT, client.inspect_container(name, None)).await {
        Ok(inspected) => Ok(Some(inspected)),
        Err(error) if fault::status(&error) == Some(404) => Ok(None),
        Err(error) => Err(fault::failed("inspect a box", error)),
    }
}
