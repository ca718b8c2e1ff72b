//! Stop of all processes of a box that is a machine, while it is written to files.
//!
//! A machine that is made of the files is another one: its random numbers and its clock are those of the
//! first one until they are renewed, and no program of it runs before that.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

use crate::agent::Agent;
use crate::failure::{Result, conflict, internal, not_supported};
use crate::launch::machine::Kernel;

/// Time for all processes to stop. One that waits in the kernel stops at its end.
const FREEZE_WAIT: Duration = Duration::from_secs(5);
/// First pause between two looks at the group; doubles up to [`LOOK_PAUSE_MAX`].
const LOOK_PAUSE: Duration = Duration::from_micros(200);
/// Longest such pause.
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(20);
/// Time after which the processes go on by themselves, should the server have gone. It stands still while
/// the machine does.
const FROZEN_MAX: Duration = Duration::from_secs(30);

/// Stops all processes of the box. Returns once none runs.
///
/// # Errors
/// Not supported in a box that is no machine, conflict if one still runs after a while; all go on then.
pub(crate) async fn freeze(agent: &Rc<Agent>) -> Result<()> {
    let kernel = kernel(agent)?;
    let refused = |errno: rustix::io::Errno| internal(format!("cannot stop the processes: {errno}"));
    kernel.group.freeze(true).map_err(refused)?;
    let deadline = Instant::now() + FREEZE_WAIT;
    let mut pause = LOOK_PAUSE;
    while !kernel.group.is_frozen().map_err(refused)? {
        if Instant::now() >= deadline {
            thaw(agent)?;
            return Err(conflict("processes of the sandbox do not stop; try again"));
        }
        sleep(pause).await;
        pause = (pause * 2).min(LOOK_PAUSE_MAX);
    }
    let stop = kernel.stops.get().wrapping_add(1);
    kernel.stops.set(stop);
    let agent = Rc::clone(agent);
    spawn_local(async move {
        sleep(FROZEN_MAX).await;
        if agent.kernel.as_ref().is_some_and(|kernel| kernel.stops.get() == stop) {
            // What asks for it sees the error.
            let _ = thaw(&agent);
        }
    });
    Ok(())
}

/// Has all processes of the box go on.
///
/// # Errors
/// Not supported in a box that is no machine, internal if the kernel refuses.
pub(crate) fn thaw(agent: &Agent) -> Result<()> {
    kernel(agent)?.group.freeze(false).map_err(|errno| internal(format!("cannot have the processes go on: {errno}")))
}

fn kernel(agent: &Agent) -> Result<&Kernel> {
    agent.kernel.as_ref().ok_or_else(|| not_supported("the box is no machine of its own"))
}
