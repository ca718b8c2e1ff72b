//! The agent as the first process of a virtual machine.

use std::process::ExitCode;

use super::{Listener, Ways, protect, run_until_end};
use crate::agent::Seen;
use crate::launch::machine::{Made, make};

/// Makes the box of this machine, and runs its agent. The kernel ends the machine when it returns.
pub(crate) fn run() -> ExitCode {
    let Made { boot, listener, oom_events, sockets, kernel } = match make() {
        Ok(made) => made,
        Err(failed) => return failed,
    };
    if !protect(&boot) {
        return ExitCode::FAILURE;
    }
    let ways = Ways { listener: Listener::Vsock(listener), from_outside_only: false, first: None, turns: None };
    run_until_end(
        boot,
        ways,
        Seen {
            oom_events: Some(oom_events),
            sockets,
            diverted: None,
            kernel: Some(kernel),
            size: None,
            pids_events: None,
        },
    )
}
