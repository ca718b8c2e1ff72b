//! Decisions on a host, and on each of its addresses.

use std::fmt;
use std::net::IpAddr;

use super::address::{SpecialAddress, special};
use super::mode::EgressMode;
use super::target::{Host, Targets};

/// A policy whose lists were looked up, to decide by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EgressRules {
    /// Connections that are let through.
    pub mode: EgressMode,
    /// Targets that [`EgressMode::AllowList`] lets through.
    pub allow: Targets,
    /// Targets that no mode lets through; stronger than `allow`.
    pub deny: Targets,
}

impl EgressRules {
    /// Returns whether `deny` has the address, or the host that was asked for, if one is known.
    fn denies(&self, host: Option<&Host>, address: IpAddr, port: u16) -> bool {
        self.deny.touch_address(address, port) || host.is_some_and(|host| self.deny.touch_host(host, port))
    }

    /// Returns whether `allow` has the address, or the host that was asked for, if one is known.
    fn names(&self, host: Option<&Host>, address: IpAddr, port: u16) -> bool {
        self.allow.has_address(address, port) || host.is_some_and(|host| self.allow.has_host(host, port))
    }
}

/// An address that is about to be dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialled {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// True if the address is one of this host.
    pub is_own: bool,
    /// True if the server itself listens on the port.
    pub is_server_port: bool,
}

/// Reason why a connection is not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EgressDenial {
    /// A policy that lets nothing through.
    NoNetwork,
    /// A policy denies the target.
    Denied,
    /// A policy with an allow list does not have the target.
    NotAllowed,
    /// The address is not one of the public internet, and the operator has not named it.
    Special(SpecialAddress),
}

impl fmt::Display for EgressDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EgressDenial::NoNetwork => f.write_str("the egress policy is `none`; set another for the sandbox"),
            EgressDenial::Denied => f.write_str("the egress policy denies it"),
            EgressDenial::NotAllowed => f.write_str("the egress policy does not allow it; add it to `egress.allow`"),
            EgressDenial::Special(kind) => {
                write!(f, "the address is {kind}; only the operator can allow it, in `egress.internal`")
            }
        }
    }
}

/// Decides on a host before its name is resolved. A refusal holds for every address that the name
/// may have. `rules` are all that apply; none at all refuses.
///
/// # Errors
/// The reason of the first rules that refuse.
pub fn decide_host(rules: &[&EgressRules], host: &Host, port: u16) -> Result<(), EgressDenial> {
    if let Host::Address(address) = host {
        // Decided in full once it is dialled; here only on what the policies say.
        return rules_allow(rules, None, *address, port);
    }
    if rules.is_empty() {
        return Err(EgressDenial::NoNetwork);
    }
    rules.iter().try_for_each(|rules| match rules.mode {
        EgressMode::None => Err(EgressDenial::NoNetwork),
        _ if rules.deny.touch_host(host, port) => Err(EgressDenial::Denied),
        EgressMode::Open => Ok(()),
        // A network may have the address of the name.
        EgressMode::AllowList if rules.allow.has_host(host, port) || rules.allow.has_network(port) => Ok(()),
        EgressMode::AllowList => Err(EgressDenial::NotAllowed),
    })
}

/// Decides on the address that is about to be dialled. `host` is the one that was asked for, and
/// `internal` are the special addresses that the operator lets through. A port of the server itself
/// has to be among them by its number.
///
/// # Errors
/// The reason of the first rules that refuse, or the kind of a special address.
pub fn decide_address(
    rules: &[&EgressRules],
    internal: &Targets,
    host: &Host,
    dialled: Dialled,
) -> Result<(), EgressDenial> {
    let Dialled { address, port, is_own, is_server_port } = dialled;
    rules_allow(rules, Some(host), address, port)?;
    let kind = special(address).or(is_own.then_some(SpecialAddress::Own));
    match kind {
        Some(_) if is_own && is_server_port && !internal.names_port(address, port) => {
            Err(EgressDenial::Special(SpecialAddress::Server))
        }
        Some(kind) if !internal.has_address(address, port) => Err(EgressDenial::Special(kind)),
        _ => Ok(()),
    }
}

fn rules_allow(rules: &[&EgressRules], host: Option<&Host>, address: IpAddr, port: u16) -> Result<(), EgressDenial> {
    if rules.is_empty() {
        return Err(EgressDenial::NoNetwork);
    }
    rules.iter().try_for_each(|rules| match rules.mode {
        EgressMode::None => Err(EgressDenial::NoNetwork),
        _ if rules.denies(host, address, port) => Err(EgressDenial::Denied),
        EgressMode::AllowList if !rules.names(host, address, port) => Err(EgressDenial::NotAllowed),
        EgressMode::AllowList | EgressMode::Open => Ok(()),
    })
}
