//! Addresses that are not of the public internet.
//!
//! Sources: the registries of special-purpose addresses,
//! <https://www.iana.org/assignments/iana-ipv4-special-registry> and
//! <https://www.iana.org/assignments/iana-ipv6-special-registry>.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Kind of an address that is not of the public internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialAddress {
    /// Unspecified: this host on some systems.
    Unspecified,
    /// Loopback.
    Loopback,
    /// Link-local, which has the metadata services of clouds.
    LinkLocal,
    /// Private or shared by the customers of a provider.
    Private,
    /// Multicast or broadcast.
    Multicast,
    /// Reserved, for documentation or for measurements.
    Reserved,
    /// An address of this host.
    Own,
    /// The server itself.
    Server,
}

impl fmt::Display for SpecialAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpecialAddress::Unspecified => "unspecified",
            SpecialAddress::Loopback => "a loopback address",
            SpecialAddress::LinkLocal => "link-local",
            SpecialAddress::Private => "private",
            SpecialAddress::Multicast => "multicast",
            SpecialAddress::Reserved => "reserved",
            SpecialAddress::Own => "one of the host's own addresses",
            SpecialAddress::Server => "the server's own address",
        })
    }
}

/// Returns why an address is not of the public internet; `None` if it is. An address of IPv6 that
/// stands for one of IPv4 is that one.
#[must_use]
pub fn special(address: IpAddr) -> Option<SpecialAddress> {
    match address {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<SpecialAddress> {
    match address.octets() {
        [0, ..] => Some(SpecialAddress::Unspecified),
        [127, ..] => Some(SpecialAddress::Loopback),
        [169, 254, ..] => Some(SpecialAddress::LinkLocal),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Some(SpecialAddress::Private),
        [224..=239, ..] | [255, 255, 255, 255] => Some(SpecialAddress::Multicast),
        // Protocol assignments, documentation, relays of 6to4, measurements, future use.
        [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [240..=255, ..] => Some(SpecialAddress::Reserved),
        _ => None,
    }
}

fn special_v6(address: Ipv6Addr) -> Option<SpecialAddress> {
    if let Some(inner) = address.to_ipv4_mapped() {
        return special_v4(inner);
    }
    let own = match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(SpecialAddress::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(SpecialAddress::Loopback),
        // Translation to IPv4.
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => None,
        [0x64, 0xff9b, 1, ..] => Some(SpecialAddress::Private),
        [0xfe80..=0xfebf, ..] => Some(SpecialAddress::LinkLocal),
        // Unique local, and the older site-local.
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] => Some(SpecialAddress::Private),
        [0xff00..=0xffff, ..] => Some(SpecialAddress::Multicast),
        // Only 2000::/3 is assigned to the internet; within it protocols such as Teredo and
        // documentation are set apart.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(SpecialAddress::Reserved),
        [0x2000..=0x3fff, ..] => None,
        _ => Some(SpecialAddress::Reserved),
    };
    own.or_else(|| embedded_v6(address).into_iter().find_map(special_v4))
}

/// Returns the address in its shortest form: one of IPv6 that a translator of IPv4 answers to, by itself or in the
/// network (mapped, and the well-known prefix of NAT64, RFC 6052), is that of IPv4.
#[must_use]
pub fn untranslated(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    match v6.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => v4_at(v6, [12, 13, 14, 15]).into(),
        _ => address.to_canonical(),
    }
}

/// Returns the addresses of IPv4 in an address of IPv6, in whatever way it may hold them: what is sent to it may come
/// out at one of them.
pub fn embedded(address: IpAddr) -> impl Iterator<Item = Ipv4Addr> {
    let found = match address {
        IpAddr::V4(_) => Vec::new(),
        IpAddr::V6(address) => embedded_v6(address),
    };
    found.into_iter()
}

fn embedded_v6(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let last = v4_at(address, [12, 13, 14, 15]);
    let mut found = match address.segments() {
        // Compatible, mapped, and translated by SIIT (RFC 2765).
        [0, 0, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0, 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => vec![last],
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => vec![last],
        // NAT64 of a network of its own (RFC 8215), with a prefix of 48, 56, 64 or 96 bits (RFC 6052 §2.2).
        [0x64, 0xff9b, 1, ..] => [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12]]
            .map(|at| v4_at(address, at))
            .into_iter()
            .chain([last])
            .collect(),
        // 6to4 (RFC 3056).
        [0x2002, ..] => vec![v4_at(address, [2, 3, 4, 5])],
        // Teredo (RFC 4380): its server, and the client with all bits turned.
        [0x2001, 0, ..] => vec![v4_at(address, [4, 5, 6, 7]), Ipv4Addr::from_bits(!last.to_bits())],
        _ => Vec::new(),
    };
    // ISATAP (RFC 5214), in any network.
    if matches!(address.segments(), [_, _, _, _, 0 | 0x200, 0x5efe, _, _]) {
        found.push(last);
    }
    found
}

fn v4_at(address: Ipv6Addr, at: [usize; 4]) -> Ipv4Addr {
    let octets = address.octets();
    Ipv4Addr::from(at.map(|at| octets[at]))
}
