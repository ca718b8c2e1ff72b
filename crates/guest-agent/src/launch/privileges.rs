//! Capabilities and resource limits of the box's root.

use guest_protocol::SoftLimits;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

use super::refused::{At, Refused};

/// Capabilities needed to install packages and to run services as several users, all of them only
/// over the box's own files and processes.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT);
/// Maximum number of open files: as many as build tools want, with a table of at most 512 KiB.
const OPEN_FILES_MAX: u64 = 65_536;
/// Size limit of core dumps: the only one at which the kernel also starts no program that takes
/// core dumps, which would be root on the host. At 0 it starts one.
const CORE_BYTES: u64 = 1;
/// Lowest score of a box whose memory no control group limits: the kernel ends it before the services of
/// the host when memory runs out.
const OOM_SCORE_UNLIMITED: i32 = 500;
/// Lowest score of a box with a limit on its memory. Programs must be able to rank their processes above
/// and below each other, as they can in a container, so it is that of a container. What protects the
/// server is the distance to it, and that a server with the privilege has a score below 0. What protects
/// the services of the host is the limit of each box, and that commands start above them.
const OOM_SCORE_LIMITED: i32 = 0;
/// Minimum distance of the agent to the server's score, and of commands to the agent's: a tenth of the
/// memory that the kernel looks for room in, so that of a box with many small processes it ends one of
/// these.
const OOM_SCORE_STEP: i32 = 100;
/// Highest score that the kernel accepts.
const OOM_SCORE_MAX: i32 = 1000;
/// End of the range of capability numbers, which starts at 0.
const CAPABILITIES_END: u32 = 64;

/// Capabilities that the first process of a machine may raise again, and no command ever has: for the
/// clock, the host name and the random numbers of a machine that goes on from files. There is no other
/// kernel for them to harm than that of the box.
const SPARE: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::SYS_TIME);

/// Drops every capability but [`KEPT`], irrevocably; as the user of a slot, all. The first process of a
/// machine keeps [`SPARE`] at hand.
pub(super) fn give_up(user: Option<u32>, is_machine: bool) -> Result<(), Refused> {
    let kept = if user.is_some() { CapabilitySet::empty() } else { KEPT };
    for number in 0..CAPABILITIES_END {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The first number that this kernel does not know.
            Err(rustix::io::Errno::INVAL) => break,
            Err(errno) => return Err(errno).at("limit the capabilities"),
        }
    }
    clear_ambient_capability_set().at("clear the ambient capabilities")?;
    if let Some(user) = user {
        let uid = Uid::from_raw(user);
        let gid = Gid::from_raw(user);
        set_thread_groups(&[]).at("give up groups")?;
        set_thread_res_gid(gid, gid, gid).at("become the group of the slot")?;
        set_thread_res_uid(uid, uid, uid).at("become the user of the slot")?;
    }
    let permitted = if is_machine { kept.union(SPARE) } else { kept };
    let sets = CapabilitySets { effective: kept, permitted, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).at("give up capabilities")?;
    set_no_new_privs(true).at("give up new privileges")
}

/// Runs `work` with the capabilities of [`SPARE`], which this thread has at hand.
pub(super) fn with_spare<T>(work: impl FnOnce() -> Result<T, Refused>) -> Result<T, Refused> {
    const STEP: &str = "raise capabilities";
    let before = capabilities(None).at(STEP)?;
    set_capabilities(None, CapabilitySets { effective: before.effective.union(SPARE), ..before }).at(STEP)?;
    let done = work();
    set_capabilities(None, before).at("give up capabilities")?;
    done
}

/// Becomes a user of the host, with its group and no other, and so without any capability.
pub(crate) fn become_user(id: u32) -> Result<(), Refused> {
    let uid = Uid::from_raw(id);
    let gid = Gid::from_raw(id);
    set_thread_groups(&[]).at("give up groups")?;
    set_thread_res_gid(gid, gid, gid).at("become the group of the box")?;
    set_thread_res_uid(uid, uid, uid).at("become the user of the box")
}

/// Makes the kernel's OOM killer choose this process and its descendants before the server. Must be
/// called with the server's capabilities, or a box could revert it. Returns the score that commands
/// start with. `is_limited` says that the box's own control group limits its memory.
pub(super) fn end_before_the_server(is_limited: bool) -> Result<i32, Refused> {
    const FILE: &str = "/proc/self/oom_score_adj";
    const STEP: &str = "set the oom score";
    let own = std::fs::read_to_string(FILE).at(STEP)?.trim().parse().unwrap_or(0i32);
    let lowest = if is_limited { OOM_SCORE_LIMITED } else { OOM_SCORE_UNLIMITED };
    let score = lowest.max(own + OOM_SCORE_STEP).min(OOM_SCORE_MAX);
    std::fs::write(FILE, score.to_string()).at(STEP)?;
    Ok(if is_limited { (score + OOM_SCORE_STEP).min(OOM_SCORE_MAX) } else { OOM_SCORE_MAX })
}

/// Sets the limits on resources that control groups do not count.
pub(crate) fn limit_resources(soft: &SoftLimits) -> Result<(), Refused> {
    bound(Resource::Core, CORE_BYTES).at("forbid core dumps")?;
    bound(Resource::Nofile, OPEN_FILES_MAX).at("limit the open files")?;
    bound(Resource::Nice, 0).at("limit the priority")?;
    bound(Resource::Rtprio, 0).at("limit the priority")?;
    if soft.pids > 0 {
        bound(Resource::Nproc, soft.pids.into()).at("limit the processes")?;
    }
    Ok(())
}

/// Sets both limits to `most`, or to the present hard limit if that is lower.
fn bound(resource: Resource, most: u64) -> Result<(), Errno> {
    let most = getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
    setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
}
