//! The first process of a virtual machine, until it is the agent of the box in it.
//!
//! The kernel starts it from the initial files. It loads the modules that come with them, mounts the
//! image, and waits for the host's line. Up to there it is the same in all machines of an image, so
//! that a snapshot of this moment can become any of them. With the line it makes the box: the image
//! with the box's own drive above it, the views of processes and devices that every box has, and the
//! limits on its processes. Then the box's root is the root of this process, and it gives up what boxes
//! must not have.

mod drives;
mod group;
mod kernel;
mod modules;
mod order;

use std::cell::Cell;
use std::fs;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use guest_protocol::{Boot, MACHINE_AGENT_PORT, MACHINE_BOOT_PORT, Machine, MachineReport, Restored, SoftLimits};
use rustix::fs::{Mode, OFlags};
use rustix::process::umask;

use self::drives::Drives;
pub(crate) use self::group::BoxGroup;
use super::privileges;
use super::refused::{At, Refused};
use super::shares::{Part, bound_each};
use super::syscall;
use crate::sockets;
use crate::vsock::Listener;

/// File in which the kernel counts kills for lack of memory: of the whole machine, which is the box's.
const OOM_EVENTS: &str = "/proc/vmstat";

/// Box in a machine, and what its agent is given.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) boot: Boot,
    pub(crate) listener: Listener,
    pub(crate) oom_events: OwnedFd,
    pub(crate) sockets: Option<OwnedFd>,
    pub(crate) kernel: Kernel,
}

/// Files of the machine's kernel, which the agent keeps open.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Random numbers.
    pub(crate) random: OwnedFd,
    /// Control group of the box.
    pub(crate) group: BoxGroup,
    /// Number of times that its processes were stopped or went on.
    pub(crate) stops: Cell<u64>,
}

/// Makes the box that the host asks for. A failure is on the machine's console, and the host has it too
/// if it waits for the answer.
pub(crate) fn make() -> Result<Made, ExitCode> {
    let made = begin().and_then(|(boots, drives)| {
        loop {
            // A host that hangs up before its line is whole is followed by another.
            let Some((line, host)) = order::receive(&boots)? else { continue };
            let made = settle(&line, &drives);
            let report = match &made {
                Ok(_) => MachineReport::Ready,
                Err(Refused { step, errno }) => {
                    MachineReport::Failed { step: step.clone(), errno: errno.raw_os_error() }
                }
            };
            // Without the host this box is removed by the next one.
            let _ = order::answer(&host, &report);
            break made;
        }
    });
    made.map_err(|refused| {
        // The console is all that is left to report to. What it has not sent yet is lost with this process.
        let _ = writeln!(std::io::stderr(), "tidebox: {refused}");
        let _ = rustix::termios::tcdrain(std::io::stderr());
        ExitCode::FAILURE
    })
}

/// Prepares what is the same in all machines of an image.
fn begin() -> Result<(Listener, Drives), Refused> {
    umask(Mode::from_raw_mode(0o022));
    kernel::mount_views()?;
    kernel::stop_watchdog();
    modules::load()?;
    let drives = Drives::mount_image()?;
    Ok((Listener::bind(MACHINE_BOOT_PORT).at("listen on the vsock")?, drives))
}

/// Makes the box of `machine`, whose root is that of this process then.
fn settle(machine: &Machine, drives: &Drives) -> Result<Made, Refused> {
    let random = kernel::open_random()?;
    kernel::stir(&random, &machine.entropy)?;
    kernel::set_clock(machine.now_ns)?;
    let listener = Listener::bind(MACHINE_AGENT_PORT).at("listen on the vsock")?;
    let group = BoxGroup::make(machine.pids)?;
    let oom_events = rustix::fs::open(OOM_EVENTS, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let oom_events = oom_events.at("open the count of memory kills")?;
    drives.enter(machine)?;
    write_machine_id(&machine.entropy)?;
    rustix::system::sethostname(machine.hostname.as_bytes()).at("set the host name")?;
    syscall::raise_loopback().at("bring up the loopback interface")?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).at("open /dev/null")?;
    for number in 0..=2 {
        syscall::duplicate_to(&null, number).at("detach from the console")?;
    }
    let sockets = sockets::open().ok();
    privileges::limit_resources(&SoftLimits::default())?;
    bound_each(Part::WHOLE)?;
    privileges::give_up(None, true)?;
    let kernel = Kernel { random, group, stops: Cell::new(0) };
    Ok(Made { boot: machine.boot.clone(), listener, oom_events, sockets, kernel })
}

/// Makes the kernel of a machine that goes on from files differ from that of the one that was written to them.
pub(crate) fn renew(random: &OwnedFd, restored: &Restored) -> Result<(), Refused> {
    privileges::with_spare(|| {
        kernel::stir(random, &restored.entropy)?;
        kernel::set_clock(restored.now_ns)?;
        rustix::system::sethostname(restored.hostname.as_bytes()).at("set the host name")
    })
}

/// Gives a machine that goes on from the files of another an id of its own. Where that fails, it has none.
pub(crate) fn renew_id(entropy: &str) {
    let _ = write_machine_id(entropy);
}

/// Gives the machine an id of its own, where its image has one.
fn write_machine_id(entropy: &str) -> Result<(), Refused> {
    const FILE: &str = "/etc/machine-id";
    /// Number of hexadecimal digits of an id.
    const DIGITS: usize = 32;
    // Not the bytes that the random numbers are made of.
    let digest = <sha2::Sha256 as sha2::Digest>::digest(format!("machine-id {entropy}"));
    let id: String = digest.iter().map(|byte| format!("{byte:02x}")).take(DIGITS / 2).collect();
    // What an image has there besides a file or a link is left.
    let is_there = fs::symlink_metadata(FILE).is_ok_and(|metadata| !metadata.is_dir());
    if !is_there {
        return Ok(());
    }
    // A new file, since a link of the image may lead anywhere.
    fs::remove_file(FILE)
        .and_then(|()| fs::File::options().write(true).create_new(true).open(FILE))
        .and_then(|mut file| file.write_all((id + "\n").as_bytes()))
        .at("write the machine id")
}
