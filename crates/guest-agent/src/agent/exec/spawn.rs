//! From a description to a process.
//!
//! Everything that needs memory is made before the fork. After it, reaper and
//! command make kernel calls and nothing else.

use std::ffi::{CString, c_char, c_int};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use guest_protocol::{Exec, FailureKind};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::agent::failure::{Result, failure, invalid};
use crate::agent::users::User;

/// A larger score is killed first: commands before the agent.
const OOM_SCORE: &[u8] = b"1000";
/// What runs a script without a first line that says so.
const SHELL: &[u8] = b"/bin/sh\0";

/// What failed between fork and exec, as the command tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Step {
    Fork = 1,
    Descriptors = 2,
    User = 3,
    Workdir = 4,
    Execute = 5,
}

/// A description in the form that the kernel takes.
pub(super) struct Prepared {
    /// Where the program may be, in order.
    candidates: Vec<CString>,
    /// Kept alive for `argv_pointers` and `env_pointers`.
    _argv: Vec<CString>,
    _env: Vec<CString>,
    argv_pointers: Vec<*const c_char>,
    /// `sh`, a place for the script, and its arguments.
    script_pointers: Vec<*const c_char>,
    env_pointers: Vec<*const c_char>,
    workdir: CString,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

fn c_string(what: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| invalid(format!("{what} holds a NUL")))
}

impl Prepared {
    pub(super) fn new(exec: Exec, user: &User) -> Result<Self> {
        let program = exec.argv.first().filter(|program| !program.is_empty());
        let program = program.ok_or_else(|| invalid("the command is empty"))?;
        if !exec.workdir.starts_with('/') {
            return Err(invalid(format!("the working directory `{}` is not absolute", exec.workdir)));
        }
        let candidates = candidates(program, exec.env.get("PATH").map_or("", String::as_str))?;
        let argv = exec.argv.iter().map(|arg| c_string("an argument", arg)).collect::<Result<Vec<_>>>()?;
        let mut env = Vec::with_capacity(exec.env.len() + 1);
        for (name, value) in &exec.env {
            if name.is_empty() || name.contains('=') {
                return Err(invalid(format!("`{name}` cannot be the name of an environment variable")));
            }
            env.push(c_string("the environment", &format!("{name}={value}"))?);
        }
        if !exec.env.contains_key("HOME") {
            env.push(c_string("the home directory", &format!("HOME={}", user.home))?);
        }
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
        };
        let argv_pointers = pointers(&argv);
        let mut script_pointers = vec![SHELL.as_ptr().cast(), ptr::null()];
        script_pointers.extend_from_slice(&argv_pointers[1..]);
        Ok(Self {
            candidates,
            env_pointers: pointers(&env),
            argv_pointers,
            script_pointers,
            workdir: c_string("the working directory", &exec.workdir)?,
            uid: user.uid,
            gid: user.gid,
            groups: user.groups.clone(),
            _argv: argv,
            _env: env,
        })
    }
}

/// Where a shell would look for `program`.
fn candidates(program: &str, path: &str) -> Result<Vec<CString>> {
    if program.contains('/') {
        return Ok(vec![c_string("the program", program)?]);
    }
    path.split(':')
        .map(|dir| if dir.is_empty() { "." } else { dir })
        .map(|dir| c_string("PATH", &format!("{dir}/{program}")))
        .collect()
}

