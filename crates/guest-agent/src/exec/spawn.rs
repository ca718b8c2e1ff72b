//! The fork of a command: agent → reaper → command.
//!
//! Other threads of the agent, which do long work on files, are not in its forked copies. These make
//! only system calls, on data prepared before. The command starts on its reaper's memory, as `vfork(2)`
//! does it.

#![expect(unsafe_code, reason = "fork, exec and signals have no safe interface")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::io::Errno;
use rustix::process::Rlimit;

use crate::users::Ids;

/// Descriptor of the pipe to the agent in the command's process until it executes.
const REPORT_FD: RawFd = 3;
/// Highest descriptor. gVisor takes a larger number for a negative one.
const DESCRIPTOR_MAX: u32 = i32::MAX.cast_unsigned();
/// Size of the kernel's signal masks.
const KERNEL_SIGSET_BYTES: usize = 8;
/// Size of one report: two native integers.
pub(super) const REPORT_BYTES: usize = 8;

/// Step that the command's process was at when the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Step {
    /// The fork of the command itself.
    Fork = 1,
    /// Session, limits and descriptors.
    Prepare = 2,
    /// Change of user and group ids.
    User = 3,
    /// Change to the working directory.
    Workdir = 4,
    /// Execution of the program.
    Execute = 5,
}

/// A message of the pipe: first the start of the command, then its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// The command has not started. `Begun` and `Exited` follow all the same, unless the fork was
    /// refused.
    Refused(Step, Errno),
    /// The process with this pid is past its execution.
    Begun(i32),
    /// Status of the main process at its end, as `waitpid` gives it.
    Exited(i32),
}

/// Flag of `clone3(2)`, which the library has with another type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const EXITED: i32 = 100;
const BEGUN: i32 = 101;
/// Size of the stack until the execution, many times more than needed.
const STACK_BYTES: usize = 64 * 1024;

impl Report {
    pub(super) fn parse(bytes: [u8; REPORT_BYTES]) -> Option<Report> {
        let [a, b, c, d, value @ ..] = bytes;
        let value = i32::from_ne_bytes(value);
        let steps = [Step::Fork, Step::Prepare, Step::User, Step::Workdir, Step::Execute];
        match i32::from_ne_bytes([a, b, c, d]) {
            EXITED => Some(Report::Exited(value)),
            BEGUN => Some(Report::Begun(value)),
            code => {
                let step = steps.into_iter().find(|step| *step as i32 == code)?;
                Some(Report::Refused(step, Errno::from_raw_os_error(value)))
            }
        }
    }
}

/// All that the command's process needs, prepared before the fork.
#[derive(Debug)]
pub(super) struct Plan {
    /// Paths to execute, tried in this order.
    pub(super) candidates: Vec<CString>,
    pub(super) argv: Vec<CString>,
    pub(super) env: Vec<CString>,
    pub(super) workdir: CString,
    pub(super) ids: Option<Ids>,
    /// Value of `oom_score_adj` that the command starts with.
    pub(super) oom_score: CString,
    /// Limit on descriptors that the agent itself was started with.
    pub(super) descriptors: Rlimit,
}

/// The command's ends of its pipes.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) report: OwnedFd,
    /// True if stdin is a terminal, which becomes the command's controlling one.
    pub(super) is_terminal: bool,
}

struct Pointers<'a> {
    plan: &'a Plan,
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    /// `/bin/sh`, a slot for the program, and the arguments, for a script without `#!`.
    shell_argv: Vec<*const c_char>,
    fds: [RawFd; 4],
    is_terminal: bool,
    /// Stack of the command's process while it shares the reaper's memory.
    stack: Vec<u128>,
}

