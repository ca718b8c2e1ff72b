//! Ports that processes of the box listen on, and the processes.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use guest_protocol::{ListeningPort, Network};

use crate::agent::Agent;
use crate::budget::Share;
use crate::exec::processes::Processes;
use crate::failure::Result;
use crate::known_ports::{PortKey, key};
use crate::serve::rows::Rows;
use crate::sockets::Socket;

/// Most descriptors that are looked at in search of the processes of the sockets. Those of a box are
/// few, unless it wants to keep its agent busy.
const DESCRIPTORS_MAX: usize = 20_000;

/// Ports of an answer.
#[derive(Debug)]
pub(crate) struct Ports {
    /// In reverse order.
    ports: Vec<ListeningPort>,
    _share: Share,
}

impl Rows for Ports {
    type Row<'a> = ListeningPort;

    fn next(&mut self) -> Option<ListeningPort> {
        self.ports.pop()
    }
}

/// Returns the ports that processes of the box listen on, sorted.
///
/// # Errors
/// Internal if the kernel shows none; those of the budget.
pub(crate) async fn ports(agent: &Agent, mut share: Share) -> Result<Ports> {
    let mut sockets = agent.sockets.listening()?;
    sockets.retain(|socket| !agent.is_own(socket.address, socket.port));
    share.take(sockets.len() * size_of::<ListeningPort>()).await?;
    // Several sockets may share a port.
    let mut found: BTreeMap<PortKey, ListeningPort> = BTreeMap::new();
    for port in of_box(agent, &sockets).into_iter().flatten() {
        found.entry(key(&port)).or_insert(port);
    }
    share.gathered();
    Ok(Ports { ports: found.into_values().rev().collect(), _share: share })
}

/// Returns the port of each socket, with its process; `None` for a socket that is not the box's.
pub(super) fn of_box(agent: &Agent, sockets: &[Socket]) -> Vec<Option<ListeningPort>> {
    let owners = owners(agent, sockets);
    let ports = sockets.iter().map(|socket| {
        let Socket { port, address, inode } = *socket;
        let pid = owners.get(&inode).copied();
        if pid.is_none() && agent.boot.network == Network::Shared {
            return None;
        }
        let process = pid.and_then(name);
        Some(ListeningPort { port, address, pid: pid.and_then(|pid| u32::try_from(pid).ok()), process })
    });
    ports.collect()
}

/// Returns the addresses at which processes of the box accept connections to `port`.
pub(super) fn addresses(agent: &Agent, port: u16) -> Result<Vec<IpAddr>> {
    let mut sockets = agent.sockets.listening()?;
    sockets.retain(|socket| socket.port == port);
    if agent.boot.network == Network::Shared {
        let owners = owners(agent, &sockets);
        sockets.retain(|socket| owners.contains_key(&socket.inode));
    }
    let addresses = sockets.iter().map(|socket| reached_at(socket.address));
    // A process can bind an address that leads out of the box; connections to it go there all the same.
    Ok(addresses.filter(|address| agent.egress.is_in_the_box(*address)).collect())
}

/// Returns the address at which a socket that is bound to `bound` is reached.
fn reached_at(bound: IpAddr) -> IpAddr {
    match bound {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V4(_) | IpAddr::V6(_) => bound,
    }
}

/// Finds a process of the box that holds each socket, by inode.
fn owners(agent: &Agent, sockets: &[Socket]) -> HashMap<u64, i32> {
    let mut found = HashMap::new();
    if sockets.is_empty() {
        return found;
    }
    let wanted: HashMap<String, u64> =
        sockets.iter().map(|socket| (format!("socket:[{}]", socket.inode), socket.inode)).collect();
    let processes = Processes::read();
    let pids = if agent.boot.network == Network::Shared { processes.below(&[agent.pid]) } else { processes.pids() };
    let mut left = DESCRIPTORS_MAX;
    for pid in pids {
        // Those of another user cannot be seen.
        for descriptor in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            if left == 0 || found.len() == wanted.len() {
                return found;
            }
            left -= 1;
            let target = fs::read_link(descriptor.path()).ok();
            if let Some(inode) = target.and_then(|target| wanted.get(target.to_str()?).copied()) {
                found.entry(inode).or_insert(pid);
            }
        }
    }
    found
}

/// Returns the name of a process.
fn name(pid: i32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_socket_on_all_addresses_is_reached_on_loopback() {
        for (bound, at) in [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.7", "10.0.0.7"), ("::1", "::1")] {
            assert_eq!(reached_at(bound.parse().unwrap()), at.parse::<IpAddr>().unwrap());
        }
    }
}
