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

use std::fs;
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

use guest_protocol::{Launch, Slot};
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send, sockopt};
use rustix::process::{Pid, Signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::child::{self, Given};
use super::syscall::{self, CloneFlags, Cloned};
use super::{At, Handed, Refused, parent, report_failure, shares};
use crate::users;

/// Message of a slot's first process before it waits.
const UP: &[u8] = b"up";
/// Name of a slot's user, the same in all slots: none sees another.
const USER: &str = "user";
/// Home directory of that user.
const HOME: &str = "/home/user";
/// Directory that commands start in.
const WORKSPACE: &str = "/workspace";

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
    let mounts = parent::mounts(launch, host.user.as_fd())?;
    let (ours, theirs) = parent::channel()?;
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
    let outcome = parent::record(launch, pid)
        .and_then(|()| parent::report_pid(handed, pid))
        .and_then(|()| parent::go(ours.as_fd(), &mounts).at("tell the slot to go"));
    if outcome.is_err() {
        // The process waits for the launcher, so its pid cannot have been reused.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    outcome
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
        let open = |name| parent::open(&format!("/proc/{pid}/ns/{name}"), OFlags::RDONLY).at(STEP);
        let host = Host { user: open("user")?, pid: open("pid")? };
        // Read after opening: the namespaces behind the descriptors can no longer change.
        if parent::start_time(pid)? != slot.host_started {
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

/// Gives the slot's user a name, and a home and a workspace that no other user can enter. Runs as
/// the box's root, in the slot's own root.
pub(super) fn settle(slot: &Slot) -> Result<(), Refused> {
    for file in ["/etc/passwd", "/etc/group"] {
        let known = users::read(file);
        // A new file: an image may have anything in its place, such as a pipe.
        fs::remove_file(file).or_else(absent).at("write the users")?;
        let mut written = fs::File::create_new(file).at("write the users")?;
        written.write_all(with_user(&known, file, slot.uid).as_bytes()).at("write the users")?;
        written.set_permissions(fs::Permissions::from_mode(0o644)).at("write the users")?;
    }
    for dir in [HOME, WORKSPACE] {
        fs::create_dir_all(dir).at("make a home")?;
        rustix::fs::chown(dir, Some(Uid::from_raw(slot.uid)), Some(Gid::from_raw(slot.uid))).at("give a home away")?;
        rustix::fs::chmod(dir, Mode::from_raw_mode(0o700)).at("close a home")?;
    }
    Ok(())
}

/// Ignores a missing file: an image may lack either.
fn absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Returns the lines of `file` with the slot's user in place of any user of that name.
fn with_user(known: &str, file: &str, id: u32) -> String {
    let is_passwd = file.ends_with("passwd");
    let lines = known.lines().filter(|line| line.split(':').next() != Some(USER));
    let mut text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let shell = if fs::exists("/bin/bash").unwrap_or(false) { "/bin/bash" } else { "/bin/sh" };
    text.push_str(&if is_passwd {
        format!("{USER}:x:{id}:{id}:{USER}:{HOME}:{shell}\n")
    } else {
        format!("{USER}:x:{id}:\n")
    });
    text
}

#[cfg(test)]
mod test {
    use super::with_user;

    #[test]
    fn a_user_of_the_same_name_is_replaced_and_all_others_stay() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\nuser2:x:7:7::/:/bin/sh\n";
        let text = with_user(passwd, "/etc/passwd", 10_001);
        let users: Vec<&str> = text.lines().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(users, ["root", "user2", "user"]);
        assert!(text.contains("user:x:10001:10001:user:/home/user:/bin/"), "{text}");
        assert_eq!(with_user("", "/etc/group", 10_001), "user:x:10001:\n");
    }
}
