//! The launcher: makes one native box and exits.
//!
//! Namespace work happens here, in a process of its own with one thread, and never in the server,
//! which has many. It may be started before there is a box to make. The launcher clones the first
//! process of the box as a child of the *server* (`CLONE_PARENT`), gives it its ids, control groups
//! and mounts, sends "go", and exits. The child builds the box's root, drops its capabilities and
//! executes the agent.
//!
//! The order makes this safe: the pid is on disk before the box runs anything, and a child that
//! never receives "go" reads end of file and exits.

mod child;
mod descriptors;
mod devices;
mod divert;
mod go;
mod inner_mounts;
pub(super) mod machine;
mod mount_point;
mod mounts;
mod nodes;
mod order;
mod parent;
mod privileges;
mod process;
mod refused;
mod root;
mod seccomp;
mod shares;
mod size;
mod slot;
mod slot_user;
mod syscall;
pub(crate) mod trace;
pub(crate) mod vmm;

use std::os::fd::AsFd;
use std::process::ExitCode;

use guest_protocol::Launch;
use rustix::io::Errno;

use self::descriptors::{Handed, take_descriptors};
use self::order::{receive_listener, report_failure};
use self::refused::Refused;
pub(crate) use order::{ORDER, read_order};
pub(crate) use privileges::{become_user, limit_resources};
pub(crate) use process::start_time;
pub(crate) use shares::{Part, bound_each};
#[cfg(test)]
pub(crate) use syscall::receive_destinations;
pub(crate) use syscall::{CloneFlags, Cloned, clone3, duplicate_to, execute, wait_for};

/// Adds the rules that are missing in the usual filters of container runtimes to the filter of this
/// process.
pub(crate) fn add_filter() -> Result<(), Errno> {
    syscall::install_filter(&seccomp::addition())
}

/// Runs the launcher.
pub fn run() -> ExitCode {
    let Ok((control, agent)) = take_descriptors() else {
        // The error cannot be reported: descriptor 0 is not the expected socket.
        return ExitCode::FAILURE;
    };
    // All that depends on no box is done before there is one to make: what the child inherits, too.
    syscall::reset_signals();
    let filter = child::filter(seccomp::Profile::Kernel);
    let listener = match receive_listener(control.as_fd()) {
        Ok(Some(listener)) => listener,
        Ok(None) => return ExitCode::SUCCESS,
        Err(errno) => {
            report_failure(control.as_fd(), Refused { step: "receive the socket of the agent".to_owned(), errno });
            return ExitCode::FAILURE;
        }
    };
    let handed = Handed { control, listener, agent };
    let outcome = filter.and_then(|filter| {
        let launch: Launch = read_order(handed.control.as_fd())?;
        parent::make(&launch, &handed, filter)
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(refused) => {
            report_failure(handed.control.as_fd(), refused);
            ExitCode::FAILURE
        }
    }
}
