//! Change of a box whose machine goes on from files, so that it differs from the one that was written to
//! them.

use guest_protocol::Restored;

use crate::agent::Agent;
use crate::failure::{Result, internal, not_supported};
use crate::freezer;
use crate::known_ports::Known;
use crate::launch::machine;
use crate::prepare_rootfs::rename_host;

/// Gives the box random numbers, the time and a deadline of its own; and if it is another one than that which was
/// written, a name and an id, and its ports are reported anew. Then its processes go on. What its files do not take, as on a full disk, is
/// left out, since no request could make room in a box that does not go on.
///
/// # Errors
/// Not supported in a box that is no machine, internal if the kernel refuses.
pub(crate) fn renew(agent: &Agent, restored: &Restored) -> Result<()> {
    let kernel = agent.kernel.as_ref().ok_or_else(|| not_supported("the box is not a virtual machine"))?;
    let earlier = rustix::system::uname().nodename().to_string_lossy().into_owned();
    machine::renew(&kernel.random, restored).map_err(|refused| internal(refused.to_string()))?;
    if earlier != restored.hostname {
        machine::renew_id(&restored.entropy);
        // Where the box has changed them, they are its own.
        rename_host(&earlier, &restored.hostname);
        *agent.known_ports.known.borrow_mut() = Known::default();
    }
    let moved = restored.deadline_ms.map_or(Ok(()), |in_ms| agent.deadline.set(in_ms));
    moved.map_err(|error| internal(error.to_string()))?;
    freezer::thaw(agent)
}
