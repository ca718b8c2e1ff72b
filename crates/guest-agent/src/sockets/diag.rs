//! Sockets from netlink's `sock_diag`, which reads the table of those that listen alone. `/proc/net/tcp`
//! walks the table of all connections of the host.
//!
//! Source: `sock_diag(7)`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use guest_protocol::PORTS_MAX;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

use super::socket::Socket;

/// Type of a request for sockets by their family.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Flags of a request for all that fit.
const REQUEST_DUMP: u16 = 0x301;
/// Type of the message that ends an answer.
const DONE: u16 = 3;
/// Type of the message with an error.
const ERROR: u16 = 2;
/// Number of TCP.
const TCP: u8 = 6;
/// Bit of the state of a socket that listens.
const LISTEN: u32 = 1 << 10;
/// Bytes of the head of a message.
const HEAD_BYTES: usize = 16;
/// Bytes of a request: the head, family, protocol, extensions, padding, states, and a socket of which
/// nothing is given.
const REQUEST_BYTES: usize = HEAD_BYTES + 8 + 48;
/// Bytes of the description of a socket.
const SOCKET_BYTES: usize = 72;
/// Size of a read: the kernel writes no more at once.
const READ_BYTES: usize = 32 * 1024;

/// Opens a socket by which the sockets of the present network can be listed.
///
/// # Errors
/// The kernel's, or that of a filter of system calls.
pub(crate) fn open() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::SOCK_DIAG))
}

/// Returns the sockets that listen.
pub(super) fn listening(diag: &OwnedFd) -> Result<Vec<Socket>, Errno> {
    let mut sockets = Vec::new();
    dump(diag, libc::AF_INET, &mut sockets)?;
    match dump(diag, libc::AF_INET6, &mut sockets) {
        // A kernel without IPv6.
        Ok(()) | Err(Errno::NOENT) => Ok(sockets),
        Err(errno) => Err(errno),
    }
}

fn dump(diag: &OwnedFd, family: i32, into: &mut Vec<Socket>) -> Result<(), Errno> {
    send(diag, &request(family), SendFlags::empty())?;
    let mut buffer = vec![0; READ_BYTES];
    loop {
        // The kernel has written what there is before it returns from the request and from a read.
        let (_, count) = recv(diag, &mut buffer[..], RecvFlags::DONTWAIT)?;
        let mut rest = buffer.get(..count).ok_or(Errno::MSGSIZE)?;
        while !rest.is_empty() {
            let (kind, message, after) = split(rest).ok_or(Errno::BADMSG)?;
            rest = after;
            match kind {
                DONE => return Ok(()),
                ERROR => return Err(error(message)),
                // What is above the limit still has to be read.
                SOCK_DIAG_BY_FAMILY if into.len() < PORTS_MAX => into.push(parse(message).ok_or(Errno::BADMSG)?),
                _ => {}
            }
        }
    }
}

fn request(family: i32) -> [u8; REQUEST_BYTES] {
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    request[HEAD_BYTES] = family.to_ne_bytes()[if cfg!(target_endian = "big") { 3 } else { 0 }];
    request[HEAD_BYTES + 1] = TCP;
    request[HEAD_BYTES + 4..HEAD_BYTES + 8].copy_from_slice(&LISTEN.to_ne_bytes());
    request
}

/// Splits the first message off: its type, its content and the messages after it.
fn split(messages: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(array(messages, 0)?)).ok()?;
    let kind = u16::from_ne_bytes(array(messages, 4)?);
    let content = messages.get(HEAD_BYTES..length)?;
    Some((kind, content, messages.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn error(message: &[u8]) -> Errno {
    let code = array(message, 0).map_or(0, i32::from_ne_bytes);
    Errno::from_raw_os_error(code.saturating_neg())
}

/// Parses the description of a socket: family, state, …, port and address here, …, inode.
fn parse(message: &[u8]) -> Option<Socket> {
    let message = message.get(..SOCKET_BYTES)?;
    let address = match i32::from(message[0]) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(array::<4>(message, 8)?)),
        libc::AF_INET6 => Ipv6Addr::from(array::<16>(message, 8)?).to_canonical(),
        _ => return None,
    };
    let inode = u32::from_ne_bytes(array(message, 68)?).into();
    Some(Socket { port: u16::from_be_bytes(array(message, 4)?), address, inode })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn messages_that_are_cut_off_are_refused() {
        let mut message = vec![0; HEAD_BYTES + SOCKET_BYTES];
        message[..4].copy_from_slice(&88_u32.to_ne_bytes());
        message[HEAD_BYTES] = 2;
        message[HEAD_BYTES + 4..HEAD_BYTES + 6].copy_from_slice(&8080_u16.to_be_bytes());
        message[HEAD_BYTES + 8..HEAD_BYTES + 12].copy_from_slice(&[127, 0, 0, 1]);
        let (_, content, rest) = split(&message).unwrap();
        let socket = Socket { port: 8080, address: Ipv4Addr::LOCALHOST.into(), inode: 0 };
        assert_eq!((parse(content), rest.len()), (Some(socket), 0));
        assert_eq!(parse(&content[1..]), None);
        for length in [0, 3, 15, 87] {
            assert!(split(&message[..length]).is_none(), "{length}");
        }
        for length in [0_u32, 15, 89, u32::MAX] {
            message[..4].copy_from_slice(&length.to_ne_bytes());
            assert!(split(&message).is_none(), "{length}");
        }
    }
}
