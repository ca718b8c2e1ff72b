//! Settings of the machine's kernel.

use std::fs;

use guest_protocol::MACHINE_ENTROPY_BYTES;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, mkdir};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::time::{ClockId, Timespec, clock_settime};

use crate::launch::refused::{At, Refused};

/// Flags of file systems that have no programs.
pub(super) const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Mounts the views of processes and devices that this process itself needs.
pub(super) fn mount_views() -> Result<(), Refused> {
    for (kind, dir, flags) in
        [("proc", "/proc", PLAIN), ("devtmpfs", "/dev", MountFlags::NOSUID), ("sysfs", "/sys", PLAIN)]
    {
        make_dir(dir)?;
        match mount(kind, dir, kind, flags, None) {
            // The kernel has mounted it already.
            Ok(()) | Err(Errno::BUSY) => {}
            Err(errno) => return Err(errno).at(&format!("mount {dir}")),
        }
    }
    Ok(())
}

/// Has the kernel take a pause of the machine for no fault, if it watches for faults at all.
pub(super) fn stop_watchdog() {
    let _ = fs::write("/proc/sys/kernel/watchdog", "0");
}

/// Makes a directory unless it is there.
pub(super) fn make_dir(path: &str) -> Result<(), Refused> {
    match mkdir(path, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno).at(&format!("make {path}")),
    }
}

/// Opens the random numbers of this kernel.
pub(super) fn open_random() -> Result<OwnedFd, Refused> {
    rustix::fs::open("/dev/urandom", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .at("open the random number generator")
}

/// Makes the random numbers of this kernel differ from those of any other machine that began with the
/// same memory.
pub(super) fn stir(random: &OwnedFd, entropy: &str) -> Result<(), Refused> {
    const STEP: &str = "seed the random number generator";
    let bytes = bytes(entropy).ok_or(Errno::INVAL).at(STEP)?;
    credit(random, &bytes).at(STEP)
}

/// Returns the bytes of hexadecimal digits.
fn bytes(digits: &str) -> Option<[u8; MACHINE_ENTROPY_BYTES]> {
    let mut bytes = [0; MACHINE_ENTROPY_BYTES];
    if digits.len() != 2 * bytes.len() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// Adds bytes that are all random to the kernel's own, and has it begin anew with them.
fn credit(random: &OwnedFd, bytes: &[u8; MACHINE_ENTROPY_BYTES]) -> Result<(), Errno> {
    use std::os::fd::AsRawFd as _;
    const RNDADDENTROPY: libc::Ioctl = 0x4008_5203;
    const RNDRESEEDCRNG: libc::Ioctl = 0x5207;
    /// `struct rand_pool_info` of the kernel.
    #[repr(C)]
    struct Pool {
        bits: i32,
        size: i32,
        bytes: [u8; MACHINE_ENTROPY_BYTES],
    }
    let size = i32::try_from(bytes.len()).map_err(|_| Errno::INVAL)?;
    let pool = Pool { bits: size * 8, size, bytes: *bytes };
    #[expect(unsafe_code, reason = "no library offers these controls")]
    // SAFETY: the kernel reads one pool, whose size is in it; the second control takes nothing.
    let answers = unsafe {
        [
            libc::ioctl(random.as_raw_fd(), RNDADDENTROPY, &raw const pool),
            libc::ioctl(random.as_raw_fd(), RNDRESEEDCRNG),
        ]
    };
    if answers.iter().any(|answer| *answer < 0) {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(())
}

/// Sets the wall clock.
pub(super) fn set_clock(now_ns: u64) -> Result<(), Refused> {
    const SECOND_NS: u64 = 1_000_000_000;
    let whole = i64::try_from(now_ns / SECOND_NS).map_err(|_| Errno::INVAL).at("set the clock")?;
    let rest = i64::try_from(now_ns % SECOND_NS).map_err(|_| Errno::INVAL).at("set the clock")?;
    clock_settime(ClockId::Realtime, Timespec { tv_sec: whole, tv_nsec: rest }).at("set the clock")
}

#[cfg(test)]
mod test {
    use super::bytes;

    #[test]
    fn random_bytes_that_are_not_whole_are_refused() {
        let digits = "0f".repeat(64);
        assert_eq!(bytes(&digits), Some([15; 64]));
        for broken in [&digits[2..], &"0g".repeat(64), &"é".repeat(64), "", &("+f".repeat(64))] {
            assert_eq!(bytes(broken), None, "{broken}");
        }
    }
}