/// Forks the reaper, which forks the command, both in the control group with the directory `group` if there is
/// one. Returns the reaper's pid.
pub(super) fn spawn(plan: &Plan, ends: &Ends, group: Option<BorrowedFd<'_>>) -> Result<i32, Errno> {
    let null = [ptr::null()];
    let mut prepared = Pointers {
        plan,
        argv: pointers(&plan.argv),
        env: pointers(&plan.env),
        shell_argv: Vec::new(),
        fds: [ends.stdin.as_raw_fd(), ends.stdout.as_raw_fd(), ends.stderr.as_raw_fd(), ends.report.as_raw_fd()],
        is_terminal: ends.is_terminal,
        stack: vec![0; STACK_BYTES / size_of::<u128>()],
    };
    let arguments = prepared.argv.get(1..).unwrap_or(&null);
    prepared.shell_argv = [&[c"/bin/sh".as_ptr(), ptr::null()], arguments].concat();
    // SAFETY: the copy makes only system calls, whatever other threads were at; it never returns from
    // `reaper`.
    match unsafe { group.map_or_else(|| libc::fork(), |group| fork_into(group)) } {
        -1 => Err(last_errno()),
        0 => unsafe { reaper(&mut prepared) },
        pid => Ok(pid),
    }
}

/// Returns pointers to the strings, and null at the end.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// Forks this process into a control group. To move it there later would make it wait for all processors.
///
/// # Safety
/// As for `fork`; the copy must make only system calls.
unsafe fn fork_into(group: BorrowedFd<'_>) -> i32 {
    // SAFETY: all fields may be zero, and the kernel reads as many bytes as there are.
    unsafe {
        let mut arguments: libc::clone_args = std::mem::zeroed();
        arguments.flags = CLONE_INTO_CGROUP;
        arguments.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
        arguments.cgroup = u64::from(group.as_raw_fd().cast_unsigned());
        let pid = libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>());
        // A pid fits.
        i32::try_from(pid).unwrap_or(-1)
    }
}

/// Runs the reaper: every descendant of the command that loses its parent becomes its child, and it
/// goes on until the last one has ended.
///
/// # Safety
/// Must be called in a forked copy of a process.
unsafe fn reaper(prepared: &mut Pointers<'_>) -> ! {
    let [_, _, _, report] = prepared.fds;
    // SAFETY: system calls on memory of this process, which lives until it ends.
    unsafe {
        // Only SIGKILL and SIGSTOP reach a reaper.
        set_mask(u64::MAX);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_NAME, c"tidebox-reaper".as_ptr(), 0, 0, 0);
        let score = inheritable_score(&prepared.fds, &prepared.plan.oom_score);
        // A copy of this memory would only be discarded at the execution, so the command's process
        // borrows it, and the reaper continues when that has executed or ended.
        let stack = prepared.stack.as_mut_ptr_range().end.cast();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let main = libc::clone(command, stack, flags, (&raw mut *prepared).cast());
        if main < 0 {
            tell(report, Step::Fork as i32, last_errno().raw_os_error());
            libc::_exit(1);
        }
        tell(report, BEGUN, main);
        if score >= 0 {
            libc::write(score, c"0".as_ptr().cast(), 1);
        }
        close_all_but(report);
        loop {
            let mut status: c_int = 0;
            let pid = libc::waitpid(-1, &raw mut status, libc::__WALL);
            if pid == main {
                tell(report, EXITED, status);
            }
            if pid < 0 && last_errno() != Errno::INTR {
                libc::_exit(0);
            }
        }
    }
}

/// Runs the command's process until it executes. `prepared` is a `Pointers`.
extern "C" fn command(prepared: *mut c_void) -> c_int {
    // SAFETY: the reaper, whose memory this is, sleeps until this process has executed or ended;
    // the pointers end with null.
    unsafe {
        let prepared = &mut *prepared.cast::<Pointers<'_>>();
        prepare(prepared);
        if let Some(ids) = &prepared.plan.ids {
            // The library would look for threads of the agent, which are not in this process.
            let groups = &ids.groups;
            let gid = ids.gid;
            let uid = ids.uid;
            check(REPORT_FD, Step::User, libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()));
            check(REPORT_FD, Step::User, libc::syscall(libc::SYS_setresgid, gid, gid, gid));
            check(REPORT_FD, Step::User, libc::syscall(libc::SYS_setresuid, uid, uid, uid));
        }
        check(REPORT_FD, Step::Workdir, libc::chdir(prepared.plan.workdir.as_ptr()));
        let errno = execute(prepared);
        tell(REPORT_FD, Step::Execute as i32, errno.raw_os_error());
        libc::_exit(127)
    }
}

