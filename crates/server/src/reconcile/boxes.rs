//! Boxes of this server, among which the one is looked for that takes most of what all share.

use std::collections::HashMap;

use domain::State;

use crate::control::Control;
use crate::control::LOCAL_WORKER;
use crate::control::Result;
use crate::control::Sandbox;

/// States of a sandbox that may have a box: one that is being made has one while its commands run, and one that
/// is paused keeps what it holds.
const WITH_BOX: [State; 3] = [State::Creating, State::Running, State::Paused];

/// Returns whether a sandbox in this state may have a box.
pub(super) fn has_box(state: State) -> bool {
    WITH_BOX.contains(&state)
}

/// Returns the sandboxes of this server that may have a box, by their providers.
pub(super) async fn by_provider(control: &Control) -> Result<HashMap<String, Vec<Sandbox>>> {
    let mut boxes: HashMap<String, Vec<Sandbox>> = HashMap::new();
    for state in WITH_BOX {
        for sandbox in control.store().in_state(state, u32::MAX).await? {
            if sandbox.worker == LOCAL_WORKER {
                boxes.entry(sandbox.provider.clone()).or_default().push(sandbox);
            }
        }
    }
    Ok(boxes)
}