/// Our ends of a started command.
pub(super) struct Pipes {
    pub(super) reaper: Pid,
    /// Brings the wait status of the main process.
    pub(super) report: OwnedFd,
    /// Ends empty when the program has been executed, else says what failed.
    pub(super) ready: OwnedFd,
    pub(super) stdin: Option<Sender>,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// The command's ends.
struct Ends {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    report: OwnedFd,
    ready: OwnedFd,
}

/// Forks the reaper, which forks the command.
pub(super) fn fork(prepared: &Prepared, is_fed: bool) -> Result<Pipes> {
    let exhausted = |error: rustix::io::Errno| failure(FailureKind::Exhausted, format!("no descriptors left: {error}"));
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(exhausted);
    let (stdout, stdout_end) = pipe()?;
    let (stderr, stderr_end) = pipe()?;
    let (report, report_end) = pipe()?;
    let (ready, ready_end) = pipe()?;
    let (stdin_end, stdin) = if is_fed {
        let (end, ours) = pipe()?;
        (end, Some(sender(ours)?))
    } else {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        (rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()).map_err(exhausted)?, None)
    };
    let ends = Ends { stdin: stdin_end, stdout: stdout_end, stderr: stderr_end, report: report_end, ready: ready_end };
    #[expect(unsafe_code, reason = "a reaper is this program without its execution")]
    // SAFETY: this process has one thread, so the child finds no lock held by
    // another; it makes kernel calls only, and never comes back from `reap`.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => reap(prepared, &ends),
        -1 => Err(failure(
            FailureKind::Exhausted,
            "the sandbox has as many processes as it may have; end some, or spawn with a higher limit",
        )),
        pid => {
            let reaper = Pid::from_raw(pid).ok_or_else(|| failure(FailureKind::Internal, "fork gave no process"))?;
            Ok(Pipes { reaper, report, ready, stdin, stdout, stderr })
        }
    }
}

fn sender(fd: OwnedFd) -> Result<Sender> {
    let internal = |error: std::io::Error| failure(FailureKind::Exhausted, error.to_string());
    Sender::from_owned_fd(super::nonblocking(fd).map_err(internal)?).map_err(internal)
}

/// The end of a pipe that we read.
pub(super) fn receiver(fd: OwnedFd) -> Result<Receiver> {
    let internal = |error: std::io::Error| failure(FailureKind::Exhausted, error.to_string());
    Receiver::from_owned_fd(super::nonblocking(fd).map_err(internal)?).map_err(internal)
}

/// Waits until the program has been executed.
pub(super) async fn ready(pipe: OwnedFd, workdir: &str, program: &str) -> Result<()> {
    let mut told = Vec::new();
    // At most one message of five bytes.
    let _ = receiver(pipe)?.take(5).read_to_end(&mut told).await;
    let [step, errno @ ..] = told.as_slice() else { return Ok(()) };
    let errno = errno.try_into().map_or(0, i32::from_ne_bytes);
    let reason = std::io::Error::from_raw_os_error(errno);
    Err(match *step {
        step if step == Step::Fork as u8 => failure(
            FailureKind::Exhausted,
            "the sandbox has as many processes as it may have; end some, or spawn with a higher limit",
        ),
        step if step == Step::Workdir as u8 => {
            invalid(format!("the working directory `{workdir}` cannot be used: {reason}"))
        }
        step if step == Step::User as u8 => {
            failure(FailureKind::NotSupported, format!("cannot become that user: {reason}"))
        }
        step if step == Step::Execute as u8 && errno == libc::E2BIG => {
            invalid("the arguments and the environment together are too long")
        }
        step if step == Step::Execute as u8 => invalid(format!("`{program}` cannot be executed: {reason}")),
        _ => failure(FailureKind::Internal, format!("the command could not be set up: {reason}")),
    })
}

/// The reaper's life. From here on: kernel calls only.
#[expect(unsafe_code, reason = "after a fork, kernel calls are all there is")]
fn reap(prepared: &Prepared, ends: &Ends) -> ! {
    let report = ends.report.as_raw_fd();
    // SAFETY: all calls take numbers, or pointers to memory that the fork copied.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        let main = libc::fork();
        if main == 0 {
            become_command(prepared, ends);
        }
        if main < 0 {
            tell(ends.ready.as_raw_fd(), Step::Fork);
            libc::_exit(0);
        }
        // Keep nothing of the agent's or the command's but the way to report.
        if report != 3 {
            libc::dup2(report, 3);
        }
        libc::syscall(libc::SYS_close_range, 4u32, u32::MAX, 0u32);
        let mut status: c_int = 0;
        loop {
            let pid = libc::waitpid(-1, &raw mut status, 0);
            if pid == main {
                libc::write(3, (&raw const status).cast(), size_of::<c_int>());
                libc::close(3);
            } else if pid < 0 && *libc::__errno_location() == libc::ECHILD {
                libc::_exit(0);
            }
        }
    }
}

