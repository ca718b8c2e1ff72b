//! The client address of a request, as far as it can be trusted.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use axum::http::HeaderMap;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Header to which every proxy on the way adds the address of its own peer.
const FORWARDED_FOR: &str = "x-forwarded-for";
/// Header in which a proxy says how its client speaks to it.
const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// Bits before the IPv4 address in an IPv4-mapped IPv6 address.
const IPV4_MAPPED_BITS: u8 = 96;

/// Prefix length of the network in which an IPv6 client can choose its address freely.
const IPV6_NETWORK_BITS: u32 = 64;

/// Returns the address by which a caller is counted: for IPv6 its /64 network.
pub fn caller(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = address.to_bits() & (u128::MAX << (Ipv6Addr::BITS - IPV6_NETWORK_BITS));
            Ipv6Addr::from_bits(network).into()
        }
    }
}

/// Client of a request, as far as its address is known; an extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Address of the client, IPv4 in its own form; `None` on the Unix socket.
    pub address: Option<IpAddr>,
    /// True if the request came over the Unix socket, which only the server's own user and root
    /// can reach.
    pub via_unix: bool,
    /// True if the client speaks TLS, with this server or with a trusted proxy.
    pub is_secure: bool,
}

/// Proxies whose `X-Forwarded-For` is trusted.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// Trusts the addresses in these networks.
    #[must_use]
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self(networks.into_iter().map(canonical).collect())
    }

    /// Returns whether `address` is that of a trusted proxy.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Returns the client behind a connection from `connected` (`None`: over the Unix socket), which
    /// is one over TLS if `is_tls`.
    pub(super) fn caller(&self, connected: Option<IpAddr>, is_tls: bool, headers: &HeaderMap) -> Peer {
        let address = connected.map(|address| self.behind(address.to_canonical(), headers));
        // Only the server's own user can stand at the other end of the Unix socket.
        let is_believed = connected.is_none_or(|address| self.contains(address));
        let told = headers.get_all(FORWARDED_PROTO).iter().next_back().filter(|_| is_believed);
        let is_secure = is_tls || told.is_some_and(|scheme| scheme.as_bytes().eq_ignore_ascii_case(b"https"));
        Peer { address, via_unix: connected.is_none(), is_secure }
    }

    /// Walks the chain of proxies from this server towards the client, as long as the current
    /// address is trusted. Entries further left were written by untrusted peers.
    fn behind(&self, connected: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut believed = connected;
        let lines = headers.get_all(FORWARDED_FOR).iter().rev();
        let mut told = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
        while self.contains(believed) {
            match told.next().and_then(address) {
                Some(next) => believed = next,
                // No entry, or a malformed one: the proxy itself is the client.
                None => break,
            }
        }
        believed
    }
}

/// Converts a network of IPv4-mapped IPv6 to IPv4, the form in which addresses are compared.
fn canonical(network: IpNet) -> IpNet {
    match network {
        IpNet::V6(v6) => mapped(v6).map_or(network, IpNet::V4),
        IpNet::V4(_) => network,
    }
}

/// Returns the network of IPv4 that one of IPv4-mapped IPv6 stands for; `None` for any other.
fn mapped(network: Ipv6Net) -> Option<Ipv4Net> {
    let bits = network.prefix_len().checked_sub(IPV4_MAPPED_BITS)?;
    Ipv4Net::new(network.network().to_ipv4_mapped()?, bits).ok()
}

