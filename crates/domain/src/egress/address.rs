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
            SpecialAddress::Own => "one of the host's own",
            SpecialAddress::Server => "that of the server itself",
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
    let embedded = |high: u16, low: u16| {
        let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
        special_v4(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(SpecialAddress::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(SpecialAddress::Loopback),
        // Translation to IPv4.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x64, 0xff9b, 1, ..] => Some(SpecialAddress::Private),
        // 6to4.
        [0x2002, high, low, ..] => embedded(high, low),
        [0xfe80..=0xfebf, ..] => Some(SpecialAddress::LinkLocal),
        // Unique local, and the older site-local.
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] => Some(SpecialAddress::Private),
        [0xff00..=0xffff, ..] => Some(SpecialAddress::Multicast),
        // Only 2000::/3 is assigned to the internet; within it protocols such as Teredo and
        // documentation are set apart.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(SpecialAddress::Reserved),
        [0x2000..=0x3fff, ..] => None,
        _ => Some(SpecialAddress::Reserved),
    }
}
