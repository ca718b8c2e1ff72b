//! System calls that no library in use offers.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use rustix::process::Pid;

/// Namespaces and further flags of [`clone3`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CloneFlags(u64);

impl CloneFlags {
    /// A process without namespaces of its own.
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const PIDS: Self = Self(libc::CLONE_NEWPID as u64);
    pub(crate) const USER: Self = Self(libc::CLONE_NEWUSER as u64);
    pub(crate) const BOX: Self = Self(
        (libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS) as u64,
    );
    /// The child becomes a sibling, so that the launcher's parent can wait for it.
    pub(crate) const PARENT: Self = Self(libc::CLONE_PARENT as u64);

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The process in which [`clone3`] has returned.
pub(crate) enum Cloned {
    /// The new process, with a copy of the memory.
    Child,
    /// The old process, with the new one's pid.
    Parent(Pid),
}

/// Clones this process, which must have one thread only: the child goes on with
/// a copy of its memory.
pub(crate) fn clone3(flags: CloneFlags, exit_signal: i32, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned, Errno> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    /// `struct clone_args` of the kernel.
    #[repr(C)]
    #[derive(Default)]
    struct CloneArgs {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
        cgroup: u64,
    }
    let args = CloneArgs {
        flags: flags.0 | if cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 },
        exit_signal: u64::from(exit_signal.unsigned_abs()),
        cgroup: cgroup.map_or(0, |fd| u64::from(fd.as_raw_fd().unsigned_abs())),
        ..CloneArgs::default()
    };
    #[expect(unsafe_code, reason = "no library offers clone3")]
    // SAFETY: `args` is a valid clone_args of the size given. No memory is shared
    // with the child, and this process has one thread, so that no lock can be
    // held by a thread that the child does not have.
    let answer = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    match check(answer)? {
        0 => Ok(Cloned::Child),
        pid => Ok(Cloned::Parent(i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?)),
    }
}

/// Maps everything below a detached mount to the ids of a user namespace.
pub(crate) fn idmap_mount(mount: impl AsFd, user_namespace: impl AsFd) -> Result<(), Errno> {
    const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
    let userns_fd = u64::from(user_namespace.as_fd().as_raw_fd().unsigned_abs());
    set_attributes(mount, &MountAttr { attr_set: MOUNT_ATTR_IDMAP, userns_fd, ..MountAttr::default() })
}

/// Lets nothing be written through a mount and those below it, and no program of them get rights.
pub(crate) fn make_read_only(mount: impl AsFd) -> Result<(), Errno> {
    let flags =
        MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    set_attributes(mount, &MountAttr { attr_set: u64::from(flags.bits()), ..MountAttr::default() })
}

/// `struct mount_attr` of the kernel.
#[repr(C)]
#[derive(Debug, Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

fn set_attributes(mount: impl AsFd, attr: &MountAttr) -> Result<(), Errno> {
    const AT_RECURSIVE: u32 = 0x8000;
    let flags = u32::try_from(libc::AT_EMPTY_PATH).unwrap_or(0) | AT_RECURSIVE;
    #[expect(unsafe_code, reason = "no library offers mount_setattr")]
    // SAFETY: the path is a C string, `attr` a valid mount_attr of the size given.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    check(answer).map(drop)
}

/// Enters a new control group namespace, whose root is the current group.
pub(crate) fn unshare_cgroup_namespace() -> Result<(), Errno> {
    #[expect(unsafe_code, reason = "unshare has no safe form")]
    // SAFETY: no descriptor table is unshared.
    unsafe {
        rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWCGROUP)
    }
}

/// Executes an open file. Returns only on an error.
pub(crate) fn execute(file: impl AsFd, argv: &[CString], env: &[CString]) -> Errno {
    let argv = pointers(argv);
    let env = pointers(env);
    #[expect(unsafe_code, reason = "no library offers execveat")]
    // SAFETY: both arrays hold C strings that live on, and end with null.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_execveat,
            file.as_fd().as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            env.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    check(answer).err().unwrap_or(Errno::NOEXEC)
}

/// Returns pointers to the strings, and null at the end.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Marks every descriptor from `first` on to close at the next execution.
pub(crate) fn close_at_exec_from(first: u32) -> Result<(), Errno> {
    #[expect(unsafe_code, reason = "no library offers close_range")]
    // SAFETY: nothing is closed now, only marked.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    check(answer).map(drop)
}

/// Duplicates `fd` to `number`, which stays open at the next execution.
pub(crate) fn duplicate_to(fd: impl AsFd, number: i32) -> Result<(), Errno> {
    #[expect(unsafe_code, reason = "the number is fixed by the contract with the agent")]
    // SAFETY: numbers below `OWN_FDS_FROM` have no owner in this process.
    let answer = unsafe { libc::dup2(fd.as_fd().as_raw_fd(), number) };
    check(answer.into()).map(drop)
}

