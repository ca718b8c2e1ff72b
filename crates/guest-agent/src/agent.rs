//! The first process of a box: serves the guest protocol until its box ends.
//!
//! One thread does everything: the box has a limit on processes, which a guest
//! may have used up, and a thread that cannot be made would be our end. File
//! work is cut into pieces, with a turn for everybody else between them.

mod children;
mod console;
mod deadline;
mod exec;
mod failure;
mod files;
mod oom;
mod serve;
mod users;
mod watchdog;

use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;
use std::rc::Rc;

use guest_protocol::Boot;

use self::children::Children;
use self::console::Console;
use self::deadline::Deadline;
use self::oom::OomCounter;

/// What every request may need.
pub(crate) struct Agent {
    boot: Boot,
    children: Rc<Children>,
    console: Rc<Console>,
    deadline: Deadline,
    oom: OomCounter,
}

/// Serves until the box's deadline. `boot` is JSON of [`Boot`].
pub fn run(boot: &str) -> ExitCode {
    let Ok(boot) = serde_json::from_str::<Boot>(boot) else { return ExitCode::FAILURE };
    // A guest has our uid: without this it could trace us or open what we hold.
    let hidden = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // In a box we are process 1; elsewhere, orphans come to us only like this.
    let adopts = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (Ok(()), Ok(()), Ok(runtime)) = (hidden, adopts, runtime) else { return ExitCode::FAILURE };
    let served = tokio::task::LocalSet::new().block_on(&runtime, serve(boot));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

async fn serve(boot: Boot) -> std::io::Result<()> {
    let listener = std::os::unix::net::UnixListener::from(owned(boot.listener_fd)?);
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let oom = OomCounter::new(boot.oom_events_fd.map(owned).transpose()?);
    let children = Children::watch()?;
    let console = Rc::new(Console::default());
    let deadline = Deadline::in_ms(boot.deadline_ms);
    let soft_memory_mb = boot.soft_memory_mb;
    let agent = Rc::new(Agent { boot, children, console, deadline, oom });
    if soft_memory_mb > 0 {
        tokio::task::spawn_local(watchdog::run(Rc::clone(&agent), soft_memory_mb));
    }
    tokio::select! {
        served = serve::accept(listener, Rc::clone(&agent)) => served,
        () = agent.deadline.passed() => {
            // As process 1 our end is everybody's; elsewhere we see to it.
            agent.children.kill_everything().await;
            Ok(())
        }
    }
}

/// Takes a descriptor that we were started with.
fn owned(fd: i32) -> std::io::Result<OwnedFd> {
    if fd < 3 {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    #[expect(unsafe_code, reason = "descriptors are handed over by number")]
    // SAFETY: whoever started us says in `Boot` that this descriptor is ours;
    // nothing else in this process knows its number.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}
