//! Stop of all processes of a box that is a machine, while it is written to files.
//!
//! A machine that is made of the files is another one: its random numbers and its clock are those of the
//! first one until they are renewed, and no program of it runs before that.

use std::rc::Rc;
use std::time::Duration;

use guest_protocol::Failure;
use rustix::io::Errno;
use tokio::sync::oneshot;
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
/// Time after which the processes go on by themselves, should the server have gone: longer than any machine
/// that is made of the files takes to be renewed. It stands still in these files.
const FROZEN_MAX: Duration = Duration::from_secs(10 * 60);

/// Stops all processes of the box. Returns once none runs. They go on if the caller leaves before.
///
/// # Errors
/// Not supported in a box that is no machine, conflict if one still runs after a while; all go on then.
pub(crate) async fn freeze(agent: &Rc<Agent>) -> Result<()> {
    kernel(agent)?;
    let (tell, told) = oneshot::channel();
    let agent = Rc::clone(agent);
    spawn_local(async move {
        let stop = begin_stop(&agent);
        let frozen = stop_all(&agent).await;
        let has_failed = frozen.is_err();
        if tell.send(frozen).is_ok() && !has_failed {
            sleep(FROZEN_MAX).await;
        }
        // A later stop has an end of its own.
        if agent.kernel.as_ref().is_some_and(|kernel| kernel.stops.get() == stop) {
            // What asks for it next sees the error.
            let _ = thaw(&agent);
        }
    });
    told.await.unwrap_or_else(|_| Err(internal("the agent did not stop the processes")))
}

/// Has all processes of the box go on.
///
/// # Errors
/// Not supported in a box that is no machine, internal if the kernel refuses.
pub(crate) fn thaw(agent: &Agent) -> Result<()> {
    begin_stop(agent);
    kernel(agent)?.group.freeze(false).map_err(|errno| internal(format!("cannot resume the processes: {errno}")))
}

/// Ends the wait of an earlier stop, and returns the number of a new one.
fn begin_stop(agent: &Agent) -> u64 {
    let Some(kernel) = &agent.kernel else { return 0 };
    kernel.stops.set(kernel.stops.get().wrapping_add(1));
    kernel.stops.get()
}

async fn stop_all(agent: &Agent) -> Result<()> {
    let kernel = kernel(agent)?;
    kernel.group.freeze(true).map_err(cannot_stop)?;
    let deadline = Instant::now() + FREEZE_WAIT;
    let mut pause = LOOK_PAUSE;
    while !kernel.group.is_frozen().map_err(cannot_stop)? {
        if Instant::now() >= deadline {
            return Err(conflict("processes of the sandbox did not stop; try again"));
        }
        sleep(pause).await;
        pause = (pause * 2).min(LOOK_PAUSE_MAX);
    }
    Ok(())
}

fn cannot_stop(errno: Errno) -> Failure {
    internal(format!("cannot stop the processes: {errno}"))
}

fn kernel(agent: &Agent) -> Result<&Kernel> {
    agent.kernel.as_ref().ok_or_else(|| not_supported("the box is not a virtual machine"))
}
