//! A box's share of resources that the kernel counts for each user of the host.
//!
//! Some resources are counted for the user that made a user namespace. If that were the server's
//! user, one box could take them from all others and from the server. So the namespace is made by
//! the box's own user of the host. Where there is none, and for each user of a box that holds
//! slots, there is a part.

use std::fs;
use std::io::ErrorKind;

use guest_protocol::Launch;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{Gid, Uid, capabilities, set_capabilities, set_thread_res_gid, set_thread_res_uid};

use super::refused::{At, Refused};

/// Maximum number of pending signals and timers: what a machine with little memory allows a user.
const SIGNALS_MAX: u64 = 8_192;
/// Maximum bytes of message queues; the kernel's own default for a user.
const MESSAGE_BYTES_MAX: u64 = 819_200;
/// Maximum bytes locked in memory; the kernel's own default for a user.
const LOCKED_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Maximum number of inotify instances; the kernel's own default for a user.
const WATCH_SETS_MAX: u32 = 128;
/// Maximum number of inotify watches, each of which takes a kilobyte of the box's memory.
const WATCHES_MAX: u32 = 65_536;
/// Counts that have a resource limit of their own.
const RESOURCES: [(Resource, u64); 3] = [
    (Resource::Sigpending, SIGNALS_MAX),
    (Resource::Msgqueue, MESSAGE_BYTES_MAX),
    (Resource::Memlock, LOCKED_BYTES_MAX),
];
/// Bytes of options that one socket may hold, such as keys of signed connections, which no control
/// group counts.
const SOCKET_OPTION_BYTES_MAX: u32 = 8_192;
/// Number of parts of a count that several share: the boxes of a server that is not root, or the
/// slots of a box.
const PARTS: u32 = 8;

/// The part of a count that one user of a box may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part(u32);

impl Part {
    /// The whole: no other user is counted with it.
    pub(crate) const WHOLE: Part = Part(1);
    /// Half: the other half is left to the host user that it is counted with.
    pub(crate) const HALF: Part = Part(2);
    /// One of several that are counted together.
    const ONE: Part = Part(PARTS);

    /// Returns the part for the users of what is launched.
    pub(super) fn of(launch: &Launch) -> Part {
        let is_shared = launch.id_base.is_none() || launch.holds_slots || launch.slot.is_some();
        if is_shared { Part::ONE } else { Part::WHOLE }
    }
}

/// Becomes the host user with this id for counts and for the owner of new files, and keeps every
/// capability.
pub(super) fn become_owner(id: u32) -> Result<(), Refused> {
    const STEP: &str = "become the box's user";
    set_thread_res_gid(None::<Gid>, Gid::from_raw(id), None::<Gid>).at(STEP)?;
    set_thread_res_uid(None::<Uid>, Uid::from_raw(id), None::<Uid>).at(STEP)?;
    let mut sets = capabilities(None).at(STEP)?;
    sets.effective = sets.permitted;
    set_capabilities(None, sets).at(STEP)?;
    // Otherwise only tracers of the whole host could inspect the first process.
    set_dumpable_behavior(DumpableBehavior::Dumpable).at(STEP)
}

/// Becomes root of the host again.
pub(super) fn become_root() -> Result<(), Refused> {
    const STEP: &str = "become root again";
    set_thread_res_uid(None::<Uid>, Uid::ROOT, None::<Uid>).at(STEP)?;
    set_thread_res_gid(None::<Gid>, Gid::ROOT, None::<Gid>).at(STEP)
}

/// Limits what all users of the next user namespace may take together: its limits are those of its
/// maker. Where the maker is a user that does not only run boxes, a part is left to it.
pub(super) fn bound_the_whole(launch: &Launch) -> Result<(), Refused> {
    for (resource, most) in RESOURCES {
        let limit = getrlimit(resource);
        let now = limit.current.unwrap_or(u64::MAX);
        let most = if launch.id_base.is_some() { now.min(most) } else { now - now / u64::from(PARTS) };
        setrlimit(resource, Rlimit { current: Some(most), ..limit }).at("set the resource limits of the box")?;
    }
    Ok(())
}

/// Limits what this process and its descendants may take, each user separately.
pub(crate) fn bound_each(part: Part) -> Result<(), Refused> {
    for (resource, most) in RESOURCES {
        let limit = getrlimit(resource);
        let now = limit.current.unwrap_or(u64::MAX).min(limit.maximum.unwrap_or(u64::MAX));
        let most = now.min(most) / u64::from(part.0);
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
            .at("set the resource limits of the box")?;
    }
    Ok(())
}

/// Limits counts that only a user namespace limits, for each of its users. `proc` is the `/proc` of
/// that namespace.
pub(super) fn bound_the_namespace(proc: &str, part: Part) -> Result<(), Refused> {
    let bounds = [("max_inotify_instances", WATCH_SETS_MAX / part.0), ("max_inotify_watches", WATCHES_MAX / part.0)];
    for (name, most) in bounds {
        match fs::write(format!("{proc}/sys/user/{name}"), most.to_string()) {
            // The kernel was built without it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            written => written.at("set the resource limits of the box")?,
        }
    }
    match fs::write(format!("{proc}/sys/net/core/optmem_max"), SOCKET_OPTION_BYTES_MAX.to_string()) {
        // Kernels before 6.7 have one limit for the whole host.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(()),
        written => written.at("limit the socket options"),
    }
}
