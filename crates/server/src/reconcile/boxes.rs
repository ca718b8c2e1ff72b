//! Boxes of this server, among which the one is looked for that takes most of what all share.

use domain::{SandboxId, State, WorkerId};

use crate::control::Control;
use crate::control::Result;

/// States of a sandbox that may have a box: one that is being made has one while its commands run, and one that
/// is paused keeps what it holds.
const WITH_BOX: [State; 3] = [State::Creating, State::Running, State::Paused];

/// Returns whether a sandbox in this state may have a box.
pub(super) fn has_box(state: State) -> bool {
    WITH_BOX.contains(&state)
}

/// Returns the sandboxes of this server that may have a box of a provider.
pub(super) async fn of_provider(control: &Control, provider: &str) -> Result<Vec<SandboxId>> {
    Ok(control.store().ids_in(&WITH_BOX, &WorkerId::local(), Some(provider)).await?)
}
