//! Network of a box whose connections to addresses outside of it are led to its agent.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use guest_protocol::Diverted;

use crate::descriptor::take;

/// Port of the proxy in a box that has a loopback of its own, if it is free.
pub(crate) const PROXY_PORT: u16 = 7424;
/// Port of name servers.
pub(crate) const DNS_PORT: u16 = 53;
/// Addresses of the box itself besides those of the loopback. Without them, `getaddrinfo(3)` finds
/// nothing for programs that ask only for versions of IP that the machine has.
pub(crate) const BOX_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Differs from the loopback's in the first 32 bits only, as the rule of the kernel has it.
pub(crate) const BOX_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1);
/// Address of the name server in `/etc/resolv.conf`; any other one works as well.
pub(crate) const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Address of the name server's socket of IPv6, of a range that no host has.
pub(crate) const NAME_SERVER_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0x35);

/// Returns whether an address is one of the box itself.
pub(crate) fn is_in_the_box(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_loopback() || address == BOX_ADDRESS,
        IpAddr::V6(address) => address.is_loopback() || address == BOX_ADDRESS_V6,
    }
}

/// Sockets that the kernel leads the box's connections to.
#[derive(Debug)]
pub(crate) struct DivertedSockets {
    /// Rule of the kernel, which holds as long as this is open.
    pub(crate) rule: OwnedFd,
    pub(crate) tcp: Vec<OwnedFd>,
    pub(crate) udp: Vec<OwnedFd>,
}

impl DivertedSockets {
    /// Takes the descriptors that the launcher has opened.
    pub(crate) fn take(numbers: &Diverted) -> io::Result<DivertedSockets> {
        Ok(DivertedSockets {
            rule: take(numbers.rule_fd)?,
            tcp: take_all(&numbers.tcp_fds)?,
            udp: take_all(&numbers.udp_fds)?,
        })
    }
}

fn take_all(numbers: &[i32]) -> io::Result<Vec<OwnedFd>> {
    numbers.iter().map(|number| take(*number)).collect()
}