/// Sets session, signals, limits and descriptors.
///
/// # Safety
/// As for [`command`].
unsafe fn prepare(prepared: &Pointers<'_>) {
    let [stdin, stdout, stderr, report] = prepared.fds;
    let limit = prepared.plan.descriptors;
    let limit = libc::rlimit {
        rlim_cur: limit.current.unwrap_or(libc::RLIM_INFINITY),
        rlim_max: limit.maximum.unwrap_or(libc::RLIM_INFINITY),
    };
    // SAFETY: system calls on memory of this process.
    unsafe {
        check(report, Step::Prepare, libc::setsid());
        default_signals();
        set_mask(0);
        libc::umask(0o022);
        first_to_kill(&prepared.plan.oom_score);
        check(report, Step::Prepare, libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit));
        // The agent never has its own descriptors below 3, so none of these is overwritten before
        // it was copied.
        check(report, Step::Prepare, libc::dup2(stdin, 0));
        check(report, Step::Prepare, libc::dup2(stdout, 1));
        check(report, Step::Prepare, libc::dup2(stderr, 2));
        if prepared.is_terminal {
            check(report, Step::Prepare, libc::ioctl(0, libc::TIOCSCTTY, 0));
        }
        if report != REPORT_FD {
            check(report, Step::Prepare, libc::dup3(report, REPORT_FD, libc::O_CLOEXEC));
        }
        close_range(REPORT_FD.cast_unsigned() + 1, DESCRIPTOR_MAX);
    }
}

/// Makes the kernel choose a command and not the agent when memory runs out.
///
/// # Safety
/// As for [`command`].
unsafe fn first_to_kill(oom_score: &CStr) {
    // SAFETY: system calls on strings that live.
    unsafe {
        let fd = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if fd >= 0 {
            // A box whose kernel refuses this still works.
            libc::write(fd, oom_score.as_ptr().cast(), oom_score.count_bytes());
            libc::close(fd);
        }
    }
}

/// Does the same as [`first_to_kill`] where the agent is not root. The kernel hides the files in
/// `/proc` of a process that is not dumpable from all but root, so the reaper becomes dumpable for
/// a moment, and the command inherits the score. Another process of the same user may take over the
/// reaper in this moment, so it keeps no descriptor of the agent but `kept`, which the command gets
/// anyway. Returns the file to reset the score with, or -1.
///
/// # Safety
/// Must be called in the reaper.
unsafe fn inheritable_score(kept: &[RawFd; 4], oom_score: &CStr) -> RawFd {
    // SAFETY: system calls on strings that live; the reaper needs no other descriptor.
    unsafe {
        if libc::geteuid() == 0 {
            return -1;
        }
        close_all_but_four(kept);
        libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
        let fd = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        if fd >= 0 {
            libc::write(fd, oom_score.as_ptr().cast(), oom_score.count_bytes());
        }
        fd
    }
}

