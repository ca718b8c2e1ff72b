//! The launcher: makes one native box and exits.
//!
//! Namespace work happens here, in a freshly executed process with one thread, and never in the
//! server, which has many. The launcher clones the first process of the box as a child of the
//! *server* (`CLONE_PARENT`), gives it its ids, control groups and mounts, sends "go", and exits.
//! The child builds the box's root, drops its capabilities and executes the agent.
//!
//! The order makes this safe: the pid is on disk before the box runs anything, and a child that
//! never receives "go" reads end of file and exits.

mod child;
mod devices;
mod nodes;
mod parent;
mod privileges;
mod root;
mod seccomp;
mod shares;
mod slot;
mod syscall;
pub(crate) mod trace;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;

use guest_protocol::{LAUNCH_LINE_BYTES_MAX, Launch, LaunchReport};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use serde::de::DeserializeOwned;

pub(crate) use parent::start_time;
pub(crate) use privileges::{become_user, limit_resources};
pub(crate) use shares::{Part, bound_each};
pub(crate) use syscall::{CloneFlags, Cloned, clone3, duplicate_to, execute, wait_for};

/// Adds the rules that are missing in the usual filters of container runtimes to the filter of this
/// process.
pub(crate) fn add_filter() -> Result<(), Errno> {
    syscall::install_filter(&seccomp::addition())
}

/// First number of the launcher's own descriptors, so that they never collide with those passed to
/// the agent.
const OWN_FDS_FROM: i32 = 16;

/// A step that the kernel refused.
#[derive(Debug)]
pub(crate) struct Refused {
    step: String,
    errno: Errno,
}

/// Conversion of an error to [`Refused`], with the name of its step.
pub(crate) trait At<T> {
    /// Turns the error into [`Refused`].
    fn at(self, step: &str) -> Result<T, Refused>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, step: &str) -> Result<T, Refused> {
        self.map_err(|errno| Refused { step: step.to_owned(), errno })
    }
}

impl<T> At<T> for Result<T, std::io::Error> {
    fn at(self, step: &str) -> Result<T, Refused> {
        self.map_err(|error| Refused {
            step: step.to_owned(),
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        })
    }
}

/// Descriptors that the server passed to the launcher.
struct Handed {
    control: OwnedFd,
    listener: OwnedFd,
    agent: OwnedFd,
}

/// Runs the launcher on descriptors 0, 1 and 2.
pub fn run() -> ExitCode {
    let handed = match take_descriptors() {
        Ok(handed) => handed,
        // The error cannot be reported: descriptor 0 is not the expected socket.
        Err(_) => return ExitCode::FAILURE,
    };
    let outcome = read_order(handed.control.as_fd()).and_then(|launch: Launch| parent::make(&launch, &handed));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(refused) => {
            report_failure(handed.control.as_fd(), refused);
            ExitCode::FAILURE
        }
    }
}

/// Moves descriptors 0 to 2 to higher numbers.
fn take_descriptors() -> Result<Handed, Errno> {
    let own = |fd: BorrowedFd<'_>| fcntl_dupfd_cloexec(fd, OWN_FDS_FROM);
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let handed = Handed { control: own(stdin.as_fd())?, listener: own(stdout.as_fd())?, agent: own(stderr.as_fd())? };
    // The socket must close when its last owner is gone, so no copy stays at 0.
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for number in 0..=2 {
        syscall::duplicate_to(&null, number)?;
    }
    Ok(handed)
}

/// Moves a descriptor to a number that the agent's descriptors do not use.
fn own(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    fcntl_dupfd_cloexec(&fd, OWN_FDS_FROM)
}

pub(crate) fn read_order<T: DeserializeOwned>(control: BorrowedFd<'_>) -> Result<T, Refused> {
    let mut line = Vec::new();
    let mut piece = [0u8; 4096];
    while !line.ends_with(b"\n") {
        let n = rustix::io::read(control, &mut piece).at("read the order")?;
        if n == 0 || line.len() + n > LAUNCH_LINE_BYTES_MAX {
            return Err(Errno::BADMSG).at("read the order");
        }
        line.extend_from_slice(&piece[..n]);
    }
    serde_json::from_slice(&line).map_err(|_| Errno::BADMSG).at("understand the order")
}

fn report(control: BorrowedFd<'_>, report: &LaunchReport) -> Result<(), Errno> {
    let mut line = serde_json::to_vec(report).map_err(|_| Errno::INVAL)?;
    line.push(b'\n');
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        // A server that is gone must not end this process by a signal.
        let n = rustix::net::send(control, rest, rustix::net::SendFlags::NOSIGNAL)?;
        rest = &rest[n..];
    }
    Ok(())
}

fn report_failure(control: BorrowedFd<'_>, refused: Refused) {
    let failed = LaunchReport::Failed { step: refused.step, errno: refused.errno.raw_os_error() };
    // If the server is gone, there is nowhere to report to.
    let _ = report(control, &failed);
}
