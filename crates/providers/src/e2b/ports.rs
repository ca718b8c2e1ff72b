//! TCP ports that processes of a sandbox listen on, as its kernel lists them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use guest_protocol::PORTS_MAX;

use super::files;
use super::guest::E2bGuest;
use crate::{ListeningPort, Result};

/// Largest table of sockets that is read, in bytes.
const TABLE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Ports of the service itself in a sandbox: of the cloud, and of the agent of another Tidebox.
pub(super) const OF_SERVICE: [u16; 2] = [super::envd::PORT, 7424];
/// State of a socket that listens.
const LISTENS: &str = "0A";

/// Lists the ports; see [`crate::Guest::ports`].
pub(super) async fn list(guest: &E2bGuest) -> Result<Vec<ListeningPort>> {
    let mut ports = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = files::small(guest, table, TABLE_BYTES_MAX).await?;
        ports.extend(listening(&String::from_utf8_lossy(&text)));
    }
    ports.sort_by_key(|(port, address)| (*port, *address));
    ports.dedup();
    ports.truncate(PORTS_MAX);
    let listed = ports.into_iter().map(|(port, address)| ListeningPort { port, address, pid: None, process: None });
    Ok(listed.collect())
}

/// Reads the sockets that listen from a table of the kernel. The service's own are none of the sandbox's.
fn listening(table: &str) -> Vec<(u16, IpAddr)> {
    let rows = table.lines().skip(1).filter_map(|row| {
        let mut fields = row.split_whitespace().skip(1);
        let (local, _, state) = (fields.next()?, fields.next()?, fields.next()?);
        let (address, port) = local.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (state == LISTENS && !OF_SERVICE.contains(&port)).then_some((port, address_of(address)?))
    });
    rows.collect()
}

/// Reads an address, which the kernel writes as words in the order of bytes of the machine: a little-endian one.
fn address_of(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(8 * at..8 * at + 8)?, 16).ok().map(u32::swap_bytes);
    match text.len() {
        8 => Some(Ipv4Addr::from_bits(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bits = words.iter().fold(0_u128, |bits, word| bits << 32 | u128::from(*word));
            let address = Ipv6Addr::from_bits(bits);
            Some(address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4))
        }
        _ => None,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn sockets_that_listen_are_read_from_the_tables_of_the_kernel() {
        let v4 = "  sl  local_address rem_address   st tx_queue\n\
            \u{20}  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1\n\
            \u{20}  1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1\n\
            \u{20}  2: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000 0 0 1 1\n\
            \u{20}  3: 00000000:C33F 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1\n\
            nonsense\n";
        let read = |table| listening(table).iter().map(|(port, at)| format!("{port} {at}")).collect::<Vec<_>>();
        assert_eq!(read(v4), ["8080 127.0.0.1", "80 0.0.0.0"]);
        let v6 = "  sl  local_address                         remote_address                        st\n\
            \u{20}  0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 0\n\
            \u{20}  1: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0\n\
            \u{20}  2: 0000000000000000FFFF00000100007F:0017 00000000000000000000000000000000:0000 0A 0\n";
        assert_eq!(read(v6), ["8080 ::1", "22 ::", "23 127.0.0.1"]);
        assert!(read("").is_empty());
    }
}