/// Tries the candidates; returns the most specific error.
///
/// # Safety
/// As for [`command`].
unsafe fn execute(prepared: &mut Pointers<'_>) -> Errno {
    let env = prepared.env.as_ptr();
    let mut most = Errno::NOENT;
    for candidate in &prepared.plan.candidates {
        // SAFETY: strings and lists end with null and live.
        unsafe { libc::execve(candidate.as_ptr(), prepared.argv.as_ptr(), env) };
        match last_errno() {
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => {}
            Errno::NOEXEC => {
                if let Some(program) = prepared.shell_argv.get_mut(1) {
                    *program = candidate.as_ptr();
                }
                // SAFETY: as above.
                unsafe { libc::execve(c"/bin/sh".as_ptr(), prepared.shell_argv.as_ptr(), env) };
                return if last_errno() == Errno::TOOBIG { Errno::TOOBIG } else { Errno::NOEXEC };
            }
            Errno::ACCESS => most = Errno::ACCESS,
            errno => return errno,
        }
    }
    most
}

/// # Safety
/// As for [`command`].
unsafe fn default_signals() {
    let action = [0_u64; 4];
    for signal in 1..=64 {
        // The C library hides two signals, which the parent may have ignored too.
        // SAFETY: a kernel `sigaction` of zeros is the default action; the
        // kernel refuses what cannot be set.
        unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), ptr::null::<u64>(), KERNEL_SIGSET_BYTES);
        }
    }
}

/// # Safety
/// As for [`command`].
unsafe fn set_mask(mask: u64) {
    // SAFETY: the kernel reads eight bytes.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            ptr::null::<u64>(),
            KERNEL_SIGSET_BYTES,
        );
    }
}

/// # Safety
/// Nothing may use the descriptors from `first` to `last` any more.
unsafe fn close_range(first: u32, last: u32) {
    // SAFETY: passed on to the caller.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}

/// # Safety
/// Nothing may use any other descriptor any more.
unsafe fn close_all_but(kept: RawFd) {
    let kept = kept.cast_unsigned();
    // SAFETY: passed on to the caller.
    unsafe {
        if kept > 0 {
            close_range(0, kept - 1);
        }
        close_range(kept + 1, DESCRIPTOR_MAX);
    }
}

/// Closes all descriptors except `kept`, which the command's process needs.
///
/// # Safety
/// Nothing may use any other descriptor any more.
unsafe fn close_all_but_four(kept: &[RawFd; 4]) {
    let mut kept = kept.map(RawFd::cast_unsigned);
    kept.sort_unstable();
    let mut first = 0;
    for number in kept {
        // SAFETY: passed on to the caller.
        unsafe {
            if number > first {
                close_range(first, number - 1);
            }
        }
        first = number + 1;
    }
    // SAFETY: passed on to the caller.
    unsafe { close_range(first, DESCRIPTOR_MAX) };
}

/// # Safety
/// As for [`command`].
unsafe fn check(report: RawFd, step: Step, result: impl Into<libc::c_long>) {
    if result.into() < 0 {
        // SAFETY: system calls on memory of this process.
        unsafe {
            tell(report, step as i32, last_errno().raw_os_error());
            libc::_exit(127);
        }
    }
}

/// # Safety
/// As for [`command`].
unsafe fn tell(report: RawFd, what: i32, value: i32) {
    let message = [what, value];
    // SAFETY: eight bytes, which a pipe takes whole.
    unsafe { libc::write(report, message.as_ptr().cast(), REPORT_BYTES) };
}

fn last_errno() -> Errno {
    // SAFETY: the C library's errno always exists.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Returns a descriptor that can be read when a child has ended; `SIGCHLD` is blocked from here on.
pub(super) fn child_signals() -> std::io::Result<OwnedFd> {
    // SAFETY: the sets are initialised by the C library before they are used, and a descriptor that
    // the kernel has just made has no other owner.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const signals, ptr::null_mut());
        match libc::signalfd(-1, &raw const signals, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) {
            -1 => Err(std::io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Stops every process of the box but this one, if this is process 1; anywhere else it would reach
/// processes outside the box.
pub(super) fn stop_all_others() {
    if rustix::process::getpid().is_init() {
        // SAFETY: takes no pointer.
        unsafe { libc::kill(-1, libc::SIGSTOP) };
    }
}
