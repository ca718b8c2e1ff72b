//! Sockets from `/proc/net/tcp` and `/proc/net/tcp6`.
//!
//! Source: <https://www.kernel.org/doc/html/latest/networking/proc_net_tcp.html>

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{IpAddr, Ipv6Addr};

use guest_protocol::PORTS_MAX;

use super::socket::Socket;
use crate::failure::{Result, internal};

/// Number that the kernel gives the state of a socket that listens.
const LISTEN: &str = "0A";

/// Returns the sockets that listen.
pub(super) fn listening() -> Result<Vec<Socket>> {
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
    match text.len() {
        8 => Some(IpAddr::from(word(text, 0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(text, at)?);
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

fn word(text: &str, at: usize) -> Option<[u8; 4]> {
    u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes)
}

#[cfg(test)]
mod test {
    use std::net::Ipv4Addr;

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
}
