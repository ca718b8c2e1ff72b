//! The agent as the first process of a container that another runtime makes, such as a Docker
//! Engine. Its standard streams are the first connection.
//!
//! Data that a dead server left half-written in those streams stays there, so they carry one
//! connection only. Later ones come through [`crate::relay`] and a socket, each whole from its
//! first byte.

use std::os::unix::net::UnixListener;
use std::process::ExitCode;

use guest_protocol::{AGENT_SOCKET, SoftLimits};
use rustix::fs::{Mode, OFlags, chmod};

use super::stdio::Stdio;
use super::{Listener, Ways, begin, run_until_end};
use crate::agent::Seen;
use crate::launch::{Part, add_filter, bound_each, limit_resources};
use crate::{pids, sockets};

/// Files in which control groups of version 2 and 1 count kills by the memory limit, as Engines
/// mount them in a container.
const OOM_EVENTS: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];
/// Mode of the agent's socket.
const EVERYBODY_CONNECTS: Mode =
    Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP).union(Mode::WGRP).union(Mode::ROTH).union(Mode::WOTH);

/// Runs the agent; `boot` is its second argument.
pub(crate) fn run(boot: Option<&str>) -> ExitCode {
    let Some(boot) = boot.and_then(begin) else { return ExitCode::FAILURE };
    // The container's maker has set limits too, and some kernels know fewer of them.
    let _ = limit_resources(&SoftLimits::default());
    let _ = bound_each(Part::HALF);
    // The filter refuses it.
    let sockets = sockets::open().ok();
    // A profile set by the operator may have a filter that refuses further ones.
    let _ = add_filter();
    let oom_events = OOM_EVENTS
        .iter()
        .find_map(|path| rustix::fs::open(*path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok());
    let Ok(first) = Stdio::take() else { return ExitCode::FAILURE };
    let Ok(listener) = UnixListener::bind(AGENT_SOCKET) else { return ExitCode::FAILURE };
    // The relay is a user without privileges. Other processes that connect get no answer.
    if chmod(AGENT_SOCKET, EVERYBODY_CONNECTS).is_err() {
        return ExitCode::FAILURE;
    }
    run_until_end(
        boot,
        Ways { listener: Listener::Unix(listener.into()), from_outside_only: true, first: Some(first), turns: None },
        Seen { oom_events, sockets, diverted: None, kernel: None, size: None, pids_events: pids::open_events() },
    )
}