/// Resets every signal to its default action, including signals that the server's parent ignored.
pub(crate) fn reset_signals() {
    // `struct sigaction` of the kernel: handler, flags, restorer and mask, all zero.
    let default = [0u64; 4];
    for signal in 1..=64 {
        #[expect(unsafe_code, reason = "the C library hides two signals that can be ignored all the same")]
        // SAFETY: SIG_DFL runs no code of this process. The two signals that cannot be set are refused.
        unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u8>(), 8);
        }
    }
}

/// Sets the loopback interface of this network namespace up.
pub(crate) fn raise_loopback() -> Result<(), Errno> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    /// `struct ifreq` of the kernel with flags in its union.
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: i16,
        rest: [u8; 22],
    }
    let mut request = Request { name: [0; 16], flags: (libc::IFF_UP | libc::IFF_RUNNING) as i16, rest: [0; 22] };
    request.name[..2].copy_from_slice(b"lo");
    #[expect(unsafe_code, reason = "no library offers this ioctl")]
    // SAFETY: the kernel reads one ifreq, which is as large as `Request`.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    check(answer.into()).map(drop)
}

/// Has the kernel say of each packet of a socket of UDP which address it was sent to.
pub(crate) fn receive_destinations(socket: impl AsFd, is_v6: bool) -> Result<(), Errno> {
    let (level, option) =
        if is_v6 { (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) } else { (libc::IPPROTO_IP, libc::IP_PKTINFO) };
    let socket = socket.as_fd().as_raw_fd();
    let on = 1_i32;
    #[expect(unsafe_code, reason = "no library in use offers these options")]
    // SAFETY: the kernel reads one number of the size given.
    let answer =
        unsafe { libc::setsockopt(socket, level, option, (&raw const on).cast(), size_of::<i32>() as libc::socklen_t) };
    check(answer.into()).map(drop)
}

/// Installs a filter on this process and its descendants.
pub(crate) fn install_filter(program: &[libc::sock_filter]) -> Result<(), Errno> {
    install(program, 0).map(drop)
}

/// Installs a filter and returns its listener, which receives the calls that the filter makes wait.
/// Signals that do not kill interrupt no call that was received.
pub(crate) fn install_filter_with_listener(program: &[libc::sock_filter]) -> Result<OwnedFd, Errno> {
    const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;
    let fd = match install(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE_RECV) {
        // A kernel before 5.19.
        Err(Errno::INVAL) => install(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?,
        installed => installed?,
    };
    let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
    #[expect(unsafe_code, reason = "no library offers seccomp with a filter")]
    // SAFETY: the kernel has just made it, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn install(program: &[libc::sock_filter], flags: libc::c_ulong) -> Result<libc::c_long, Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?,
        filter: program.as_ptr().cast_mut(),
    };
    #[expect(unsafe_code, reason = "no library offers seccomp with a filter")]
    // SAFETY: the kernel only reads the program, which is as long as it says.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    check(answer)
}

/// Binds a file to a free loop device, which frees itself with its last user.
pub(crate) fn attach_loop(file: impl AsFd) -> Result<(OwnedFd, CString), Errno> {
    const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
    const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
    const LO_FLAGS_AUTOCLEAR: u32 = 4;
    /// Direct I/O, past the page cache of the host, which no control group of a box is charged for
    /// and which kernel threads fill for it. The kernel ignores the flag where the file system of
    /// the file does not support it.
    const LO_FLAGS_DIRECT_IO: u32 = 16;
    /// Attempts to get a device: another process may take the free one first, but repeated losses
    /// mean that something else is wrong.
    const ATTEMPTS_MAX: u32 = 64;
    /// `struct loop_config` of the kernel; the flags lie in its `loop_info64`.
    #[repr(C)]
    struct LoopConfig {
        fd: u32,
        block_size: u32,
        before_flags: [u8; 52],
        flags: u32,
        after_flags: [u8; 240],
    }
    const { assert!(size_of::<LoopConfig>() == 304) };
    let control = open_device(c"/dev/loop-control")?;
    let config = LoopConfig {
        fd: file.as_fd().as_raw_fd().unsigned_abs(),
        block_size: 0,
        before_flags: [0; 52],
        flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
        after_flags: [0; 240],
    };
    for _ in 0..ATTEMPTS_MAX {
        #[expect(unsafe_code, reason = "no library offers this ioctl")]
        // SAFETY: takes no argument.
        let number = check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) }.into())?;
        let path = CString::new(format!("/dev/loop{number}")).map_err(|_| Errno::INVAL)?;
        let device = open_device(&path)?;
        #[expect(unsafe_code, reason = "no library offers this ioctl")]
        // SAFETY: the kernel reads one loop_config, whose size is asserted above.
        let answer = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
        match check(answer.into()) {
            Ok(_) => return Ok((device, path)),
            Err(Errno::BUSY) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::BUSY)
}

fn open_device(path: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty())
}

/// Waits for a child and returns its exit code.
pub(crate) fn wait_for(pid: Pid) -> Result<i32, Errno> {
    let ended = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
    Ok(ended.and_then(|(_, status)| status.exit_status()).unwrap_or(libc::EINTR))
}

fn check(answer: libc::c_long) -> Result<libc::c_long, Errno> {
    if answer < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(answer)
}
