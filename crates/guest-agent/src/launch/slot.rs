//! Slots: places for several users in one box.
//!
//! A slot is made as a box is, from outside, and with namespaces of its own, so that neither the
//! box nor anything in it needs a capability for that. But it joins the box's user namespace, where
//! it gets a user of its own, and its pid namespace is a child of the box's: the end of the box
//! ends the slot.
//!
//! A child of the launcher enters these two, makes the slot's first process and exits, which
//! reparents that process to the agent of the box. So its exit is always reaped, even without the
//! server.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use guest_protocol::{Launch, Slot};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send, sockopt};
use rustix::process::{Pid, Signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::child::{self, Given};
use super::descriptors::{self, Handed};
use super::divert::divert;
use super::order::report_failure;
use super::refused::{At, Refused};
use super::syscall::{self, CloneFlags, Cloned};
use super::{go, mounts, process, shares};

/// Message of a slot's first process before it waits.
const UP: &[u8] = b"up";

/// Makes the slot and sends "go" to its first process.
pub(super) fn make(
    launch: &Launch,
    slot: &Slot,
    handed: &Handed,
    given: Given,
    cgroup: Option<OwnedFd>,
) -> Result<(), Refused> {
    let host = Host::open(slot)?;
    shares::become_root()?;
    let mounts = mounts::mounts(launch, host.user.as_fd())?;
    let (ours, theirs) = go::channel()?;
    sockopt::set_socket_passcred(&ours, true).at("make a socket pair")?;
    move_into_link_name_space(host.pid.as_fd(), Some(LinkNameSpaceType::ProcessID)).at("enter the box")?;
    let between =
        match syscall::clone3(CloneFlags::NONE, libc::SIGCHLD, cgroup.as_ref().map(AsFd::as_fd)).at("enter the box")? {
            Cloned::Child => {
                drop(ours);
                between(launch, handed, &host, theirs, given)
            }
            Cloned::Parent(pid) => pid,
        };
    drop(theirs);
    let pid = first_process(ours.as_fd()).at("make namespaces");
    syscall::wait_for(between).at("enter the box")?;
    let pid = pid?;
    let outcome = send_off(launch, handed, pid, mounts, ours.as_fd());
    if outcome.is_err() {
        // The process waits for the launcher, so its pid cannot have been reused.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    outcome
}

fn send_off(
    launch: &Launch,
    handed: &Handed,
    pid: Pid,
    mounts: Vec<OwnedFd>,
    channel: BorrowedFd<'_>,
) -> Result<(), Refused> {
    process::record(&launch.dir, pid)?;
    let diversion = launch.transparent.then(|| divert(pid)).transpose()?;
    process::report_pid(handed.control.as_fd(), pid)?;
    go::go(channel, &go::Sent { mounts, diversion }).at("start the slot")
}

/// Namespaces of the box.
struct Host {
    user: OwnedFd,
    pid: OwnedFd,
}

impl Host {
    fn open(slot: &Slot) -> Result<Host, Refused> {
        const STEP: &str = "open the box of the slot";
        let pid = i32::try_from(slot.host_pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH).at(STEP)?;
        let host = Host {
            user: descriptors::open(&format!("/proc/{pid}/ns/user"), OFlags::RDONLY).at(STEP)?,
            pid: descriptors::open(&format!("/proc/{pid}/ns/pid"), OFlags::RDONLY).at(STEP)?,
        };
        // Read after opening: the namespaces behind the descriptors can no longer change.
        if process::start_time(pid)? != slot.host_started {
            return Err(Errno::SRCH).at(STEP);
        }
        Ok(host)
    }
}

/// Runs the child of the launcher; never returns.
fn between(launch: &Launch, handed: &Handed, host: &Host, channel: OwnedFd, given: Given) -> ! {
    let entered = move_into_link_name_space(host.user.as_fd(), Some(LinkNameSpaceType::User)).at("enter the box");
    let cloned = entered.and_then(|()| syscall::clone3(CloneFlags::BOX, libc::SIGCHLD, None).at("make namespaces"));
    match cloned {
        Ok(Cloned::Child) => {
            // Without a launcher there must be no slot; the wait for it then fails.
            let _ = send(&channel, UP, SendFlags::NOSIGNAL);
            child::run(launch, handed, channel, given)
        }
        Ok(Cloned::Parent(_)) => std::process::exit(0),
        Err(refused) => {
            report_failure(handed.control.as_fd(), refused);
            std::process::exit(1)
        }
    }
}

/// Waits for the first message of the slot's first process. The kernel adds the process's pid as
/// the launcher sees it.
fn first_process(channel: BorrowedFd<'_>) -> Result<Pid, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0u8; UP.len()];
    let received = recvmsg(channel, &mut [IoSliceMut::new(&mut word)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes != word.len() || word != UP {
        return Err(Errno::PIPE);
    }
    let pid = ancillary.drain().find_map(|message| {
        if let RecvAncillaryMessage::ScmCredentials(sender) = message { Some(sender.pid) } else { None }
    });
    pid.ok_or(Errno::SRCH)
}
