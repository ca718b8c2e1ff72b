//! Sockets that listen, from `/proc/net/tcp` and `/proc/net/tcp6`.
//!
//! Source: <https://www.kernel.org/doc/html/latest/networking/proc_net_tcp.html>

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use guest_protocol::{ListeningPort, Network, PORTS_MAX};

use crate::agent::Agent;
use crate::budget::Share;
use crate::exec::processes::Processes;
use crate::failure::{Result, internal};
use crate::serve::rows::Rows;

/// Number that the kernel gives the state of a socket that listens.
const LISTEN: &str = "0A";
/// Most descriptors that are looked at in search of the processes of the sockets. Those of a box are
/// few, unless it wants to keep its agent busy.
const DESCRIPTORS_MAX: usize = 20_000;

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Socket {
    address: IpAddr,
    port: u16,
    inode: u64,
}

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
    let mut sockets = all()?;
    sockets.retain(|socket| !agent.egress.is_own(socket.address, socket.port));
    share.take(sockets.len() * size_of::<ListeningPort>()).await?;
    let owners = owners(agent, &sockets);
    // Several sockets may share a port.
    let mut found: BTreeMap<(u16, IpAddr), ListeningPort> = BTreeMap::new();
    for Socket { address, port, inode } in sockets {
        let pid = owners.get(&inode).copied();
        if pid.is_none() && agent.boot.network == Network::Shared {
            continue;
        }
        let process = pid.and_then(name);
        let pid = pid.and_then(|pid| u32::try_from(pid).ok());
        found.entry((port, address)).or_insert(ListeningPort { port, address, pid, process });
    }
    share.gathered();
    Ok(Ports { ports: found.into_values().rev().collect(), _share: share })
}

/// Returns the addresses at which processes of the box accept connections to `port`.
pub(super) fn addresses(agent: &Agent, port: u16) -> Result<Vec<IpAddr>> {
    let mut sockets = all()?;
    sockets.retain(|socket| socket.port == port);
    if agent.boot.network == Network::Shared {
        let owners = owners(agent, &sockets);
        sockets.retain(|socket| owners.contains_key(&socket.inode));
    }
    Ok(sockets.iter().map(|socket| reached_at(socket.address)).collect())
}

/// Returns the address at which a socket that is bound to `bound` is reached.
fn reached_at(bound: IpAddr) -> IpAddr {
    match bound {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V4(_) | IpAddr::V6(_) => bound,
    }
}

/// Returns the sockets that listen on the network that the box sees.
fn all() -> Result<Vec<Socket>> {
    let mut sockets = Vec::new();
    for path in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let file = match File::open(path) {
            Ok(file) => file,
            // A kernel without IPv6.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(internal(format!("{path}: {error}"))),
        };
        // A line that cannot be read is one that the kernel could not write.
        let lines = BufReader::new(file).lines().map_while(std::io::Result::ok);
        sockets.extend(lines.filter_map(|line| parse(&line)).take(PORTS_MAX - sockets.len()));
    }
    Ok(sockets)
}

/// Parses a line of a socket that listens: number, local and remote address, state, …, inode.
fn parse(line: &str) -> Option<Socket> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (address, port) = fields.next()?.split_once(':')?;
    if fields.nth(1)? != LISTEN {
        return None;
    }
    let inode = fields.nth(5)?.parse().ok()?;
    Some(Socket { address: parse_address(address)?, port: u16::from_str_radix(port, 16).ok()?, inode })
}

/// Parses an address: words of 32 bits in hexadecimal, each in the order of this machine.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
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
    fn a_line_of_a_listening_socket_is_read_and_others_are_not() {
        let line =
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0 100";
        let socket = Socket { address: Ipv4Addr::LOCALHOST.into(), port: 8080, inode: 4242 };
        assert_eq!(parse(line), Some(socket));
        assert_eq!(parse(&line.replace(" 0A ", " 01 ")), None);
        let heading =
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        assert_eq!(parse(heading), None);
        for broken in ["", "0:", "0: 0100007F", "0: 0100007F:XX 0:0 0A a b c d e 1", "0: 01:50 0:0 0A a b c d e 1"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn addresses_are_read_in_the_order_of_the_machine() {
        let v6 = |text: &str| parse_address(text).map(|address| address.to_string());
        assert_eq!(parse_address("00000000"), Some(Ipv4Addr::UNSPECIFIED.into()));
        assert_eq!(v6("00000000000000000000000001000000").as_deref(), Some("::1"));
        assert_eq!(v6("00000000000000000000000000000000").as_deref(), Some("::"));
        assert_eq!(v6("B80D01200000000000000000EFBEADDE").as_deref(), Some("2001:db8::dead:beef"));
        // An address of IPv4 on a socket of IPv6.
        assert_eq!(v6("0000000000000000FFFF00000100007F").as_deref(), Some("127.0.0.1"));
    }

    #[test]
    fn a_socket_on_all_addresses_is_reached_on_loopback() {
        for (bound, at) in [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.7", "10.0.0.7"), ("::1", "::1")] {
            assert_eq!(reached_at(bound.parse().unwrap()), at.parse::<IpAddr>().unwrap());
        }
    }
}
