//! Addresses and routes of a diverted network, over netlink.
//!
//! Source: <https://man7.org/linux/man-pages/man7/rtnetlink.7.html>

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

use crate::diverted::{BOX_ADDRESS, BOX_ADDRESS_V6};

/// Number of the loopback interface in every network.
const LOOPBACK: u32 = 1;
/// Scope of addresses and routes that end at this host.
const SCOPE_HOST: u8 = 254;
/// Length of the head of a message.
const HEAD_BYTES: usize = 16;
/// Longest answer: an error, which repeats the message.
const ANSWER_BYTES_MAX: usize = 1024;

/// Gives the loopback its further addresses, and makes every other address one of the loopback's.
/// Processes connect from `127.0.0.1` or `::1` to all of them.
pub(super) fn make_all_local(has_v6: bool) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC;
    // The protocol without a number is that of routes.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    ask(&socket, libc::RTM_NEWADDR, &address(libc::AF_INET, &BOX_ADDRESS.octets()))?;
    ask(&socket, libc::RTM_NEWROUTE, &route(libc::AF_INET, &Ipv4Addr::LOCALHOST.octets()))?;
    if has_v6 {
        ask(&socket, libc::RTM_NEWADDR, &address(libc::AF_INET6, &BOX_ADDRESS_V6.octets()))?;
        ask(&socket, libc::RTM_NEWROUTE, &route(libc::AF_INET6, &Ipv6Addr::LOCALHOST.octets()))?;
    }
    Ok(())
}

/// Returns the content of a message for an address of the loopback.
fn address(family: i32, address: &[u8]) -> Vec<u8> {
    // `struct ifaddrmsg`: family, length of the prefix, flags, scope, interface.
    let mut content = vec![family as u8, 8 * address.len() as u8, 0, SCOPE_HOST];
    content.extend(LOOPBACK.to_ne_bytes());
    attribute(&mut content, libc::IFA_LOCAL, address);
    attribute(&mut content, libc::IFA_ADDRESS, address);
    content
}

/// Returns the content of a message for the route of all addresses that no other route is for.
fn route(family: i32, from: &[u8]) -> Vec<u8> {
    // `struct rtmsg`: family, lengths of two prefixes, kind of service, table, origin, scope, type,
    // flags.
    let mut content = vec![family as u8, 0, 0, 0, libc::RT_TABLE_LOCAL, libc::RTPROT_BOOT, SCOPE_HOST, libc::RTN_LOCAL];
    content.extend(0_u32.to_ne_bytes());
    attribute(&mut content, libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
    attribute(&mut content, libc::RTA_PREFSRC, from);
    content
}

fn attribute(content: &mut Vec<u8>, kind: u16, value: &[u8]) {
    // Values are of 4 or 16 bytes, so that nothing has to be filled up.
    content.extend((4 + value.len() as u16).to_ne_bytes());
    content.extend(kind.to_ne_bytes());
    content.extend(value);
}

/// Sends a message and waits for its answer.
fn ask(socket: &OwnedFd, kind: u16, content: &[u8]) -> Result<(), Errno> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let mut message = Vec::with_capacity(HEAD_BYTES + content.len());
    message.extend((HEAD_BYTES as u32 + content.len() as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((flags as u16).to_ne_bytes());
    // Number of the message and of its sender: there is no other.
    message.extend([0; 8]);
    message.extend(content);
    send(socket, &message, SendFlags::empty())?;
    let mut answer = [0; ANSWER_BYTES_MAX];
    let (count, _) = recv(socket, &mut answer[..], RecvFlags::empty())?;
    let code = answer.get(..count).and_then(|answer| answer.get(HEAD_BYTES..HEAD_BYTES + 4));
    let code = code.and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes).ok_or(Errno::BADMSG)?;
    if code == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(code.saturating_neg())) }
}
