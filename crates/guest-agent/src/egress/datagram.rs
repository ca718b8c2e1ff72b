//! Datagrams with the address that they were sent to, which is not that of the socket.

#![expect(unsafe_code, reason = "no library in use reads and writes these messages of the kernel")]

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

/// Room for the message of the kernel that has the address.
const CONTROL_BYTES: usize = 64;

/// A datagram that was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Datagram {
    pub(super) from: SocketAddr,
    /// Address that it was sent to.
    pub(super) to: IpAddr,
    /// Number of bytes that the buffer has of it.
    pub(super) length: usize,
    /// True if the buffer was too short.
    pub(super) is_cut: bool,
}

/// Control messages, aligned as the kernel wants them.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Address of a sender or receiver.
#[repr(C)]
union Address {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// Receives a datagram.
///
/// # Errors
/// Those of the kernel; invalid data for one without an address.
pub(super) fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> io::Result<Datagram> {
    // SAFETY: all bits zero are a valid value of each of them.
    let (mut from, mut head) = unsafe { (std::mem::zeroed::<Address>(), std::mem::zeroed::<libc::msghdr>()) };
    let mut control = Control([0; CONTROL_BYTES]);
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    head.msg_name = (&raw mut from).cast();
    head.msg_namelen = size_of::<Address>() as libc::socklen_t;
    head.msg_iov = &raw mut piece;
    head.msg_iovlen = 1;
    head.msg_control = control.0.as_mut_ptr().cast();
    head.msg_controllen = CONTROL_BYTES as _;
    // SAFETY: `head` has buffers that live until the kernel returns, with their lengths.
    let count = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut head, libc::MSG_DONTWAIT) };
    let length = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let is_cut = head.msg_flags & libc::MSG_TRUNC != 0;
    // SAFETY: the kernel has written an address of the family that it says, or the zeros are left; and
    // whole control messages, with a value of the size that belongs to their type.
    let (from, to) = unsafe { (address(&from), destination(&head)) };
    let (Some(from), Some(to)) = (from, to) else { return Err(io::ErrorKind::InvalidData.into()) };
    Ok(Datagram { from, to, length, is_cut })
}

/// # Safety
/// The union has an address of its family.
unsafe fn address(address: &Address) -> Option<SocketAddr> {
    // SAFETY: the family is the first part of all.
    unsafe {
        match i32::from(address.family) {
            libc::AF_INET => {
                let libc::sockaddr_in { sin_addr, sin_port, .. } = address.v4;
                Some(SocketAddrV4::new(sin_addr.s_addr.to_ne_bytes().into(), u16::from_be(sin_port)).into())
            }
            libc::AF_INET6 => {
                let libc::sockaddr_in6 { sin6_addr, sin6_port, sin6_scope_id, .. } = address.v6;
                Some(SocketAddrV6::new(sin6_addr.s6_addr.into(), u16::from_be(sin6_port), 0, sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// # Safety
/// The control messages are those that the kernel has written.
unsafe fn destination(head: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: the macros keep within the length that the kernel has set.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(head);
        while !message.is_null() {
            let data = libc::CMSG_DATA(message);
            match ((*message).cmsg_level, (*message).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info: libc::in_pktinfo = data.cast::<libc::in_pktinfo>().read_unaligned();
                    return Some(IpAddr::from(info.ipi_addr.s_addr.to_ne_bytes()));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info: libc::in6_pktinfo = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    return Some(IpAddr::from(info.ipi6_addr.s6_addr));
                }
                _ => message = libc::CMSG_NXTHDR(head, message),
            }
        }
        None
    }
}

/// Sends a datagram from the address `from`.
///
/// # Errors
/// Those of the kernel.
pub(super) fn send(socket: &impl AsFd, bytes: &[u8], from: IpAddr, to: SocketAddr) -> io::Result<()> {
    // SAFETY: all bits zero are a valid value of each of them.
    let (mut name, mut head) = unsafe { (std::mem::zeroed::<Address>(), std::mem::zeroed::<libc::msghdr>()) };
    let mut control = Control([0; CONTROL_BYTES]);
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    head.msg_iov = &raw mut piece;
    head.msg_iovlen = 1;
    head.msg_control = control.0.as_mut_ptr().cast();
    head.msg_namelen = match to {
        SocketAddr::V4(to) => {
            name.v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: to.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
                sin_zero: [0; 8],
            };
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(to) => {
            name.v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: to.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: to.ip().octets() },
                sin6_scope_id: to.scope_id(),
            };
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    };
    head.msg_name = (&raw mut name).cast();
    // SAFETY: the room for control messages is larger than the one that is written.
    unsafe {
        match from {
            IpAddr::V4(from) => {
                let source = libc::in_addr { s_addr: u32::from_ne_bytes(from.octets()) };
                let info =
                    libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: source, ipi_addr: libc::in_addr { s_addr: 0 } };
                put(&mut head, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
            }
            IpAddr::V6(from) => {
                let info = libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: from.octets() }, ipi6_ifindex: 0 };
                put(&mut head, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
            }
        }
    }
    // SAFETY: `head` has buffers that live until the kernel returns, with their lengths.
    let sent =
        unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const head, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Writes the one control message of a head.
///
/// # Safety
/// The room for control messages of the head holds one with `T`.
unsafe fn put<T>(head: &mut libc::msghdr, level: i32, kind: i32, value: T) {
    let size = size_of::<T>() as u32;
    // SAFETY: there is room, as the caller says.
    unsafe {
        head.msg_controllen = libc::CMSG_SPACE(size) as _;
        let message = libc::CMSG_FIRSTHDR(head);
        (*message).cmsg_level = level;
        (*message).cmsg_type = kind;
        (*message).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(message).cast::<T>().write_unaligned(value);
    }
}

#[cfg(test)]
mod test {
    use std::net::UdpSocket;

    use super::*;
    use crate::launch::receive_destinations;

    #[test]
    fn a_datagram_says_where_it_was_sent_to_and_its_answer_comes_from_there() {
        for (at, to) in [("0.0.0.0:0", "127.0.0.7"), ("[::1]:0", "::1")] {
            let Ok(socket) = UdpSocket::bind(at) else { continue };
            receive_destinations(&socket, at.starts_with('[')).unwrap();
            let to: IpAddr = to.parse().unwrap();
            let here = SocketAddr::new(to, socket.local_addr().unwrap().port());
            let client = UdpSocket::bind(SocketAddr::new(to, 0)).unwrap();
            client.connect(here).unwrap();
            let mut buffer = [0; 8];
            assert_eq!(receive(&socket, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            for (sent, is_cut) in [(&b"1234"[..], false), (b"", false), (b"12345678", false), (b"123456789", true)] {
                client.send(sent).unwrap();
                let got = receive(&socket, &mut buffer).unwrap();
                assert_eq!((got.from, got.to, got.is_cut), (client.local_addr().unwrap(), to, is_cut));
                assert_eq!(buffer[..got.length], sent[..sent.len().min(8)]);
            }
            // The client is connected, so an answer from elsewhere would not arrive.
            send(&socket, b"back", to, client.local_addr().unwrap()).unwrap();
            assert_eq!((client.recv(&mut buffer).unwrap(), &buffer[..4]), (4, &b"back"[..]));
        }
    }
}
