//! A box's share of what the kernel counts for each user of the host.
//!
//! Some things are counted for the user that made a user namespace: were that the
//! server's, one box could take them from all others and from the server. So the
//! namespace is made by the box's own user of the host; where there is none, and
//! for each user of a box that holds slots, there is a part.

use std::fs;
use std::io::ErrorKind;

use guest_protocol::Launch;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{Gid, Uid, capabilities, set_capabilities, set_thread_res_gid, set_thread_res_uid};

use super::{At, Refused};

/// Signals that wait and timers: a machine with little memory allows a user as many.
const SIGNALS_MAX: u64 = 8_192;
/// Bytes of message queues; the kernel's own default for a user.
const MESSAGE_BYTES_MAX: u64 = 819_200;
/// Bytes that stay in memory; the kernel's own default for a user.
const LOCKED_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Sets of watched files; the kernel's own default for a user.
const WATCH_SETS_MAX: u32 = 128;
/// Watched files, each of which takes a kilobyte of the box's memory.
const WATCHES_MAX: u32 = 65_536;
/// What has a limit of its own.
const RESOURCES: [(Resource, u64); 3] = [
    (Resource::Sigpending, SIGNALS_MAX),
    (Resource::Msgqueue, MESSAGE_BYTES_MAX),
    (Resource::Memlock, LOCKED_BYTES_MAX),
];
/// Bytes that one socket may hold of options, such as keys of signed connections,
/// which no control group counts.
const SOCKET_OPTION_BYTES_MAX: u32 = 8_192;
/// As many users share one count: the boxes of a server that is not root, and the
/// slots of a box.
const PARTS: u32 = 8;

/// The part of a count that one user of a box may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part(u32);

impl Part {
    /// All: nobody else is counted with it.
    pub(crate) const WHOLE: Part = Part(1);
    /// Half: the other half is left to the user of the host that it is counted with.
    pub(crate) const HALF: Part = Part(2);
    /// One of several that are counted together.
    const ONE: Part = Part(PARTS);

    /// Gives the part for the users of what is launched.
    pub(super) fn of(launch: &Launch) -> Part {
        let is_shared = launch.id_base.is_none() || launch.holds_slots || launch.slot.is_some();
        if is_shared { Part::ONE } else { Part::WHOLE }
    }
}

/// Becomes, for what is counted and for the files that are made, the user of the
/// host with this id, and keeps every power.
pub(super) fn become_owner(id: u32) -> Result<(), Refused> {
    const STEP: &str = "become the box's user";
    set_thread_res_gid(None::<Gid>, Gid::from_raw(id), None::<Gid>).at(STEP)?;
    set_thread_res_uid(None::<Uid>, Uid::from_raw(id), None::<Uid>).at(STEP)?;
    let mut sets = capabilities(None).at(STEP)?;
    sets.effective = sets.permitted;
    set_capabilities(None, sets).at(STEP)?;
    // Else the first process could be looked into by tracers of the whole host only.
    set_dumpable_behavior(DumpableBehavior::Dumpable).at(STEP)
}

/// Becomes root of the host again.
pub(super) fn become_root() -> Result<(), Refused> {
    const STEP: &str = "become root again";
    set_thread_res_uid(None::<Uid>, Uid::ROOT, None::<Uid>).at(STEP)?;
    set_thread_res_gid(None::<Gid>, Gid::ROOT, None::<Gid>).at(STEP)
}

/// Bounds what all users of the user namespace that is made next may take
/// together: its bounds are those of its maker. Where that is a user who has more
/// to do than boxes, a part is left to it.
pub(super) fn bound_the_whole(launch: &Launch) -> Result<(), Refused> {
    for (resource, most) in RESOURCES {
        let limit = getrlimit(resource);
        let now = limit.current.unwrap_or(u64::MAX);
        let most = if launch.id_base.is_some() { now.min(most) } else { now - now / u64::from(PARTS) };
        setrlimit(resource, Rlimit { current: Some(most), ..limit }).at("bound the counts of the box")?;
    }
    Ok(())
}

/// Bounds what this process and those that come of it may take, each user for
/// itself.
pub(crate) fn bound_each(part: Part) -> Result<(), Refused> {
    for (resource, most) in RESOURCES {
        let limit = getrlimit(resource);
        let now = limit.current.unwrap_or(u64::MAX).min(limit.maximum.unwrap_or(u64::MAX));
        let most = now.min(most) / u64::from(part.0);
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) }).at("bound the counts of the box")?;
    }
    Ok(())
}

/// Bounds what has no other limit than that of a user namespace, whose `/proc`
/// this is, for each of its users.
pub(super) fn bound_the_namespace(proc: &str, part: Part) -> Result<(), Refused> {
    let bounds = [("max_inotify_instances", WATCH_SETS_MAX / part.0), ("max_inotify_watches", WATCHES_MAX / part.0)];
    for (name, most) in bounds {
        match fs::write(format!("{proc}/sys/user/{name}"), most.to_string()) {
            // The kernel was built without.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            written => written.at("bound the counts of the box")?,
        }
    }
    match fs::write(format!("{proc}/sys/net/core/optmem_max"), SOCKET_OPTION_BYTES_MAX.to_string()) {
        // Kernels before 6.7 have one bound for the whole host.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(()),
        written => written.at("bound the options of sockets"),
    }
}
