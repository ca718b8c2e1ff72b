//! Change of a box whose machine goes on from files, so that it differs from the one that was written to
//! them.

use guest_protocol::Restored;

use crate::agent::Agent;
use crate::failure::{Result, internal, not_supported};
use crate::launch::machine;
use crate::prepare_rootfs::rename_host;

/// Gives the box random numbers, a name, an id, the time and a deadline of its own.
///
/// # Errors
/// Not supported in a box that is no machine, internal if the kernel refuses.
pub(crate) fn renew(agent: &Agent, restored: &Restored) -> Result<()> {
    let random = agent.random.as_ref().ok_or_else(|| not_supported("the box is no machine of its own"))?;
    let earlier = rustix::system::uname().nodename().to_string_lossy().into_owned();
    machine::renew(random, restored).map_err(|refused| internal(refused.to_string()))?;
    // Where the box has changed them, they are its own.
    let renamed = rename_host(&earlier, &restored.hostname);
    let moved = restored.deadline_ms.map_or(Ok(()), |in_ms| agent.deadline.set(in_ms));
    renamed.and(moved).map_err(|error| internal(error.to_string()))
}
