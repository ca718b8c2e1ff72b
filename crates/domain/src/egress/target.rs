//! Targets of connections, as policies name them: hosts, names with a wildcard, networks.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::address::{embedded, untranslated};

/// Longest name of a host, in bytes: the bound of DNS.
const NAME_BYTES_MAX: usize = 253;
/// Longest part of a name, in bytes.
const LABEL_BYTES_MAX: usize = 63;

/// Bits before the address of IPv4 in a translator's form of it.
const TRANSLATOR_BITS: u8 = 96;

/// A host that a connection is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name in lower case, without a dot at its end.
    Name(String),
    /// An address.
    Address(IpAddr),
}

/// Fault of the text of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// It is empty, or a part of it is.
    #[error("is not a host name; write one such as example.com, or an address")]
    Empty,
    /// It is longer than DNS allows.
    #[error("is too long; a name has at most 253 characters, and 63 between two dots")]
    Long,
    /// It has a character that no name has.
    #[error("has a character that host names cannot have; write names in other scripts as xn--…")]
    Character,
    /// It is a number, which some resolvers take for an address.
    #[error("looks like an address but is not one; write an IPv4 address as four decimal numbers")]
    Number,
    /// An address with a zone.
    #[error("names a network interface; write the address without %…")]
    Zone,
}

impl Host {
    /// Parses a name or an address, the latter of IPv6 with or without brackets.
    ///
    /// # Errors
    /// The fault of the text.
    pub fn parse(text: &str) -> Result<Host, HostError> {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        if text.contains('%') {
            return Err(HostError::Zone);
        }
        if let Some(inner) = inner {
            let address = inner.parse::<Ipv6Addr>().map_err(|_| HostError::Character)?;
            return Ok(Host::Address(IpAddr::V6(address).to_canonical()));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Host::Address(address.to_canonical()));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        check_name(&name)?;
        Ok(Host::Name(name))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Host::Address(address) => address.fmt(f),
        }
    }
}

fn check_name(name: &str) -> Result<(), HostError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(HostError::Long);
    }
    for label in name.split('.') {
        match label.len() {
            0 => return Err(HostError::Empty),
            1..=LABEL_BYTES_MAX => {}
            _ => return Err(HostError::Long),
        }
        if !label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
            return Err(HostError::Character);
        }
    }
    // `inet_aton(3)` takes 2130706433, 0x7f.1 and 0177.1 for addresses; the last part decides.
    let last = name.rsplit('.').next().unwrap_or(name);
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if is_number { Err(HostError::Number) } else { Ok(()) }
}

/// Addresses with a common beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    /// Number of bits that are common.
    bits: u8,
}

impl Network {
    /// Returns whether the address is one of them, or a translator's form of one.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.holds(untranslated(address)) || self.holds(address)
    }

    /// Returns whether the address is one of them, or has one of them in it in any way. An address that only holds
    /// another may still be that of another host: this is for what refuses, and not for what allows.
    #[must_use]
    pub fn touches(&self, address: IpAddr) -> bool {
        self.contains(address) || embedded(address).any(|inner| self.holds(inner.into()))
    }

    fn holds(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let shift = 32 - u32::from(self.bits);
                u64::from(own.to_bits()) >> shift == u64::from(other.to_bits()) >> shift
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                own.to_bits().checked_shr(128 - u32::from(self.bits)).unwrap_or(0)
                    == other.to_bits().checked_shr(128 - u32::from(self.bits)).unwrap_or(0)
            }
            _ => false,
        }
    }

    fn parse(text: &str) -> Option<Network> {
        let (address, bits) = text.split_once('/')?;
        let address: IpAddr = address.trim_matches(['[', ']']).parse().ok()?;
        let bits = Some(bits).filter(|bits| bits.bytes().all(|byte| byte.is_ascii_digit()))?;
        let bits = bits.parse().ok().filter(|bits| *bits <= if address.is_ipv4() { 32 } else { 128 })?;
        Some(Network { address, bits }.untranslated())
    }

    /// Returns the network of IPv4 that this one of IPv6 is a translator's form of, or itself.
    fn untranslated(self) -> Network {
        match (untranslated(self.address), self.bits.checked_sub(TRANSLATOR_BITS)) {
            (address @ IpAddr::V4(_), Some(bits)) if self.address.is_ipv6() => Network { address, bits },
            _ => self,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Network { address, bits } = self;
        match address {
            IpAddr::V4(address) if *bits == 32 => write!(f, "{address}"),
            IpAddr::V6(address) if *bits == 128 => write!(f, "[{address}]"),
            IpAddr::V4(address) => write!(f, "{address}/{bits}"),
            IpAddr::V6(address) => write!(f, "{address}/{bits}"),
        }
    }
}

/// Hosts of a target.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Hosts {
    Name(String),
    /// All names below this one, at any depth, and not the name itself.
    Below(String),
    Network(Network),
}

/// An entry of a policy, such as `pypi.org:443`, `*.example.net` or `10.0.0.0/8:5432`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    hosts: Hosts,
    /// `None` for every port.
    port: Option<u16>,
}

/// Fault of the text of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The host is at fault.
    #[error("{0}")]
    Host(#[from] HostError),
    /// The port is at fault.
    #[error("has an invalid port; write one from 1 to 65535, as in example.com:443")]
    Port,
    /// The network is at fault.
    #[error("is not a network; write one such as 10.0.0.0/8")]
    Network,
    /// A wildcard stands where none may.
    #[error("has a wildcard that is too wide or in the wrong place; write *.example.com, with at least two parts")]
    Wildcard,
}

