//! Calls of `bpf(2)`, which no library in use offers.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::program::Instruction;

/// Commands of the call.
const MAP_CREATE: u32 = 0;
const MAP_UPDATE: u32 = 2;
const PROG_LOAD: u32 = 5;
const LINK_CREATE: u32 = 28;
/// Kind of a map of sockets.
const SOCKMAP: u32 = 15;
/// Kind of a program that chooses sockets, and of its place.
const SK_LOOKUP: u32 = 30;
const AT_SK_LOOKUP: u32 = 36;

/// Makes an empty map with places for this many sockets.
pub(super) fn socket_map(places: u32) -> Result<OwnedFd, Errno> {
    #[repr(C)]
    struct Attributes {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
    }
    let attributes = Attributes { map_type: SOCKMAP, key_size: 4, value_size: 4, max_entries: places };
    descriptor(call(MAP_CREATE, &attributes)?)
}

/// Puts a socket into a place of a map.
pub(super) fn put(map: &OwnedFd, place: u32, socket: &OwnedFd) -> Result<(), Errno> {
    #[repr(C)]
    struct Attributes {
        map_fd: u32,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let socket = number(socket);
    let key = address(&raw const place);
    let value = address(&raw const socket);
    call(MAP_UPDATE, &Attributes { map_fd: number(map), padding: 0, key, value, flags: 0 }).map(drop)
}

/// Loads a program that chooses sockets.
pub(super) fn load(program: &[Instruction]) -> Result<OwnedFd, Errno> {
    #[repr(C)]
    struct Attributes {
        prog_type: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        place: u32,
    }
    let mut name = [0; 16];
    name[..b"tidebox_divert".len()].copy_from_slice(b"tidebox_divert");
    let attributes = Attributes {
        prog_type: SK_LOOKUP,
        count: u32::try_from(program.len()).map_err(|_| Errno::TOOBIG)?,
        instructions: address(program.as_ptr()),
        license: address(c"Apache-2.0".as_ptr()),
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name,
        interface: 0,
        place: AT_SK_LOOKUP,
    };
    descriptor(call(PROG_LOAD, &attributes)?)
}

/// Attaches a program to a network, for as long as the returned descriptor is open.
pub(super) fn attach(program: &OwnedFd, network: &OwnedFd) -> Result<OwnedFd, Errno> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        network: u32,
        place: u32,
        flags: u32,
    }
    let attributes = Attributes { program: number(program), network: number(network), place: AT_SK_LOOKUP, flags: 0 };
    descriptor(call(LINK_CREATE, &attributes)?)
}

fn number(fd: &OwnedFd) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

fn address<T>(pointer: *const T) -> u64 {
    pointer.addr() as u64
}

fn call<T>(command: u32, attributes: &T) -> Result<libc::c_long, Errno> {
    #[expect(unsafe_code, reason = "no library in use offers bpf")]
    // SAFETY: the kernel reads attributes of the size given, and what they point at lives until it
    // returns.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if answer < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(answer)
}

fn descriptor(answer: libc::c_long) -> Result<OwnedFd, Errno> {
    let number = i32::try_from(answer).map_err(|_| Errno::BADF)?;
    #[expect(unsafe_code, reason = "no library in use offers bpf")]
    // SAFETY: the kernel has just made it, so it has no other owner. It is closed at an execution.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
