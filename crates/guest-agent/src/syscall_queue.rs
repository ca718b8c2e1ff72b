//! Turns for system calls for which the kernel takes a lock of the whole host.
//!
//! The list of interfaces and the groups that a socket belongs to are protected by one lock of all
//! network namespaces, which the making of every box needs. With hundreds of processes waiting for
//! it, that takes seconds. So the filter of a box makes such a call wait here, and one after the
//! other continues. Programs do not notice: they ask for interfaces a few times in their lives.
//!
//! From the moment in which a call is received, the kernel keeps it from being interrupted by signals,
//! as it does with these calls on a host. So a thread does nothing but receive them at once, and
//! hold them until their turns. A call that is held cannot be frozen either: see [`Turns::is_late`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Pause after each call: the kernel needs some microseconds for one, so all boxes of a host
/// together leave its lock free for most of the time.
const PAUSE: Duration = Duration::from_millis(2);
/// Most calls that are held at once. Further ones wait where signals interrupt them.
const HELD_MAX: usize = 16;
/// Delay of a turn from which on the thread is taken to have been frozen.
const LATE: Duration = Duration::from_millis(20);
/// Time for which no call is received after that.
const QUIET: Duration = Duration::from_millis(50);
/// Size of the thread's stack.
const STACK_BYTES: usize = 64 * 1024;

/// The ioctl numbers `SECCOMP_IOCTL_NOTIF_RECV`, `SECCOMP_IOCTL_NOTIF_SEND` and
/// `SECCOMP_IOCTL_NOTIF_SET_FLAGS`.
const RECEIVE: libc::Ioctl = 0xc050_2100u32 as libc::Ioctl;
const SEND: libc::Ioctl = 0xc018_2101u32 as libc::Ioctl;
const SET_FLAGS: libc::Ioctl = 0x4008_2104u32 as libc::Ioctl;
/// The flag `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`: the listener runs at once where the call was made.
const WAKE_AT_ONCE: libc::c_ulong = 1;
/// The flag `SECCOMP_USER_NOTIF_FLAG_CONTINUE`. The filter has already decided what the call may
/// do, so nothing depends on arguments that its process might change meanwhile.
const CONTINUE: u32 = 1;

/// The kernel's `struct seccomp_notif`, of which only the id matters here.
#[repr(C)]
struct Call {
    id: u64,
    rest: [u64; 9],
}

/// The kernel's `struct seccomp_notif_resp`.
#[repr(C)]
struct Answer {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// Starts the thread that lets one call after the other continue, until the listener fails.
///
/// # Errors
/// The thread cannot be made.
pub(crate) fn give(listener: OwnedFd) -> io::Result<()> {
    wake_at_once(&listener);
    let turns = Turns { listener, held: VecDeque::new(), next: Instant::now(), quiet_until: None };
    Builder::new().name("turns".to_owned()).stack_size(STACK_BYTES).spawn(move || turns.give()).map(drop)
}

/// Calls that wait for their turn.
#[derive(Debug)]
struct Turns {
    listener: OwnedFd,
    held: VecDeque<u64>,
    /// Time of the next turn.
    next: Instant,
    /// Time until which no call is received.
    quiet_until: Option<Instant>,
}

impl Turns {
    fn give(mut self) {
        while self.step().is_ok() {}
    }

    /// Waits for a call or a turn, and takes or gives it.
    fn step(&mut self) -> Result<(), Errno> {
        let has_held = !self.held.is_empty();
        let has_call = self.wait()?;
        let now = Instant::now();
        if has_held && self.is_late(now) {
            self.quiet_until = Some(now + QUIET);
            for id in std::mem::take(&mut self.held) {
                let_go_on(&self.listener, id)?;
            }
        }
        if has_call && self.quiet_until.is_none() {
            match receive(&self.listener) {
                Ok(id) => self.held.push_back(id),
                // The calling process has ended.
                Err(Errno::NOENT | Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        if now >= self.next
            && let Some(id) = self.held.pop_front()
        {
            self.next = now + PAUSE;
            let_go_on(&self.listener, id)?;
        }
        Ok(())
    }

    /// Waits until a call can be received, or a turn or the end of the quiet time has come. Returns
    /// whether there is a call.
    fn wait(&mut self) -> Result<bool, Errno> {
        let now = Instant::now();
        self.quiet_until = self.quiet_until.filter(|until| *until > now);
        let is_open = self.quiet_until.is_none() && self.held.len() < HELD_MAX;
        let turn = (!self.held.is_empty()).then_some(self.next);
        let until = turn.into_iter().chain(self.quiet_until).min();
        let wait = until.map(|until| timespec(until.saturating_duration_since(now)));
        let mut fds = [PollFd::new(&self.listener, if is_open { PollFlags::IN } else { PollFlags::empty() })];
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        let events = fds[0].revents();
        if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            Err(Errno::PIPE)
        } else {
            Ok(events.contains(PollFlags::IN))
        }
    }

    /// Returns whether a turn comes so late that this thread was probably frozen. The freezer of a
    /// control group waits for calls that are held, and whoever freezes it lets it run for a moment
    /// then: so all held ones continue, and for a while none is received.
    fn is_late(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.next) > LATE
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Asks the kernel to run this thread at once for each call, which kernels before 6.6 cannot.
fn wake_at_once(listener: &OwnedFd) {
    #[expect(unsafe_code, reason = "no library offers this ioctl")]
    // SAFETY: the argument is a number.
    unsafe {
        libc::ioctl(listener.as_fd().as_raw_fd(), SET_FLAGS, WAKE_AT_ONCE);
    }
}

fn receive(listener: &OwnedFd) -> Result<u64, Errno> {
    const { assert!(size_of::<Call>() == 80) };
    let mut call = Call { id: 0, rest: [0; 9] };
    #[expect(unsafe_code, reason = "no library offers this ioctl")]
    // SAFETY: the kernel writes one seccomp_notif, whose size is asserted above.
    let received = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), RECEIVE, &raw mut call) };
    if received < 0 { Err(last_error()) } else { Ok(call.id) }
}

fn let_go_on(listener: &OwnedFd, id: u64) -> Result<(), Errno> {
    const { assert!(size_of::<Answer>() == 24) };
    let answer = Answer { id, value: 0, error: 0, flags: CONTINUE };
    #[expect(unsafe_code, reason = "no library offers this ioctl")]
    // SAFETY: the kernel reads one seccomp_notif_resp, whose size is asserted above.
    let sent = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), SEND, &raw const answer) };
    match if sent < 0 { Err(last_error()) } else { Ok(()) } {
        // The calling process has ended meanwhile.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
