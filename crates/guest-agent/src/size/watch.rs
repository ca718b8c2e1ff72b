//! Renewal of the files that show the size of the box when programs open them.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

use crate::agent::Agent;
use crate::descriptor::readable;

/// Pause after each renewal, so that a program that reads the files in a loop costs little.
const PAUSE: Duration = Duration::from_millis(100);
/// Size of the buffer for events; those that do not fit are read with the next.
const EVENTS_BYTES: usize = 1024;

/// Renews the files whenever a program has opened one.
pub(crate) async fn follow(agent: Rc<Agent>) {
    let Some((size, events)) = agent.size.as_ref().zip(opens()) else { return };
    loop {
        let Ok(mut guard) = events.readable().await else { return };
        let mut buffer = [0; EVENTS_BYTES];
        match rustix::io::read(&events, &mut buffer[..]) {
            Ok(_) => size.renew(),
            Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
            Err(_) => return,
        }
        drop(guard);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns the events of programs that open the files; `None` if the box has no watch left.
fn opens() -> Option<AsyncFd<OwnedFd>> {
    let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
    for path in ["/proc/meminfo", "/proc/stat"] {
        inotify::add_watch(&fd, path, WatchFlags::OPEN).ok()?;
    }
    readable(fd).ok()
}
