//! The host in an authority, such as that of a `Host` or an `Origin`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Host of an authority.
pub(super) enum Named {
    Address(IpAddr),
    /// Name in lower case, without the root's dot.
    Name(String),
}

/// Parses an authority strictly, since a lenient reader could find another host in it. It has
/// no user before the host, no zone in an address, nothing between a bracket and the port, and
/// the port is a number.
pub(super) fn named(authority: &str) -> Option<Named> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            (Named::Address(address.parse::<Ipv6Addr>().ok()?.into()), port)
        }
        None => {
            let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            (named_without_brackets(host)?, port)
        }
    };
    // Digits only: `parse` would accept a sign.
    let is_port = port
        .strip_prefix(':')
        .is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok());
    (port.is_empty() || is_port).then_some(host)
}

fn named_without_brackets(host: &str) -> Option<Named> {
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Some(Named::Address(address.into()));
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    name.split('.').all(is_label).then(|| Named::Name(name.to_ascii_lowercase()))
}

fn is_label(label: &str) -> bool {
    !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}