impl Target {
    /// Parses `host`, `*.name`, `network`, each with or without `:port`.
    ///
    /// # Errors
    /// The fault of the text.
    pub fn parse(text: &str) -> Result<Target, TargetError> {
        let (hosts, port) = split_port(text)?;
        let hosts = if hosts.contains('/') {
            Hosts::Network(Network::parse(hosts).ok_or(TargetError::Network)?)
        } else if let Some(parent) = hosts.strip_prefix("*.") {
            match Host::parse(parent)? {
                Host::Name(name) if name.contains('.') => Hosts::Below(name),
                Host::Name(_) | Host::Address(_) => return Err(TargetError::Wildcard),
            }
        } else if hosts.contains('*') {
            return Err(TargetError::Wildcard);
        } else {
            match Host::parse(hosts)? {
                Host::Name(name) => Hosts::Name(name),
                Host::Address(address) => {
                    let bits = if address.is_ipv4() { 32 } else { 128 };
                    Hosts::Network(Network { address, bits }.untranslated())
                }
            }
        };
        Ok(Target { hosts, port })
    }

    /// Returns the port; `None` for every one.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Returns the target at this port, unless it names one.
    #[must_use]
    pub fn or_port(self, port: u16) -> Target {
        Target { port: self.port.or(Some(port)), ..self }
    }

    /// Returns whether it has addresses and not names.
    #[must_use]
    pub fn is_network(&self) -> bool {
        matches!(self.hosts, Hosts::Network(_))
    }

    fn has_port(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }

    fn network(&self) -> Option<&Network> {
        match &self.hosts {
            Hosts::Network(network) => Some(network),
            Hosts::Name(_) | Hosts::Below(_) => None,
        }
    }

    /// Returns whether it is a network that [contains](Network::contains) the address.
    fn contains(&self, address: IpAddr) -> bool {
        self.network().is_some_and(|network| network.contains(address))
    }

    /// Returns whether it is a network that [touches](Network::touches) the address.
    fn touches(&self, address: IpAddr) -> bool {
        self.network().is_some_and(|network| network.touches(address))
    }
}

impl fmt::Display for Target {
    /// Writes what [`Target::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            Hosts::Name(name) => f.write_str(name)?,
            Hosts::Below(parent) => write!(f, "*.{parent}")?,
            Hosts::Network(network) => network.fmt(f)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Splits `:port` off. An address of IPv6 with a port has brackets.
fn split_port(text: &str) -> Result<(&str, Option<u16>), TargetError> {
    let end_of_address = text.rfind([']', '/']).map_or(0, |at| at + 1);
    let after = &text[end_of_address..];
    let Some(at) = after.rfind(':') else { return Ok((text, None)) };
    if end_of_address == 0 && after.matches(':').count() > 1 {
        return Ok((text, None));
    }
    let digits = &after[at + 1..];
    let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let port = digits.parse().ok().filter(|port| *port > 0 && is_plain).ok_or(TargetError::Port)?;
    Ok((&text[..end_of_address + at], Some(port)))
}

/// A list of targets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Targets(Vec<Target>);

impl FromIterator<Target> for Targets {
    fn from_iter<I: IntoIterator<Item = Target>>(targets: I) -> Targets {
        Targets(targets.into_iter().collect())
    }
}

impl Targets {
    /// Returns whether a host is among them, by its name or as an address.
    #[must_use]
    pub fn has_host(&self, host: &Host, port: u16) -> bool {
        match host {
            Host::Address(address) => self.has_address(*address, port),
            Host::Name(name) => self.0.iter().any(|target| {
                let is_name = match &target.hosts {
                    Hosts::Name(own) => own == name,
                    Hosts::Below(parent) => {
                        name.strip_suffix(parent.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
                    }
                    Hosts::Network(_) => false,
                };
                is_name && target.has_port(port)
            }),
        }
    }

    /// Returns whether an address is in one of their networks.
    #[must_use]
    pub fn has_address(&self, address: IpAddr, port: u16) -> bool {
        self.0.iter().any(|target| target.has_port(port) && target.contains(address))
    }

    /// Returns whether a host is among them, or an address holds one of their addresses in any way: see
    /// [`Network::touches`].
    #[must_use]
    pub fn touch_host(&self, host: &Host, port: u16) -> bool {
        match host {
            Host::Address(address) => self.touch_address(*address, port),
            Host::Name(_) => self.has_host(host, port),
        }
    }

    /// Returns whether an address is in one of their networks, or holds one of their addresses in any way.
    #[must_use]
    pub fn touch_address(&self, address: IpAddr, port: u16) -> bool {
        self.0.iter().any(|target| target.has_port(port) && target.touches(address))
    }

    /// Returns whether they name hosts at this port, and not only addresses.
    #[must_use]
    pub fn has_names(&self, port: u16) -> bool {
        self.0.iter().any(|target| target.has_port(port) && !target.is_network())
    }

    /// Returns whether an address is in one of those networks that name this very port.
    #[must_use]
    pub fn names_port(&self, address: IpAddr, port: u16) -> bool {
        self.0.iter().any(|target| target.port == Some(port) && target.contains(address))
    }

    /// Returns whether any network is among them that may be reached at this port.
    #[must_use]
    pub fn has_network(&self, port: u16) -> bool {
        self.0.iter().any(|target| target.has_port(port) && target.is_network())
    }
}