/// Parses one entry of the header: an address, with or without a port.
fn address(entry: &[u8]) -> Option<IpAddr> {
    let entry = std::str::from_utf8(entry).ok()?.trim();
    let bare = entry.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(entry);
    let parsed = bare.parse().or_else(|_| entry.parse::<SocketAddr>().map(|address| address.ip()));
    parsed.ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod test {
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn trusted() -> TrustedProxies {
        TrustedProxies::new(["10.0.0.0/8", "fd00::/8", "192.0.2.1/32"].map(|network| network.parse().unwrap()).to_vec())
    }

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED_FOR, HeaderValue::from_str(line).unwrap());
        }
        headers
    }

    #[track_caller]
    fn check(connected: &str, lines: &[&str], expected: &str) {
        let peer = trusted().caller(Some(connected.parse().unwrap()), false, &headers(lines));
        assert_eq!(peer.address, Some(expected.parse().unwrap()), "{connected} {lines:?}");
        assert!(!peer.via_unix);
    }

    #[test]
    fn a_stranger_is_not_believed() {
        check("203.0.113.9", &["198.51.100.1"], "203.0.113.9");
        check("::1", &["198.51.100.1"], "::1");
        // A neighbour of a single trusted address is not trusted.
        check("192.0.2.2", &["198.51.100.1"], "192.0.2.2");
    }

    #[test]
    fn a_trusted_proxy_is_believed_up_to_the_first_stranger() {
        check("10.1.2.3", &["198.51.100.1"], "198.51.100.1");
        check("10.1.2.3", &["6.6.6.6, 198.51.100.1"], "198.51.100.1");
        check("10.1.2.3", &["6.6.6.6, 198.51.100.1, 10.9.9.9"], "198.51.100.1");
        check("10.1.2.3", &["6.6.6.6", "198.51.100.1", "fd00::7"], "198.51.100.1");
        check("10.1.2.3", &["10.0.0.7"], "10.0.0.7");
        check("10.1.2.3", &[], "10.1.2.3");
    }

    #[test]
    fn what_is_no_address_ends_the_chain() {
        for nonsense in ["", "unknown", "6.6.6.6, ", "6.6.6.6, _hidden", "6.6.6.6, 300.1.1.1", "6.6.6.6, 1.2.3.4.5"] {
            check("10.1.2.3", &[nonsense], "10.1.2.3");
        }
        let raw = HeaderMap::from_iter([(
            axum::http::HeaderName::from_static(FORWARDED_FOR),
            HeaderValue::from_bytes(b"1.2.3.4\xff").unwrap(),
        )]);
        let peer = trusted().caller(Some("10.1.2.3".parse().unwrap()), false, &raw);
        assert_eq!(peer.address, Some("10.1.2.3".parse().unwrap()));
    }

    #[test]
    fn every_way_to_write_an_address_is_read() {
        check("10.1.2.3", &[" 198.51.100.1:443 "], "198.51.100.1");
        check("10.1.2.3", &["2001:db8::1"], "2001:db8::1");
        check("10.1.2.3", &["[2001:db8::1]"], "2001:db8::1");
        check("10.1.2.3", &["[2001:db8::1]:443"], "2001:db8::1");
        check("10.1.2.3", &["::ffff:198.51.100.1"], "198.51.100.1");
        check("::ffff:10.1.2.3", &["198.51.100.1"], "198.51.100.1");
        check("::ffff:203.0.113.9", &["198.51.100.1"], "203.0.113.9");
    }

    #[test]
    fn a_network_of_ipv4_may_be_written_as_ipv6() {
        let networks = ["::ffff:10.0.0.0/104", "::ffff:192.0.2.1/128"].map(|network| network.parse().unwrap());
        let proxies = TrustedProxies::new(networks.to_vec());
        for (address, expected) in
            [("10.9.9.9", true), ("::ffff:10.9.9.9", true), ("192.0.2.1", true), ("192.0.2.2", false), ("::1", false)]
        {
            assert_eq!(proxies.contains(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn the_unix_socket_has_no_address_and_believes_no_header() {
        let peer = trusted().caller(None, false, &headers(&["198.51.100.1"]));
        assert_eq!(peer, Peer { address: None, via_unix: true, is_secure: false });
    }

    proptest! {
        #[test]
        fn whatever_a_stranger_writes_its_own_address_counts(lines in proptest::collection::vec("[ -~]{0,60}", 0..4)) {
            let stranger: IpAddr = "203.0.113.9".parse().unwrap();
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            prop_assert_eq!(trusted().caller(Some(stranger), false, &headers(&lines)).address, Some(stranger));
        }

        #[test]
        fn what_a_client_forges_before_its_proxy_never_counts(
            forged in proptest::collection::vec("[ -~]{0,60}", 0..4),
            client in any::<[u8; 4]>(),
            proxies in proptest::collection::vec(any::<u16>(), 0..4),
        ) {
            let client = IpAddr::from(client);
            prop_assume!(!trusted().contains(client));
            let mut chain = forged;
            chain.push(client.to_string());
            chain.extend(proxies.iter().map(|low| IpAddr::from([10, 7, (low >> 8) as u8, *low as u8]).to_string()));
            let joined = chain.join(", ");
            let lines: Vec<&str> = chain.iter().map(String::as_str).collect();
            for headers in [headers(&[&joined]), headers(&lines)] {
                let peer = trusted().caller(Some("10.1.2.3".parse().unwrap()), false, &headers);
                prop_assert_eq!(peer.address, Some(client));
            }
        }

        #[test]
        fn the_caller_is_a_stranger_or_the_chain_ended(line in "[0-9a-f.:, ]{0,80}") {
            let connected: IpAddr = "10.1.2.3".parse().unwrap();
            let address = trusted().caller(Some(connected), false, &headers(&[&line])).address.unwrap();
            let is_told = line.split(',').any(|entry| super::address(entry.as_bytes()) == Some(address));
            prop_assert!(address == connected || is_told);
        }
    }
}
