//! The mode that starts the process of a virtual machine.
//!
//! It clones that process as a child of the *server*, writes its pid to disk, and only then lets it
//! execute the program, as the launcher does with the first process of a box.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use guest_protocol::{SoftLimits, Vmm};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Signal, kill_process, setsid, umask};
use rustix::thread::set_no_new_privs;

use super::descriptors::OWN_FDS_FROM;
use super::go::{Sent, channel, go, wait_for_go};
use super::order::{read_order, report_failure};
use super::parent::join_cgroups;
use super::privileges::{end_before_the_server, limit_resources};
use super::process::{record, report_pid};
use super::refused::{At, Refused};
use super::syscall::{self, CloneFlags, Cloned, clone3};

/// Runs the mode.
pub(crate) fn run() -> ExitCode {
    let Ok(control) = fcntl_dupfd_cloexec(std::io::stdin().as_fd(), OWN_FDS_FROM) else { return ExitCode::FAILURE };
    match read_order::<Vmm>(control.as_fd()).and_then(|vmm| start(&vmm, &control)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refused) => {
            report_failure(control.as_fd(), refused);
            ExitCode::FAILURE
        }
    }
}

fn start(vmm: &Vmm, control: &OwnedFd) -> Result<(), Refused> {
    end_before_the_server(false)?;
    let unified = join_cgroups(&vmm.cgroups)?;
    let (ours, theirs) = channel()?;
    let own_pids = if vmm.own_pids { CloneFlags::PIDS } else { CloneFlags::NONE };
    match clone3(own_pids.and(CloneFlags::PARENT), 0, unified.as_ref().map(AsFd::as_fd)).at("fork")? {
        Cloned::Child => {
            drop(ours);
            become_program(vmm, control, &theirs)
        }
        Cloned::Parent(pid) => {
            drop(theirs);
            let sent_off = record(&vmm.dir, pid)
                .and_then(|()| report_pid(control.as_fd(), pid))
                .and_then(|()| go(ours.as_fd(), &Sent::default()).at("start the program"));
            if sent_off.is_err() {
                // The process waits for this one, so its pid cannot have been reused.
                let _ = kill_process(pid, Signal::KILL);
            }
            sent_off
        }
    }
}

/// Executes the program, or exits; never returns.
fn become_program(vmm: &Vmm, control: &OwnedFd, channel: &OwnedFd) -> ! {
    // Without "go" the machine is not made.
    if wait_for_go(channel.as_fd()).is_ok() {
        let refused = match prepare(vmm) {
            Ok(mut command) => Refused {
                step: format!("execute {}", command.get_program().to_string_lossy()),
                errno: Errno::from_io_error(&command.exec()).unwrap_or(Errno::IO),
            },
            Err(refused) => refused,
        };
        report_failure(control.as_fd(), refused);
    }
    std::process::exit(1)
}

fn prepare(vmm: &Vmm) -> Result<Command, Refused> {
    syscall::reset_signals();
    // Signals of the server's terminal must not reach its machines.
    setsid().at("start a session")?;
    umask(Mode::from_raw_mode(0o077));
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let console = rustix::fs::open(vmm.console.as_str(), flags, Mode::empty()).at("open the console")?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).at("open /dev/null")?;
    let (program, arguments) = vmm.argv.split_first().ok_or(Errno::INVAL).at("prepare the program's arguments")?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().current_dir(&vmm.workdir);
    limit_resources(&SoftLimits::default())?;
    set_no_new_privs(true).at("give up new privileges")?;
    syscall::close_at_exec_from(3).at("pass descriptors")?;
    for (descriptor, number) in [(&null, 0), (&console, 1), (&console, 2)] {
        syscall::duplicate_to(descriptor, number).at("pass descriptors")?;
    }
    Ok(command)
}
