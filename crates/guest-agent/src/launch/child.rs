//! The first process of the box, from its clone to the agent.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use guest_protocol::{Boot, Diverted, Launch, Network, SizeFiles};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{Gid, Uid};

use super::descriptors::{Handed, own};
use super::divert::Diversion;
use super::go::{Sent, wait_for_go};
use super::order::{ORDER, report_failure};
use super::refused::{At, Refused};
use super::shares::{self, Part};
use super::{privileges, root, seccomp, slot_user, syscall};
use crate::{prepare_rootfs, sockets};

/// Number under which the agent finds its listening socket.
const LISTENER_FD: i32 = 3;
/// Number under which the agent finds the count of memory kills.
const OOM_EVENTS_FD: i32 = 4;
/// Number under which the agent finds the listener of the system call filter.
const TURNS_FD: i32 = 5;

/// Number under which the agent finds the socket that lists the sockets of the box.
const SOCKETS_FD: i32 = 6;
/// Number under which the agent finds the rule of diverted connections.
const RULE_FD: i32 = 7;
/// First of the numbers under which the agent finds the sockets of diverted connections: one of TCP
/// and one of UDP for each version of IP.
const DIVERTED_FDS: i32 = 8;
/// Number under which the agent finds the content of `/proc/meminfo`.
const MEMINFO_FD: i32 = 12;
/// Number under which the agent finds the content of `/proc/stat`.
const STAT_FD: i32 = 13;

/// Resources that the launcher has opened for the first process.
pub(super) struct Given {
    /// File that counts kills by the memory limit.
    pub(super) oom_events: Option<OwnedFd>,
    /// Copy of the mount that the file was opened through. Closing the last copy waits for every
    /// processor: the launcher closes it, since nothing waits for the launcher.
    pub(super) oom_mount: Option<OwnedFd>,
    /// Detached mount for `/dev`, if it could be made.
    pub(super) devices: Option<OwnedFd>,
    /// Value of `oom_score_adj` that commands start with.
    pub(super) command_oom_score: i32,
    /// System call filter with a listener.
    pub(super) filter: Vec<libc::sock_filter>,
}

/// Becomes the agent, or exits; never returns.
pub(super) fn run(launch: &Launch, handed: &Handed, channel: OwnedFd, mut given: Given) -> ! {
    drop(given.oom_mount.take());
    let sent = match wait_for_go(channel.as_fd()) {
        Ok(sent) => sent,
        // The launcher is gone without "go": the box is not made.
        Err(_) => std::process::exit(1),
    };
    drop(channel);
    let refused = become_agent(launch, handed, sent, given);
    report_failure(handed.control.as_fd(), refused);
    std::process::exit(1)
}

fn become_agent(launch: &Launch, handed: &Handed, sent: Sent, given: Given) -> Refused {
    match prepare(launch, handed, sent, given) {
        Ok((argv, env)) => {
            let errno = syscall::execute(&handed.agent, &argv, &env);
            Refused { step: "execute the agent".to_owned(), errno }
        }
        Err(refused) => refused,
    }
}

fn prepare(
    launch: &Launch,
    handed: &Handed,
    sent: Sent,
    given: Given,
) -> Result<(Vec<CString>, Vec<CString>), Refused> {
    let Given { oom_events, devices, command_oom_score, filter, oom_mount: _ } = given;
    let Sent { mounts, diversion } = sent;
    become_root(launch)?;
    // After the groups were joined, so that the box sees only what is below them.
    syscall::unshare_cgroup_namespace().at("make a control group namespace")?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let size_files = root::enter(launch, mounts, devices)?;
    if let Some(slot) = &launch.slot {
        if launch.furnish {
            // Commands cannot be given its faults here; most need none of these files.
            drop(prepare_rootfs::furnish(&Boot {
                single_user: true,
                defaults: launch.defaults.clone(),
                ..Boot::default()
            }));
        }
        if launch.transparent {
            // As above.
            drop(prepare_rootfs::name_server());
        }
        slot_user::settle(slot)?;
    }
    rustix::system::sethostname(launch.hostname.as_bytes()).at("set the host name")?;
    syscall::raise_loopback().at("bring up the loopback interface")?;
    rustix::process::setsid().at("start a session")?;
    let sockets = sockets::open().and_then(own).ok();
    hand_over(handed, oom_events.as_ref(), sockets.as_ref()).at("pass descriptors")?;
    let diverted = diversion.as_ref().map(|it| hand_over_sockets(it, launch)).transpose();
    let diverted = diverted.at("pass descriptors")?;
    if let Some(files) = &size_files {
        syscall::duplicate_to(&files.meminfo, MEMINFO_FD).at("pass descriptors")?;
        syscall::duplicate_to(&files.stat, STAT_FD).at("pass descriptors")?;
    }
    privileges::limit_resources(&launch.soft)?;
    shares::bound_each(Part::of(launch))?;
    privileges::give_up(launch.slot.map(|slot| slot.uid), false)?;
    let is_heard = install_filter(&filter)?;
    let boot = Boot {
        listener_fd: LISTENER_FD,
        oom_events_fd: oom_events.map(|_| OOM_EVENTS_FD),
        turns_fd: is_heard.then_some(TURNS_FD),
        command_oom_score: Some(command_oom_score),
        sockets_fd: sockets.map(|_| SOCKETS_FD),
        diverted,
        size_files: size_files.and(launch.size_view.as_ref()).map(|view| SizeFiles {
            meminfo_fd: MEMINFO_FD,
            stat_fd: STAT_FD,
            memory_mb: view.memory_mb,
            processors: view.processors.clone(),
            kernel_started: view.kernel_started,
        }),
        ..boot(launch)
    };
    arguments(&boot)
}