/// Tells the agent what failed, in five bytes.
#[expect(unsafe_code, reason = "after a fork, kernel calls are all there is")]
unsafe fn tell(fd: c_int, step: Step) {
    // SAFETY: errno is this thread's own, and the buffer is as long as said.
    unsafe {
        let [a, b, c, d] = (*libc::__errno_location()).to_ne_bytes();
        let message = [step as u8, a, b, c, d];
        libc::write(fd, message.as_ptr().cast(), message.len());
    }
}

/// From the reaper's child to the program.
#[expect(unsafe_code, reason = "after a fork, kernel calls are all there is")]
unsafe fn become_command(prepared: &Prepared, ends: &Ends) -> ! {
    let ready = ends.ready.as_raw_fd();
    // SAFETY: as in `reap`; the pointers are those of `Prepared`, which the fork copied.
    unsafe {
        libc::setsid();
        let streams = [&ends.stdin, &ends.stdout, &ends.stderr];
        for (number, end) in (0..).zip(streams) {
            if libc::dup2(end.as_raw_fd(), number) < 0 {
                tell(ready, Step::Descriptors);
                libc::_exit(0);
            }
        }
        score_for_oom();
        if !change_user(prepared) {
            tell(ready, Step::User);
            libc::_exit(0);
        }
        libc::umask(0o022);
        if libc::chdir(prepared.workdir.as_ptr()) < 0 {
            tell(ready, Step::Workdir);
            libc::_exit(0);
        }
        reset_signals();
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        execute(prepared, ready)
    }
}

#[expect(unsafe_code, reason = "after a fork, kernel calls are all there is")]
unsafe fn score_for_oom() {
    // SAFETY: the path is a C string, the buffer as long as said.
    unsafe {
        let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, OOM_SCORE.as_ptr().cast(), OOM_SCORE.len());
            libc::close(file);
        }
    }
}

#[expect(unsafe_code, reason = "after a fork, kernel calls are all there is")]
unsafe fn change_user(prepared: &Prepared) -> bool {
    // SAFETY: the groups are those of `Prepared`.
    unsafe {
        if libc::getuid() == prepared.uid && libc::getgid() == prepared.gid && prepared.uid == 0 {
            return true;
        }
        libc::setgroups(prepared.groups.len(), prepared.groups.as_ptr()) == 0
            && libc::setresgid(prepared.gid, prepared.gid, prepared.gid) == 0
            && libc::setresuid(prepared.uid, prepared.uid, prepared.uid) == 0
    }
}

#[expect(unsafe_code, reason = "after a fork, kernel calls are all there is")]
unsafe fn reset_signals() {
    // SAFETY: the set is initialised before it is used. Numbers without a
    // signal are refused by the kernel, which does no harm.
    unsafe {
        for number in 1..=64 {
            libc::signal(number, libc::SIG_DFL);
        }
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// Tries each place. A program that is not there or cannot be executed is the
/// command's own failure, told on its stderr and by its exit code.
#[expect(unsafe_code, reason = "after a fork, kernel calls are all there is")]
unsafe fn execute(prepared: &Prepared, ready: c_int) -> ! {
    let mut is_denied = false;
    // SAFETY: the arrays end with a null, and their strings are those of `Prepared`.
    unsafe {
        for candidate in &prepared.candidates {
            libc::execve(candidate.as_ptr(), prepared.argv_pointers.as_ptr(), prepared.env_pointers.as_ptr());
            match *libc::__errno_location() {
                libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG => {}
                libc::EACCES | libc::EISDIR | libc::EPERM => is_denied = true,
                libc::ENOEXEC => {
                    let script = prepared.script_pointers.as_ptr().cast_mut();
                    // The copy is ours alone since the fork.
                    *script.add(1) = candidate.as_ptr();
                    libc::execve(SHELL.as_ptr().cast(), script, prepared.env_pointers.as_ptr());
                    is_denied = true;
                }
                _ => {
                    tell(ready, Step::Execute);
                    libc::_exit(0);
                }
            }
        }
        let (words, code): (&[u8], c_int) =
            if is_denied { (b": permission denied\n", 126) } else { (b": not found\n", 127) };
        let name = *prepared.argv_pointers.as_ptr();
        libc::write(2, name.cast(), libc::strlen(name));
        libc::write(2, words.as_ptr().cast(), words.len());
        libc::_exit(code)
    }
}
