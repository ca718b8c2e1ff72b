//! Diversion of a box's connections to its agent.
//!
//! The network of a box has a loopback and nothing else. Here every address becomes one of that
//! loopback, and a program of the kernel (`sk_lookup`) chooses the socket that a connection arrives
//! at: the agent's own. Nothing of the host's network changes, and no packet is rewritten, so the
//! agent reads the address that the process asked for from the socket.
//!
//! Loading the program takes capabilities over the host, which the box and its agent do not have: they
//! cannot make, change or replace a rule. The agent holds it by a descriptor, and the kernel drops it
//! with the last one.

mod bpf;
mod program;
mod routes;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::descriptors::{open, own};
use super::refused::{At, Refused};
use super::syscall;
use crate::diverted::{DNS_PORT, NAME_SERVER, NAME_SERVER_V6, PROXY_PORT};
use crate::tcp::BACKLOG;

/// Descriptors that the agent of a diverted box gets.
pub(super) struct Diversion {
    /// The rule.
    pub(super) rule: OwnedFd,
    pub(super) v4: Sockets,
    /// `None` in a box without IPv6.
    pub(super) v6: Option<Sockets>,
}

/// Sockets for one version of IP.
pub(super) struct Sockets {
    pub(super) tcp: OwnedFd,
    pub(super) udp: OwnedFd,
}

impl Diversion {
    /// Returns the descriptors in the order in which [`Diversion::from_descriptors`] takes them.
    pub(super) fn descriptors(&self) -> Vec<&OwnedFd> {
        let sockets = std::iter::once(&self.v4).chain(&self.v6);
        std::iter::once(&self.rule).chain(sockets.flat_map(|it| [&it.tcp, &it.udp])).collect()
    }

    /// Returns `None` for another number of descriptors than there can be.
    pub(super) fn from_descriptors(descriptors: Vec<OwnedFd>) -> Option<Diversion> {
        let mut descriptors = descriptors.into_iter();
        let rule = descriptors.next()?;
        let tcp = descriptors.next()?;
        let udp = descriptors.next()?;
        let v6 = match (descriptors.next(), descriptors.next(), descriptors.next()) {
            (None, None, None) => None,
            (Some(tcp), Some(udp), None) => Some(Sockets { tcp, udp }),
            _ => return None,
        };
        Some(Diversion { rule, v4: Sockets { tcp, udp }, v6 })
    }
}

/// Diverts the connections of the network of a process, and moves this process there.
pub(super) fn divert(pid: Pid) -> Result<Diversion, Refused> {
    const STEP: &str = "enter the network of the box";
    const LOCAL: &str = "make all addresses local";
    const SOCKETS: &str = "open the sockets of the agent";
    let network = open(&format!("/proc/{pid}/ns/net"), OFlags::RDONLY).at(STEP)?;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).at(STEP)?;
    syscall::raise_loopback().at(LOCAL)?;
    let v4 = sockets(AddressFamily::INET).at(SOCKETS)?;
    let v6 = match sockets(AddressFamily::INET6) {
        Ok(sockets) => Some(sockets),
        // A kernel without IPv6, or one that has none on the loopback.
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => None,
        Err(errno) => return Err(errno).at(SOCKETS),
    };
    routes::make_all_local(v6.is_some()).at(LOCAL)?;
    let rule = rule(&network, &v4, v6.as_ref())?;
    Ok(Diversion { rule, v4, v6 })
}

/// Attaches the program to the network.
fn rule(network: &OwnedFd, v4: &Sockets, v6: Option<&Sockets>) -> Result<OwnedFd, Refused> {
    let map = bpf::socket_map(program::SOCKETS).at("make a map of sockets")?;
    let places = [
        (program::TCP4, Some(&v4.tcp)),
        (program::UDP4, Some(&v4.udp)),
        (program::TCP6, v6.map(|it| &it.tcp)),
        (program::UDP6, v6.map(|it| &it.udp)),
    ];
    for (place, socket) in places {
        if let Some(socket) = socket {
            bpf::put(&map, place, socket).at("make a map of sockets")?;
        }
    }
    let program = bpf::load(&program::program(&map)).at("load the rule of diverted connections")?;
    bpf::attach(&program, network).and_then(own).at("attach the rule of diverted connections")
}

/// Opens the two sockets of one version of IP.
fn sockets(family: AddressFamily) -> Result<Sockets, Errno> {
    let is_v6 = family == AddressFamily::INET6;
    let tcp = socket(family, SocketType::STREAM)?;
    let udp = socket(family, SocketType::DGRAM)?;
    let (loopback, name_server): (IpAddr, IpAddr) = match is_v6 {
        true => (Ipv6Addr::LOCALHOST.into(), NAME_SERVER_V6.into()),
        false => (Ipv4Addr::LOCALHOST.into(), NAME_SERVER.into()),
    };
    bind(&tcp, &SocketAddr::new(loopback, PROXY_PORT))?;
    listen(&tcp, BACKLOG)?;
    // Answers leave from the address that was asked, which the interface does not have, and from the
    // port of this socket. A server of the box can share that port if it allows sharing, too.
    if is_v6 {
        sockopt::set_ipv6_freebind(&udp, true)?;
    } else {
        sockopt::set_ip_freebind(&udp, true)?;
    }
    sockopt::set_socket_reuseaddr(&udp, true)?;
    syscall::receive_destinations(&udp, is_v6)?;
    bind(&udp, &SocketAddr::new(name_server, DNS_PORT))?;
    Ok(Sockets { tcp, udp })
}

fn socket(family: AddressFamily, kind: SocketType) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, kind, flags, None).and_then(own)?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}