/// Installs the system call filter. Returns whether the agent is the listener of calls that wait
/// for their turn: the kernel allows a process one listener, and the server may run below another
/// filter that has one.
fn install_filter(with_listener: &[libc::sock_filter]) -> Result<bool, Refused> {
    const STEP: &str = "install the system call filter";
    match syscall::install_filter_with_listener(with_listener) {
        Ok(listener) => {
            // The listener may have this very number already, and would be closed at the execution.
            let listener = own(listener).at(STEP)?;
            syscall::duplicate_to(&listener, TURNS_FD).at(STEP)?;
            Ok(true)
        }
        Err(Errno::BUSY) => syscall::install_filter(&filter(seccomp::Profile::Unheard)?).at(STEP).map(|()| false),
        Err(errno) => Err(errno).at(STEP),
    }
}

/// Builds the filter for a box of this kind.
pub(super) fn filter(profile: seccomp::Profile) -> Result<Vec<libc::sock_filter>, Refused> {
    seccomp::program(profile).map_err(|_| Errno::TOOBIG).at("build the system call filter")
}

/// Takes the ids of the box's root instead of the host's, which are not mapped here.
fn become_root(launch: &Launch) -> Result<(), Refused> {
    let uid = Uid::ROOT;
    let gid = Gid::ROOT;
    if launch.id_base.is_some() {
        rustix::thread::set_thread_groups(&[]).at("give up groups")?;
    }
    rustix::thread::set_thread_res_gid(gid, gid, gid).at("become the box's group")?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).at("become the box's root")
}

/// Leaves the agent with `/dev/null` on 0 to 2, its socket, and nothing else but what it sees the box
/// by.
fn hand_over(handed: &Handed, oom_events: Option<&OwnedFd>, sockets: Option<&OwnedFd>) -> Result<(), Errno> {
    syscall::close_at_exec_from(0)?;
    // The box's own null device, opened after the host's root is gone.
    let null = own(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)?;
    for number in 0..=2 {
        syscall::duplicate_to(&null, number)?;
    }
    syscall::duplicate_to(&handed.listener, LISTENER_FD)?;
    if let Some(oom_events) = oom_events {
        syscall::duplicate_to(oom_events, OOM_EVENTS_FD)?;
    }
    if let Some(sockets) = sockets {
        syscall::duplicate_to(sockets, SOCKETS_FD)?;
    }
    Ok(())
}

/// Hands the sockets of diverted connections over.
fn hand_over_sockets(diversion: &Diversion, launch: &Launch) -> Result<Diverted, Errno> {
    let mut diverted = Diverted { rule_fd: RULE_FD, writes_resolv_conf: launch.slot.is_none(), ..Diverted::default() };
    syscall::duplicate_to(&diversion.rule, RULE_FD)?;
    let mut numbers = DIVERTED_FDS..;
    for sockets in std::iter::once(&diversion.v4).chain(&diversion.v6) {
        for (socket, fds) in [(&sockets.tcp, &mut diverted.tcp_fds), (&sockets.udp, &mut diverted.udp_fds)] {
            fds.extend(numbers.next());
            syscall::duplicate_to(socket, *fds.last().ok_or(Errno::BADF)?)?;
        }
    }
    Ok(diverted)
}

/// Returns the parameters of the agent, without those of descriptors.
fn boot(launch: &Launch) -> Boot {
    Boot {
        deadline_ms: launch.deadline_ms,
        soft_memory_mb: launch.soft.memory_mb,
        memory_mb: launch.memory_mb,
        single_user: launch.id_base.is_none() || launch.slot.is_some(),
        network: Network::Loopback,
        holds_slots: launch.holds_slots,
        defaults: launch.defaults.clone(),
        entrypoint: launch.entrypoint.clone(),
        trust: launch.trust.clone(),
        // The agent of a slot cannot: it has no capabilities.
        furnish: launch.furnish && launch.slot.is_none(),
        ..Boot::default()
    }
}

/// Returns the agent's command line and environment.
fn arguments(boot: &Boot) -> Result<(Vec<CString>, Vec<CString>), Refused> {
    let boot = serde_json::to_string(boot).map_err(|_| Errno::INVAL).at("prepare the agent's instructions")?;
    let argv = c_strings(&["tidebox-agent", "agent"]).at("prepare the agent's instructions")?;
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    // Not an argument, which every program of the box sees in lists of processes.
    let env = c_strings(&[path, &format!("{ORDER}={boot}")]).at("prepare the agent's instructions")?;
    Ok((argv, env))
}

fn c_strings(strings: &[&str]) -> Result<Vec<CString>, Errno> {
    strings.iter().map(|text| CString::new(*text).map_err(|_| Errno::INVAL)).collect()
}
